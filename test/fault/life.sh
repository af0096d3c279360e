#!/usr/bin/env bash
# The life of a run: the end of the job's time, restarts that lead nowhere and those that do, the
# interval of checkpoint.auto, and the events that tell of all this.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$TRIREME_SOURCE/test/fault/background.sh"
tiny_deck
tokens
keys=(monitor.sample_tokens=0)
train() { "$TRIREME" -i deck.in "${keys[@]}" "$@"; }

# 1. The end of the job's time: 20 s are always left over.
end=$(($(date +%s) + 27))
run 3 env TRIREME_JOB_END_TIME=$end "$TRIREME" -i deck.in "${keys[@]}" schedule.steps=100000000 \
  checkpoint.keep=2 job.output=batch
(($(date +%s) < end)) || fail "stopped after the end of the job's time"
says "stopped by the end of the job's time"
says "run it again with -r batch"
reached=$(readlink batch/checkpoints/latest)
((10#${reached#step_} >= 20)) || fail "stopped at once: a checkpoint of this size takes no time"
run 0 "$TRIREME" -r batch schedule.stop_at=$((10#${reached#step_} + 20))
says "resumed from batch/checkpoints/$reached"

# 2. A state that ends every session: not for ever.
poison=(optimizer.learning_rate=1e30 schedule.warmup_steps=0 optimizer.clip_norm=0 checkpoint.max_restarts=2)
run 1 train "${poison[@]}" job.output=poisoned
says "not finite"
for _ in 1 2; do
  run 1 "$TRIREME" -r poisoned
  says "not finite"
done
run 1 "$TRIREME" -r poisoned
says_once "error:"
says "poisoned: start 3 in a row at step 0, without a checkpoint in between"
says "checkpoint.max_restarts"
rm poisoned/restarts.json
run 1 "$TRIREME" -r poisoned
says "not finite"

# 3. A healthy run may start as often as it likes.
run 0 train checkpoint.every_steps=2 job.output=whole
run 0 train checkpoint.every_steps=2 checkpoint.max_restarts=1 schedule.stop_at=2 job.output=often
for stop in 4 6 8 10 20; do
  run 0 "$TRIREME" -r often schedule.stop_at=$stop
done
same_end whole often step # each stop_at adds a validation

# 4. Killed before its first checkpoint: a run that began with another one's weights does so again, and a
# branch of another run does not begin at step 0.
late=(checkpoint.every_steps=0 monitor.validate_every_steps=0 schedule.steps=600)
run 0 train "${late[@]}" checkpoint.start_from=whole job.output=tuned
begins "$TRIREME" -i deck.in "${keys[@]}" "${late[@]}" checkpoint.start_from=whole job.output=cut
awaits cut/metrics.jsonl '"kind":"step"' 5
killed
run 0 "$TRIREME" -r cut
says "cut holds no checkpoint yet: it begins at step 0"
same_end tuned cut step
begins "$TRIREME" -i deck.in "${keys[@]}" "${late[@]}" -r whole job.output=branch
awaits branch/metrics.jsonl '"kind":"step"' 5
killed
run 2 "$TRIREME" -r branch
says_once "error:"
says "branched off again"

# 5. checkpoint.auto.
sed -i '/^\[checkpoint\]/,/^\[/s/^every_steps.*//' deck.in
run 2 train checkpoint.auto=yes job.output=auto
says "needs run.mtbf_hours"
run 2 train checkpoint.auto=yes run.mtbf_hours=1 checkpoint.every_steps=10 job.output=auto
says "checkpoint.auto = yes chooses the interval"
is_missing auto
auto=(checkpoint.auto=yes run.mtbf_hours=1e-4 schedule.steps=1000 monitor.validate_every_steps=0)
run 0 train "${auto[@]}" job.output=unharmed
begins "$TRIREME" -i deck.in "${keys[@]}" "${auto[@]}" job.output=auto
awaits auto/metrics.jsonl '"event":"checkpoint"' 4
killed
run 0 "$TRIREME" -r auto
(($(count auto/metrics.jsonl '"event":"checkpoint"') >= 8)) || fail "few checkpoints with mtbf_hours = 1e-4"
same_end unharmed auto

# 6. Events.
begins "$TRIREME" -i deck.in "${keys[@]}" schedule.steps=100000 checkpoint.every_steps=100 job.output=told
awaits told/metrics.jsonl '"event":"checkpoint"' 2
kill -USR1 "$job"
ends 3
says "stopped by a signal"
says "SIGUSR1: the run stops at the end of a step and writes a checkpoint"
for _ in 1 2; do run 3 "$TRIREME" -r told schedule.walltime_minutes=0.005; done
"$python" - told/metrics.jsonl <<'PYTHON' || fail "the events are not those that happened"
import json, socket, sys
events = [r for r in map(json.loads, open(sys.argv[1])) if r["kind"] == "event"]
for event in events:
    for key, kind in (("event", str), ("step", int), ("rank", int), ("host", str), ("text", str)):
        assert isinstance(event[key], kind), event
    assert event["rank"] == 0 and event["host"], event
names = [e["event"] for e in events]
assert names.count("restart") == 2, names
assert names.count("stop") == 3, names
assert names.count("checkpoint") >= 5, names
assert [e["text"] for e in events if e["event"] == "stop"][0] == "a signal", events
assert [e["step"] for e in events] == sorted(e["step"] for e in events), events
PYTHON

# 6. Checkpoints that are gone, as in a file system that is not mounted: never from step 0 by itself.
run 0 train job.output=gone schedule.stop_at=10
run 0 "$TRIREME" -r gone schedule.stop_at=15
mv gone/checkpoints kept
refuses() {
  rm -rf before
  cp -r gone before
  run 2 "$TRIREME" -r gone
  says_once "error:"
  says "gone: its checkpoints are gone: gone/$1, but "
  says "nothing was changed"
  diff -r before gone >difference || fail "something was changed: $(cat difference)"
}
refuses "metrics.jsonl tells of one at step 15"
mkdir gone/checkpoints
refuses "metrics.jsonl tells of one at step 15"
mv gone/metrics.jsonl metrics.jsonl
refuses "restarts.json tells of one at step 10"
rmdir gone/checkpoints
mv kept gone/checkpoints
mv metrics.jsonl gone
run 0 "$TRIREME" -r gone
same_end whole gone step
# A new run in the folder that has none yet may be continued from step 0.
rm -r gone/checkpoints
run 1 train "${poison[@]}" job.output=gone
run 1 "$TRIREME" -r gone
says "gone holds no checkpoint yet: it begins at step 0"
