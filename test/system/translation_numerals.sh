#!/usr/bin/env bash
# The shipped deck learns to translate numerals that it never saw: nearly all of the valid and test splits exactly, after
# less than ten minutes of training on two cores.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
deck=$TRIREME_SOURCE/input/translation.in
run 0 "$TRIREME" -i "$deck" job.task=tokenize tokenize.kind=numerals data.file=numerals.h5
begin=$SECONDS
run 0 "${mpi[@]}" 2 "$TRIREME" -i "$deck" data.file=numerals.h5 job.output=run monitor.report=no
seconds=$((SECONDS - begin))
((seconds < 600)) || fail "training took $seconds s"
run 0 "${mpi[@]}" 2 "$TRIREME" -r run job.task=evaluate evaluate.results=results.json
"$python" - <<'PYTHON'
import json
for found in json.load(open("results.json"))["sets"]:
    assert found["texts"] == 2000 and found["exact_match"] >= 99.5, found
PYTHON
echo "trained in $seconds s"
