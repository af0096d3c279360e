#!/usr/bin/env bash
# From nothing to generated text: tokenize, validate, train, evaluate, generate; what lies in the run
# folder; what is refused.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck

tokens
says "entropy rate"
cp harbour.h5 first.h5
run 2 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour
says "harbour.h5"
says "tokenize.overwrite"
tokens tokenize.overwrite=yes
cmp first.h5 harbour.h5 || fail "the same corpus gave different bytes"

# A truncated token file is found before anything is written.
head -c $(($(stat -c %s harbour.h5) / 2)) harbour.h5 >short.h5
run 2 "${mpi[@]}" 2 "$TRIREME" -i deck.in data.file=short.h5
says "short.h5"
is_missing run

run 0 "$TRIREME" -i deck.in -v
says "memory  per rank:"
is_missing run

run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in
cp output trained
says "Trireme "
says "    step   epoch     loss  perplexity"
grep -q '^      20 ' output || fail "the last step is not on the screen"
grep -q '^   valid ' output || fail "no validation on the screen"
grep -q '^    test ' output || fail "no test loss on the screen"
grep -q '^done ' output || fail "no summary"
says_once "map     rank 0 "
grep -Eq '^ +data +all-reduce ' output || fail "no line of the gradients' sums in the table of traffic"
! grep -q $'\r' output || fail "a live line in a batch log"
for name in deck.in log.txt metrics.jsonl checkpoints/step_00000010 checkpoints/step_00000020 \
    checkpoints/latest/model.safetensors checkpoints/latest/optimizer.safetensors \
    checkpoints/latest/run.json checkpoints/best; do
  exists "run/$name"
done
[[ $(readlink run/checkpoints/latest) == step_00000020 ]] || fail "latest is no relative link to step 20"
[[ $(losses run/metrics.jsonl step | wc -l) == 20 ]] || fail "not 20 step records"
tail -n 1 run/metrics.jsonl | grep -q '"kind":"done"' || fail "the last record is not done"

# The resolved deck runs again as it is; the folder is refused without -r and left as it was.
find run -printf '%p %s %T@\n' | sort >before
run 2 "$TRIREME" -i deck.in
says "run: holds a run already"
says "-r run"
find run -printf '%p %s %T@\n' | sort | diff before - >difference || fail "a refused run folder was touched"
run 0 "$TRIREME" -i run/deck.in -n
grep -q '^steps *= *20' output || fail "run/deck.in is not the resolved deck"

run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in -r run job.task=evaluate
valid=$(losses run/metrics.jsonl valid | tail -n 1 | cut -d ' ' -f 2)
says "$(printf 'loss %.6f' "$valid")"
run 0 "$TRIREME" -i deck.in -r run/checkpoints/step_00000020 job.task=generate generate.tokens=12
[[ $(wc -w <output) -ge 8 ]] || fail "no text was generated"
cp output text
run 0 "$TRIREME" -i deck.in -r run job.task=generate generate.tokens=12
cmp text output || fail "the same seed gave another text"
run 2 "$TRIREME" -i deck.in job.task=evaluate
says "-r"

if "$python" -c 'import safetensors.numpy' 2>/dev/null; then
  "$python" - <<'PYTHON' || fail "safetensors cannot read the checkpoint"
import safetensors.numpy as st
for name in ("model", "optimizer"):
    tensors = st.load_file(f"run/checkpoints/latest/{name}.safetensors")
    assert tensors and all(t.size for t in tensors.values())
PYTHON
fi
