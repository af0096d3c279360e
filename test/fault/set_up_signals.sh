#!/usr/bin/env bash
# A signal while a training job reads its tokens ends it within seconds with code 3, so that the batch
# script runs it again; a second SIGTERM kills; other tasks end by the first.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
: "${TRIREME_FAIL_CALLS:?the library to preload}" "${TRIREME_SPARSE_TOKENS:?the program}"
tiny_deck
tokens
# Three rounds of 256 MiB, each of which takes longer than it needs.
"$TRIREME_SPARSE_TOKENS" harbour.h5 long.h5 $((3 * 128 << 20))
slow=(env TRIREME_FAULT_CALL=read TRIREME_FAULT_PATH=long.h5 TRIREME_FAULT_BYTES=$((1 << 20))
  TRIREME_FAULT_DELAY=1500 "TRIREME_FAULT_LOG=$scratch/log")
most=7 # seconds from a signal to the end, at most one round later

# begins COMMAND...: runs it in the background until the first round is being read.
begins() {
  rm -f log
  "$@" >output 2>&1 </dev/null &
  job=$!
  for _ in $(seq 200); do
    ! grep -q '^call' log 2>/dev/null || return 0
    sleep 0.05
  done
  fail "nothing was read by: $*"
}
# ends CODE: the job does, in time.
ends() {
  local code=0 start=$SECONDS
  wait $job || code=$?
  [[ $code == "$1" ]] || fail "exit code $code instead of $1"
  ((SECONDS - start <= most)) || fail "it took $((SECONDS - start)) s"
  is_missing run
}
# signal NAME PROCESS...
signal() { kill -s "$1" "${@:2}"; }
ranks() { pgrep -f "^$TRIREME -i $scratch/deck.in"; }

# 1. Two ranks, told by mpirun (SIGUSR1) and each by itself.
for name in USR1 TERM; do
  begins "${slow[@]}" "${mpi[@]}" 2 -x "LD_PRELOAD=$TRIREME_FAIL_CALLS" \
    "$TRIREME" -i "$scratch/deck.in" data.file=long.h5 data.staging=shared_memory
  # shellcheck disable=SC2046  # one word a process
  if [[ $name == USR1 ]]; then signal USR1 $job; else signal TERM $(ranks | head -n 1); fi
  ends 3
  [[ $(grep -c '^call' log) == 1 ]] || fail "more than the first round was read: $(cat log)"
  says_once "trireme: stopped by a signal during the set-up: nothing was computed yet; run it again"
  ! grep -q "error:" output || fail "a stop is called an error"
done

# 2. One process: the second SIGTERM means now.
begins "${slow[@]}" LD_PRELOAD="$TRIREME_FAIL_CALLS" "$TRIREME" -i "$scratch/deck.in" data.file=long.h5
signal TERM "$(ranks)"
sleep 0.5
signal TERM "$(ranks)"
ends 143

# 3. A task that has nothing to save.
begins "${slow[@]}" LD_PRELOAD="$TRIREME_FAIL_CALLS" "$TRIREME" -i "$scratch/deck.in" data.file=long.h5 -v
signal TERM "$(ranks)"
ends 143
