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

# Documents, of which some windows have more than cuDNN is given: by both passes of cuDNN 9.25, and by its forward pass alone.
"$python" - <<'PYTHON'
import h5py
import numpy

with h5py.File("harbour.h5", "r+") as file:
    for split in ("train", "valid"):
        size, step = file[split]["tokens"].size, 0
        begins = [0]
        while begins[-1] + 8 < size:
            step = step + 1 if step < 19 else 0
            begins.append(begins[-1] + 8 + step * step % 211)
        file[split]["documents"] = numpy.array([begin for begin in begins if begin < size], dtype=numpy.uint64)
PYTHON
windows+=(data.document_mask=yes)
train exact-documents 1 "${model[@]}" "${windows[@]}"
documents() {
  TRIREME_EMULATOR_CUDNN=$1 train "$2" 1 "${model[@]}" "${windows[@]}" run.precision=bf16 "${@:3}"
  agree 1e-2 "$2" exact-documents
}
documents on documents-own run.attention=own
documents on,92500 documents run.attention=cudnn
says "kernels attention: cuDNN's by document where it serves"
differ documents documents-own
documents on,92500 documents-eager run.attention=cudnn run.graphs=no
cmp {documents,documents-eager}/checkpoints/latest/model.safetensors || fail "a recorded graph changes the bits"

# The emulator's cuDNN does as it is told.
[[ ${TRIREME_DEVICE_LABEL:-} == emulated ]] || exit 0
documents on,no_backward documents-forward
says_once "warning: attention backward: our own kernels, not cuDNN's, because within documents"
differ documents-forward documents

# Sums in no fixed order, where that is allowed.
for name in unordered unordered-too; do
  documents on $name run.deterministic=no
  says "its gradients in no fixed order (run.deterministic = no)"
done
differ unordered unordered-too

# Blackwell's cuDNN without a fixed order is refused where it would be used.
export TRIREME_EMULATOR_CAPABILITY=10
blackwell=("$TRIREME" -i deck.in "${model[@]}" run.precision=bf16 data.sequence_length=272 data.stride=272)
run 2 "${blackwell[@]}" job.output=refused
says_once "cuDNN 9.14.0 has no deterministic backward pass of attention for compute capability 10.0; it has one since 9.18.1"
run 0 "${blackwell[@]}" job.output=blackwell-own run.attention=own
run 0 "${blackwell[@]}" job.output=blackwell-unordered run.deterministic=no
TRIREME_EMULATOR_CUDNN=on,91801 run 0 "${blackwell[@]}" job.output=blackwell
