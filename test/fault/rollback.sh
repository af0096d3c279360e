#!/usr/bin/env bash
# A stretch of text that makes no sense raises the loss: told by default; with run.on_spike = rollback
# the run goes back to its last checkpoint and on with the samples after the spike, the same in every
# layout, and in the same bits if it is stopped or killed anywhere.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$TRIREME_SOURCE/test/fault/background.sh"
tiny_deck

# Each word follows from the one before it, but for one in 20; 48 of 6,400 words are drawn at random.
"$python" - <<'PYTHON'
import random
random.seed(3)
def text(count, senseless=()):
    word, words = 0, []
    for i in range(count):
        lost = i in senseless or random.random() < 0.05
        word = random.randrange(32) if lost else (5 * word + 7) % 32
        words.append(f"w{word}")
    return " ".join(words) + "\n"
open("train.txt", "w").write(text(6400, range(3200, 3248)))
open("valid.txt", "w").write(text(200))
PYTHON
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.train=train.txt tokenize.valid=valid.txt \
  tokenize.test=valid.txt
sed -i 's/^steps = 20/epochs = 1.5/; s/^every_steps = 10/every_steps = 16/' deck.in
printf '[run]\nspike_window = 20\n' >>deck.in
keys=(data.batch=4 model.dropout=0 optimizer.learning_rate=1e-2 monitor.sample_tokens=0
  monitor.validate_every_steps=0)
train() { "$TRIREME" -i deck.in "${keys[@]}" "$@"; }
# said RUN EVENT: "step text" of each.
said() {
  "$python" - "$1" "$2" <<'PYTHON'
import json, sys
for record in map(json.loads, open(sys.argv[1] + "/metrics.jsonl", encoding="utf-8")):
    if record["kind"] == "event" and record["event"] == sys.argv[2]: print(record["step"], record["text"])
PYTHON
}

# 1. Told only; the search changes no bit.
run 0 train job.output=told
says "above the mean of"
(($(said told spike | grep -cF 'not gone back: run.on_spike = report') == 3)) || fail "$(said told spike)"
run 0 train run.spike_window=0 job.output=unsought
same_end told unsought step

# 2. Gone back. The samples left out are counted; the run keeps its steps, whatever it left out.
back=(run.on_spike=rollback)
run 0 train "${back[@]}" job.output=calm
says "back from step 72 to calm/checkpoints/step_00000064 of step 64, and on from there with sample 288"
says "4 spikes of the loss; 4 rollbacks, 128 samples left out"
# accounts RUN [exact]: as calm has them, the window of losses bit by bit if exact.
accounts() {
  "$python" - "$1" calm "${2:-}" <<'PYTHON' || fail "the accounts of $1 are wrong"
import json, sys
run, calm = (json.load(open(name + "/checkpoints/latest/run.json")) for name in sys.argv[1:3])
guards, wanted = run["safeguards"], calm["safeguards"]
for key in ("spikes", "rollbacks", "skipped", "goes_back_to"):
    assert guards[key] == wanted[key], (key, guards[key], wanted[key])
assert sys.argv[3] != "exact" or guards["losses"] == wanted["losses"], "another window of losses"
left_out = sum(one["to_sample"] - one["from_sample"] for one in guards["skipped"])
# 400 windows an epoch and batches of 4: none is short. 1.5 epochs are 150 steps.
assert (run["step"], run["next_sample"]) == (150, 4 * 150 + left_out), run["next_sample"]
assert run["tokens"] == 4 * 16 * 150, run["tokens"]
assert abs(run["epoch"] - run["next_sample"] / 400) < 1e-12, run["epoch"]
records = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl", encoding="utf-8")]
steps = [r for r in records if r["kind"] == "step"]
assert [r["step"] for r in steps] == list(range(1, 151)), "records of steps gone back over are left"
others = [r for r in map(json.loads, open(sys.argv[2] + "/metrics.jsonl")) if r["kind"] == "step"]
for one, other in zip(steps, others):
    assert abs(one["loss"] / other["loss"] - 1) < 1e-5, (one["step"], one["loss"], other["loss"])
    assert (one["tokens"], one["epoch"]) == (other["tokens"], other["epoch"]), one["step"]
PYTHON
}
accounts calm

# A mixture of this file alone has its order, and keeps to its place in it.
run 0 train "${back[@]}" data.mixture=harbour.h5:1 job.output=mixed
accounts mixed exact
same_end calm mixed step
"$python" -c '
import json
run = json.load(open("mixed/checkpoints/latest/run.json"))
file = run["mixture"][0]
assert (file["windows_used"], file["tokens"]) == (run["next_sample"], run["tokens"]), run' || fail "another place"

