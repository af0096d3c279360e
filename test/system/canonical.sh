#!/usr/bin/env bash
# run.canonical as a user runs it: ten runs in layouts of 1 to 8 ranks, one of which moves from one to
# another, end in the same bytes and print the same losses; without it they agree up to rounding.
# By hand: canonical.sh BUILD [wikitext], with the latter on WikiText-2, for minutes.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ -n ${1:-} ]]; then
  TRIREME=$(realpath "$1")/trireme
  export TRIREME TRIREME_SOURCE=${TRIREME_SOURCE:-$(realpath "$here/../..")}
fi
# shellcheck source=test/system/common.sh
source "$here/common.sh"
export OMP_WAIT_POLICY=passive # more threads than cores

if [[ ${2:-} == wikitext ]]; then
  for folder in "${TRIREME_DATA:-}" "${TRIREME_SHARED:-$TRIREME_SOURCE/../shared}/data/wikitext-2" \
    "$TRIREME_SOURCE/data/wikitext-2" none; do
    [[ ! -e $folder/train.txt ]] || break
  done
  [[ $folder != none ]] ||
    skip "no WikiText-2 in TRIREME_DATA, TRIREME_SHARED or data/: jobscripts/fetch_wikitext.sh brings it"
  deck=$TRIREME_SOURCE/input/wikitext2_jsc.in
  leaf=128 end=20 stop=11
  problem=(data.file=tokens.h5 "schedule.steps=$end" monitor.validate_every_steps=0
    monitor.sample_tokens=0)
  chunked=(pipeline.schedule=gpipe) # two layers are too few for chunks
  run 0 "$TRIREME" -i "$deck" data.file=tokens.h5 job.task=tokenize \
    "tokenize.train=$folder/train.txt" "tokenize.valid=$folder/valid.txt" "tokenize.test=$folder/test.txt"
else
  tiny_deck
  sed -i 's/^heads = .*/heads = 4/; s/^layers = .*/layers = 4/; s/^batch = .*/batch = 16/' deck.in
  deck=deck.in
  tokens # 8 steps per epoch, the last one short
  leaf=2 end=10 stop=5
  problem=("schedule.steps=$end")
  chunked=(pipeline.schedule=interleaved pipeline.chunks=2)
fi
problem+=(checkpoint.every_steps=0 monitor.every_steps=1)
canonical=(run.canonical=4x2 "run.canonical_leaf=$leaf")
one="data.micro_batch=$leaf" two="data.micro_batch=$((2 * leaf))"
whole=grid.sharding=parameters

# train NAME RANKS THREADS OVERRIDES...
train() {
  local name=$1 ranks=$2 threads=$3
  shift 3
  run 0 "${mpi[@]}" "$ranks" "$TRIREME" -i "$deck" "${problem[@]}" "run.threads=$threads" \
    "job.output=$name" "$@"
  echo "$name: $ranks x $threads $*"
}
# each SUFFIX OVERRIDES...: the layouts; the first is what the others are compared with.
each() {
  local suffix=$1
  shift
  train "serial$suffix" 1 1 "$one" "$@"
  train "tensor$suffix" 2 1 grid.tensor=2 grid.sequence_parallel=yes "$one" "$@"
  train "cube$suffix" 8 1 grid.tensor=2 grid.pipeline=2 $whole grid.overlap=no "${chunked[@]}" "$one" "$@"
  train "hybrid$suffix" 8 1 grid.tensor=2 grid.sharding=gradients grid.shard_group=2 "$one" "$@"
}

