#!/usr/bin/env bash
# Translations as a user gets them: evaluations and files of texts are the same on any ranks, scores are those of the
# texts that were written, and what does not suit translations is refused.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
deck=$TRIREME_SOURCE/input/translation.in
run 0 "$TRIREME" -i "$deck" job.task=tokenize tokenize.kind=numerals tokenize.numerals_pairs=4000 data.file=numerals.h5
run 0 "${mpi[@]}" 2 "$TRIREME" -i "$deck" data.file=numerals.h5 model.dim=32 model.ffn=64 data.batch_tokens=1024 \
  schedule.steps=150 schedule.warmup_steps=10 optimizer.learning_rate=5e-3 monitor.validate_every_steps=0 monitor.report=no job.output=run

# evaluate RANKS NAME KEYS...
evaluate() {
  run 0 "${mpi[@]}" "$1" "$TRIREME" -r run job.task=evaluate generate.beams=2 generate.tokens=40 evaluate.results="$2.json" \
    evaluate.output="$2.jsonl" "${@:3}"
  says "exact match"
  says "wrong   <"
}
evaluate 1 one
evaluate 4 four grid.pipeline=2 grid.tensor=2
evaluate 3 three generate.batch=5

head -n 60 one.jsonl | sed -n 's/.*"source":"\([^"]*\)".*/{"prompt":"\1"}/p' > prompts.jsonl
run 0 "${mpi[@]}" 2 "$TRIREME" -r run job.task=generate generate.beams=2 generate.tokens=40 generate.file=prompts.jsonl \
  generate.output=texts.jsonl generate.batch=3
says "texts.jsonl: 60 texts"
run 0 "$TRIREME" -r run job.task=generate generate.tokens=40 generate.beams=2 "generate.prompt=$(
  sed -n '1s/.*"source":"\([^"]*\)".*/\1/p' one.jsonl)"
cp "$scratch/output" alone.txt
export TRIREME
printf '<de> 342 117\n\n' > lines.txt
run 0 bash -c '"$TRIREME" -r run job.task=generate generate.prompt=- < lines.txt'
says "line 2: nothing to translate"

"$python" - <<'PYTHON'
import json
def lines(name):
    return [json.loads(line) for line in open(name + ".jsonl")]
one = lines("one")
assert len(one) == 200, len(one)
assert any(r["text"] for r in one)
for other in ("four", "three"):
    again = lines(other)
    assert [r["text"] for r in one] == [r["text"] for r in again], other
    assert all(abs(a["log_probability"] - b["log_probability"]) < 1e-3 for a, b in zip(one, again)), other
texts = lines("texts")
assert [r["text"] for r in texts] == [r["text"] for r in one[:60]]
assert all(r["reason"] in ("eos", "length") for r in texts)
assert open("alone.txt").read().splitlines()[-1] == one[0]["text"]
for name in ("one", "four", "three"):
    for number in json.load(open(name + ".json"))["sets"]:
        split = [r for r in one if r["split"] == number["split"]]
        exact = 100 * sum(r["text"] == r["reference"] for r in split) / len(split)
        assert number["texts"] == 100 and abs(number["exact_match"] - exact) < 1e-9, number
        assert 0 <= number["chrf"] < 100 and number["loss"] > 0, number
PYTHON

# Export as Marian: features of the residual stream, even ones first, on any ranks.
run 0 "$TRIREME" -i "$deck" data.file=numerals.h5 model.dim=32 model.ffn=64 model.norm_position=post schedule.steps=2 schedule.warmup_steps=1 \
  monitor.report=no monitor.validate_every_steps=0 job.output=post
run 0 "$TRIREME" -r post job.task=export hf.path=marian
run 0 "${mpi[@]}" 3 "$TRIREME" -r post job.task=export hf.path=marian_of_three
cmp marian/model.safetensors marian_of_three/model.safetensors || fail "three ranks export other weights than one"
if ! "$python" -c 'import numpy, safetensors' 2>/dev/null; then
  echo "SKIPPED: exported weights are not compared: Python has no safetensors"
elif ! "$python" - <<'PYTHON'
import json
import numpy as np
from safetensors.numpy import load_file
theirs, ours = load_file("marian/model.safetensors"), load_file("post/checkpoints/latest/model.safetensors")
halves = [*range(0, 32, 2), *range(1, 32, 2)]
def same(their, our):
    assert np.array_equal(theirs[their], our), their
same("model.shared.weight", ours["embedding.token.weight"][:, halves])
same("model.encoder.layers.1.self_attn.q_proj.weight", ours["blocks.1.attention.query.weight"][:, halves])
same("model.encoder.layers.1.self_attn.q_proj.bias", ours["blocks.1.attention.query.bias"])
same("model.decoder.layers.0.encoder_attn.out_proj.weight", ours["blocks.2.cross.output.weight"].T[halves])
same("model.decoder.layers.1.fc1.weight", ours["blocks.3.ffn.up.weight"][:, halves])
same("model.decoder.layers.1.fc2.weight", ours["blocks.3.ffn.down.weight"].T[halves])
same("model.decoder.layers.1.final_layer_norm.bias", ours["blocks.3.ffn.norm.bias"][halves])
assert sum(tensor.size for tensor in theirs.values()) == sum(tensor.size for tensor in ours.values())
config = json.load(open("marian/config.json"))
assert config["model_type"] == "marian" and config["decoder_start_token_id"] == config["eos_token_id"] == config["pad_token_id"], config
PYTHON
then
  fail "exported weights"
fi

# refused MESSAGE KEYS...
refused() {
  run 2 "$TRIREME" -r run "${@:2}"
  says "$1"
}
refused "is evaluated on pairs alone" job.task=evaluate evaluate.baselines=yes
refused "is there already" job.task=evaluate evaluate.output=one.jsonl
refused "searched for, not drawn" job.task=generate generate.top_k=3
refused "model.norm_position = pre: no encoder-decoder model of transformers computes this" job.task=export hf.path=exported
printf '{"prompt":"<en> 5","top_k":3}\n' > drawn.jsonl
refused "unknown member" job.task=generate generate.file=drawn.jsonl
printf '{"prompt":"<en> %s"}\n' "$(printf 'eins %.0s' {1..60})" > long.jsonl
refused "long.jsonl:1:" job.task=generate generate.file=long.jsonl
