#!/usr/bin/env bash
# A reader that goes away, a full log or records that someone deletes must not lose a run, nor pass without a word.
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

# Records deleted under a run that goes: said once, and what follows is in new files, which are whole.
"$TRIREME" -i deck.in job.output=deleted schedule.steps=4000 checkpoint.every_steps=1000 monitor.validate_every_steps=0 \
  monitor.tensorboard=yes >output 2>&1 </dev/null &
training=$!
until grep -qs '^      30 ' deleted/log.txt; do sleep 0.01; done
kill -STOP $training
rm -r deleted/metrics.jsonl deleted/tensorboard
mv deleted/log.txt log.old
kill -CONT $training
wait $training || fail "a run whose records were deleted ended with $?: $(tail -n 5 output)"
for name in metrics.jsonl log.txt tensorboard/events; do
  [[ $(grep -c "warning: deleted/$name.*: was deleted, moved or replaced while the run went on" output) == 1 ]] ||
    fail "$name: not said once: $(grep warning output)"
done
exists deleted/log.txt
[[ $(losses deleted/metrics.jsonl step | tail -n 1) == 4000\ * ]] || fail "metrics.jsonl does not go on"
"$python" - deleted <<'PYTHON'
import json, pathlib, struct, sys
run = pathlib.Path(sys.argv[1])
names = [record["event"] for record in map(json.loads, open(run / "metrics.jsonl")) if record["kind"] == "event"]
assert names.count("file gone") == 3, names
[events] = (run / "tensorboard").iterdir()
data = events.read_bytes()
(length,) = struct.unpack_from("<Q", data)
assert b"brain.Event:2" in data[12 : 12 + length], "an event file must begin with its version"
PYTHON

# Resumed, it says which records are missing; so does one whose records went between the sessions.
first=$(losses deleted/metrics.jsonl step)
run 0 "$TRIREME" -r deleted schedule.steps=4010
says_once "warning: metrics.jsonl holds no records of steps 1 to $("$python" -c "print(f'{${first%% *} - 1:,}')"): they were deleted"
rm deleted/metrics.jsonl
run 0 "$TRIREME" -r deleted schedule.steps=4020
says_once "warning: metrics.jsonl holds no records of steps 1 to 4,010: they were deleted"
# Nothing is missing of a run that was not touched, nor of a branch.
run 0 "$TRIREME" -r piped job.output=branch schedule.steps=30
run 0 "$TRIREME" -r branch schedule.steps=40
if grep -q "holds no records" output; then fail "a branch's records are called missing"; fi
