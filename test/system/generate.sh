#!/usr/bin/env bash
# Texts as a user asks for them: from a file of prompts, the same in every layout; at a prompt of one's own;
# with ends of all kinds; and files that cannot be used, refused with their line.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
sed -i 's/^heads = .*/heads = 4/; s/^layers = .*/layers = 4/' deck.in
tokens
run 0 "$TRIREME" -i deck.in job.output=run
text=(-r run job.task=generate run.precision=fp64 generate.tokens=20)

# 1. A file: the same texts, to the byte, in every layout and batch; longer than the model's window of 16.
cat >prompts.jsonl <<'JSONL'
{"prompt": "the ship", "id": 7}
{"prompt": "", "tokens": 5, "id": "empty"}
{"prompt": "the captain of the", "temperature": 0}

{"prompt": "the", "seed": 3, "tokens": 30}
{"prompt": "the harbour", "repetition_penalty": 1.3, "top_k": 9, "top_p": 0.9}
{"prompt": "the captain of the harbour of the ship of the captain of the harbour of the ship of the captain"}
JSONL
run 0 "$TRIREME" "${text[@]}" generate.file=prompts.jsonl generate.output=one.jsonl
says "one.jsonl: 6 texts, 115 tokens in "
same() { # RANKS OVERRIDES...
  run 0 "${mpi[@]}" "$1" "$TRIREME" "${text[@]}" generate.file=prompts.jsonl generate.output=other.jsonl "${@:2}"
  cmp one.jsonl other.jsonl || fail "other texts on $1 ranks with ${*:2}"
  rm other.jsonl
}
same 1 generate.batch=1
same 1 generate.batch=3 run.threads=2
same 1 generate.batch=4 generate.pack_weights=no
same 2 grid.tensor=2 generate.pack_weights=yes
same 2 grid.pipeline=2 generate.batch=4
same 2
same 2 grid.sharding=parameters generate.batch=2
same 4 grid.tensor=2 grid.pipeline=2
same 4 grid.tensor=2 grid.sequence_parallel=yes grid.sharding=parameters
same 2 grid.context=2
says_once "grid.context > 1: keys and values are not kept"
run 0 "$TRIREME" "${text[@]}" generate.file=prompts.jsonl
cmp one.jsonl output || fail "standard output differs from the file"
"$python" - one.jsonl <<'PYTHON' || fail "not the texts that were asked for"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
assert [line.get("id") for line in lines] == [7, "empty", None, None, None, None], lines
assert [len(line["tokens"]) for line in lines] == [20, 5, 20, 30, 20, 20], lines
assert all(line["reason"] == "length" and line["log_probability"] < 0 for line in lines), lines
assert lines[0]["prompt"] == "the ship" and lines[0]["text"].startswith(" "), lines
PYTHON

# The same bits, hence texts, in fp32 where sums have one order.
canonical=(-r run job.task=generate generate.tokens=20 run.canonical=2x2 generate.file=prompts.jsonl)
run 0 "$TRIREME" "${canonical[@]}" generate.output=bits.jsonl
run 0 "${mpi[@]}" 4 "$TRIREME" "${canonical[@]}" grid.tensor=2 generate.output=more_bits.jsonl
cmp bits.jsonl more_bits.jsonl || fail "canonical texts differ between layouts"

# 2. One prompt is prompt 0 of a file, and is not repeated by it.
run 0 "$TRIREME" "${text[@]}" "generate.prompt=the ship"
"$python" - one.jsonl output <<'PYTHON' || fail "a prompt of its own gives another text"
import json, sys
line = json.loads(open(sys.argv[1], encoding="utf-8").readline())
assert open(sys.argv[2], encoding="utf-8").read() == line["prompt"] + line["text"] + "\n"
PYTHON

