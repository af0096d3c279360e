#!/usr/bin/env bash
# --self-test of the program alone, away from its source and build: passes on one rank and several, in layouts of its own
# choice, and leaves nothing, whatever ends it. Failing checks: test/fault/self_test.sh.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cp "$TRIREME" alone
mkdir empty here
export TMPDIR=$scratch/here
cd empty

# nothing_left [SECONDS]: both folders are empty, at once or within so many seconds.
nothing_left() {
  local i
  for ((i = 0; i < ${1:-0} * 10; ++i)); do
    [[ -n $(ls -A "$scratch/here" "$scratch/empty" | grep trireme) ]] || break
    sleep 0.1
  done
  [[ -z $(find "$scratch/here" "$scratch/empty" -name '*trireme*' -o -name '*.h5') ]] ||
    fail "left behind: $(find "$scratch/here" "$scratch/empty" -name '*trireme*')"
}

# 1. One rank, its folder in TMPDIR; then four, in a folder that is named.
SECONDS=0
run 0 ../alone --self-test
for each in messages kernels folder hdf5 tokens layout training checkpoint generation; do
  grep -qE "^$each +ok " "$scratch/output" || fail "no good line for $each"
done
says "all 9 checks passed on 1 rank"
says "$scratch/here/trireme_self_test_"
grep -qE "^gpu +- +not built in" "$scratch/output" || fail "nothing is said of GPUs"
nothing_left
run 0 "${mpi[@]}" 4 ../alone --self-test .
((SECONDS < 60)) || fail "$SECONDS s instead of less than a minute for both"
says "grid.tensor=4"
says "grid.pipeline=4"
says "grid.context=2"
says "checks passed on 4 ranks"
# The warning of too few cores comes once.
[[ $(grep -c "expect it to be slow" "$scratch/output") -le 1 ]] || fail "the table is torn: $(cat "$scratch/output")"
run 0 "${mpi[@]}" 2 ../alone --self-test .
! grep -q "keys and values are not kept" "$scratch/output" || fail "the table is torn: $(cat "$scratch/output")"
nothing_left

# 2. A folder where nothing can be made: what needs it is not tried.
run 1 ../alone --self-test /proc
grep -qE "^kernels +ok" "$scratch/output" && grep -qE "^folder +FAILED +/proc" "$scratch/output" &&
  grep -qE "^training +not tried" "$scratch/output" || fail "the lines are others"
says "1 of 3 checks FAILED"
run 2 ../alone --self-test a b
says "--self-test stands alone"

# 3. Ended from outside, in the middle of the runs: by Ctrl-C, and by SIGKILL, after which a child cleans up.
for signal in INT KILL; do
  ../alone --self-test >"$scratch/output" 2>&1 &
  job=$!
  for ((i = 0; i < 1500; ++i)); do
    ! compgen -G "$scratch/here/trireme_self_test_*" >/dev/null || break
    sleep 0.01
  done
  compgen -G "$scratch/here/trireme_self_test_*" >/dev/null || fail "there is no folder at the middle"
  kill -"$signal" "$job"
  code=0
  wait "$job" || code=$?
  [[ $code == $([[ $signal == INT ]] && echo 3 || echo 137) ]] || fail "code $code after SIG$signal"
  nothing_left 5
done
[[ ! -e $scratch/here/core ]] || fail "a core"
