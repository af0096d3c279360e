#!/usr/bin/env bash
# A reader that goes away or a full log must not lose a run.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens

set +e
"$TRIREME" -i deck.in job.output=piped 2>errors | head -n 1 >/dev/null
code=${PIPESTATUS[0]}
set -e
[[ $code == 0 ]] || fail "exit code $code with a reader that went away: $(cat errors)"
exists piped/checkpoints/step_00000020
grep -q '^      20 ' piped/log.txt || fail "log.txt is not whole"

code=0
"$TRIREME" -i deck.in job.output=full >/dev/full || code=$?
[[ $code == 0 ]] || fail "exit code $code with standard output on a full disk"
exists full/checkpoints/step_00000020