# 3. Interactive: a line, a text; the end of the input is the end.
first=$("$python" -c 'import json; print(json.loads(open("one.jsonl").readline())["text"])')
for ranks in 1 4; do
  code=0
  printf 'the ship\nno_such_word\nthe' |
    "${mpi[@]}" "$ranks" "$TRIREME" "${text[@]}" generate.prompt=- >output 2>problems || code=$?
  [[ $code == 0 ]] || fail "exit code $code at the end of the input on $ranks ranks"
  [[ $(head -n 1 output) == "$first" ]] || fail "the first line has another text on $ranks ranks"
  [[ $(wc -l <output) == 2 ]] || fail "not one text a line on $ranks ranks"
  grep -q "line 2: 'no_such_word'" problems || fail "an unknown word was not told"
done
mkfifo keyboard
"$TRIREME" "${text[@]}" generate.prompt=- <keyboard >output 2>&1 &
job=$!
exec 3>keyboard
echo "the ship" >&3
for _ in $(seq 100); do
  [[ $(wc -l <output) -lt 1 ]] || break
  sleep 0.1
done
kill -INT $job
code=0
wait $job || code=$?
exec 3>&-
[[ $code == 3 ]] || fail "exit code $code instead of 3 after SIGINT"
says_once "stopped by a signal: 1 prompt answered"

# 4. Ends: a stop string is left out, an <eos> is, and log-probabilities go with the tokens.
stop=$(cut -d ' ' -f 4 <<<"$first")
run 0 "$TRIREME" "${text[@]}" generate.file=prompts.jsonl "generate.stop=no such|$stop" generate.stop_at_eos=yes
"$python" - output one.jsonl "$stop" <<'PYTHON' || fail "texts do not end where they should"
import json, sys
cut, whole = ([json.loads(line) for line in open(path, encoding="utf-8")] for path in sys.argv[1:3])
stop = sys.argv[3]
assert cut[0]["reason"] == "stop", cut[0]
for short, long in zip(cut, whole, strict=True):
    assert stop not in short["text"] and long["text"].startswith(short["text"]), (short, long)
    assert short["tokens"] == long["tokens"][: len(short["tokens"])], (short, long)
    assert (short["reason"] == "length") == (len(short["tokens"]) == len(long["tokens"])), (short, long)
PYTHON

# 5. What cannot be is refused before anything is written.
refused() { # MESSAGE OVERRIDES...
  run 2 "${mpi[@]}" 2 "$TRIREME" "${text[@]}" "${@:2}"
  says_once "error:"
  says "$1"
  is_missing none.jsonl
}
bad() { # MESSAGE LINE
  printf '{"prompt": "the"}\n\n%s\n' "$2" >bad.jsonl
  refused "bad.jsonl:3: $1" generate.file=bad.jsonl generate.output=none.jsonl
}
bad "byte 15: not valid JSON" '{"prompt": "the'
bad "prompt: " '{"id": 1}'
bad "unknown member temprature" '{"prompt": "the", "temprature": 1}'
bad "tokens: " '{"prompt": "the", "tokens": 0}'
bad "top_p: " '{"prompt": "the", "top_p": 1.5}'
bad "stop: " '{"prompt": "the", "stop": ["a", ""]}'
bad "id: " '{"prompt": "the", "id": {}}'
bad "'no_such_word' is not in the vocabulary" '{"prompt": "no_such_word"}'
: >empty.jsonl
refused "there is no prompt in it" generate.file=empty.jsonl generate.output=none.jsonl
refused "cannot be read" generate.file=missing.jsonl generate.output=none.jsonl
refused "exists already" generate.file=prompts.jsonl generate.output=one.jsonl
refused "there is no generate.file" generate.output=none.jsonl
refused "not a list of strings" 'generate.stop=a||b'
refused "generate.pack_weights" generate.pack_weights=yes grid.sharding=parameters generate.file=prompts.jsonl \
  generate.output=none.jsonl
refused "nothing to continue" generate.start_with_eos=no
