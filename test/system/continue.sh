#!/usr/bin/env bash
# Resumes with -r: the model of the checkpoint, the run's own deck, the newest valid checkpoint,
# the position in the data; refused are another model, vocabulary, program.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens
run 0 "$TRIREME" -i deck.in checkpoint.every_steps=5 job.output=whole

# A deck that states another model is refused, with both values, by every task that takes the weights.
for task in train evaluate generate; do
  run 2 "$TRIREME" -i deck.in -r whole job.task=$task model.heads=4 model.activation=relu
  says "command line: model.heads = 4, but the checkpoint was trained with model.heads = 2"
  says "command line: model.activation = relu, but the checkpoint was trained with model.activation = gelu"
  says_once "error:"
done
run 2 "$TRIREME" -i deck.in job.output=other checkpoint.start_from=whole model.layers=3
says "model.layers = 3, but the checkpoint was trained with model.layers = 2"
is_missing other
run 2 "$TRIREME" -i deck.in -r whole job.task=evaluate model.preset=jsc
says "preset jsc: model.activation = relu, but the checkpoint was trained with model.activation = gelu"
run 2 "$TRIREME" -i deck.in -r whole -v grid.ranks=2 model.dim=64
says "model.dim = 64, but the checkpoint was trained with model.dim = 32"

# A deck that states none, and no deck at all: the checkpoint's model.
run 0 "$TRIREME" -i deck.in -r whole job.task=evaluate
grep '^valid' output | cut -d' ' -f1-30 | sed 's/tokens.*//' >stated
sed '/^\[model\]/,/^\[optimizer\]/{/^\[optimizer\]/!d}' deck.in >bare.in
! grep -q '^dim' bare.in || fail "bare.in still states the model"
run 0 "$TRIREME" -i bare.in -r whole job.task=evaluate
grep '^valid' output | sed 's/tokens.*//' | cmp - stated || fail "another loss without a stated model"
run 0 "$TRIREME" -r whole job.task=evaluate
grep '^valid' output | sed 's/tokens.*//' | cmp - stated || fail "another loss by the run's own deck"
run 0 "$TRIREME" -n -i bare.in -r whole
grep -Eq '^dim +=  *32 ' output || fail "the model is not the checkpoint's"
says "the checkpoint's whole/checkpoints/step_00000020/run.json"

# By its own deck a run goes on to its end, whatever that deck's stop_at and output say.
run 0 "$TRIREME" -i deck.in checkpoint.every_steps=5 job.output=parts schedule.stop_at=10
run 0 "$TRIREME" -r parts
for file in model optimizer; do
  cmp {whole,parts}/checkpoints/step_00000020/$file.safetensors || fail "$file.safetensors differs"
done
cp -r whole/checkpoints/step_00000010 lone
run 0 "$TRIREME" -r lone job.output=from_lone
cmp {whole,from_lone}/checkpoints/step_00000020/model.safetensors || fail "a lone checkpoint's deck"

# Another vocabulary of the same size is refused.
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=2000 \
  data.file=same.h5
run 0 "$TRIREME" -i deck.in -r whole job.task=evaluate data.file=same.h5
"$python" - same.h5 <<'PYTHON' || fail "the vocabulary cannot be changed"
import sys
data = bytearray(open(sys.argv[1], "rb").read())
at = data.find(b"harbour", 2000)  # a word of the vocabulary, or the name of the tokenizer
words = [i for i in range(len(data) - 4) if data[i:i + 4] == b"ship"]
assert words, "no word to change"
data[words[0]:words[0] + 4] = b"SHIP"
open(sys.argv[1], "wb").write(data)
PYTHON
run 2 "$TRIREME" -i deck.in -r whole job.task=evaluate data.file=same.h5
says "same.h5: its vocabulary is not the checkpoint's"

