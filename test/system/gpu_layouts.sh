#!/usr/bin/env bash
# Ranks with a GPU each, and ranks that share one (gpu_common.sh, sharing_for): every kind of layout
# trains to the serial run's losses, a checkpoint of one layout continues in another, text is the
# CPU's, verify passes, and what cannot be is refused before anything is written.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=test/system/gpu_common.sh
source "$TRIREME_SOURCE/test/system/gpu_common.sh"
tiny_deck
tokens
model=(run.device=cuda model.layers=4 model.heads=4 model.kv_heads=2 model.dim=32 model.norm_position=pre
  model.tie_embeddings=yes schedule.steps=10 checkpoint.every_steps=5 monitor.validate_every_steps=0)
tolerance=1e-4 reference=serial

train serial 1 "${model[@]}"
layout() {
  local name=$1 ranks=$2
  shift 2
  sharing_for "$ranks"
  train "$name" "$ranks" "${model[@]}" "$@" "${sharing[@]}"
  agree $tolerance "$name" $reference
}
layout data 2 grid.data=2
layout all 8 grid.data=2 grid.tensor=2 grid.pipeline=2 data.micro_batch=1
layout sequence 4 grid.tensor=2 grid.data=2 grid.sequence_parallel=yes grid.sharding=optimizer
layout shards 4 grid.data=4 grid.sharding=parameters data.micro_batch=1
layout updates 2 grid.data=2 grid.sharding=optimizer run.graphs=no
agree 1e-7 updates serial # a layer that did not wait for its values is off by a part of a step
layout context 4 grid.context=2 grid.tensor=2
layout bubbles 4 grid.pipeline=4 pipeline.schedule=zero_bubble data.micro_batch=1
layout interleaved 2 grid.pipeline=2 pipeline.schedule=interleaved pipeline.chunks=2 data.micro_batch=2
# fp8: ranks agree on its scales, which tensor and pipeline ranks share, and data ranks.
if has_fp8; then
  train fp8 1 "${model[@]}" run.precision=fp8
  takes_fp8 fp8
  reference=fp8 tolerance=1e-2
  layout fp8-data 2 grid.data=2 run.precision=fp8
  layout fp8-slices 4 grid.tensor=2 grid.pipeline=2 data.micro_batch=1 run.precision=fp8
fi
# Attention on tensor cores: bf16, sequences longer than a tile, dropout on the weights; cut over ranks.
matrices=(data.sequence_length=80 data.stride=80 model.max_positions=80 model.attention_dropout=0.2)
train matrices 1 "${model[@]}" "${matrices[@]}"
reference=matrices tolerance=1e-2
layout matrices-one 1 "${matrices[@]}" run.precision=bf16
says "kernels attention: our own ("
layout matrices-all 8 "${matrices[@]}" run.precision=bf16 grid.data=2 grid.context=2 grid.tensor=2
run 2 "$TRIREME" -i deck.in job.output=refused "${model[@]}" "${matrices[@]}" run.precision=bf16 run.attention=cudnn
says "run.attention = cudnn: cuDNN cannot compute this attention"
layout matrices-own 1 "${matrices[@]}" run.precision=bf16 run.attention=own
says "kernels attention: our own (run.attention = own)"
cmp matrices-{one,own}/checkpoints/step_00000010/model.safetensors || fail "run.attention = own: other bits"
# Text from a cache of keys and values: the CPU's in fp64, to the byte, beyond the model's window.
cat >prompts.jsonl <<'JSONL'
{"prompt": "the ship", "id": 7}
{"prompt": "", "tokens": 5}
{"prompt": "the captain of the harbour of the ship", "temperature": 0}
JSONL
text=(-r serial job.task=generate run.precision=fp64 generate.tokens=12 generate.file=prompts.jsonl)
run 0 "$TRIREME" "${text[@]}" run.device=cpu generate.output=cpu.jsonl
written() { # RANKS KEY...
  sharing_for "$1"
  run 0 timeout 200 "${mpi[@]}" "$1" "$TRIREME" "${text[@]}" generate.output=gpu.jsonl "${@:2}" "${sharing[@]}"
  ! grep -F "keys and values are not kept" "$scratch/output" || fail "no cache with ${*:2}"
  cmp cpu.jsonl gpu.jsonl || fail "other texts on $1 GPUs with ${*:2}"
  rm gpu.jsonl
}
written 1 generate.batch=2
written 4 grid.tensor=2 grid.pipeline=2
written 2 grid.sharding=parameters
sharing_for 4
run 0 timeout 200 "${mpi[@]}" 4 "$TRIREME" -i deck.in -r sequence/checkpoints/step_00000005 job.output=moved \
  "${model[@]}" grid.data=2 grid.pipeline=2 data.micro_batch=1 "${sharing[@]}"
