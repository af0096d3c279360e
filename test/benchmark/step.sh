#!/usr/bin/env bash
# A training step of three models, in turn with the same step in PyTorch, and one table at the end:
#   bash test/benchmark/step.sh [-p "jsc wt2 gpt2"] [-d "fp32 bf16"] [-r ROUNDS] [-s STEPS] [-b BUILD]
#   PEER=path/to/torch_lm.py PYTHON=path/to/python3   the peer: a script that takes --preset, --mode,
#                                                     --dtype, --batch and --steps (none: ours alone)
#   OMP_NUM_THREADS                                   threads of both (default: the cores)
# The two programs alternate, so that a noisy machine is as noisy for both; the table has medians
# over the rounds. Nothing is installed: without PyTorch only our side is timed. Takes about half a
# minute a model, precision, round and program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source jobscripts/machine.sh
source test/benchmark/numbers.sh

presets="jsc wt2 gpt2" precisions="fp32 bf16" rounds=3 steps=3 build=build-benchmark
usage() {
  sed -n '3,6s/^# *//p' "$0" >&2
  exit 2
}
while getopts p:d:r:s:b: option; do
  case $option in
    p) presets=$OPTARG ;;
    d) precisions=$OPTARG ;;
    r) rounds=$OPTARG ;;
    s) steps=$OPTARG ;;
    b) build=$OPTARG ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
[[ $# == 0 ]] || usage
for preset in $presets; do [[ $preset =~ ^(jsc|wt2|gpt2)$ ]] || usage; done
for precision in $precisions; do [[ $precision =~ ^(fp32|bf16)$ ]] || usage; done

# Ours: PRESET SEQUENCE BATCH STEPS PRECISION MICRO_BATCH. The models and batches are the peer's
# (gpt2: half its batch, so that it fits a small machine); micro-batches of 2048 tokens, or of one
# sequence where activations would outgrow the model.
ours() { # PRESET PRECISION
  case $1 in
    jsc) "$program" jsc 32 512 "$steps" "$2" 64 ;;
    wt2) "$program" wt2 128 64 "$steps" "$2" 16 ;;
    gpt2) "$program" gpt2_124m 1024 2 "$steps" "$2" 1 ;;
  esac
}
theirs() { # PRESET PRECISION
  local batch=0 # the script's own
  [[ $1 != gpt2 ]] || batch=2
  "$python" "$PEER" --preset "$1" --mode compile --dtype "$2" --batch "$batch" --steps "$steps"
}

# Results: one file a side, preset and precision, one line a round.
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# 1. Build our side, find the other.
cmake -S . -B "$build" -DTRIREME_TESTS=OFF -DTRIREME_BENCHMARKS=ON >/dev/null
cmake --build "$build" --target trireme_step_benchmark --parallel "$(build_jobs)" >/dev/null
program=$build/trireme_step_benchmark
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(usable_cores)}
python=${PYTHON:-python3} torch=
if [[ -z ${PEER:-} ]]; then
  echo "PEER is not set: only our side is timed"
elif [[ ! -f $PEER ]]; then
  echo "PEER names no file ($PEER): only our side is timed"
elif ! torch=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null); then
  echo "$python cannot import torch (PYTHON): only our side is timed"
fi
peer=none
[[ -z $torch ]] || peer="PyTorch $torch, torch.compile"
machine=$("$program" machine)
if [[ $precisions == *bf16* ]] && grep -q 'bf16: none' <<<"$machine"; then
  echo "this CPU has no bf16 instructions: fp32 alone"
  precisions=fp32
fi

# 2. Measure, in turn.
for round in $(seq "$rounds"); do
  for preset in $presets; do
    for precision in $precisions; do
      echo "round $round"
      ours "$preset" "$precision" | tee -a "$results/ours-$preset-$precision"
      [[ -n $torch ]] || continue
      theirs "$preset" "$precision" | tee -a "$results/theirs-$preset-$precision" ||
        echo "the peer failed at $preset $precision" >&2
    done
  done
done

# 3. The table.
cat <<EOT

Training step: forward, backward, clipping, AdamW; dropout 0.1; one process, $OMP_NUM_THREADS threads
$machine
peer      $peer
date      $(date +%Y-%m-%d), medians of $rounds rounds of $steps steps

                        tokens/s          ratio   of the roof       peak memory, MiB   ratio
model  precision     ours       peer             square  products     ours     peer
EOT
for preset in $presets; do
  for precision in $precisions; do
    us=$results/ours-$preset-$precision them=$results/theirs-$preset-$precision
    speed=$(median "$us" tokens/s) peer_speed=$(median "$them" tokens/s)
    memory=$(median "$us" peak_MiB) peer_memory=$(median "$them" peak_MiB)
    printf '%-6s %-6s %11s %10s %10s %8s %9s %8s %8s %7s\n' "$preset" "$precision" \
      "$(thousands "$speed")" "$(thousands "$peer_speed")" "$(quotient "$speed" "$peer_speed" 2)" \
      "$(quotient "$(median "$us" of_square)" 1 2)" "$(quotient "$(median "$us" of_products)" 1 2)" \
      "$(thousands "$memory")" "$(thousands "$peer_memory")" "$(quotient "$memory" "$peer_memory" 3)"
  done
done
cat <<'EOT'

square: operations a second over those of 1024 x 1024 products; products: the time that all products
of the step take by themselves, at their sizes and each in the fastest way there is, over the step's.
Both measured in the same process between the steps.
EOT
