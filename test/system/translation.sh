#!/usr/bin/env bash
# A translation as a user trains it: the shipped deck, made smaller, learns; ranks, a stop and a resume give the same
# numbers; plans and what does not suit pairs. `translation.sh numerals`: the deck as it is learns to translate numerals that it
# never saw: nearly all of the valid and test splits exactly, after less than ten minutes of training on two cores.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
deck=$TRIREME_SOURCE/input/translation.in
if [[ ${1-} == numerals ]]; then
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
  exit
fi
small=(data.file=numerals.h5 model.dim=32 model.heads=4 model.ffn=64 data.batch_tokens=1024 schedule.steps=24 schedule.warmup_steps=4
  optimizer.learning_rate=4e-3 monitor.every_steps=4 monitor.validate_every_steps=12 monitor.validate_windows=50 monitor.report=no checkpoint.every_steps=8)
train() { run "$1" "${mpi[@]}" "$2" "$TRIREME" -i "$deck" "${small[@]}" job.output="$3" "${@:4}"; }
run 0 "$TRIREME" -i "$deck" job.task=tokenize tokenize.kind=numerals tokenize.numerals_pairs=4000 data.file=numerals.h5

run 0 "$TRIREME" -i "$deck" "${small[@]}" -v
says "encoder of 2 layers, decoder of 2"
says "4,000 / 100 / 100 pairs"
run 0 "$TRIREME" -i "$deck" "${small[@]}" -v grid.ranks=8 grid.pipeline=2 grid.tensor=2
says "valid: planned"

# Layouts on a machine that is not there; the deck's own has the memory that -v tells. Without the file too.
cat >cpus.in <<'MACHINE'
[machine]
device = cpu
nodes = 0
ranks_per_node = 2
threads = 1
memory_gib = 8
[compute]
fp32_tflops = 0.2
fp32_efficiency = 0.8
fp32_half = 16
attention_efficiency = 0.5
memory_gbs = 20
[links]
node_gbs = 5
node_latency_us = 1
network_gbs = 5
network_latency_us = 2
MACHINE
run 0 "$TRIREME" -i "$deck" "${small[@]}" -v grid.ranks=4 grid.pipeline=2 run.threads=1
cp "$scratch/output" described
run 0 "$TRIREME" -i "$deck" "${small[@]}" job.task=plan plan.machine=cpus.in plan.nodes=2 grid.pipeline=2 plan.simulate=6 job.output=planned
says "plan for 4 ranks"
run 0 "$TRIREME" -i "$deck" "${small[@]:1}" job.task=plan plan.machine=cpus.in plan.nodes=2 data.file=absent.h5 plan.vocabulary=110 plan.simulate=2 \
  job.output=assumed
"$python" - <<'PYTHON' || fail "plans: $(cat planned/plan.jsonl described)"
import json, re
rows = [json.loads(line) for line in open("planned/plan.jsonl", encoding="utf-8")]
described = re.search(r"with most.*\(([\d,]+) bytes\)", open("described", encoding="utf-8").read()).group(1)
assert rows[0]["own"] and rows[0]["memory_bytes"] == int(described.replace(",", "")), (rows[0], described)
assert len(rows) == 7 and len({(r["data"], r["tensor"], r["pipeline"]) for r in rows}) > 1, rows
# Target tokens, of which a step has fewer than its limit.
assert all(0 < r["tokens_per_second"] * r["step_seconds"] < 1024 for r in rows), rows
assert len(open("assumed/plan.jsonl", encoding="utf-8").readlines()) == 2
PYTHON

train 0 1 whole
says "50 of 100 pairs"
train 0 1 half schedule.stop_at=10 model.encoder_layers=0  # as many as layers
run 0 "$TRIREME" -r half
says "resumed from half/checkpoints/step_00000010 at step 10"
for file in model optimizer; do
  cmp whole/checkpoints/latest/$file.safetensors half/checkpoints/latest/$file.safetensors ||
    fail "a stop and a resume give another $file"
