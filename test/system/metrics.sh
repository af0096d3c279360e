#!/usr/bin/env bash
# metrics.jsonl has every step once, whatever happens to the run, and an interval for each line on the
# screen; summary.json agrees with both, of a run that ends as of one that stops.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens
keys=(monitor.every_steps=50 monitor.validate_every_steps=100 checkpoint.every_steps=50)

# whole RUN STEPS [torn]: every step from 1 on once, in order; intervals end at the lines' steps. A torn
# last line is allowed after a kill.
whole() {
  "$python" - "$@" <<'PYTHON' || fail "$1: the records are not those of a whole run"
import json, sys
run, steps, torn = sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3
records = []
lines = open(run + "/metrics.jsonl", encoding="utf-8").read().split("\n")
for number, line in enumerate(lines):
    try:
        records.append(json.loads(line))
    except json.JSONDecodeError:
        assert number == len(lines) - 1 and (line == "" or torn), (number, line)
found = [r for r in records if r["kind"] == "step"]
assert [r["step"] for r in found] == list(range(1, steps + 1)), [r["step"] for r in found]
due = [s for s in range(1, steps + 1) if s == 1 or s % 50 == 0]
intervals = [r for r in records if r["kind"] == "interval"]
assert [r["step"] for r in intervals] == due, [r["step"] for r in intervals]
for r in intervals:
    part = [s for s in found if r["step"] - r["steps"] < s["step"] <= r["step"]]
    assert len(part) == r["steps"]
    losses = [s["loss"] for s in part]
    assert (r["loss_min"], r["loss_max"]) == (min(losses), max(losses)), r
    assert abs(r["loss_mean"] - sum(losses) / len(losses)) < 1e-12, r
    seconds = sum(s["step_seconds"] for s in part)
    tokens = sum(s["step_seconds"] * s["tokens_per_second"] for s in part)
    assert abs(r["step_seconds_mean"] * r["steps"] / seconds - 1) < 1e-5, (r, seconds)
    assert abs(r["tokens_per_second_mean"] / (tokens / seconds) - 1) < 1e-5, r
    assert r["memory_bytes"] > 0 and r["memory_host"] and r["slowest_host"], r
PYTHON
}
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" schedule.steps=200 job.output=calm
cp output said
whole calm 200
[[ $(grep -cE '^ +[0-9]+ ' said) == 5 ]] || fail "other lines on the screen than of steps 1, 50, 100, 150, 200"
"$python" - said <<'PYTHON' || fail "calm/summary.json is wrong"
import json, re, sys
said = open(sys.argv[1], encoding="utf-8").read()
summary = json.load(open("calm/summary.json", encoding="utf-8"))
records = [json.loads(line) for line in open("calm/metrics.jsonl", encoding="utf-8")]
assert (summary["format"], summary["outcome"], summary["reason"]) == (1, "done", None)
assert summary["step"] == summary["total_steps"] == 200 and summary["ranks"] == 2
last = {r["kind"]: r for r in records}
losses = summary["losses"]
assert losses["first"] == records[0]["loss"] and losses["last"] == last["step"]["loss"]
assert losses["last_valid"] == last["valid"]["loss"] and losses["test"] == last["test"]["loss"]
assert losses["best_valid"] == min(r["loss"] for r in records if r["kind"] == "valid")
assert 1 < losses["entropy_floor"] < losses["test"]
assert summary["tokens"] == last["step"]["tokens"] and summary["bad_steps"] == 0
time = dict(summary["time"])
elapsed = time.pop("elapsed")
assert abs(sum(time.values()) - elapsed) < 0.02 * elapsed + 1e-3, summary["time"]
assert summary["samples"] == [re.search(r"^sample  (.*)$", said, re.M)[1]], summary["samples"]
ranks = summary["memory"]["ranks"]
assert [(r["rank"], r["data"]) for r in ranks] == [(0, 0), (1, 1)] and summary["memory"]["ranks_left_out"] == 0
planned = sum(term["bytes"] for term in summary["memory"]["planned"])
assert max(r["planned_bytes"] for r in ranks) == planned, (ranks, planned)
assert all(r["used_bytes"] > r["planned_bytes"] and r["seconds_compute"] > 0 and r["host"] in summary["hosts"] for r in ranks)
assert max(r["used_bytes"] for r in ranks) >= last["interval"]["memory_bytes"]
assert {row["group"] for row in summary["traffic"]} >= {"data", "world"}, summary["traffic"]
assert summary["deck"]["schedule.steps"] == "200" and summary["deck"]["optimizer.beta1"] == "0.9"
assert "schedule.steps" in summary["deck_given"] and "optimizer.beta1" not in summary["deck_given"]
assert not {"joules", "not_available"}.isdisjoint(summary["energy"]), summary["energy"]
PYTHON

