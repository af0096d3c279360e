#!/usr/bin/env bash
# --calibrate as a user runs it: a description of the ranks at hand, steps predicted by it beside those that ran, in the summary
# and in a scaling study; errors before anything is measured.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
run 0 "${mpi[@]}" 2 "$TRIREME" --calibrate here.in run.threads=1
says "fp64, dim 1024"
says "largest error of a step's time"
says "plan.machine=here.in"
! grep -qE "^(title|name) = $(hostname)$" here.in || fail "the machine is called as the host: $(cat here.in)"
grep -q " on $(hostname)" here.in || fail "the host is not named: $(cat here.in)"
"$python" - <<'PYTHON' || fail "here.in: $(cat here.in)"
values = dict(line.split(" = ", 1) for line in open("here.in", encoding="utf-8").read().splitlines() if " = " in line)
number = lambda key: float(values[key])
assert values["device"] == "cpu" and values["ranks_per_node"] == "2" and values["threads"] == "1", values
for key in ("fp32_tflops", "fp64_tflops", "fp32_efficiency", "fp64_efficiency", "memory_gbs", "node_gbs", "node_reduction_gbs", "memory_gib"):
    assert number(key) > 0, (key, values)
assert number("fp64_tflops") * number("fp64_efficiency") < number("fp32_tflops") * number("fp32_efficiency"), values
assert values["background"] == "no" and "the network" in values["assumption"], values
PYTHON

# A description is not overwritten; other tasks of the command line do not go with it.
run 2 "$TRIREME" --calibrate here.in
says "here.in: exists already"
run 2 "$TRIREME" --calibrate nowhere/here.in
says "nowhere/here.in: cannot be written: No such file or directory"
run 2 "$TRIREME" --calibrate other.in -r runs/a
says "goes with -i and keys alone"
run 2 "$TRIREME" --calibrate
says "needs a value"
run 2 "$TRIREME" --calibrate other.in run.thread=1
says "run.threads"
is_missing other.in

# Predicted against actual after a run. Times of a busy machine prove nothing: terms and their sums do.
run 0 "$TRIREME" -i "$TRIREME_SOURCE/input/harbour.in" job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=60000 data.file=tokens.h5
deck=$TRIREME_SOURCE/input/harbour.in
keys=(data.file=tokens.h5 schedule.steps=6 schedule.warmup_steps=1 run.threads=1 monitor.validate_every_steps=0 monitor.sample_tokens=0 monitor.report=no)
run 0 "${mpi[@]}" 2 "$TRIREME" -i "$deck" "${keys[@]}" job.output=runs/a plan.machine=here.in grid.pipeline=2
says "predict by here (trireme --calibrate, 2 ranks of 1 thread"
says "   compute  "
says "memory, largest rank"
"$python" - <<'PYTHON' || fail "summary.json"
import json
summary = json.load(open("runs/a/summary.json", encoding="utf-8"))
found = summary["predicted"]
assert found["machine"].startswith("here ("), found
terms = {term["term"]: term for term in found["terms"]}
# Terms of nearly nothing are left out of the screen alone.
assert {"exposed pipeline", "exposed embedding"} <= set(terms), found
for kind in ("predicted_seconds", "seconds"):
    parts = sum(term[kind] for name, term in terms.items() if name != "step")
    assert abs(parts - terms["step"][kind]) < 1e-9 + 1e-6 * terms["step"][kind], (kind, found)
    assert terms["compute"][kind] > 0 and terms["bubble"][kind] > 0, found
time = summary["time"]
assert abs(6 * terms["compute"]["seconds"] - time["compute"]) < 1e-6 * time["compute"], (found, time)
ranks = summary["memory"]["ranks"]
foreseen = lambda rank: rank["planned_bytes"] + rank["program_bytes"] + rank["writer_bytes"]
largest = max(ranks, key=foreseen)
assert found["planned_bytes"] == foreseen(largest), (found, ranks)
assert found["used_bytes"] == largest["used_bytes"] - largest["others_bytes"] and largest["program_bytes"] > 2**20, (found, ranks)
assert 0.7 < found["planned_bytes"] / found["used_bytes"] < 1.4, (found, ranks)
assert sum(rank["writer_bytes"] > 0 for rank in ranks) == 1, ranks
PYTHON

# The same machine in a plan of more ranks, and in a scaling study.
run 0 "$TRIREME" -i "$deck" data.file=tokens.h5 job.task=plan plan.machine=here.in plan.nodes=4 plan.simulate=4
says "plan for 8 ranks of"
run 0 "${mpi[@]}" 2 "$TRIREME" -i "$deck" "${keys[@]}" job.task=scaling scaling.steps=2 scaling.repeats=2 job.output=study plan.machine=here.in
says "predict by here"
"$python" - <<'PYTHON' || fail "scaling.csv: $(cat study/scaling.csv)"
import csv
rows = list(csv.DictReader(open("study/scaling.csv", encoding="utf-8")))
assert rows
for row in rows:
    assert (row["predicted_step_seconds"] == "") == (row["oversubscribed"] == "yes"), row
PYTHON

# Without a description the run says how to get one; one of another kind of device predicts nothing; one that is not there is an
# error before anything is written.
run 0 "$TRIREME" -i "$deck" "${keys[@]}" job.output=runs/b
says "predict not compared: no description of these CPUs was named; trireme --calibrate FILE writes one for plan.machine"
run 0 "$TRIREME" -i "$deck" "${keys[@]}" job.output=runs/c plan.machine=h100
says "predict not compared: h100 describes GPUs"
run 2 "$TRIREME" -i "$deck" "${keys[@]}" job.output=runs/d plan.machine=nowhere.in
says "plan.machine: nowhere.in cannot be read"
is_missing runs/d
