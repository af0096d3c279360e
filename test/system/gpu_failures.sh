#!/usr/bin/env bash
# Failures on GPUs are named: a gradient that is not finite, by its tensor, before the weights
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

# dies SIGNAL WORDS: rank 1 of a run through NCCL is killed or stopped from outside at its 20th step.
dies() {
  local began code=0 victim signal=$1 words=$2
  rm -rf "$signal"
  timeout 120 "${mpi[@]}" 2 "$TRIREME" -i deck.in "job.output=$signal" run.device=cuda grid.data=2 schedule.steps=100000 \
    checkpoint.every_steps=0 monitor.validate_every_steps=0 run.hang_timeout=6 "${sharing[@]}" >output 2>&1 &
  local launcher=$!
  for ((i = 0; i < 600; ++i)); do
    grep -q '"step": *20,' "$signal/metrics.jsonl" 2>/dev/null && break
    sleep 0.1
  done
  victim=$(pgrep -f "job.output=$signal" | while read -r process; do
    ! tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx 'OMPI_COMM_WORLD_RANK=1' || echo "$process"
  done | head -n 1)
  [[ -n $victim ]] || fail "$signal: no rank 1 to be found"
  kill "-$signal" "$victim"
  began=$SECONDS
  wait "$launcher" || code=$?
  kill -KILL "$victim" 2>/dev/null || true
  ((code != 0 && code != 124)) || fail "$signal: exit code $code"
  ((SECONDS - began < 40)) || fail "$signal: the verdict took $((SECONDS - began)) s"
  echo "$signal: code $code after $((SECONDS - began)) s"
  says "$words"
}
if [[ ${TRIREME_DEVICE_LABEL:-} != emulated ]]; then
  sharing_for 2
  [[ ${sharing[*]} != *=yes ]] || skip "one card, and its NCCL lets no ranks share it: no transfer can fail"
  dies STOP "it is stopped"
  dies KILL ""
  exit 0
fi
run 1 timeout 100 env TRIREME_EMULATOR_NCCL_FAIL=1:5 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=gone run.device=cuda grid.data=2
says "NCCL, data group: a transfer cannot end"
# In the rehearsal, in which products are timed behind sums of the tensor ranks.
began=$SECONDS
run 1 timeout 100 env TRIREME_EMULATOR_NCCL_FAIL=1:4 XDG_CACHE_HOME="$scratch/unknown" "${mpi[@]}" 2 "$TRIREME" -i deck.in job.output=rehearsal \
  run.device=cuda grid.tensor=2
says "NCCL, tensor group: a transfer cannot end"
((SECONDS - began < 40)) || fail "a rank lost in the rehearsal was found after $((SECONDS - began)) s"

# lost HOW PATTERN: rank 1 is lost in the middle of a run and NCCL says nothing. The watchdogs do.
lost() {
  local began=$SECONDS code=0
  timeout 100 env "TRIREME_EMULATOR_NCCL_FAIL=1:25:$1" "${mpi[@]}" 2 "$TRIREME" -i deck.in "job.output=$1" run.device=cuda \
    grid.data=2 schedule.steps=1000 checkpoint.every_steps=0 run.hang_timeout=6 >output 2>&1 || code=$?
  ((code != 0 && code != 124)) || fail "exit code $code"
  ((SECONDS - began < 60)) || fail "it took $((SECONDS - began)) s"
  says_once "trireme: error: "
  says "$2"
  exists "$1"/hang/*/node_0.json
}
lost stopped "it is stopped"
grep -qE "^  rank 1 on .* step [0-9]+" output || fail "rank 1 is not named"
lost killed "it is gone"
grep -qE "^  rank 1 on .* step [0-9]+" output || fail "rank 1 is not named"
# Both processes live and wait for their cards: no process is to blame.
lost silent "Nobody is missing: the network, MPI or a device holds the transfer up."
says "the wait for its device"
