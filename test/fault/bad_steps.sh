#!/usr/bin/env bash
# Steps with values that are not finite: left out up to run.max_bad_steps in a row, told with rank, host,
# tensor and layer, counted; the next one ends the run, and a stop does not begin the count anew.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$TRIREME_SOURCE/test/fault/background.sh"
tiny_deck
tokens
keys=(monitor.sample_tokens=0 monitor.validate_every_steps=0)
train() { "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" "$@"; }
# One sum of gradients goes wrong on rank 1: train_spoiled NTH COUNT KEYS...
train_spoiled() {
  "${mpi[@]}" 2 -x "LD_PRELOAD=$TRIREME_SPOIL_SUMS" -x TRIREME_SPOIL_RANK=1 -x TRIREME_SPOIL_LEAST=1000 \
    -x "TRIREME_SPOIL_NTH=$1" -x "TRIREME_SPOIL_COUNT=$2" "$TRIREME" -i deck.in "${keys[@]}" "${@:3}"
}
# expects RUN BAD_STEPS...: exactly these steps are told, as a reader of strict JSON sees them.
expects() {
  "$python" - "$@" <<'PYTHON' || fail "the records of $1 are not those expected"
import json, socket, sys

def refuse(name):
    raise ValueError(name + " is not JSON")

lines = open(sys.argv[1] + "/metrics.jsonl", encoding="utf-8")
records = [json.loads(line, parse_constant=refuse) for line in lines]
wanted = [int(step) for step in sys.argv[2:]]
events = [r for r in records if r["kind"] == "event" and r["event"] == "bad step"]
assert [e["step"] for e in events] == wanted, events
for event in events:
    assert "not finite" in event["text"] and event["host"] in event["text"], event
    assert event["host"] and f'on rank {event["rank"]}' in event["text"], event
steps = [r for r in records if r["kind"] == "step"]
for r in steps:
    bad = r["step"] in wanted
    assert (r["loss"] is None) == bad and (r["grad_norm"] is None) == bad, r
    assert r["learning_rate"] > 0, r
    assert r["bad_steps"] == sum(step <= r["step"] for step in wanted), r
PYTHON
}

# 1. A passing fault: two steps in a row are left out, the run goes on.
run 0 train job.output=calm
run 0 train_spoiled 7 2 run.max_bad_steps=2 job.output=passing
says "summed over the ranks, on rank"
says "its update is left out, 2 of at most 2 in a row"
says "2 bad steps without an update"
mapfile -t bad < <("$python" -c '
import json
for line in open("passing/metrics.jsonl"):
    record = json.loads(line)
    if record.get("event") == "bad step": print(record["step"])')
((${#bad[@]} == 2 && bad[1] == bad[0] + 1)) || fail "bad steps: ${bad[*]}"
expects passing "${bad[@]}"
expects calm
# The same fault gives the same bits; up to it they are those of the calm run.
run 0 train_spoiled 7 2 run.max_bad_steps=2 job.output=again
same_end passing again
cmp -s {calm,passing}/checkpoints/latest/model.safetensors && fail "nothing was left out"
diff <(losses calm/metrics.jsonl step | head -n $((bad[0] - 1))) \
  <(losses passing/metrics.jsonl step | head -n $((bad[0] - 1))) >difference || fail "$(head -n 5 difference)"

# 2. One more in a row than allowed, and the default, which allows none.
run 1 train_spoiled 7 2 run.max_bad_steps=1 job.output=too_many
says_once "error:"
says "error: step ${bad[1]}: "
says "bad step 2 in a row, with run.max_bad_steps = 1"
expects too_many "${bad[@]}"
run 1 train_spoiled 7 2 job.output=none
says "error: step ${bad[0]}: "
expects none "${bad[0]}"

# 3. A state that is spoiled for good ends, whatever is started again: the row goes on.
train_poisoned() {
  "$TRIREME" -i deck.in "${keys[@]}" optimizer.learning_rate=1e30 schedule.warmup_steps=0 \
    optimizer.clip_norm=0 checkpoint.every_steps=1 job.output=poisoned "$@"
}
run 1 train_poisoned run.max_bad_steps=3
says "on rank 0 ($(hostname))"
says "bad step 4 in a row"
grep -q '"bad_steps_in_a_row": *3' poisoned/checkpoints/latest/run.json || fail "run.json forgets the row"
first=$("$python" -c '
import json
print(next(r["step"] for r in map(json.loads, open("poisoned/metrics.jsonl")) if r.get("event") == "bad step"))')
run 1 train_poisoned run.max_bad_steps=3 -r poisoned
says "error: step $((first + 3)): "
says "bad step 4 in a row"
run 0 train_poisoned -r poisoned run.max_bad_steps=100
expects poisoned $(seq "$first" 20)
