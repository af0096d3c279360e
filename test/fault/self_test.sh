#!/usr/bin/env bash
# --self-test where something does not work: the check that finds it says so, the code is 1, and no file stays.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
mkdir here
export TMPDIR=$scratch/here

# failing CHECK TEXT VARIABLE=VALUE... PROGRAM: on two ranks.
failing() {
  local check=$1 text=$2
  shift 2
  run 1 "${mpi[@]}" 2 env "$@" --self-test
  grep -qE "^$check +FAILED" output || fail "$check did not fail"
  says "$text"
  says "checks FAILED"
  [[ -z $(ls -A here) ]] || fail "left behind: $(ls here)"
}

# 1. A network that changes a bit: at once in a check of its own; later in the run that was to agree with one rank.
failing messages "an all-reduce in fp32 gave a wrong sum" LD_PRELOAD="$TRIREME_CHANGE_SUMS" TRIREME_SUMS_WRONG=1 "$TRIREME"
failing layout "in fp32 the loss of step" LD_PRELOAD="$TRIREME_CHANGE_SUMS" TRIREME_SUMS_WRONG=1 TRIREME_SUMS_NTH=2 "$TRIREME"
grep -qE "^messages +ok" output || fail "the first check failed too"

# 2. A disk that gives an error when the token file is read.
failing layout "Input/output error" LD_PRELOAD="$TRIREME_FAIL_CALLS" TRIREME_FAULT_CALL=open TRIREME_FAULT_PATH=harbour.h5 \
  TRIREME_FAULT_NTH=4 TRIREME_FAULT_ERRNO=5 TRIREME_FAULT_RANK=0 "$TRIREME"
