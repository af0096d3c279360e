#!/usr/bin/env bash
# A disk that fills up, turns read-only, runs out of descriptors or damages files while a run goes on:
# each is said once, costs at most the work since the last checkpoint, and changes no bit of the result.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$TRIREME_SOURCE/test/fault/background.sh"
[[ $(id -u) == 0 ]] || skip "only root can mount a small file system"
mkdir disk
mount -t tmpfs -o size=16m tmpfs disk 2>/dev/null || skip "tmpfs cannot be mounted here"
unmount() {
  local place
  cd /
  for place in "$scratch"/disk/*/checkpoints/*/held "$scratch"/disk/*/checkpoints/step_* "$scratch"/disk/*/ "$scratch/disk"; do
    ! mountpoint -q "$place" || umount -l "$place" || true
  done
  background_leave
}
trap unmount EXIT
tiny_deck
tokens

keys=(schedule.steps=320 checkpoint.every_steps=40 monitor.validate_every_steps=0 checkpoint.keep=2
  monitor.sample_tokens=0 monitor.every_steps=40)
train() { "$TRIREME" -i deck.in "${keys[@]}" "$@"; }
launch() { begins "$TRIREME" -i deck.in "${keys[@]}" "$@"; }
event() { echo "\"event\":\"$1\""; }
run 0 train job.output=calm

# fill: all but what the metrics of a few hundred steps take.
fill() {
  dd if=/dev/zero of=disk/reserve bs=64k count=3 2>/dev/null
  dd if=/dev/zero of=disk/filler bs=16k >/dev/null 2>&1 || true
  rm disk/reserve
}
# while_failing RUN BREAK MEND: BREAK at a moment after the first checkpoint, MEND after the next one
# has failed; the one after that is written and the run ends as if nothing had been.
while_failing() {
  local folder=$1
  awaits "$folder/metrics.jsonl" "$(event checkpoint)"
  holds
  $2
  goes_on
  awaits "$folder/metrics.jsonl" "$(event 'checkpoint failed')"
  holds
  $3
  local written
  written=$(count "$folder/metrics.jsonl" "$(event checkpoint)")
  goes_on
  awaits "$folder/metrics.jsonl" "$(event checkpoint)" $((written + 1))
  ends 0
  says "was not written"
  [[ $(count output "was not written") == $(count "$folder/metrics.jsonl" "$(event 'checkpoint failed')") ]] ||
    fail "not a warning for each event"
  grep -q "^warning: the checkpoint of step [0-9]* was not written: $4" output || fail "not said: $4"
  same_end calm "$folder"
  [[ -z $(find "$folder/checkpoints" -name '*.tmp') ]] || fail "left: $(ls "$folder/checkpoints")"
}

# 1. Full, and room again.
free() { rm disk/filler; }
for async in no yes; do
  launch "job.output=disk/full_$async" checkpoint.async=$async checkpoint.max_failures=100
  while_failing "disk/full_$async" fill free ".*No space left on device"
  rm -r "disk/full_$async"
done

# 2. Full for good: the second failure in a row ends the run; the checkpoint before is whole.
launch job.output=disk/ended checkpoint.max_failures=2
awaits disk/ended/metrics.jsonl "$(event checkpoint)"
holds
fill
goes_on
ends 1
says_once "error:"
says "the last of 2 failures in a row"
rm disk/filler
run 0 "$TRIREME" -r disk/ended
says "resumed from disk/ended/checkpoints/step_"
same_end calm disk/ended
rm -r disk/ended

# 3. Read-only for a while: new files only, those of the log are open.
read_only() {
  mount --bind disk/locked disk/locked
  mount -o remount,ro,bind disk/locked
}
writable() { umount disk/locked; }
launch job.output=disk/locked checkpoint.max_failures=100
while_failing disk/locked read_only writable ".*Read-only file system"
rm -r disk/locked

# 4. No descriptor is free for a while.
few() {
  local number=0
  while [[ -e /proc/$job/fd/$number ]]; do number=$((number + 1)); done
  limit=$(prlimit --pid "$job" --nofile --noheadings --output SOFT | tr -d ' ')
  prlimit --pid "$job" --nofile="$number:"
}
many() { prlimit --pid "$job" --nofile="$limit:"; }
launch job.output=disk/few checkpoint.max_failures=100
while_failing disk/few few many ".*Too many open files"
rm -r disk/few

# 5. An old checkpoint that cannot be removed: a warning, and every later one is written.
launch job.output=disk/stuck
awaits disk/stuck/metrics.jsonl "$(event checkpoint)"
holds
mkdir "disk/stuck/checkpoints/$(readlink disk/stuck/checkpoints/latest)/held"
mount -t tmpfs tmpfs "disk/stuck/checkpoints/$(readlink disk/stuck/checkpoints/latest)/held"
goes_on
ends 0
says "is written, but: "
says "Device or resource busy"
! grep -q "was not written" output || fail "a clean-up that fails costs a checkpoint"
(($(count output "is written, but: ") <= 2)) || fail "said again and again"
grep -q "$(event 'clean-up failed')" disk/stuck/metrics.jsonl || fail "no event"
same_end calm disk/stuck

# 6. The best checkpoint, of step 4, fails when the next one begins, of step 6: that becomes the best, and
# stays it, since the validations after it find higher losses.
run 0 "$TRIREME" -i deck.in job.output=disk/best checkpoint.async=yes checkpoint.every_steps=0 schedule.steps=48 \
  schedule.stop_at=2 optimizer.learning_rate=2e-2 monitor.validate_every_steps=2
mkdir disk/best/checkpoints/step_00000004
mount -t tmpfs tmpfs disk/best/checkpoints/step_00000004
run 0 "$TRIREME" -r disk/best schedule.stop_at=16
says "the checkpoint of step 4 was not written"
"$python" - disk/best <<'PYTHON' || fail "the best checkpoint is another one"
import json, os, sys

run = sys.argv[1] + "/"
records = [json.loads(line) for line in open(run + "metrics.jsonl", encoding="utf-8")]
valid = {r["step"]: r["loss"] for r in records if r["kind"] == "valid"}
assert min(valid, key=valid.get) == 6 and valid[4] < valid[2] and valid[8] < valid[2], valid
assert os.readlink(run + "checkpoints/best") == "step_00000006", os.readlink(run + "checkpoints/best")
assert json.load(open(run + "checkpoints/latest/run.json"))["best_loss"] == valid[6]
PYTHON
