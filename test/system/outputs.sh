#!/usr/bin/env bash
# Outputs never destroy: what the job reads stays, whatever it is called, and so does what no job of ours made.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens
token_file=harbour.h5
printf 'a text of some words\nand a line more\n' >text.txt
ln text.txt hard.txt
ln -s text.txt soft.txt
printf '%s\n' '{"model": 1}' >tokenizer.json
mkdir pieces
printf '%s\n' '{"model": 1}' >pieces/tokenizer.json
cp text.txt a.h5.tmp
cp -r . "$scratch.before"
leave() { rm -rf "$scratch" "$scratch.before"; }

# refused KEY SAYING COMMAND...: code 2, before anything is written.
refused() {
  local key=$1 saying=$2
  shift 2
  run 2 "$@"
  says "$key"
  says "$saying"
  diff -r -x output -x difference "$scratch.before" . >difference || fail "$key: $(<difference)"
  rm difference
}
tokenize=("$TRIREME" -i deck.in job.task=tokenize tokenize.overwrite=yes tokenize.train=text.txt tokenize.valid=text.txt
  tokenize.test=text.txt)
for kind in word byte; do
  for name in text.txt hard.txt soft.txt ./text.txt; do
    refused data.file "is read by this job, as tokenize." "${tokenize[@]}" tokenize.kind=$kind "data.file=$name"
  done
  refused tokenize.train "is data.file, which would be replaced" "$TRIREME" -i deck.in job.task=tokenize tokenize.overwrite=yes \
    tokenize.kind=$kind "tokenize.train=t*.txt" tokenize.valid=deck.in tokenize.test=deck.in data.file=text.txt
  refused data.file "is read by this job, as this job's deck" "${tokenize[@]}" tokenize.kind=$kind data.file=deck.in
  refused a.h5.tmp "this file is in the way" "${tokenize[@]}" tokenize.kind=$kind data.file=a.h5
done
refused data.file "as tokenize.tokenizer" "${tokenize[@]}" tokenize.kind=bpe tokenize.tokenizer=tokenizer.json data.file=tokenizer.json
refused data.file "as tokenize.tokenizer" "${tokenize[@]}" tokenize.kind=bpe tokenize.tokenizer=pieces data.file=pieces/tokenizer.json
refused a.h5.tmp "this file is in the way" "${tokenize[@]}" tokenize.kind=word data.file=a.h5 -v
refused deck.in "is there already, and no run wrote it" "$TRIREME" -i deck.in job.output=.
refused deck.in "is there already, and no run wrote it" "$TRIREME" -i deck.in job.output=. -v
for name in log.txt metrics.jsonl summary.json; do
  mkdir -p "$scratch.before/mine" mine
  echo mine >"$scratch.before/mine/$name"
  echo mine >"mine/$name"
  refused "mine/$name" "no run wrote it" "$TRIREME" -i deck.in job.output=mine
  rm -r "$scratch.before/mine" mine
done

# A run's own folder, which ended before its first checkpoint, is used again.
run 0 "$TRIREME" -i deck.in schedule.steps=2 checkpoint.every_steps=0 job.output=again
rm -r again/checkpoints
run 0 "$TRIREME" -i deck.in schedule.steps=2 checkpoint.every_steps=0 job.output=again
run 0 "$TRIREME" -i deck.in schedule.steps=2 job.output=trained

evaluate=("$TRIREME" -i deck.in -r trained job.task=evaluate evaluate.overwrite=yes)
cp "$token_file" tokens.before
for name in evaluate.results evaluate.documents; do
  run 2 "${evaluate[@]}" "$name=$token_file"
  says "$token_file is read by this job, as data.file"
done
cmp "$token_file" tokens.before

# What an unfinished job left is replaced; a link stays, and leads to what is new.
printf '\211HDF\r\n\032\nrest' >b.h5.tmp
mkdir elsewhere
ln -s elsewhere/kept.h5 b.h5
ln -s elsewhere/results.json results.json
run 0 "${tokenize[@]}" tokenize.kind=word data.file=b.h5
[[ -L b.h5 && -s elsewhere/kept.h5 ]] || fail "the link b.h5 was replaced: $(ls -l . elsewhere)"
is_missing elsewhere/kept.h5.tmp
cp text.txt results.json.tmp
for _ in 1 2; do
  run 0 "${evaluate[@]}" evaluate.results=results.json
  [[ -L results.json && -s elsewhere/results.json ]] || fail "the link results.json was replaced"
done
cmp text.txt results.json.tmp
[[ -z $(find . -name '.trireme*') ]] || fail "left: $(find . -name '.trireme*')"

# The longest name that a file may have.
longest=$(printf 'x%.0s' {1..252}).h5
run 0 "${tokenize[@]}" tokenize.kind=word "data.file=$longest"
run 0 "${evaluate[@]}" "evaluate.results=${longest%h5}js"

# A folder of a user's beside an export's is not taken for a leftover.
mkdir out.tmp
cp text.txt out.tmp
run 2 "$TRIREME" -i deck.in -r trained job.task=export hf.path=out
exists out.tmp/text.txt