agree 1e-4 moved serial 5
run 0 timeout 280 "${mpi[@]}" 4 "$TRIREME" -i deck.in job.task=verify run.precision=bf16 "${model[@]}" grid.data=2 \
  grid.tensor=2 grid.sequence_parallel=yes grid.sharding=gradients "${sharing[@]}"
says "verified: these 4 ranks compute what one computes"

# Several groups need an NCCL that puts their launches in one order.
if [[ $TRIREME_DEVICE_LABEL == emulated ]]; then
  TRIREME_EMULATOR_NCCL_VERSION=22105 run 2 timeout 100 "${mpi[@]}" 4 "$TRIREME" -i deck.in job.output=refused "${model[@]}" \
    grid.data=2 grid.tensor=2
  says_once "2 groups of ranks with GPUs (grid), and NCCL 2.21.5: before 2.26"
  TRIREME_EMULATOR_NCCL_VERSION=22105 run 0 timeout 100 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=one_group "${model[@]}" \
    grid.tensor=2
  # Drivers before CUDA 12.3 run transfers one by one, in graphs too: messages of stages would wait for each other for ever.
  reference=serial tolerance=1e-4
  TRIREME_EMULATOR_DRIVER=12020 layout in-turn 4 grid.context=2 grid.tensor=2
  TRIREME_EMULATOR_DRIVER=12020 run 2 timeout 100 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=refused "${model[@]}" grid.pipeline=2
  says_once "stages on GPUs (grid.pipeline), and a driver for CUDA 12.2: before 12.3 NCCL"
  # An NCCL that was built with an older CUDA than the driver's does the same, and is found out by messages that cross.
  TRIREME_EMULATOR_NCCL_CUDA=12020 TRIREME_EMULATOR_PATIENCE=3000 run 2 timeout 100 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=refused "${model[@]}" grid.pipeline=2
  says_once "messages of two stages to each other did not arrive within 10 s"
  NCCL_GRAPH_MIXING_SUPPORT=0 run 2 timeout 100 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=refused "${model[@]}" grid.data=2
  says_once "NCCL_GRAPH_MIXING_SUPPORT=0 in the environment"
  says "or say run.graphs = no"
  NCCL_GRAPH_MIXING_SUPPORT=0 layout no-graphs 2 grid.data=2 run.graphs=no
  # Communicators that take more of a card than was planned: what they leave is too little for the rest.
  TRIREME_EMULATOR_MEMORY_MIB=2048 TRIREME_EMULATOR_NCCL_MEMORY_MIB=1600 run 2 timeout 100 "${mpi[@]}" 2 "$TRIREME" -i deck.in \
    job.output=refused "${model[@]}" grid.data=2
  says_once "beside NCCL 2.26.2's communicators (planned: 441 MiB per rank)"
  is_missing refused
  TRIREME_EMULATOR_MEMORY_MIB=2048 TRIREME_EMULATOR_NCCL_MEMORY_MIB=441 layout communicators 2 grid.data=2
  # So do the other tasks that make communicators; in a scaling study, a part of the ranks.
  crowded() { # RANKS KEY...
    TRIREME_EMULATOR_MEMORY_MIB=2048 TRIREME_EMULATOR_NCCL_MEMORY_MIB=1600 run 2 timeout 100 "${mpi[@]}" "$1" "$TRIREME" "${@:2}"
    says_once "beside NCCL 2.26.2's communicators (planned: 441 MiB per rank)"
  }
  crowded 2 -i deck.in "${model[@]}" grid.data=2 job.task=verify
  crowded 4 -i deck.in "${model[@]}" job.task=scaling scaling.ranks=2,4 job.output=study
  crowded 2 -r serial run.device=cuda grid.data=2 job.task=evaluate
  # Ranks that see one card each are warned, and told in the line links which way NCCL takes.
  # shellcheck disable=SC2016 # each rank's own
  run 0 timeout 100 "${mpi[@]}" 2 bash -c \
    'CUDA_VISIBLE_DEVICES=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-$PMI_RANK}} exec "$@"' - \
    "$TRIREME" -i deck.in job.output=apart "${model[@]}" grid.data=2
  says_once "warning: each rank of a node sees GPUs of its own"
  says "through the host (SHM in the line links)"
  says "links   NCCL 2.26.2; data group P2P/EMULATED"
  # What NCCL took is said, and recorded.
  NCCL_ALGO=Ring layout recorded 2 grid.data=2
  says "links   NCCL 2.26.2; data group P2P/EMULATED"
  "$python" - recorded/summary.json <<'PYTHON' || fail "summary.json does not tell how the GPUs met"
