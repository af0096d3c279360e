#!/usr/bin/env bash
# The task plan as a user runs it: a table in the order of the predicted times, rows as JSON, the deck's own layout first, a
# timeline; errors name the key. No MPI is started.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
deck=$TRIREME_SOURCE/input/llama3_8b.in
run 0 "$TRIREME" -i "$deck" job.task=plan plan.machine=jupiter plan.nodes=4 plan.simulate=6 plan.rows=4 job.output=planned
says "plan for 16 ranks of JUPITER Booster"
says "node-hours"
says "for each parameter"
"$python" - <<'PYTHON' || fail "plan.jsonl: $(cat planned/plan.jsonl)"
import json
rows = [json.loads(line) for line in open("planned/plan.jsonl", encoding="utf-8")]
others = [row for row in rows if not row.get("own")]
assert len(others) == 6 and [r["step_seconds"] for r in others] == sorted(r["step_seconds"] for r in others), rows
for row in rows:
    assert row["data"] * row["tensor"] * row["context"] * row["pipeline"] == 16, row
    parts = row["seconds_compute"] + row["seconds_exposed_communication"] + row["seconds_bubble"]
    assert 0.5 * row["step_seconds"] < parts <= 1.0001 * row["step_seconds"], row
    assert abs(sum(row.get("seconds_exposed", {}).values()) - row["seconds_exposed_communication"]) < 1e-9, row
    assert row["memory_bytes"] < 93 * 2**30 and row["fits"], row
PYTHON

# The deck's own layout, and a timeline of it.
run 0 "$TRIREME" -i "$deck" job.task=plan plan.machine=h100 plan.nodes=2 grid.pipeline=4 data.batch=16 data.micro_batch=1 \
  plan.simulate=0 job.output=own plan.timeline=own.json.gz
[[ $(wc -l <own/plan.jsonl) == 1 ]] || fail "rows: $(cat own/plan.jsonl)"
"$python" - <<'PYTHON' || fail "own layout"
import gzip, json
row = json.loads(open("own/plan.jsonl", encoding="utf-8").readline())
assert row["own"] is True and row["pipeline"] == 4 and row["seconds_bubble"] > 0, row
events = json.load(gzip.open("own.json.gz"))["traceEvents"]
tasks = [e for e in events if e.get("ph") == "X" and "forward" in e["name"]]
assert {e["pid"] for e in events if e.get("ph") == "X"} == {0, 4, 8, 12}, "a process for each stage"
assert len(tasks) == 4 * 4, len(tasks)
PYTHON

# Without MPI: a launcher that is not there is no matter; -v searches nothing.
run 0 env -i HOME="$HOME" "$TRIREME" -v -i "$deck" job.task=plan plan.machine=gb200
says "valid: nothing was searched or written"

run 2 "$TRIREME" -i "$deck" job.task=plan plan.machine=juptier
says "juptier.in cannot be read"
says "jupiter, juwels_booster"
run 2 "$TRIREME" -i "$deck" job.task=plan plan.machine=leonardo plan.nodes=5000
says "has 3456 nodes"
run 2 "$TRIREME" -i "$deck" job.task=plan plan.machine=a100_40 run.precision=fp8
says "run.precision"
run 2 "$TRIREME" -i "$deck" job.task=plan plan.machine=h100 plan.nodes=2 grid.ranks=8
says "State one of them"
run 2 "$TRIREME" -i "$TRIREME_SOURCE/input/llama3_70b.in" job.task=plan plan.machine=a100_40 plan.nodes=1
says "Plan for more nodes"

# A deck that says so is planned by one of the ranks that run.
sed 's/^\[job\]/&\ntask = plan/' "$deck" >planning.in
run 0 "${mpi[@]}" 2 "$TRIREME" -i planning.in plan.nodes=1 plan.simulate=2
[[ $(grep -c "^fastest" "$scratch/output") == 1 ]] || fail "not once"
