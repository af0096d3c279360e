#!/usr/bin/env bash
# A user's own text: a folder of packed records becomes a token file by a byte-level BPE, the same bytes
# for any number of ranks; a model trains on a mixture of two such files with document masks, stops, and
# goes on in another layout with the same losses; prompts are encoded by the tokenizer that the token
# file keeps; faults are named.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens
# A vocabulary of the bytes, some merges, and an end of document; records of words.
PYTHONPATH=$TRIREME_SOURCE/test/python "$python" - <<'PYTHON'
import gzip, json, os, random
from texts import WORDS as words, small_bpe
json.dump(small_bpe("<|endoftext|>"), open("tokenizer.json", "w", encoding="utf-8"))
random.seed(1)
os.mkdir("texts")
for i in range(3):
    with gzip.open(f"texts/{i}.jsonl.gz", "wt", encoding="utf-8") as file:
        for j in range(40):
            text = " ".join(random.choices(words, k=random.randint(1, 12)))
            file.write(json.dumps({"text": text, "n": j}) + "\n")
with open("pairs.jsonl", "w", encoding="utf-8") as file:
    for j in range(60):
        file.write(json.dumps({"ask": random.choice(words) + "?", "text": random.choice(words)}) + "\n")
PYTHON
bpe=(job.task=tokenize tokenize.kind=bpe tokenize.tokenizer=tokenizer.json)
tokenise() { run 0 "${mpi[@]}" "$1" "$TRIREME" -i deck.in "${bpe[@]}" "${@:2}"; }
held_out=(tokenize.valid_fraction=0.1 tokenize.test_fraction=0.1)
for ranks in 1 2 3; do
  tokenise $ranks "tokenize.train=texts/*.jsonl.gz" data.file=$ranks.h5 "${held_out[@]}"
  says "bpe, 263 types"
done
cmp 1.h5 2.h5 || fail "two ranks write another file than one"
cmp 1.h5 3.h5 || fail "three ranks write another file than one"
# Texts of several units, whose tokens are copied while others are encoded.
"$python" - <<'PYTHON'
import random
random.seed(2)
words = ["the", "ship", "sails", "größer", "東京", "one"]
lines = [" ".join(random.choices(words, k=random.randint(1, 60))) + "\n" for _ in range(5000)]
for name, count in (("long", 90_000), ("short", 20_000)):
    with open(f"{name}.txt", "w", encoding="utf-8") as file:
        file.writelines(random.choices(lines, k=count))
PYTHON
for ranks in 1 2 3 5; do
  tokenise $ranks tokenize.train=long.txt,short.txt tokenize.document=line data.file=long$ranks.h5 "${held_out[@]}"
  cmp long1.h5 long$ranks.h5 || fail "$ranks ranks write another file than one"
done
rm long*.h5
tokenise 2 tokenize.train=pairs.jsonl tokenize.prompt_key=ask data.file=pairs.h5 "${held_out[@]}"
# A token file's own tokenizer makes the same of the same text.
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=bpe tokenize.tokenizer=1.h5 \
  "tokenize.train=texts/*.jsonl.gz" data.file=again.h5 "${held_out[@]}"
cmp 1.h5 again.h5 || fail "the tokenizer of a token file differs from its files"