# 1. The same bits.
each "" "${canonical[@]}"
cp output cube_said
train threads 1 2 model.recompute=full "$two" "${canonical[@]}"
train moments 2 1 grid.sharding=optimizer grid.bucket_mib=0.01 "$two" "${canonical[@]}"
train data 4 1 $whole grid.prefetch=2 "$one" "${canonical[@]}"
train stages 4 1 grid.pipeline=2 pipeline.schedule=zero_bubble grid.sharding=gradients "$one" "${canonical[@]}"
train square 4 2 grid.tensor=2 grid.sequence_parallel=yes $whole grid.shard_group=1 "${canonical[@]}"
train moved 8 1 grid.pipeline=2 $whole grid.shard_group=2 "schedule.stop_at=$stop" "${canonical[@]}"
train moved 2 2 grid.tensor=2 grid.sharding=optimizer "$two" -r moved "${canonical[@]}"
! unexpected_warnings || fail "a warning about another layout"

# Loss and gradient in each step's record, as text; and the last validation and test.
numbers() {
  grep -E "\"kind\":\"step\"|\"kind\":\"(valid|test)\",\"step\":$end," "$1/metrics.jsonl" |
    sed -E 's/.*("kind":"[a-z]+","step":[0-9]+,).*("loss":[^,]+,).*("grad_norm":[^,]+,).*/\1 \2 \3/'
}
numbers serial >wanted
[[ $(grep -c '"kind":"step"' wanted) == "$end" ]] || fail "not $end losses: $(cat wanted)"
for name in tensor cube hybrid threads moments data stages square moved; do
  for file in model optimizer; do
    cmp {serial,$name}/checkpoints/latest/$file.safetensors || fail "$name: $file.safetensors differs"
  done
  diff wanted <(numbers $name) >difference || fail "$name: numbers differ: $(head -n 5 difference)"
done

# 2. The banner, the closing lines and run.json say what was done.
record() { # RUN TEXT
  grep -qF "$2" "$1/checkpoints/latest/run.json" || fail "$1: run.json lacks $2"
}
record cube '"sharding": "parameters"'
record hybrid '"sharding": "gradients"'
record serial '"sharding": "none"'
record cube "\"canonical\": \"4x2, leaf $leaf, fp32, "
record hybrid '"grid": "pipeline 1 x data 4 x context 1 x tensor 2"'
grep -q "^grid .*; canonical 4x2, leaf of $leaf sequences$" cube/log.txt || fail "no canonical in the banner"
grep -q "^grid .*; moments and gradients sharded over 2 ranks, 2 copies; " hybrid/log.txt ||
  fail "the banner does not say how moments and gradients are shared out"
grep -Eq '^gathers [0-9.]+ per step and rank, of sharded parameters; [0-9.]+% complete' data/log.txt ||
  fail "no line about gathers"
! grep -q '^gathers' hybrid/log.txt serial/log.txt square/log.txt || fail "gathers of what is whole"

# 3. Without it: up to rounding, and the comparison above can fail.
[[ ${2:-} != wikitext ]] || exit 0
each _rounded
! cmp -s {serial,hybrid}_rounded/checkpoints/latest/model.safetensors || fail "the same bits without asking"
record serial_rounded '"canonical": "none"'
# The decks that runs keep are decks.
run 0 "$TRIREME" -i serial_rounded/deck.in -v job.output=again
run 0 "${mpi[@]}" 8 "$TRIREME" -i hybrid/deck.in -v job.output=again
"$python" - serial tensor cube hybrid <<'PYTHON' || fail "losses differ"
import json, sys
TOLERANCE = 1e-5  # relative, in fp32: numerical rule 4
runs = {}
for name in sys.argv[1:]:
    records = [json.loads(line) for line in open(f"{name}_rounded/metrics.jsonl", encoding="utf-8")]
    runs[name] = {(r["kind"], r["step"]): r["loss"] for r in records if r["kind"] not in ("done", "event", "interval")}
reference = runs[sys.argv[1]]
for name, losses in runs.items():
    assert losses.keys() == reference.keys(), (name, sorted(losses.keys() ^ reference.keys()))
    worst = max(abs(losses[k] - reference[k]) / reference[k] for k in reference)
    print(f"{name}, rounded: {worst:.1e}")
    assert worst < TOLERANCE, (name, worst)
PYTHON
