#!/usr/bin/env bash
# Training on a mixture of token files: any layout takes the same windows, a stopped run goes on in
# another layout with the same losses, a changed mixture goes on file by file, and faults are named.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# harbour FILE TOKENS SEED: another corpus of the same language.
harbour() {
  run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour data.file="$1" \
    tokenize.harbour_tokens="$2" tokenize.harbour_seed="$3"
}
tiny_deck
harbour harbour.h5 2000 1
harbour code.h5 1000 2
sed -i 's/^file = .*/mixture = harbour.h5:0.7, code.h5:0.3/' deck.in
sed -i 's/^sample_tokens.*/sample_tokens = 0/' deck.in
fp64=(run.precision=fp64 monitor.validate_every_steps=0 model.dropout=0.1)

# 125 + 63 windows, of which 132 and 56 an epoch.
run 0 "$TRIREME" -i deck.in "${fp64[@]}" job.output=whole
says 'harbour.h5 70.2% (2,000 tokens, 1.06 times per epoch) + code.h5 29.8% (1,000 tokens, 0.889 times'
says '188 windows of 16, 24 steps per epoch'
says 'sources harbour.h5 '
"$python" - <<'PYTHON'
import json
for line in open("whole/metrics.jsonl", encoding="utf-8"):
    record = json.loads(line)
    if record["kind"] not in ("interval", "done"):
        continue
    seen = record["sources"]
    assert list(seen) == ["harbour.h5", "code.h5"], seen
    assert sum(seen.values()) == record["tokens"], record
    # Whole windows, within one of the share.
    assert abs(seen["harbour.h5"] / 16 - record["step"] * 8 * 132 / 188) <= 1, record
run = json.load(open("whole/checkpoints/step_00000010/run.json", encoding="utf-8"))
used = [file["windows_used"] for file in run["mixture"]]
assert sum(used) == run["next_sample"] == 80 and used == [56, 24], run["mixture"]
PYTHON

# same WANTED GOT: losses of the steps, relative.
same() {
  "$python" - "$1" "$2" <<'PYTHON' || fail "$2: other losses than $1"
import json, sys
def losses(path):
    records = [json.loads(line) for line in open(path, encoding="utf-8")]
    return {r["step"]: r["loss"] for r in records if r["kind"] == "step"}
wanted, got = map(losses, sys.argv[1:])
assert list(wanted) == list(got), (list(wanted), list(got))
worst = max(abs(got[step] / wanted[step] - 1) for step in wanted)
assert worst < 1e-11, worst
PYTHON
}
# Stopped on four ranks after 7 steps and continued on two others, and on one alone.
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in "${fp64[@]}" grid.data=2 grid.tensor=2 job.output=parts schedule.stop_at=7
run 0 "${mpi[@]}" 2 "$TRIREME" -r parts grid.data=1 grid.tensor=1 grid.pipeline=2 schedule.stop_at=12
run 0 "$TRIREME" -r parts grid.pipeline=1
! grep -q 'data.mixture is' output || fail "an unchanged mixture is called changed"
same whole/metrics.jsonl parts/metrics.jsonl

# Another mixture: the files go on at their own places, known by their contents.
mv code.h5 moved.h5
harbour more.h5 1500 3
run 0 "$TRIREME" -i deck.in "${fp64[@]}" -r whole/checkpoints/step_00000010 job.output=changed \
  data.mixture='more.h5:1,moved.h5:1,harbour.h5:2' schedule.stop_at=11
says 'warning: data.mixture is more.h5:1, moved.h5:1, harbour.h5:2 now and was harbour.h5:0.7, code.h5:0.3'
"$python" - <<'PYTHON'
import json
run = json.load(open("changed/checkpoints/step_00000011/run.json", encoding="utf-8"))
used = [file["windows_used"] for file in run["mixture"]]
assert abs(used[0] - 2) <= 1 and abs(used[1] - 26) <= 1 and abs(used[2] - 60) <= 1, used
assert sum(used) == 88, used
PYTHON
# A file moved alone is no change; nor is a mixture of the file alone.
run 0 "$TRIREME" -i deck.in "${fp64[@]}" -r whole/checkpoints/step_00000010 job.output=renamed \
  data.mixture='harbour.h5:7,moved.h5:3'
! grep -q 'data.mixture is' output || fail "a renamed file is called a change"
diff <(losses whole/metrics.jsonl step | tail -n 10) <(losses renamed/metrics.jsonl step) >difference ||
  fail "losses differ: $(head -n 5 difference)"
# From the mixture to one of its files, and on.
run 0 "$TRIREME" -i deck.in "${fp64[@]}" -r whole job.output=alone data.file=harbour.h5 schedule.steps=24 schedule.stop_at=22
says 'data.mixture is harbour.h5:1 now and was'
run 0 "$TRIREME" -r alone
! grep -q 'data.mixture is' output || fail "an unchanged file is called a change"
# Evaluation reads the first file alone.
run 0 "$TRIREME" -i deck.in -r whole job.task=evaluate data.mixture='harbour.h5:1,no.h5:1'

