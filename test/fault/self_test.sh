#!/usr/bin/env bash
# --self-test where something does not work: the check that finds it says so, the others go on, the code is 1, and no file
# stays.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
mkdir here
export TMPDIR=$scratch/here

# failing COMMAND...: ends with code 1 and leaves nothing.
failing() {
  run 1 "$@" --self-test
  says "checks FAILED"
  [[ -z $(find here -name "*trireme*") ]] || fail "left behind: $(find here -name "*trireme*")"
}
line() { grep -qE "^$1 +$2" output || fail "no line '$1 $2'"; }

# 1. A network that changes a bit of sums: found by the check of messages, and by the replicas of a training.
failing "${mpi[@]}" 2 env LD_PRELOAD="$TRIREME_CHANGE_SUMS" TRIREME_SUMS_WRONG=1 "$TRIREME"
line messages "FAILED +an all-reduce in fp32 gave a wrong sum"
says "(on rank 1 of 2)"
line kernels ok
line training "FAILED +step [0-9]+: rank 0 on .* and rank 1 on .* differ in"

# 2. A file system that gives errors: for HDF5's parallel file, and for the token file, which all that follows needs.
disk=(env LD_PRELOAD="$TRIREME_FAIL_CALLS" TRIREME_FAULT_CALL=open TRIREME_FAULT_ERRNO=5)
# (Two files with such a name are Open MPI's own, which it can do without.)
failing "${disk[@]}" TRIREME_FAULT_PATH=parallel.h5 TRIREME_FAULT_NTH=3 "$TRIREME"
line hdf5 "FAILED +HDF5: making a parallel file failed"
line generation ok
failing "${disk[@]}" TRIREME_FAULT_PATH=harbour.h5 TRIREME_FAULT_NTH=2 "$TRIREME"
line tokens "FAILED .*harbour.h5.*Input/output error"
line training "not tried"
