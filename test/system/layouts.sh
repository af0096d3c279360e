#!/usr/bin/env bash
# Tensor, sequence and pipeline parallelism as a user runs them: every layout prints the losses of one
# rank, its checkpoints continue in any other, and a layout that cannot be is refused with one that can.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
sed -i 's/^heads = .*/heads = 4/; s/^layers = .*/layers = 4/' deck.in
tokens
cube=(grid.tensor=2 grid.pipeline=2) # with 4 ranks a square, with 8 a cube

# 1. The losses of one rank.
run 0 "$TRIREME" -i deck.in job.output=serial
! grep -q '^traffic' output || fail "one rank has no traffic to report"
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in job.output=square "${cube[@]}"
says_once "grid    pipeline 2 x data 1 x context 1 x tensor 2; 1f1b, 8 micro-batches"
says_once "map     rank 0 "
says_once "comm bubble"
says_once "traffic group"
# A message a micro-batch: 19 steps of 8 and one of 5, and none of the validations.
grep -Eq '^ +pipeline +send +7\.8 ' output || fail "the table counts other messages than the steps'"
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in job.output=sequence grid.tensor=2 grid.sequence_parallel=yes
grep -Eq '^ +tensor +reduce-scatter ' output || fail "no reduce-scatter with sequence parallelism"
! grep -q 'bubble' output || fail "a bubble without stages"
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in job.output=zero_bubble "${cube[@]}" \
  pipeline.schedule=zero_bubble data.micro_batch=2
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in job.output=interleaved grid.pipeline=2 \
  pipeline.schedule=interleaved pipeline.chunks=2 data.micro_batch=1

# 2. Checkpoints know no layout: 8 ranks' continue on 3, and 3 ranks' on 8.
run 0 "${mpi[@]}" 8 "$TRIREME" -i deck.in job.output=fewer "${cube[@]}" schedule.stop_at=10
grep -q '"grid": *"pipeline 2 x data 2 x context 1 x tensor 2"' fewer/checkpoints/latest/run.json ||
  fail "run.json does not say which grid wrote it"
run 0 "${mpi[@]}" 3 "$TRIREME" -i deck.in -r fewer job.output=fewer
! unexpected_warnings || fail "a warning about another layout"
run 0 "${mpi[@]}" 3 "$TRIREME" -i deck.in job.output=more schedule.stop_at=10
run 0 "${mpi[@]}" 8 "$TRIREME" -i deck.in -r more job.output=more "${cube[@]}"

"$python" - serial square sequence zero_bubble interleaved fewer more <<'PYTHON' || fail "losses differ"
import json, sys
TOLERANCE = 1e-5  # relative, over 20 steps in fp32: numerical rule 4
KINDS = ("step", "valid", "test")
runs = {}
for name in sys.argv[1:]:
    records = [json.loads(line) for line in open(f"{name}/metrics.jsonl", encoding="utf-8")]
    runs[name] = {(r["kind"], r["step"]): r for r in records if r["kind"] in KINDS}
reference = runs[sys.argv[1]]
assert len(reference) == 23, sorted(reference)
for name, run in runs.items():
    # The test loss at a run's stop_at goes with the records behind it.
    assert run.keys() >= reference.keys(), (name, sorted(reference.keys() - run.keys()))
    worst = max(abs(run[k]["loss"] - reference[k]["loss"]) / reference[k]["loss"] for k in reference)
    print(f"{name}: {worst:.1e}")
    assert worst < TOLERANCE, (name, worst)
for name in ("square", "zero_bubble", "interleaved"):
    assert all(r["seconds_bubble"] > 0 for k, r in runs[name].items() if k[0] == "step"), name
assert all(r["seconds_bubble"] == 0 for r in runs["sequence"].values())
PYTHON

# 3. A layout evaluates and writes what one rank does.
run 0 "$TRIREME" -i deck.in -r serial job.task=evaluate
cp output evaluated
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in -r serial job.task=evaluate "${cube[@]}"
"$python" - evaluated output <<'PYTHON' || fail "a layout evaluates differently"
import re, sys
one, other = ([float(x) for x in re.findall(r"loss ([\d.]+)", open(path, encoding="utf-8").read())]
              for path in sys.argv[1:])
assert len(one) == len(other) == 2, (one, other)
assert all(abs(a - b) < 1e-5 * a for a, b in zip(one, other)), (one, other)
PYTHON
write=(-r serial job.task=generate generate.tokens=24)
run 0 "$TRIREME" -i deck.in "${write[@]}"
cp output text
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in "${write[@]}" "${cube[@]}"
grep -v 'expect it to be slow' output | cmp text - || fail "a layout writes another text"

# 4. What cannot be is refused, naming what can.
refused() { # RANKS OVERRIDES...
  local ranks=$1
  shift
  run 2 "${mpi[@]}" "$ranks" "$TRIREME" -i deck.in job.output=refused "$@"
  says_once "error:"
  is_missing refused
}
refused 3 grid.tensor=3
says "3 tensor ranks do not divide model.heads = 4"
says "What fits this model and 3 ranks: grid.tensor = 1."
refused 4 grid.pipeline=4 model.layers=2
says "What fits 4 ranks: grid.pipeline = 1 or 2; or model.layers = 3 or more."
refused 2 grid.pipeline=2 pipeline.schedule=interleaved pipeline.chunks=2 data.micro_batch=3
says "3 micro-batches a step"
says "What fits: data.micro_batch = 1, 2 or 4, or pipeline.schedule = 1f1b."
refused 4 grid.tensor=2 grid.pipeline=2 grid.data=2
says "the grid has 8 ranks, the job has 4"
says "What fits: grid.data = 1"
refused 3 grid.tensor=2
says "grid.tensor = 2 does not divide 3 ranks"

# 5. A signal stops a layout like one rank, and it continues to the bytes of an uninterrupted run.
steps=(schedule.steps=4000 checkpoint.every_steps=0 monitor.validate_every_steps=0 "${cube[@]}")
"${mpi[@]}" 4 "$TRIREME" -i deck.in "${steps[@]}" job.output=parts >output 2>&1 &
job=$!
for _ in $(seq 400); do
  [[ ! -e parts/metrics.jsonl || $(wc -l <parts/metrics.jsonl) -lt 10 ]] || break
  sleep 0.05
done
kill -USR1 $job
code=0
wait $job || code=$?
is_stopped "$code" || fail "exit code $code instead of 3 after SIGUSR1"
says_once "stopped by a signal after step"
says_once "traffic group"
at=$(readlink parts/checkpoints/latest)
at=$((10#${at#step_}))
[[ $at -lt 4000 ]] || fail "the run was over before the signal: give it more steps"
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in "${steps[@]}" job.output=parts -r parts \
  "schedule.stop_at=$((at + 10))"
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in "${steps[@]}" job.output=whole \
  "schedule.stop_at=$((at + 10))"
for file in model optimizer; do
  cmp {whole,parts}/checkpoints/latest/$file.safetensors || fail "$file.safetensors differs"
done
diff <(losses whole/metrics.jsonl step) <(losses parts/metrics.jsonl step) >difference ||
  fail "losses differ: $(head -n 5 difference)"
