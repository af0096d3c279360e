#!/usr/bin/env bash
# Files of a checkpoint cut, emptied, closed to the user or with holes, in a stopped run and in one that
# goes on: -r names what is damaged, passes over it, and ends in the bytes of an undisturbed run.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$TRIREME_SOURCE/test/fault/background.sh"
tiny_deck
tokens
keys=(monitor.sample_tokens=0)
sed -i "s/^every_steps = 10/every_steps = 5/" deck.in # checkpoints
train() { "$TRIREME" -i deck.in "${keys[@]}" "$@"; }
run 0 train job.output=calm
run 0 train job.output=stopped schedule.stop_at=15

newest=step_00000015
shorten() { truncate -s -1 "$1"; }
empty() { truncate -s 0 "$1"; }
hole() { fallocate -p -o 8192 -l 4096 "$1"; }
# passes_over FILE DAMAGE TEXT: a stopped run, FILE of whose newest checkpoint is damaged.
passes_over() {
  rm -rf damaged
  cp -r stopped damaged
  "$2" "damaged/checkpoints/$newest/$1"
  run 0 "$TRIREME" -r damaged
  grep -q "^warning: passed over .*$3" output || fail "$1, $2: not said: $3"
  [[ $(count output "resumed from damaged/checkpoints/step_00000010") == 1 ]] || fail "$1, $2: not from step 10"
  says "resumed from damaged/checkpoints/step_00000010"
  ! grep -q "error:" output || fail "$1, $2: an error"
  exists damaged/checkpoints/step_00000005
  same_end calm damaged
}
passes_over model.safetensors shorten "$newest: model.safetensors has .* bytes instead of"
passes_over run.json empty "$newest: run.json has 0 bytes instead of"
passes_over checksums.json empty "$newest: .*checksums.json"
passes_over optimizer.safetensors rm "$newest: it lacks optimizer.safetensors"
touch probe && truncate -s 64k probe
if fallocate -p -o 0 -l 4096 probe 2>/dev/null; then
  passes_over optimizer.safetensors hole "$newest/optimizer.safetensors: tensor .* are damaged"
else
  echo "SKIPPED: this file system punches no holes"
fi

# Every checkpoint damaged: one message, nothing is overwritten.
rm -rf damaged
cp -r stopped damaged
for file in damaged/checkpoints/step_*/model.safetensors; do shorten "$file"; done
cp -r damaged before
run 2 "$TRIREME" -r damaged
says_once "error:"
for step in 05 10 15; do says "step_000000$step: model.safetensors has"; done
diff -r before damaged >difference || fail "something was changed: $(cat difference)"

# One byte of each: all are named, and no advice to take another one.
rm -rf damaged
cp -r stopped damaged
for file in damaged/checkpoints/step_*/optimizer.safetensors; do
  printf X | dd of="$file" bs=1 seek=9000 conv=notrunc 2>/dev/null
done
rm -rf before
cp -r damaged before
run 2 "$TRIREME" -r damaged
says_once "error:"
says "error: damaged: no checkpoint of the run is whole"
for step in 05 10 15; do says_once "damaged/checkpoints/step_000000$step/optimizer.safetensors: tensor"; done
! grep -q "take another" output || fail "there is no other checkpoint to take"
diff -r before damaged >difference || fail "something was changed: $(cat difference)"
run 2 "$TRIREME" -i deck.in -r damaged/checkpoints/$newest
says "take another checkpoint of the run"

