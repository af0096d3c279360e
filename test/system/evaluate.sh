#!/usr/bin/env bash
# Evaluation as a user runs it: per word and byte for every tokenizer, sliding windows, baselines, losses
# of documents, multiple-choice questions, a text; the same numbers in any layout; faults are named
# before anything is computed; validation on a sample of windows.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=20000
# result FILE EXPRESSION: of the JSON `r`.
result() { "$python" -c "import json, sys; r = json.load(open(sys.argv[1])); print($2)" "$1"; }

# Harbour: no baseline goes below the floor; layouts agree.
run 0 "$TRIREME" -i deck.in job.output=harbour checkpoint.every_steps=0
evaluate=("$TRIREME" -r harbour job.task=evaluate evaluate.baselines=yes evaluate.stride=4)
run 0 "${evaluate[@]}" evaluate.results=1.json
says "5-gram "
run 0 "${mpi[@]}" 2 "${evaluate[@]}" grid.tensor=2 evaluate.results=2.json
run 0 "${mpi[@]}" 4 "${evaluate[@]}" grid.pipeline=2 evaluate.results=4.json
"$python" - <<'PYTHON'
import json, math
one, *others = (json.load(open(f"{ranks}.json")) for ranks in (1, 2, 4))
for valid in one["sets"]:
    floor = 2.994 * valid["targets"]  # entropy rate of the corpus
    baselines = valid["baselines"]
    assert floor < baselines["5-gram"]["nats"] < baselines["unigram"]["nats"] < baselines["uniform"]["nats"]
    assert valid["words"] + valid["line_ends"] == valid["targets"] == 1999
    assert math.isclose(valid["perplexity_per_word"], math.exp(valid["loss"]), rel_tol=1e-12)
    assert math.isclose(valid["bits_per_byte"] * math.log(2) * valid["bytes"], valid["nats"], rel_tol=1e-12)
for other in others:
    for a, b in zip(one["sets"], other["sets"]):
        assert a["baselines"] == b["baselines"]
        assert math.isclose(a["nats"], b["nats"], rel_tol=1e-5)
        for key in ("words", "bytes", "line_ends", "targets", "windows"):
            assert a[key] == b[key], key
PYTHON

# The same text by every tokenizer: bytes and words of the text after the first token.
PYTHONPATH=$TRIREME_SOURCE/test/python "$python" - <<'PYTHON'
import json, random
from texts import WORDS as words, small_bpe
tokenizer = small_bpe("<|endoftext|>", "<begin>")
begin = tokenizer["added_tokens"][1]["id"]
template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<begin>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
            "special_tokens": {"<begin>": {"id": "<begin>", "ids": [begin], "tokens": ["<begin>"]}}}
json.dump(tokenizer | {"post_processor": template}, open("tokenizer.json", "w", encoding="utf-8"))
random.seed(1)
for name, lines in (("train", 200), ("valid", 30), ("test", 20)):
    with open(f"{name}.txt", "w", encoding="utf-8") as file:
        for _ in range(lines):
            file.write(" ".join(random.choices(words, k=random.randint(1, 12))) + "\n")
PYTHON
texts=(tokenize.train=train.txt tokenize.valid=valid.txt tokenize.test=test.txt)
declare -A kinds=([word]="" [byte]="" [bpe]="tokenize.tokenizer=tokenizer.json tokenize.eos=<|endoftext|>"
  [sentencepiece]="tokenize.vocabulary_size=290")
for kind in word byte bpe sentencepiece; do
  read -ra more <<<"${kinds[$kind]}"
  run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=$kind "${texts[@]}" "${more[@]}" data.file=$kind.h5
  run 0 "$TRIREME" -i deck.in data.file=$kind.h5 job.output=$kind monitor.validate_every_steps=0 schedule.steps=3
  run 0 "$TRIREME" -r $kind job.task=evaluate evaluate.text=test.txt evaluate.results=$kind.json
done
"$python" - <<'PYTHON'
import h5py, json
text = open("test.txt", "rb").read()
for kind in ("word", "byte", "bpe", "sentencepiece"):
    with h5py.File(f"{kind}.h5", "r") as file:
        pieces, offsets = bytes(file["vocabulary/bytes"][:]), file["vocabulary/offsets"][:].tolist()
        first = int(file["test/tokens"][0])
        first = pieces[offsets[first]:offsets[first + 1]].lstrip(b" ")
    if first == b"<begin>":
        first = b""
    rest = text[len(first):]
    assert text.startswith(first), (kind, first)
    results = json.load(open(f"{kind}.json"))
    test, own = results["sets"][1], results["text"]
    words = len(text.split()) - (len(first) > 0)
    got = test["bytes"], test["words"], test["line_ends"]
    # Of the other kinds a document that ends in a line end keeps it.
    assert got == (len(rest), words, text.count(b"\n")), (kind, got, len(rest), words)
    got = own["bytes"], own["words"], own["line_ends"], own["bytes_tokenised"]
    assert got == (len(text), len(text.split()), text.count(b"\n"), len(text)), (kind, got)
PYTHON

# Documents and questions: with canonical sums the same bytes on any ranks; else the same up to rounding.
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=bpe tokenize.tokenizer=tokenizer.json "${texts[@]}" \
  tokenize.document=line data.file=lines.h5
cat >questions.jsonl <<'JSONL'
{"context": "the ship sails", "choices": [" north", " in", " one two"], "answer": 0}

