#!/usr/bin/env bash
# Checkpoints that earlier versions wrote, folders in versions.json: evaluated and trained
# on, with the losses of the version that wrote them.
#   bash versions.sh               checks all of them
#   bash versions.sh add FOLDER    makes one of the present version, before its release, for packed.py add
# A folder holds deck.in, step_00000010 (after 10 of the deck's 20 steps) and losses.json, and keeps
# its content for good. 0.1.0_without_model is of an early 0.1.0, whose run.json has no objects
# "model", "optimizer", "schedule" and "vocabulary", and no "sequence". later_format has a run.json of
# format 2, which this version refuses.
added=${2:+$(realpath -m "$2")}
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
versions=$scratch/.versions
"$python" "$TRIREME_SOURCE/test/packed.py" unpack "$TRIREME_SOURCE/test/system/versions.json" "$versions"

# found: losses of evaluating step_00000010 with ./deck.in, and of the run that it belongs to at its
# end, as JSON.
take_losses() {
  rm -rf harbour.h5 run
  mkdir -p run/checkpoints
  cp -r step_00000010 run/checkpoints/
  run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=2000
  run 0 "$TRIREME" -i deck.in -r step_00000010 job.task=evaluate
  cp output evaluated
  run 0 "$TRIREME" -i deck.in -r run
  says "resumed from run/checkpoints/step_00000010 at step 10"
  "$python" - evaluated run/metrics.jsonl >found <<'PYTHON'
import json, re, sys
found = {}
for line in open(sys.argv[1], encoding="utf-8"):
    loss = re.match(r"(valid|test) +loss ([0-9.]+) nats", line)
    if loss:
        found["evaluated " + loss[1]] = float(loss[2])
for record in map(json.loads, open(sys.argv[2], encoding="utf-8")):
    if record["kind"] in ("step", "valid", "test") and record["step"] == 20:
        found["final " + record["kind"]] = record["loss"]
assert len(found) == 5, found
print(json.dumps(found, indent=2))
PYTHON
}

# Instruction sets and libraries of matrix products differ in the last bits of a sum.
compare() {
  "$python" - "$1" found <<'PYTHON' || fail "$1: other losses than those of the version that wrote it"
import json, sys
was, now = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:])
bad = [f"{name}: {was.get(name)} then, {now.get(name)} now" for name in sorted({*was, *now})
       if name not in was or name not in now or abs(now[name] / was[name] - 1) > 1e-5]
print(*bad, sep="\n", file=sys.stderr)
sys.exit(bool(bad))
PYTHON
}

if [[ ${1-} == add ]]; then
  mkdir "$added"
  cp "$versions/0.1.0/deck.in" .
  run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=2000
  run 0 "$TRIREME" -i deck.in schedule.stop_at=10
  cp -r run/checkpoints/step_00000010 deck.in "$added"
  cp -r "$added/step_00000010" .
  take_losses
  cp found "$added/losses.json"
  exit
fi

count=0
for version in "$versions"/[0-9]*/; do
  rm -rf ./*
  cp "${version}deck.in" .
  cp -r "${version}step_00000010" .
  take_losses
  compare "${version}losses.json"
  # By the deck that the checkpoint holds, and on more ranks.
  run 0 "${mpi[@]}" 2 "$TRIREME" -r step_00000010 job.output=own_deck
  says "branched off step_00000010 at step 10"
  count=$((count + 1))
done
[[ $count -ge 2 ]] || fail "only $count versions found"

# A checkpoint of a later version says which one reads it, to every task that takes one.
rm -rf ./*
cp -r "$versions/later_format/step_00000001" .
cp "$versions/0.1.0/deck.in" .
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=2000
refused() {
  run 2 "$@"
  says_once "error: step_00000001/run.json: written by Trireme 9.0.0 in format 2; this is Trireme"
  says "Use Trireme 9.0.0 or a later version."
}
refused "$TRIREME" -r step_00000001 job.task=evaluate
refused "$TRIREME" -i deck.in -r step_00000001 job.task=generate
refused "$TRIREME" -i deck.in checkpoint.start_from=step_00000001
refused "${mpi[@]}" 2 "$TRIREME" -i deck.in -r step_00000001
is_missing run
echo "$count versions read"
