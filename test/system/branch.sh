#!/usr/bin/env bash
# Run folder in which -r goes on: the checkpoint's own, from wherever it is named; another one as a
# branch that leaves the first alone; nowhere when the schedule is done.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens
short=(monitor.validate_every_steps=0 monitor.sample_tokens=0 checkpoint.every_steps=5)

run 0 "$TRIREME" -i deck.in "${short[@]}" schedule.steps=10
cp run/metrics.jsonl before.jsonl
run 0 "$TRIREME" -i deck.in "${short[@]}" schedule.steps=10 -r run
says "run/checkpoints/step_00000010: step 10 is the schedule's end already: nothing is left to do"
cmp run/metrics.jsonl before.jsonl || fail "a run with nothing left to do changed its metrics"

run 0 "$TRIREME" -i deck.in "${short[@]}" schedule.steps=10 -r run/checkpoints/step_00000005 \
  job.output=branch
says "branched off run/checkpoints/step_00000005 at step 5"
cmp run/metrics.jsonl before.jsonl || fail "a branch changed the run that it left"
exists branch/checkpoints/step_00000010
losses run/metrics.jsonl step | tail -n 5 >whole
losses branch/metrics.jsonl step >rest
cmp whole rest || fail "the branch computed other losses"
run 2 "$TRIREME" -i deck.in "${short[@]}" -r run/checkpoints/step_00000005 job.output=branch
says "branch: holds a run already"

sed -i '/^output/d' deck.in # without it the checkpoint's own folder is meant
cd run
run 0 "$TRIREME" -i ../deck.in "${short[@]}" data.file=../harbour.h5 schedule.steps=12 -r .
cd ..
exists run/checkpoints/step_00000012
is_missing run/runs

run 2 "$TRIREME" -i deck.in "${short[@]}" -r run checkpoint.start_from=run
says "checkpoint.start_from"
run 0 "$TRIREME" -i deck.in "${short[@]}" schedule.steps=5 checkpoint.start_from=run \
  job.output=fresh
exists fresh/checkpoints/step_00000005