# 3. Every layout goes back at the same steps over the same samples.
for axis in data tensor pipeline; do
  run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" "${back[@]}" grid.$axis=2 job.output=$axis
  accounts $axis
done

# 4. Stopped before the checkpoint, between it and the spike, in the step of the spike, where the run
# goes back before it stops, after it; killed after it has gone back: the same bits, and the same decisions.
run 0 train "${back[@]}" checkpoint.keep=2 schedule.stop_at=60 job.output=stopped
run 0 train "${back[@]}" checkpoint.keep=2 schedule.stop_at=71 -r stopped job.output=stopped
run 3 train "${back[@]}" checkpoint.keep=2 schedule.walltime_minutes=1e-9 -r stopped job.output=stopped
says "back from step 72 to stopped/checkpoints/step_00000064"
says "stopped by schedule.walltime_minutes after step 64"
"$python" -c '
import json
guards = json.load(open("stopped/checkpoints/latest/run.json"))["safeguards"]
assert (guards["goes_back_to"], guards["rollbacks_to_it"]) == (64, 1), guards' || fail "the rollback is forgotten"
run 0 train "${back[@]}" checkpoint.keep=2 schedule.stop_at=140 -r stopped job.output=stopped
run 0 train "${back[@]}" checkpoint.keep=2 -r stopped job.output=stopped
same_end calm stopped step
accounts stopped exact
begins "$TRIREME" -i deck.in "${keys[@]}" "${back[@]}" checkpoint.async=yes job.output=killed
awaits killed/metrics.jsonl '"event":"rollback"' 2
killed
is_missing killed/checkpoints/step_00000150
run 0 "$TRIREME" -r killed
same_end calm killed step
accounts killed exact

# 5. Not for ever to one checkpoint, and not without one.
run 0 train "${back[@]}" run.max_rollbacks=1 checkpoint.every_steps=64 job.output=often
[[ $(said often spike) == *"not gone back: run.max_rollbacks = 1 to the checkpoint of step 64"* ]] || fail "$(said often spike)"
run 0 train "${back[@]}" checkpoint.every_steps=0 job.output=without
[[ $(said without spike) == *"not gone back: there is no checkpoint to go back to"* ]] || fail "$(said without spike)"

# 6. A checkpoint that cannot be read ends the run; -r goes on from the one before it.
begins "$TRIREME" -i deck.in "${keys[@]}" "${back[@]}" job.output=damaged schedule.stop_at=70
ends 0
printf '%01000d' 0 | dd of=damaged/checkpoints/step_00000064/model.safetensors bs=1 seek=20000 conv=notrunc status=none
run 1 train "${back[@]}" -r damaged/checkpoints/step_00000070
says "The run was going back to it after a spike of the loss"

# 7. Local checkpoints between those of the run folder: killed before a spike, the run goes on from one, knows where to go
# back to, and leaves none of the steps that it has gone back over; killed after that, too.
local=(checkpoint.local="$scratch/local" checkpoint.every_steps=2 checkpoint.drain_every=8)
LD_PRELOAD=${TRIREME_FAIL_CALLS:?} TRIREME_FAULT_CALL=open TRIREME_FAULT_PATH=/00000070. TRIREME_FAULT_NTH=0 \
  TRIREME_FAULT_DELAY=60000 begins "$TRIREME" -i deck.in "${keys[@]}" "${back[@]}" "${local[@]}" job.output=local_run
awaits local_run/metrics.jsonl '"event":"local checkpoint","step":68'
killed
begins "$TRIREME" -r local_run
awaits local_run/metrics.jsonl '"event":"rollback"' 2
killed
grep -q "from the local checkpoint on the hosts, 0 B of it from other hosts, at step 68" log || fail_with_log "not from step 68"
run 0 "$TRIREME" -r local_run
same_end calm local_run step
accounts local_run exact
[[ -z $(find local -type f) ]] || fail "left: $(find local -type f)"

# 8. Killed between a local checkpoint and the run folder's of the same step, to which a later spike goes back: the
# next session writes the latter first.
LD_PRELOAD=$TRIREME_FAIL_CALLS TRIREME_FAULT_CALL=open TRIREME_FAULT_PATH=step_00000112 TRIREME_FAULT_NTH=0 \
  TRIREME_FAULT_DELAY=60000 begins "$TRIREME" -i deck.in "${keys[@]}" "${back[@]}" "${local[@]}" job.output=between
awaits between/metrics.jsonl '"event":"local checkpoint","step":112'
killed
is_missing between/checkpoints/step_00000112
run 0 "$TRIREME" -r between
says "from the local checkpoint on the hosts, 0 B of it from other hosts, at step 112"
same_end calm between step
accounts between exact
