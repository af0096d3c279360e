#!/usr/bin/env bash
# What goes wrong on GPUs is named: a gradient that is not finite, by its tensor, before the weights
# change; a rank that goes away in the middle of a transfer, instead of a hang.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=test/system/gpu_common.sh
source "$TRIREME_SOURCE/test/system/gpu_common.sh"
tiny_deck
tokens
run 1 timeout 100 "$TRIREME" -i deck.in job.output=wild run.device=cuda optimizer.learning_rate=1e30 optimizer.clip_norm=0 \
  schedule.warmup_steps=0 optimizer.kind=sgd
says "is not finite"
says "The weights were not changed"
[[ ${TRIREME_DEVICE_LABEL:-} == emulated ]] || skip "no way to make a real card's transfer fail"
run 1 timeout 100 env TRIREME_EMULATOR_NCCL_FAIL=1:5 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=gone run.device=cuda grid.data=2
says "NCCL, data group: a transfer cannot end"