# A newest checkpoint with a wrong byte is named and passed over; the run ends in the same bytes.
cp -r whole damaged
rm -r damaged/checkpoints/step_00000020
ln -sfn step_00000015 damaged/checkpoints/latest
printf X | dd of=damaged/checkpoints/step_00000015/optimizer.safetensors bs=1 seek=50000 conv=notrunc 2>/dev/null
run 0 "$TRIREME" -r damaged job.task=evaluate # weights alone are whole
run 0 "${mpi[@]}" 2 "$TRIREME" -r damaged
says "warning: passed over damaged/checkpoints/step_00000015/optimizer.safetensors: tensor"
says "warning: passed over damaged/checkpoints/step_00000015: it is called damaged/checkpoints/step_00000015.damaged now"
says "resumed from damaged/checkpoints/step_00000010 at step 10"
exists damaged/checkpoints/step_00000015.damaged
grep -q '"event":"checkpoint passed over"' damaged/metrics.jsonl || fail "no event of what was passed over"
run 2 "$TRIREME" -i deck.in -r damaged/checkpoints/step_00000015.damaged
cp -r whole damaged_weights
printf X | dd of=damaged_weights/checkpoints/step_00000020/model.safetensors bs=1 seek=9000 conv=notrunc 2>/dev/null
run 0 "$TRIREME" -r damaged_weights job.task=evaluate
says "passed over damaged_weights/checkpoints/step_00000020/model.safetensors: tensor"
says "checkpoint  damaged_weights/checkpoints/step_00000015"
run 2 "$TRIREME" -i deck.in -r damaged_weights/checkpoints/step_00000020 job.task=evaluate
says_once "error:"

# A run killed before its first checkpoint, or while it wrote it, starts again, with -r or without; one
# killed before it moved the link has lost nothing.
mkdir -p begun/checkpoints/step_00000005.tmp
cp deck.in begun/deck.in
run 0 "$TRIREME" -i deck.in job.output=begun schedule.stop_at=5 -r begun
says "begun holds no checkpoint yet: it begins at step 0"
mkdir -p anew/checkpoints/step_00000005.tmp
run 0 "$TRIREME" -i deck.in job.output=anew schedule.stop_at=5
rm begun/checkpoints/latest
run 2 "$TRIREME" -i deck.in job.output=begun
says "begun: holds a run already"
run 0 "$TRIREME" -i deck.in job.output=begun -r begun schedule.stop_at=6
says "resumed from begun/checkpoints/step_00000005 at step 5"
mkdir nothing
run 2 "$TRIREME" -i deck.in -r nothing
says "holds no complete checkpoint"

# Another batch goes on at the sample, with the right number of tokens.
run 0 "$TRIREME" -i deck.in job.output=batches schedule.stop_at=5
run 0 "$TRIREME" -i deck.in job.output=batches -r batches data.batch=5 optimizer.beta1=0.8 schedule.steps=40
says "warning: data.batch is 5 now and was 8 when the checkpoint was written"
says "warning: optimizer.beta1 is 0.8 now and was 0.9 when the checkpoint was written"
"$python" - batches/metrics.jsonl <<'PYTHON' || fail "tokens or epochs are wrong"
import json, sys
records = {r["step"]: r for r in map(json.loads, open(sys.argv[1])) if r["kind"] == "step"}
# 125 windows: 40 in 5 steps of 8; 85 in 17 steps of 5; then 25 steps per epoch.
assert records[5]["tokens"] == 5 * 8 * 16, records[5]
assert abs(records[22]["epoch"] - 1) < 1e-12, records[22]
assert abs(records[40]["epoch"] - (1 + 18 * 5 / 125)) < 1e-12, records[40]
epoch = records[22]["tokens"]
assert records[40]["tokens"] in (epoch + 18 * 5 * 16, epoch + 18 * 5 * 16 - (125 * 16 - epoch)), records[40]
PYTHON

# Ranks that were started otherwise are refused.
run 2 "${mpi[@]}" 1 "$TRIREME" -i deck.in job.output=mixed : -n 1 "$TRIREME" -i deck.in job.output=mixed data.batch=4
says "another program or command line than rank 0's"
says "(on rank 1 of 2)"
is_missing mixed
cp "$TRIREME" ./other_build
if id=$(readelf -n "$TRIREME" 2>/dev/null | sed -n 's/ *Build ID: //p') && [[ -n $id ]]; then
  "$python" - "$TRIREME" other_build "$id" <<'PYTHON'
import sys
data = open(sys.argv[1], "rb").read()
other = bytearray(bytes.fromhex(sys.argv[3]))
other[0] ^= 1
open(sys.argv[2], "wb").write(data.replace(bytes.fromhex(sys.argv[3]), bytes(other)))
PYTHON
  run 2 "${mpi[@]}" 1 "$TRIREME" -i deck.in job.output=mixed : -n 1 ./other_build -i deck.in job.output=mixed
  says "another program or command line than rank 0's"
fi
