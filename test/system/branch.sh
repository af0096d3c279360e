#!/usr/bin/env bash
# Run folder in which -r goes on: the checkpoint's own, from wherever it is named; another one as a
# branch that leaves the first alone; nowhere when the schedule is done. Several decays from one
# plateau. What is done with averaged weights.
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

# Several decays from one plateau: each is, bit for bit, the run that had its length from the start.
plateau=(monitor.validate_every_steps=0 monitor.sample_tokens=0 checkpoint.every_steps=4 schedule.warmup_steps=2
  schedule.decay=wsd schedule.decay_fraction=0.25)
run 0 "$TRIREME" -i deck.in "${plateau[@]}" schedule.steps=40 job.output=long
for steps in 16 24; do
  run 0 "$TRIREME" -r "long/checkpoints/step_000000$((steps * 3 / 4 / 4 * 4))" "schedule.steps=$steps" "job.output=decay_$steps"
  run 0 "$TRIREME" -i deck.in "${plateau[@]}" "schedule.steps=$steps" "job.output=alone_$steps"
  for file in model optimizer; do
    cmp {decay,alone}_$steps/checkpoints/step_000000$steps/$file.safetensors || fail "a decay of $steps steps: other bits"
  done
  losses decay_$steps/metrics.jsonl step >rest
  losses alone_$steps/metrics.jsonl step | tail -n "$(wc -l <rest)" | cmp - rest || fail "a decay of $steps steps: other losses"