# Validation sets of their own: each has its line, the first one decides.
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in grid.tensor=2 data.staging=stream job.output=sets \
  data.mixture=harbour.h5:1 data.validation='code:moved.h5, more:more.h5'
[[ $(grep -c '^ *valid .*  code$' output) == 2 ]] || fail "no lines of the set code"
[[ $(grep -c '^ *valid .*  more$' output) == 2 ]] || fail "no lines of the set more"
"$python" - <<'PYTHON' || fail "validation sets have other records than they should"
import json
records = [json.loads(line) for line in open("sets/metrics.jsonl", encoding="utf-8")]
sets = [(r["kind"], r["set"], r["step"]) for r in records if r["kind"].startswith("valid")]
assert sets == [(kind, name, step) for step in (10, 20) for kind, name in (("valid", "code"), ("valid_other", "more"))], sets
losses = {r["set"]: r["loss"] for r in records if r["kind"].startswith("valid")}
assert losses["code"] != losses["more"]
run = json.load(open("sets/checkpoints/latest/run.json", encoding="utf-8"))
assert run["best_loss"] == min(r["loss"] for r in records if r["kind"] == "valid"), run["best_loss"]
PYTHON
run 0 "$TRIREME" -r sets job.task=evaluate grid.tensor=1
grep -q '^valid .*   code$' output || fail "evaluation lacks the set code"
grep -q '^valid .*   more$' output || fail "evaluation lacks the set more"

# Another set that decides: its loss begins anew, which is said once, and is not mixed with the other's.
goes_on() { run 0 "$TRIREME" -r sets grid.tensor=1 data.validation='more:more.h5, code:moved.h5' schedule.steps="$1"; }
best_is_of_the_new_set() {
  "$python" - "$(tr -d '\r' <output)" <<'PYTHON' || fail "the best loss is not the new set's"
import json, sys
records = [json.loads(line) for line in open("sets/metrics.jsonl", encoding="utf-8")]
new = {r["loss"]: r["step"] for r in records if r["kind"] == "valid" and r["step"] > 20}
assert all(r["set"] == "more" for r in records if r["kind"] == "valid" and r["step"] > 20)
run = json.load(open("sets/checkpoints/latest/run.json", encoding="utf-8"))
assert run["best_loss"] == min(new), (run["best_loss"], new)
assert run["validation"]["set"] == "more" and run["validation"]["since"] == 20, run["validation"]
assert f"best {min(new):.4f} at step {new[min(new)]}" in sys.argv[1], new
PYTHON
}
sed -i 's/\("kind":"valid","step":[0-9]*,.*"loss":\)[0-9.]*/\11.5/' sets/metrics.jsonl # as if the old set had an easy text
goes_on 30
says_once 'warning: the best checkpoint is chosen by the set more ('
best_is_of_the_new_set
goes_on 40
! grep -q 'the best checkpoint is chosen' output || fail "the set that decides is called another one"
best_is_of_the_new_set

# Plans of ranks that are not there.
run 0 "$TRIREME" -i deck.in -v grid.ranks=4 data.mixture='harbour.h5*2,moved.h5*0.5'
says 'harbour.h5 + moved.h5; 3,000 training tokens, 36 steps per epoch'

# refused MESSAGE KEYS...: before anything is written.
refused() {
  run 2 "$TRIREME" -i deck.in job.output=none "${@:2}"
  says "$1"
  is_missing none
}
refused 'deck.in:5: data.mixture = harbour.h5:0.7, code.h5:0.3: code.h5: no such file'
refused "'harbour.h5:x': a weight above 0 expected, 'x' found" data.mixture='harbour.h5:x'
refused 'are one file' data.mixture='harbour.h5:1, ./harbour.h5:1'
refused 'gives none of its 63 windows' data.mixture='harbour.h5:1, moved.h5:1e-5'
refused 'job.task = tokenize writes one file' job.task=tokenize tokenize.kind=harbour
printf 'a b c d e f\n' >text
run 0 "$TRIREME" -i deck.in job.task=tokenize data.file=words.h5 tokenize.train=text tokenize.valid=text tokenize.test=text
refused 'words.h5 has another vocabulary than harbour.h5' data.mixture='harbour.h5:1, words.h5:1'
refused 'data.validation = words:words.h5: words.h5 has another vocabulary than harbour.h5' data.mixture=harbour.h5:1 data.validation=words:words.h5
"$python" - <<'PYTHON'
import h5py, shutil
shutil.copy("harbour.h5", "eos.h5")
with h5py.File("eos.h5", "r+") as file:
    file.attrs["eos"], file.attrs["source_sha256"] = file.attrs["eos"] + 1, "0" * 64
PYTHON
refused 'eos.h5 has another vocabulary than harbour.h5' data.mixture='harbour.h5:1, eos.h5:1'
refused "'moved.h5' has no name" data.mixture=harbour.h5:1 data.validation=moved.h5
refused 'a is there twice' data.mixture=harbour.h5:1 data.validation='a:moved.h5, a:more.h5'
refused 'none.h5: no such file' data.mixture=harbour.h5:1 data.validation=a:none.h5
sed 's/^mixture.*/&\nfile = harbour.h5/' deck.in >both.in
run 2 "$TRIREME" -i both.in
says 'data.file'