import json, sys
facts = json.load(open(sys.argv[1], encoding="utf-8"))["gpu_transfers"]
print(facts)
assert facts["library"] == "NCCL 2.26.2" and facts["NCCL_ALGO"] == "Ring"
assert facts["data group"].startswith("P2P/EMULATED; 16 channels; rings and trees ")
assert "AllReduce RING/SIMPLE" in facts["algorithms"] and "NCCL_DEBUG" not in facts
PYTHON
fi

# Two ranks on one card: refused, unless the deck says so.
export TRIREME_EMULATOR_DEVICES=1 CUDA_VISIBLE_DEVICES=0
run 2 timeout 100 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=refused "${model[@]}" grid.data=2
says_once "2 ranks of this node have 1 GPU: 2 of them would share one"
says "run.share_device = yes"
is_missing refused
train shared 2 "${model[@]}" grid.tensor=2 run.share_device=yes run.precision=bf16
agree 1e-2 shared serial
# By NCCL: from 2.30 on, unless its variable forbids it.
if [[ $TRIREME_DEVICE_LABEL == emulated ]]; then
  run 2 timeout 100 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=refused "${model[@]}" grid.data=2 run.share_device=nccl
  says_once "NCCL 2.26.2: before 2.30 ranks that share a GPU cannot meet"
  says "run.share_device = yes"
  is_missing refused
  export TRIREME_EMULATOR_NCCL_VERSION=23203
  reference=serial tolerance=1e-4
  layout by-nccl 4 grid.data=2 grid.tensor=2 run.share_device=nccl
  layout by-nccl-stages 2 grid.pipeline=2 data.micro_batch=1 run.share_device=nccl
  NCCL_MULTI_RANK_GPU_ENABLE=0 run 2 timeout 100 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=refused "${model[@]}" \
    grid.data=2 run.share_device=nccl
  says_once "NCCL_MULTI_RANK_GPU_ENABLE=0 in the environment forbids it"
fi
run 2 "$TRIREME" -i deck.in job.output=refused "${model[@]}" run.canonical=1x1
says_once "is arithmetic of the CPU: GPUs have none"
run 2 "$TRIREME" -i deck.in job.output=refused run.device=cuda model.dim=65536 model.heads=512 model.ffn=262144
says "nothing was allocated"
says "of this GPU plans"
is_missing refused