# Stopped: the summary says so and why; the next session replaces it.
run 0 "$TRIREME" -i deck.in "${keys[@]}" schedule.steps=200 job.output=parts schedule.stop_at=70
run 3 "$TRIREME" -r parts schedule.walltime_minutes=1e-9
"$python" -c '
import json
summary = json.load(open("parts/summary.json", encoding="utf-8"))
assert (summary["outcome"], summary["reason"]) == ("stopped", "schedule.walltime_minutes"), summary
assert (summary["first_step"], summary["step"], summary["total_steps"]) == (70, 71, 200), summary' || fail "parts/summary.json"
run 0 "$TRIREME" -r parts schedule.walltime_minutes=0
[[ $(losses parts/metrics.jsonl step | wc -l) == 200 ]] || fail "steps are missing or doubled after a stop"
"$python" -c 'import json; assert json.load(open("parts/summary.json"))["outcome"] == "done"' || fail "an old summary"
# The summary's deck is as it was resolved: keys that nobody gave are not marked.
"$python" -c 'import json; given = json.load(open("parts/summary.json"))["deck_given"]; assert "optimizer.beta1" not in given, given'

# Killed at any moment: readable, and whole after -r.
for pause in 0.4 0.8; do
  rm -rf killed
  "$TRIREME" -i deck.in "${keys[@]}" schedule.steps=100000 job.output=killed >output 2>&1 &
  job=$!
  for _ in $(seq 400); do
    ! grep -q '"event":"checkpoint"' killed/metrics.jsonl 2>/dev/null || break
    sleep 0.02
  done
  sleep "$pause"
  kill -KILL $job
  wait $job 2>/dev/null && fail "the run was over before it was killed: give it more steps"
  "$python" - <<'PYTHON' || fail "a killed run left records that cannot be read"
import json
lines = open("killed/metrics.jsonl", encoding="utf-8").read().split("\n")
steps = [json.loads(line) for line in lines[:-1]]
numbers = [r["step"] for r in steps if r["kind"] == "step"]
assert numbers == list(range(1, numbers[-1] + 1)) and len(numbers) >= 50, len(numbers)
PYTHON
  is_missing killed/summary.json
  end=$(($(losses <(head -n -1 killed/metrics.jsonl) step | wc -l) / 50 * 50 + 100))
  run 0 "$TRIREME" -r killed "schedule.stop_at=$end"
  whole killed "$end"
done

# No room for any record: said once, and everything else is as ever.
mkdir full
ln -s /dev/full full/metrics.jsonl
run 0 "$TRIREME" -i deck.in "${keys[@]}" schedule.steps=200 job.output=full
says_once "full/metrics.jsonl: cannot be written: No space left on device; the run goes on without it"
cmp {calm,full}/checkpoints/latest/model.safetensors >/dev/null 2>&1 || exists full/checkpoints/step_00000200
exists full/summary.json
# Nor for the summary.
mkdir -p busy/summary.json/x
run 0 "$TRIREME" -i deck.in "${keys[@]}" schedule.steps=200 job.output=busy
says "busy/summary.json: cannot be written"
whole busy 200