done
run 0 "${mpi[@]}" 2 "$TRIREME" -i "$deck" "${small[@]}" job.output=other schedule.stop_at=6
run 0 "$TRIREME" -r other data.batch_tokens=512
says "data.batch_tokens is 512 now and was 1024"
says "the batches are others: epoch 1 goes on at the same step, and repeats or leaves out some of its pairs"
train 0 4 ranks grid.pipeline=2 grid.tensor=2 grid.sequence_parallel=yes pipeline.schedule=zero_bubble model.recompute=full
train 0 4 sharded grid.sharding=parameters
"$python" - <<'PYTHON'
import json
def records(run):
    return [r for r in map(json.loads, open(run + "/metrics.jsonl")) if r["kind"] in ("step", "valid", "test")]
whole = records("whole")
losses = [r["loss"] for r in whole if r["kind"] == "step"]
assert sum(losses[-4:]) < 0.95 * sum(losses[:4]), losses
assert all(r["flops_per_second"] > 0 for r in whole if r["kind"] == "step")
for run in ("half", "ranks", "sharded"):
    other = {(r["kind"], r["step"]): r for r in records(run)}
    for a in whole:
        b = other[a["kind"], a["step"]]
        assert a["tokens"] == b["tokens"], (run, a["step"])
        assert abs(a["loss"] - b["loss"]) <= 2e-5 * a["loss"], (run, a["step"], a["loss"], b["loss"])
PYTHON

# canonical: the same bytes.
train 0 1 one run.canonical=4x2 run.canonical_leaf=4
train 0 4 four run.canonical=4x2 run.canonical_leaf=4 grid.tensor=2 grid.sharding=gradients
cmp one/checkpoints/latest/model.safetensors four/checkpoints/latest/model.safetensors || fail "canonical runs differ"

# The layouts, verified; without the file too.
for keys in "grid.pipeline=2 grid.tensor=2 data.file=numerals.h5" "grid.sharding=parameters run.canonical=4x2 data.file=absent.h5"; do
  # shellcheck disable=SC2086  # several words
  run 0 "${mpi[@]}" 4 "$TRIREME" -i "$deck" job.task=verify job.output=none $keys
  says "compared on made-up pairs"
  says "verified: these 4 ranks compute what one computes"
  is_missing none
done

# A scaling study: the same numbers on each number of ranks, and batches that grow with them.
run 0 "${mpi[@]}" 2 "$TRIREME" -i "$deck" "${small[@]}" job.task=scaling scaling.kind=strong,weak scaling.ranks=1,2 scaling.steps=4 scaling.warmup_steps=1 \
  scaling.repeats=2 job.output=study
says "numerals.h5: 4,000 pairs"
"$python" - <<'PYTHON' || fail "study: $(cat study/scaling.csv)"
import csv
rows = {(r["kind"], r["ranks"]): {k: float(r[k]) for k in ("batch", "tokens", "loss", "tokens_per_second")}
        for r in csv.DictReader(open("study/scaling.csv", encoding="utf-8"))}
one, two, weak = rows["strong", "1"], rows["strong", "2"], rows["weak", "2"]
assert one["tokens"] == two["tokens"] < 1024 and abs(one["loss"] / two["loss"] - 1) < 1e-5, rows
assert rows["weak", "1"]["tokens"] == one["tokens"] and weak["batch"] == 2 * one["batch"], rows
assert 1024 < weak["tokens"] < 2048, rows
PYTHON

# refused MESSAGE KEYS...
refused() {
  train 2 1 none "${@:2}"
  says "$1"
  is_missing none
}
refused "pairs are not read ahead" data.staging=stream
refused "each text of a pair is one document" data.document_mask=yes
refused "none is skipped" run.on_spike=rollback
refused "pairs of texts are not cut into windows" data.stride=7
refused "take more than an epoch on 1 rank" job.task=scaling scaling.steps=1000
refused "model.kind = encoder_decoder" model.kind=decoder
run 0 "$TRIREME" -i "$deck" "${small[@]}" -v data.sequence_length=12 data.long_pairs=leave_out
says "of more than 12 tokens left out"
run 2 "${mpi[@]}" 2 "$TRIREME" -i "$deck" "${small[@]}" job.output=none grid.context=2
says "texts of pairs are not cut over ranks"
run 2 "$TRIREME" -i "$TRIREME_SOURCE/input/harbour.in" data.file=numerals.h5 job.output=none
says "or translate them: model.kind = encoder_decoder"
is_missing none