done
# Not from where the decay has begun already, of this run or of the other.
run 2 "$TRIREME" -r long/checkpoints/step_00000020 schedule.steps=24 job.output=late
says "step_00000020: its step 19 had 100.0% of the peak learning rate; in a run of 24 steps with this deck's [schedule] it would have had 85.0%"
says "name a checkpoint of step 18 or before with -r"
run 2 "$TRIREME" -r long/checkpoints/step_00000036 schedule.steps=60 job.output=late
says "its step 31 had 91.0% of the peak learning rate; in a run of 60 steps with this deck's [schedule] it would have had 100.0%"
is_missing late
# A run's length is what it was, not what its epochs would be without its ramp.
run 0 "$TRIREME" -i deck.in "${plateau[@]}" schedule.epochs=1.7 schedule.batch_ramp=60 schedule.batch_start=1 job.output=ramped
plateau_end=$("$python" - <<'PYTHON'
import json
steps = [r["step"] for r in map(json.loads, open("ramped/metrics.jsonl")) if r["kind"] == "done"][0]
print((steps - round(0.25 * steps)) // 4 * 4)
PYTHON
)
run 0 "$TRIREME" -r "$(printf 'ramped/checkpoints/step_%08d' "$plateau_end")" schedule.steps=400 schedule.stop_at=$((plateau_end + 1)) \
  job.output=later
# Epochs are as many steps as before where other windows count otherwise.
run 0 "$TRIREME" -i deck.in "${plateau[@]}" schedule.epochs=1.7 job.output=epochs schedule.stop_at=8
run 0 "$TRIREME" -r epochs data.batch=4 schedule.stop_at=44
run 0 "$TRIREME" -r epochs
says "step_00000044 at step 44"

# Averaged weights: evaluations, tasks that read a checkpoint and new runs take them; the training does not.
model=(model.norm_position=pre model.activation=gelu model.scale_embedding=no monitor.sample_tokens=0)
average=(optimizer.average=0.8 optimizer.average_from=3)
averaged="the averaged weights are used"
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${model[@]}" "${average[@]}" job.output=means
grep -q '^   valid .*  averaged$' output || fail "the screen does not say that averages are evaluated"
grep -q '"kind":"test".*"averaged":true' means/metrics.jsonl || fail "the records do not say it"
run 0 "${mpi[@]}" 2 "$TRIREME" -r means job.task=evaluate
says_once "trireme: means/checkpoints/step_00000020: $averaged"
says "$(printf 'loss %.6f' "$(losses means/metrics.jsonl valid | tail -n 1 | cut -d ' ' -f 2)")"
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${model[@]}" job.output=none
! grep -q averaged output || fail "averages without optimizer.average"
losses none/metrics.jsonl step | cmp - <(losses means/metrics.jsonl step) || fail "averages change the training"
[[ $(losses none/metrics.jsonl valid) != $(losses means/metrics.jsonl valid) ]] || fail "the averages are the weights"

# A stop keeps them; they end and begin where a run is continued.
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${model[@]}" "${average[@]}" job.output=halves schedule.stop_at=10
run 0 "${mpi[@]}" 2 "$TRIREME" -r halves
for file in model optimizer; do
  cmp {means,halves}/checkpoints/step_00000020/$file.safetensors || fail "after a stop: other bits of $file"
done
run 0 "${mpi[@]}" 4 "$TRIREME" -r halves/checkpoints/step_00000010 grid.tensor=2 grid.sharding=parameters job.output=moved
"$python" - <(losses means/metrics.jsonl valid) <(losses moved/metrics.jsonl valid) <<'PYTHON' || fail "other averages in another layout"
import sys
runs = [dict(line.split() for line in open(path)) for path in sys.argv[1:]]
assert abs(float(runs[0]["20"]) / float(runs[1]["20"]) - 1) < 1e-5, runs
PYTHON
run 0 "${mpi[@]}" 2 "$TRIREME" -r halves/checkpoints/step_00000010 optimizer.average=0 optimizer.average_from=0 job.output=ended
says "optimizer.average is 0 now and was 0.8 when the checkpoint was written"
cmp {none,ended}/checkpoints/step_00000020/optimizer.safetensors || fail "without averages from step 10 on: other bits"
run 0 "${mpi[@]}" 2 "$TRIREME" -r none/checkpoints/step_00000010 "${average[@]}" job.output=began schedule.stop_at=11
run 2 "$TRIREME" -i deck.in optimizer.average_from=3 job.output=late
says "optimizer.average_from = 3: there is no average of the weights"

# A new run that stays where it begins has the averages as weights; both are exported as one model.
run 0 "$TRIREME" -i deck.in "${model[@]}" checkpoint.start_from=means optimizer.learning_rate=0 schedule.steps=1 job.output=stays
says "trireme: means/checkpoints/step_00000020: $averaged"
"$python" - {means,stays,none,began}/checkpoints/latest <<'PYTHON' || fail "tensors of averages"
import json, struct, sys
def tensors(path):
    data = open(path, "rb").read()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    header.pop("__metadata__")
    return {name: data[end + one["data_offsets"][0]:end + one["data_offsets"][1]] for name, one in header.items()}
def averages(folder):
    return {name[8:]: data for name, data in tensors(folder + "/optimizer.safetensors").items() if name.startswith("average.")}
whole, stays, none, began = sys.argv[1:]
models = {folder: tensors(folder + "/model.safetensors") for folder in (whole, stays)}
assert models[stays] == averages(whole) != models[whole], "the new run's weights"
assert not averages(none)
assert averages(began).keys() == models[whole].keys()
before = tensors(none + "/../step_00000010/model.safetensors")
now = tensors(began + "/model.safetensors")
name = "norm.weight"
floats = [struct.unpack(f"<{len(data) // 4}f", data) for data in (before[name], now[name], averages(began)[name])]
assert all(abs(0.8 * a + 0.2 * b - c) < 1e-6 for a, b, c in zip(*floats)), "an average that begins at a resume"
assert floats[0] != floats[1]
PYTHON
run 0 "$TRIREME" -r means job.task=export hf.path=one
says_once "trireme: means/checkpoints/step_00000020: $averaged"
run 0 "$TRIREME" -r stays job.task=export hf.path=other
cmp {one,other}/model.safetensors || fail "the exported model is not that of the averages"
