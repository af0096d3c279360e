#!/usr/bin/env bash
# cuDNN's attention in whole trainings, whole sequences and blocks of sequences cut over ranks, against fp32; what cannot be is
# refused. The emulator's cuDNN ends the program if its plans outlive it, or MPI.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=test/system/gpu_common.sh
source "$TRIREME_SOURCE/test/system/gpu_common.sh"
export TRIREME_EMULATOR_CUDNN=on
"$TRIREME" --version | grep -q "attention with cuDNN" || skip "built without cuDNN"
tiny_deck
tokens
model=(run.device=cuda model.layers=2 model.heads=4 model.kv_heads=2 model.dim=32 model.norm_position=pre
  model.max_positions=272 schedule.steps=3 checkpoint.every_steps=3 monitor.validate_every_steps=0)
windows=(data.sequence_length=272 data.stride=272)
layout() {
  sharing_for "$2"
  train "$1" "$2" "${model[@]}" "${windows[@]}" run.precision=bf16 "${@:3}" "${sharing[@]}"
  agree 1e-2 "$1" exact
}
# differ A B: the runs' weights are not the same to the bit: other kernels computed them.
differ() {
  local last=checkpoints/latest/model.safetensors
  [[ -s $1/$last && -s $2/$last ]] || fail "$1 or $2 has no checkpoint"
  ! cmp -s "$1/$last" "$2/$last" || fail "$1 and $2: the same bits"
}

train exact 1 "${model[@]}" "${windows[@]}"
layout own 1 run.attention=own
layout whole 1 run.attention=cudnn
says "kernels attention: cuDNN's where it serves"
differ whole own
ring=(grid.context=2 grid.tensor=2)
layout ring-own 4 "${ring[@]}" run.attention=own
layout ring 4 "${ring[@]}" run.attention=cudnn
says "kernels attention: cuDNN's where it serves"
differ ring ring-own
run 2 timeout 100 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=refused "${model[@]}" run.precision=bf16 grid.context=2 \
  "${sharing[@]}" run.attention=cudnn data.sequence_length=270 data.stride=270
says_once "grid.context = 2 cuts sequences of 270 into unequal blocks"