# A deck.in that was cut off, by this version or by one that did not mark its end: the newest
# checkpoint's is taken.
at_section() { sed -i '/^\[optimizer\]/,$d' "$1"; }
in_a_line() { truncate -s "$(($(grep -bo '^learning_rate' "$1" | cut -d: -f1) + 20))" "$1"; }
in_the_first_line() { truncate -s 20 "$1"; }
no_marks() { sed -i '/^# Deck of a run/d; /^# end of the deck/d' "$1"; }
taken="damaged/deck.in: the deck was cut off: the one in damaged/checkpoints/$newest/run.json is taken"
for cut in at_section in_a_line in_the_first_line empty "at_section no_marks" "in_a_line no_marks"; do
  rm -rf damaged
  cp -r stopped damaged
  for change in $cut; do $change damaged/deck.in; done
  cp damaged/deck.in cut.in
  run 0 "$TRIREME" -r damaged job.task=evaluate
  says_once "trireme: warning: $taken"
  run 0 "$TRIREME" -n -r damaged
  says_once "trireme: warning: $taken"
  cmp cut.in damaged/deck.in || fail "$cut: deck.in was changed by a task that reads"
  run 0 "$TRIREME" -r damaged
  says_once "warning: $taken"
  ! grep -q "when the checkpoint was written" output || fail "$cut: another deck than the run's"
  same_end calm damaged step # the stop has added a validation
  run 0 "$TRIREME" -n -r damaged
  ! grep -q "cut off" output || fail "$cut: deck.in is not whole again"
done
# Changed on purpose, with the marks or without, it is the run's.
for change in true no_marks; do
  rm -rf damaged
  cp -r stopped damaged
  $change damaged/deck.in
  sed -i 's/^\(learning_rate *= \)[^ ]*/\12e-3/' damaged/deck.in
  run 0 "$TRIREME" -r damaged
  says "optimizer.learning_rate is 2e-3 now and was 3e-3"
  ! grep -q "cut off" output || fail "$change: a changed deck passes for one that was cut off"
done
# Without a checkpoint there is no copy.
for cut in at_section empty; do
  rm -rf begun before
  mkdir -p begun/checkpoints
  cp stopped/deck.in begun/
  $cut begun/deck.in
  cp -r begun before
  run 2 "$TRIREME" -r begun
  says_once "error: begun/deck.in: the deck was cut off"
  says "Give the run's deck with -i."
  diff -r before begun >difference || fail "something was changed: $(cat difference)"
done

sed "s/^every_steps = 5/every_steps = 50/; s/^validate_every_steps = .*/validate_every_steps = 0/" deck.in >live.in
# A run that goes on does not read its checkpoints: the result is the same. Killed, it passes over.
for killed in no yes; do
  begins "$TRIREME" -i live.in "${keys[@]}" schedule.steps=600 \
    "job.output=live_$killed"
  awaits "live_$killed/metrics.jsonl" '"event":"checkpoint"' 2
  holds
  reached=$(readlink "live_$killed/checkpoints/latest")
  shorten "live_$killed/checkpoints/$reached/model.safetensors"
  if [[ $killed == no ]]; then
    goes_on
    ends 0
    ! grep -q "warning\|error" output || fail "a warning without a reason"
  else
    killed
    run 0 "$TRIREME" -r live_yes
    says "passed over $reached: model.safetensors has"
  fi
done
same_end live_no live_yes

# Closed to the user: root may read what it likes, so as nobody.
user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
[[ $(id -u) == 0 ]] || user=()
chmod 755 "$scratch"
rm -rf damaged
cp -r stopped damaged
[[ $(id -u) != 0 ]] || chown -R 65534 damaged
if ! "${user[@]}" "$TRIREME" -v -r damaged >output 2>&1; then
  cat output
  echo "SKIPPED: chmod 000: another user cannot run the program here"
  exit 0
fi
for file in model.safetensors .; do
  rm -rf damaged
  cp -r stopped damaged
  chmod 000 "damaged/checkpoints/$newest/$file"
  [[ $(id -u) != 0 ]] || chown -R 65534 damaged
  run 0 "${user[@]}" "$TRIREME" -r damaged
  says "warning: passed over $newest: "
  says "Permission denied"
  says "resumed from damaged/checkpoints/step_00000010"
  chmod -R u+rwX damaged
  same_end calm damaged
done
