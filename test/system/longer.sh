#!/usr/bin/env bash
# A model with norms of heads, biases of queries, keys and values alone and scaled rotations, as a user has
# it: trained on a tensor by pipeline layout, continued on one rank, evaluated, sampled; then a longer context.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens
model=(model.position=rope model.qk_norm=yes model.bias=no model.qkv_bias=yes model.rope_scaling=llama3
  model.rope_factor=4 model.rope_original_positions=16)

run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in grid.tensor=2 grid.pipeline=2 job.output=short "${model[@]}" schedule.stop_at=10
run 0 "$TRIREME" -r short grid.tensor=1 grid.pipeline=1
run 0 "$TRIREME" -i deck.in job.output=whole "${model[@]}"
"$python" - <(losses short/metrics.jsonl step) <(losses whole/metrics.jsonl step) <<'PYTHON' || fail "losses differ"
import sys
runs = [dict(line.split() for line in open(path)) for path in sys.argv[1:]]
assert runs[0].keys() == runs[1].keys() and len(runs[0]) == 20, runs
assert all(abs(float(runs[0][s]) / float(runs[1][s]) - 1) < 1e-5 for s in runs[0]), runs
PYTHON
"$python" - short/checkpoints/latest <<'PYTHON' || fail "parameters or settings"
import json, struct, sys
header = open(sys.argv[1] + "/model.safetensors", "rb")
names = json.loads(header.read(struct.unpack("<Q", header.read(8))[0]))
assert names["blocks.1.attention.query_norm.weight"]["shape"] == [16], sorted(names)
assert "blocks.0.attention.key.bias" in names and "blocks.0.attention.output.bias" not in names
model = json.load(open(sys.argv[1] + "/run.json"))["model"]
assert (model["rope_scaling"], model["rope_factor"], model["qk_norm"]) == ("llama3", 4, True), model
assert (model["bias"], model["qkv_bias"]) == (False, True), model
PYTHON

# Other rotary positions are another function: refused, but for a new run's beginning.
run 2 "$TRIREME" -i deck.in -r short model.rope_factor=8
says "model.rope_factor = 8, but the checkpoint was trained with model.rope_factor = 4"
longer=(data.sequence_length=48 model.rope_scaling=yarn model.rope_factor=3 model.rope_original_positions=16)
run 0 "$TRIREME" -i deck.in job.output=longer checkpoint.start_from=short schedule.stop_at=5 "${longer[@]}"
grep -q '^rope_scaling *= yarn' longer/deck.in || fail "the new run's scaling is not the deck's"
run 0 "$TRIREME" -r longer job.task=evaluate
says "valid"
run 0 "$TRIREME" -r longer job.task=generate generate.tokens=60 "generate.prompt=the ship"
run 2 "$TRIREME" -i deck.in job.output=other checkpoint.start_from=short model.qk_norm=no
says "model.qk_norm = no, but the checkpoint was trained with model.qk_norm = yes"
is_missing other

# Presets state published shapes; another scaling drops their numbers.
printf '[model]\npreset = llama3_8b\n' >llama.in
run 0 "$TRIREME" -i llama.in -n model.rope_scaling=none
grep -Eq '^rope_factor +=  *0$' output || fail "the preset's factor stayed without its scaling"
run 2 "$TRIREME" -i llama.in -n model.rope_scaling=linear
says "command line: model.rope_scaling = linear: needs model.rope_factor"
