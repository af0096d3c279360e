#!/usr/bin/env bash
# A clock that jumps forward and back by a month while a run goes on, and before the run's begin when
# it is continued: the newest checkpoint is found, the right ones are pruned, the bytes are the same.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$TRIREME_SOURCE/test/fault/background.sh"
library=
for each in /usr/lib/*/faketime/libfaketime.so.1 /usr/lib*/faketime/libfaketime.so.1; do
  [[ ! -e $each ]] || library=$each
done
[[ -n $library ]] || skip "libfaketime is not installed (Debian: faketime)"
tiny_deck
tokens
keys=(schedule.steps=600 checkpoint.every_steps=25 checkpoint.keep=2 monitor.validate_every_steps=0
  monitor.sample_tokens=0)
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" job.output=calm

# The time of steps and waits goes on evenly, as a jump of a real clock leaves it.
jumping=("${mpi[@]}" 2 -x "LD_PRELOAD=$library" -x DONT_FAKE_MONOTONIC=1 -x FAKETIME_NO_CACHE=1
  -x "FAKETIME_TIMESTAMP_FILE=$scratch/shift" -x "TRIREME_JOB_END_TIME=$(($(date +%s) + 3600))" "$TRIREME")
# The library reads the file at each call: whole at any time.
shift_clock() {
  echo "$1" >shift.new
  mv shift.new shift
}
shift_clock +0
[[ $(LD_PRELOAD=$library FAKETIME=+30d date +%m%Y) != $(date +%m%Y) ]] || skip "libfaketime shifts no clock here"

begins "${jumping[@]}" -i deck.in "${keys[@]}"
checkpoint='"event":"checkpoint"'
awaits run/metrics.jsonl "$checkpoint" 2
shift_clock +30d
awaits run/metrics.jsonl "$checkpoint" $(($(count run/metrics.jsonl "$checkpoint") + 2))
shift_clock -30d
awaits run/metrics.jsonl "$checkpoint" $(($(count run/metrics.jsonl "$checkpoint") + 3))
# shellcheck disable=SC2046  # one word a process
kill -KILL $(pgrep -P "$job" -f "^$TRIREME")
wait "$job" || true
job=
newest=$(find run/checkpoints -name 'step_*[0-9]' | sort | tail -n 1)
[[ $newest != */step_00000600 ]] || fail "the run had ended before it was killed"
"$python" - "$newest/run.json" <<'PYTHON' || fail "the shifted clock did not reach the run"
import datetime, json, sys
date = datetime.datetime.fromisoformat(json.load(open(sys.argv[1]))["date"].replace("Z", "+00:00"))
assert abs((datetime.datetime.now(datetime.timezone.utc) - date).days) >= 29, date
PYTHON

shift_clock -60d
run 0 "${jumping[@]}" -i deck.in "${keys[@]}" -r run
says "resumed from $newest at step"
[[ $(cd run/checkpoints && echo step_*) == "step_00000575 step_00000600" ]] ||
  fail "not the newest two are kept: $(ls run/checkpoints)"
same_end calm run
