#!/usr/bin/env bash
# Files of pairs as a user makes them: line-aligned texts by each kind of tokenizer, and the numerals, the
# same bytes for any number of ranks; readable by h5py; faults are named and leave nothing; a training says
# what is wrong with such a file.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
PYTHONPATH=$TRIREME_SOURCE/test/python "$python" - <<'PYTHON'
import gzip, json, random
from texts import WORDS as words, small_bpe
json.dump(small_bpe("<|endoftext|>"), open("tokenizer.json", "w", encoding="utf-8"))
random.seed(1)
lines = [" ".join(random.choices(words, k=random.randint(0, 12))) for _ in range(4000)]
for name, opener, texts in (("e.txt", open, lines), ("d.txt", open, [line.upper()[::-1] for line in lines]),
                            ("d.txt.gz", gzip.open, [line.upper()[::-1] for line in lines])):
    with opener(name, "wt", encoding="utf-8") as file:
        file.write("".join(text + "\n" for text in texts))
PYTHON
pair_texts=(tokenize.source=e.txt tokenize.target=d.txt tokenize.valid_fraction=0.05 tokenize.test_fraction=0.05)
tokenise() { run 0 "${mpi[@]}" "$1" "$TRIREME" -i deck.in job.task=tokenize data.file="$2" "${@:3}"; }
# alike NAME KEYS...: 1, 2 and 3 ranks write the same file, NAME.h5.
alike() {
  for ranks in 1 2 3; do tokenise $ranks "$1$ranks.h5" "${@:2}"; done
  cmp "${1}1.h5" "${1}2.h5" || fail "$1: two ranks write another file than one"
  cmp "${1}1.h5" "${1}3.h5" || fail "$1: three ranks write another file than one"
  mv "${1}1.h5" "$1.h5"
}
alike bpe "${pair_texts[@]}" tokenize.kind=bpe tokenize.tokenizer=tokenizer.json
says "with an empty text left out"
says "source: bpe, 263 types"
alike word "${pair_texts[@]}" tokenize.shared_vocabulary=no
alike byte "${pair_texts[@]}" tokenize.kind=byte
alike piece "${pair_texts[@]}" tokenize.kind=sentencepiece tokenize.vocabulary_size=300 tokenize.shared_vocabulary=no
alike numerals tokenize.kind=numerals tokenize.numerals_pairs=20000
says "20,000 / 200 / 200 pairs"
tokenise 2 packed.h5 "${pair_texts[@]/d.txt/d.txt.gz}" tokenize.kind=byte
tokenise 1 again.h5 "${pair_texts[@]}" tokenize.kind=sentencepiece tokenize.shared_vocabulary=no \
  tokenize.source_tokenizer=piece.h5 tokenize.tokenizer=piece.h5
cmp piece.h5 again.h5 || fail "the tokenizers of a file of pairs differ from those that it was made with"

"$python" - <<'PYTHON'
import h5py
def pairs(path):
    found = []
    with h5py.File(path, "r") as file:
        assert file.attrs["contents"] == "pairs"
        for split in ("train", "valid", "test"):
            texts = []
            for side in ("source", "target"):
                prefix = "source_" if side == "source" and "source_vocabulary" in file else ""
                pieces, ends = bytes(file[prefix + "vocabulary/bytes"][:]), file[prefix + "vocabulary/offsets"][:].tolist()
                ids, begins = file[split][side][:].tolist(), file[split][side + "_offsets"][:].tolist()
                assert begins[0] == 0
                words = [pieces[ends[i]:ends[i + 1]] for i in ids]
                texts.append([words[b:e] for b, e in zip(begins, [*begins[1:], len(ids)])])
                assert all(text[-1] == words[-1] for text in texts[-1]), "a text without its end"
            found += list(zip(*texts, strict=True))
    return found
lines = [line for line in open("e.txt", encoding="utf-8").read().split("\n")[:-1]]
wanted = sorted((line, line.upper()[::-1]) for line in lines if line)
for name, join in (("bpe", b""), ("byte", b""), ("packed", b""), ("word", b" ")):
    got = sorted(tuple(join.join(text[:-1]).decode() for text in pair) for pair in pairs(name + ".h5"))
    assert got == wanted, name + ": other pairs than the texts"
numbers = pairs("numerals.h5")
assert len(numbers) == 20400 and all(pair[0][0] in (b"<de> ", b"<en> ", b"<digits> ") for pair in numbers)
PYTHON

# refused MESSAGE KEYS...: nothing is written, on two ranks.
refused() {
  run 2 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.task=tokenize data.file=none.h5 "${@:2}"
  says "$1"
  [[ -z $(find . -maxdepth 1 -name 'none*') ]] || fail "something was written"
}
head -n 3990 d.txt >short.txt
refused "e.txt has 4000 lines and short.txt has 3990: line 3991 of e.txt has no partner" \
  "${pair_texts[@]/d.txt/short.txt}"
refused "2 files for the 1 of tokenize.source" "${pair_texts[@]/d.txt/d.txt,short.txt}"
refused "the test split holds no pair" "${pair_texts[@]/test_fraction=0.05/test_fraction=1e-9}"
refused "tokenize.kind = bpe needs one" "${pair_texts[@]}" tokenize.kind=bpe \
  tokenize.shared_vocabulary=no tokenize.tokenizer=tokenizer.json
printf 'fine\n\xff\n' >bad.txt
printf 'gut\nschlecht\n' >good.txt
refused "bad.txt: byte 0xff at offset 5 is not valid" tokenize.source=bad.txt tokenize.target=good.txt

refused "no-tokenizer: there is no such file" "${pair_texts[@]}" tokenize.kind=bpe tokenize.tokenizer=no-tokenizer -v
run 0 "$TRIREME" -i deck.in job.task=tokenize data.file=none.h5 -v "${pair_texts[@]}" tokenize.kind=bpe \
  tokenize.tokenizer=tokenizer.json
says "none.h5 could be written"
is_missing none.h5

# A training reads single texts.
run 2 "$TRIREME" -i deck.in data.file=bpe.h5
says_once "bpe.h5: holds pairs of source and target texts; a language model needs a file of single texts"
is_missing run

# A job that is stopped leaves nothing.
mkdir stopped
"${launch[@]}" -n 2 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=numerals tokenize.numerals_pairs=100000000 \
  data.file=stopped/a.h5 >output 2>&1 </dev/null &
job=$!
sleep 3
kill -USR1 $job 2>/dev/null || true
wait $job && fail "a stopped job ended with code 0"
[[ -z $(ls -A stopped) ]] || fail "a stopped job left $(ls -A stopped)"