{"context": "the ship sails north, the other lies in port; one two and one ", "choices": ["two", "größer"], "answer": 1}
{"context": "", "choices": ["the ship", "one"], "answer": 0, "id": 3}
JSONL
run 0 "$TRIREME" -i deck.in data.file=lines.h5 job.output=lines run.canonical=4x1 run.canonical_leaf=2 model.dropout=0
more=(evaluate.choices=questions.jsonl)
for ranks in 1 2 4; do
  run 0 "${mpi[@]}" $ranks "$TRIREME" -r lines job.task=evaluate "${more[@]}" evaluate.documents=d$ranks.h5 \
    evaluate.output=o$ranks.jsonl evaluate.results=c$ranks.json
  says "choices     accuracy"
  says "contexts were cut off at the left"
done
run 0 "${mpi[@]}" 2 "$TRIREME" -r lines job.task=evaluate "${more[@]}" grid.pipeline=2 evaluate.documents=p.h5 \
  evaluate.output=p.jsonl
for file in d2.h5 d4.h5 p.h5; do cmp d1.h5 $file || fail "$file has other bytes than d1.h5"; done
for file in o2.jsonl o4.jsonl p.jsonl; do cmp o1.jsonl $file || fail "$file has other bytes than o1.jsonl"; done
"$python" - <<'PYTHON'
import h5py, json, math
results = json.load(open("c1.json"))
with h5py.File("d1.h5", "r") as file, h5py.File("lines.h5", "r") as tokens:
    for result in results["sets"]:
        group = file[result["split"]]
        documents = tokens[result["split"]]["documents"][:].tolist()
        assert group["document"][:].tolist() == list(range(len(documents)))
        assert group["first_token"][:].tolist() == documents
        ends = [*documents[1:], tokens[result["split"]]["tokens"].size]
        sizes = [end - begin for begin, end in zip(documents, ends)]
        sizes[0] -= 1  # the split's first token
        assert group["targets"][:].tolist() == sizes
        assert math.isclose(sum(group["nats"][:].tolist()), result["nats"], rel_tol=1e-12)
        assert int(group["bytes"][:].sum()) == result["bytes"]
        lines = open(f"{result['split']}.txt", "rb").read().splitlines()
        assert group["bytes"][:].tolist() == [len(line) for line in lines]
    assert file.attrs["checkpoint"] == results["checkpoint"] and file.attrs["tokenizer"] == "bpe"
questions = [json.loads(line) for line in open("o1.jsonl", encoding="utf-8")]
assert [question["line"] for question in questions] == [1, 3, 4]
assert [question["bytes"] for question in questions] == [[5, 2, 7], [3, 8], [8, 3]], questions
right = sum(question["chosen"] == question["answer"] for question in questions)
assert math.isclose(results["choices"]["accuracy"], right / 3)
assert questions[1]["truncated"] == 2 and questions[2]["truncated"] == 0
PYTHON

# A text with WikiText's marks, whose words stay those of the file.
printf ' the ship @-@ one sails north , the other ( one ) \n' >marks.txt
run 0 "$TRIREME" -r bpe job.task=evaluate evaluate.text=marks.txt evaluate.detokenise=wikitext evaluate.results=marks.json
[[ $(result marks.json 'r["text"]["words"], r["text"]["line_ends"], r["text"]["bytes"]') == "12 1 51" ]] ||
  fail "units of the original: $(result marks.json 'r["text"]')"
[[ $(result marks.json 'r["text"]["bytes_tokenised"]') == 43 ]] || fail "the text was not changed"

# Faults: before anything is computed; files that are there stay.
refused() {
  run 2 "$TRIREME" -r bpe job.task=evaluate "${@:2}"
  says "$1"
  ! grep -q "nats/token" output || fail "something was computed"
}
refused "evaluate.stride = 17: windows of 16 tokens would skip some" evaluate.stride=17
refused "evaluate.output = x.jsonl: there are no questions" evaluate.output=x.jsonl
refused "marks.json is there already" evaluate.results=marks.json
refused "nowhere.txt: no such file" evaluate.text=nowhere.txt
echo '{"context": "a", "choices": ["b"], "answer": 0}' >bad.jsonl
refused "bad.jsonl:1: choices: 2 to 1000 expected, 1 found" evaluate.choices=bad.jsonl
run 2 "$TRIREME" -r bpe job.task=evaluate evaluate.choices=bad.jsonl -v
printf '\xff\n' >bad.txt
refused "bad.txt: the text is not valid UTF-8 at byte offset 0" evaluate.text=bad.txt
run 2 "$TRIREME" -r word job.task=evaluate evaluate.documents=x.h5
says "word.h5: /valid/documents is not there"
is_missing x.h5
run 0 "$TRIREME" -r bpe job.task=evaluate evaluate.results=marks.json evaluate.overwrite=yes
run 0 "$TRIREME" -r bpe job.task=evaluate -v evaluate.results=not.json
is_missing not.json

# Validation on a sample: said on the screen and in the records; the test takes all.
run 0 "$TRIREME" -i deck.in monitor.validate_windows=5 job.output=sample
says "5 of 125 windows"
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in monitor.validate_windows=5 grid.data=2 job.output=sample2
run 0 "$TRIREME" -i deck.in job.output=whole
"$python" - <<'PYTHON'
import json, math
def records(run, kind):
    lines = map(json.loads, open(f"{run}/metrics.jsonl", encoding="utf-8"))
    return [line for line in lines if line["kind"] == kind]
for one, two, whole in zip(*(records(run, "valid") for run in ("sample", "sample2", "whole")), strict=True):
    assert one["windows"] == 5 and "windows" not in whole
    assert math.isclose(one["loss"], two["loss"], rel_tol=1e-5) and one["loss"] != whole["loss"]
assert records("sample", "test")[0]["loss"] == records("whole", "test")[0]["loss"]
PYTHON