# A SentencePiece model is trained, the same on any number of ranks, and travels with its token file.
for ranks in 1 3; do
  for type in bpe unigram; do
    run 0 "${mpi[@]}" $ranks "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=sentencepiece \
      tokenize.vocabulary_size=290 tokenize.model_type=$type "tokenize.train=texts/*.jsonl.gz" \
      data.file=$type$ranks.h5 "${held_out[@]}"
    says "sentencepiece, 290 types"
  done
done
cmp bpe1.h5 bpe3.h5 || fail "three ranks train another model than one"
cmp unigram1.h5 unigram3.h5 || fail "three ranks train another unigram model than one"
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=sentencepiece tokenize.tokenizer=bpe1.h5 \
  tokenize.train=pairs.jsonl tokenize.valid=pairs.jsonl tokenize.test=pairs.jsonl data.file=more.h5
run 0 "$TRIREME" -i deck.in data.mixture=bpe1.h5:1,more.h5:1 job.output=pieces schedule.steps=3
run 0 "$TRIREME" -r pieces job.task=generate "generate.prompt=the ship" generate.tokens=4
says "the ship"
"$python" - <<'PYTHON'
import h5py, numpy as np, gzip, json
with h5py.File("1.h5", "r") as file:
    pieces = bytes(file["vocabulary/bytes"][:])
    offsets = file["vocabulary/offsets"][:].tolist()
    assert file.attrs["tokenizer"] == "bpe" and file.attrs["eos"] == 262, dict(file.attrs)
    assert bytes(file["tokenizer/tokenizer.json"][:]) == open("tokenizer.json", "rb").read()
    found = []
    for split in ("train", "valid", "test"):
        tokens, begins = file[split]["tokens"][:].tolist(), file[split]["documents"][:].tolist()
        for begin, end in zip(begins, [*begins[1:], len(tokens)]):
            assert tokens[end - 1] == 262, "a document without its end"
            found.append(b"".join(pieces[offsets[t]:offsets[t + 1]] for t in tokens[begin:end - 1]).decode())
wanted = [json.loads(line)["text"] for i in range(3) for line in gzip.open(f"texts/{i}.jsonl.gz", "rt", encoding="utf-8")]
assert sorted(found) == sorted(wanted), "other documents than the texts"
with h5py.File("pairs.h5", "r") as file:
    mask, begins = file["train/mask"][:], file["train/documents"][:]
    assert not mask[begins].any() and mask.any(), "prompts count"
PYTHON

# Trains on both in any layout.
sed -i 's/^file = .*/mixture = 1.h5:0.6, pairs.h5:0.4\ndocument_mask = yes/; s/^sample_tokens.*/sample_tokens = 0/' deck.in
fp64=(run.precision=fp64 monitor.validate_every_steps=0)
run 0 "$TRIREME" -i deck.in "${fp64[@]}" job.output=whole
says "document masks; loss mask"
run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in "${fp64[@]}" grid.data=2 grid.tensor=2 data.staging=stream \
  job.output=parts schedule.stop_at=9
run 0 "${mpi[@]}" 2 "$TRIREME" -r parts grid.data=1 grid.tensor=1 grid.pipeline=2
"$python" - <<'PYTHON' || fail "the layouts' losses differ"
import json
def losses(path):
    return {r["step"]: r["loss"] for r in map(json.loads, open(path, encoding="utf-8")) if r["kind"] == "step"}
wanted, got = losses("whole/metrics.jsonl"), losses("parts/metrics.jsonl")
assert list(wanted) == list(got) and len(wanted) == 20
assert max(abs(got[step] / wanted[step] - 1) for step in wanted) < 1e-11
PYTHON
grep -q tokenizer_sha256 parts/checkpoints/step_00000020/run.json || fail "checkpoints do not name the tokenizer"
run 0 "$TRIREME" -r parts job.task=generate "generate.prompt=the ship" generate.tokens=4 grid.pipeline=1
says "the ship"

sed -i 's/^mixture = .*/file = none.h5/; /^document_mask/d' deck.in
# refused MESSAGE KEYS...: nothing is written, on two ranks.
refused() {
  run 2 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=$kind data.file=none.h5 "${@:2}"
  says "$1"
  [[ -z $(find . -maxdepth 1 -name 'none*') ]] || fail "something was written"
}
kind=bpe
some=(tokenize.tokenizer=tokenizer.json)
refused "tokenize.tokenizer" tokenize.train=pairs.jsonl
refused "no-tokenizer: there is no such file" tokenize.train=pairs.jsonl tokenize.tokenizer=no-tokenizer
refused "no-texts-*: no file matches" "${some[@]}" "tokenize.train=no-texts-*"
refused 'the record has no "body"' "${some[@]}" tokenize.train=pairs.jsonl tokenize.text_key=body
refused "the tokenizer has no such token" "${some[@]}" tokenize.train=pairs.jsonl tokenize.eos=END
refused "belongs to tokenize.kind = sentencepiece" "${some[@]}" tokenize.train=pairs.jsonl tokenize.vocabulary_size=300
# A resolved deck states the keys of all kinds, and is a deck of each.
run 0 "$TRIREME" -i deck.in -n data.file=none.h5
cp output full.in
run 0 "$TRIREME" -i full.in -v job.task=tokenize tokenize.kind=bpe "${some[@]}" tokenize.train=pairs.jsonl
run 0 "$TRIREME" -i full.in -v job.task=tokenize tokenize.kind=harbour
run 0 "$TRIREME" -i full.in -v job.task=tokenize tokenize.kind=numerals
refused "tokenize.train = none.txt: there is no such file" "${some[@]}" tokenize.train=none.txt
says "It was looked for in $PWD"
kind=sentencepiece pieces=(tokenize.train=pairs.jsonl)
refused "train one with tokenize.vocabulary_size" "${pieces[@]}"
refused "no model of 100000 tokens can be trained" "${pieces[@]}" tokenize.vocabulary_size=100000
refused "this is not a SentencePiece model" "${pieces[@]}" tokenize.tokenizer=pairs.jsonl
refused "has no subword tokenizer" "${pieces[@]}" tokenize.tokenizer=harbour.h5
echo "one text" >one.txt # which its hash gives to valid or test
refused "the train split gets none of the texts" tokenize.train=one.txt tokenize.vocabulary_size=290 \
  tokenize.valid_fraction=0.5 tokenize.test_fraction=0.49
says "1 document of tokenize.train, too few to share out"
kind=bpe
printf 'fine \xff\n' >bad.txt
refused "bad.txt: byte 0xff at offset 5 is not valid" "${some[@]}" tokenize.train=bad.txt
sed 's/"BPE"/"WordPiece"/' tokenizer.json >other.json
refused "model.type: 'WordPiece' is not supported" tokenize.train=pairs.jsonl tokenize.tokenizer=other.json
head -c 60 texts/0.jsonl.gz >cut.jsonl.gz
refused "cut.jsonl.gz: is damaged" "${some[@]}" tokenize.train=cut.jsonl.gz
# Standard input, of records, of text and packed: as from a file, and nothing is left.
gzip -c pairs.jsonl >packed
printf 'some words, and\nsome more\n' >plain.txt
for text in pairs.jsonl packed plain.txt; do
  rest=(tokenize.valid=pairs.jsonl tokenize.test=pairs.jsonl "${some[@]}")
  [[ $text != packed ]] || rest+=(tokenize.document=line)
  run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=bpe "tokenize.train=$text" data.file=named.h5 "${rest[@]}" tokenize.overwrite=yes
  for ranks in 1 2; do
    "${mpi[@]}" $ranks "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=bpe tokenize.train=- data.file=piped.h5 "${rest[@]}" \
      tokenize.overwrite=yes <"$text" >output 2>&1 || fail "standard input is not read"
    cmp named.h5 piped.h5 || fail "$text: other tokens from standard input"
  done
done
[[ -z $(find . -name '.trireme*') ]] || fail "left: $(find . -name '.trireme*')"
run 2 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=bpe tokenize.train=- tokenize.valid=- "${some[@]}" data.file=piped2.h5
says "is the text of one split only"
# A file is never made from itself.
cp pairs.jsonl same.h5
run 2 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=bpe "${some[@]}" tokenize.train=same.h5 \
  data.file=same.h5 tokenize.overwrite=yes
says "same.h5 is read by this job, as tokenize.train"
cmp -s pairs.jsonl same.h5 || fail "a text was replaced"
for split in valid test; do
  refused "a token file needs a $split split" "${some[@]}" tokenize.train=bad.txt tokenize.${split}_fraction=0
done
# Few documents: three fill the splits, the same on any number of ranks; two do not.
head -n 3 pairs.jsonl >three.jsonl
for ranks in 1 3; do tokenise $ranks tokenize.train=three.jsonl data.file=three$ranks.h5; done
says "1 / 1 / 1 documents"
cmp three1.h5 three3.h5 || fail "three ranks share documents out in another way than one"
head -n 2 pairs.jsonl >two.jsonl
refused "2 documents of tokenize.train" "${some[@]}" tokenize.train=two.jsonl
