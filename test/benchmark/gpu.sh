#!/usr/bin/env bash
# Training steps on a GPU, in turn with the same step in PyTorch; its memory-bound kernels against a
# copy in the card's memory; NCCL's transfers where there are several cards; one table at the end:
#   bash test/benchmark/gpu.sh [-B BUILD] [-m "jsc gpt2_124m gpt2_1558m llama_8b16"] [-r ROUNDS] [-s STEPS] [-c TOKENS]
#   -c TOKENS                                         also the course's run, on the token file of WikiText-2:
#                                                     10 epochs of windows that slide by one token
#   PEER=path/to/torch_lm.py PYTHON=path/to/python3   the peer (jsc and gpt2_124m): a script that takes --preset,
#                                                     --mode, --dtype, --device, --batch and --steps
#   LAUNCH="mpirun -n"                                starts so many ranks (a cluster: "srun -n")
# The two programs alternate, so that a card's clocks are the same for both; the table has medians
# over the rounds. A model that is too large for the card's memory takes smaller micro-batches and
# computes more again, as it says. Nothing is installed. Exit code 77 where there is no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source jobscripts/machine.sh
source jobscripts/cuda.sh

build=build-cuda models="jsc gpt2_124m gpt2_1558m llama_8b16" rounds=3 steps=20 course=
usage() {
  sed -n '4,10s/^# *//p' "$0" >&2
  exit 2
}
while getopts B:m:r:s:c: option; do
  case $option in
    B) build=$OPTARG ;;
    m) models=$OPTARG ;;
    r) rounds=$OPTARG ;;
    s) steps=$OPTARG ;;
    c) course=$OPTARG ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
[[ $# == 0 ]] || usage
for model in $models; do [[ $model =~ ^(tiny|jsc|gpt2_124m|gpt2_1558m|llama_8b16)$ ]] || usage; done
[[ $rounds =~ ^[1-9][0-9]*$ && $steps =~ ^[1-9][0-9]*$ ]] || usage
[[ -z $course || -f $course ]] || { echo "-c: $course is no file (job.task = tokenize writes it)" >&2; exit 2; }

# Results: one file a side, model and precision, one line a round.
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
# A line's number behind the word NAME, the median over a file's lines; "-" where there is none.
median() { # FILE NAME
  { [[ ! -f $1 ]] || awk -v name="$2" '{ for (i = 1; i < NF; ++i) if ($i == name) print $(i + 1) }' "$1"; } |
    sort -g | awk '{ value[NR] = $1 } END { print NR == 0 ? "-" : value[int((NR + 1) / 2)] }'
}
quotient() { # A B DECIMALS
  awk -v a="$1" -v b="$2" -v d="$3" 'BEGIN { if (a == "-" || b == "-") print "-"; else printf "%.*f\n", d, a / b }'
}
thousands() { # 12345 -> 12,345
  sed -E ':more; s/^([0-9]+)([0-9]{3})/\1,\2/; t more' <<<"$1"
}
failed=()

# 1. Build our side, find the card and the peer.
if [[ ! -f $build/CMakeCache.txt ]]; then
  nvcc=$(find_nvcc) || { echo "skipped: no CUDA device: $nvcc"; exit 77; }
  find_cudnn_frontend build/venv python3
  cmake -S . -B "$build" -DTRIREME_CUDA=ON "-DCMAKE_CUDA_COMPILER=$nvcc" "${cuda_options[@]}" -DTRIREME_TESTS=OFF >/dev/null
fi
cmake -S . -B "$build" -DTRIREME_BENCHMARKS=ON >/dev/null
cmake --build "$build" --target trireme trireme_gpu_benchmark trireme_gpu_kernels_benchmark --parallel "$(build_jobs)" >/dev/null
program=$build/trireme_gpu_benchmark
code=0
machine=$("$program" machine) || code=$?
if [[ $code != 0 ]]; then
  echo "$machine"
  exit "$code"
fi
cards=$(awk '$1 == "cards" { print $2 }' <<<"$machine")
capability=$(sed -n 's/.*compute capability \([0-9]*\)\..*/\1/p' <<<"$machine")
python=${PYTHON:-python3} torch=
if [[ -z ${PEER:-} ]]; then
  echo "PEER is not set: only our side is timed"
elif [[ ! -f $PEER ]]; then
  echo "PEER names no file ($PEER): only our side is timed"
elif ! torch=$("$python" -c 'import torch; assert torch.cuda.is_available(); print(torch.__version__)' 2>/dev/null); then
  torch=
  echo "$python cannot import torch with CUDA (PYTHON): only our side is timed"
fi
peer=none
[[ -z $torch ]] || peer="PyTorch $torch, torch.compile, bf16 by autocast"

# 2. What fits the card: the first of these sets of keys, for each large model.
variants() { # MODEL
  echo ""
  [[ $1 == gpt2_1558m || $1 == llama_8b16 ]] || return 0
  echo "model.recompute=selective"
  echo "model.recompute=selective data.micro_batch=1"
  echo "model.recompute=full data.micro_batch=1"
  [[ $1 != llama_8b16 ]] || echo "model.recompute=selective data.micro_batch=1 model.layers=8"
}
precisions() { # MODEL; the one that needs the most memory last
  [[ $1 != tiny ]] || { echo "fp32 bf16"; return; }
  [[ $1 == llama_8b16 && $capability -ge 9 ]] || { echo bf16; return; }
  echo "bf16 fp8"
}
declare -A keys
chosen=
for model in $models; do
  all=$(precisions "$model") found=no
  while read -r variant; do
    read -ra words <<<"$variant"
    code=0
    "$program" "$model" "${all##* }" 0 "${words[@]}" </dev/null >"$results/plan" 2>&1 || code=$?
    if [[ $code == 0 ]]; then
      keys[$model]=$variant found=yes
      cat "$results/plan"
      break
    fi
    [[ $code == 2 ]] || break
  done < <(variants "$model")
  if [[ $found == yes ]]; then
    chosen+=" $model"
  else
    cat "$results/plan"
    echo "$model cannot be measured on this card" >&2
    [[ $code == 2 ]] || failed+=("$model")
  fi
done

# 3. Steps, in turn.
ours() { # MODEL PRECISION
  local words
  read -ra words <<<"${keys[$1]}"
  "$program" "$1" "$2" "$steps" "${words[@]}"
}
theirs() { # MODEL
  local preset=$1 batch=0 # the script's own
  [[ $1 != gpt2_124m ]] || preset=gpt2 batch=16
  "$python" "$PEER" --device cuda --preset "$preset" --mode compile --dtype bf16 --batch "$batch" --steps "$steps"
}
for round in $(seq "$rounds"); do
  for model in $chosen; do
    echo "round $round"
    for precision in $(precisions "$model"); do
      ours "$model" "$precision" | tee -a "$results/ours-$model-$precision" || failed+=("$model:$precision")
    done
    [[ -n $torch && $model =~ ^(jsc|gpt2_124m)$ ]] || continue
    theirs "$model" | tee -a "$results/theirs-$model" || echo "the peer failed at $model" >&2
  done
done

# 4. Kernels and transfers.
tiny=()
[[ $models != *tiny* ]] || tiny=(tiny)
"$build/trireme_gpu_kernels_benchmark" "${tiny[@]}" | tee "$results/kernels" || failed+=(kernels)
ranks=$cards
[[ ${#tiny[@]} == 0 || $ranks -le 2 ]] || ranks=2
if [[ $ranks -gt 1 ]]; then
  read -ra launch <<<"${LAUNCH:-mpirun --oversubscribe -n}"
  "${launch[@]}" "$ranks" "$build/trireme_gpu_kernels_benchmark" "${tiny[@]}" | tee "$results/transfers" || failed+=(transfers)
else
  echo "transfers between cards: one card is here, nothing to measure"
fi

# 5. The course's run: the whole program, from its start to its end.
course_text="not asked for (-c TOKENS)"
if [[ -n $course ]]; then
  start=$(date +%s.%N)
  if "$build/trireme" -i input/wikitext2_jsc.in "job.output=$results/course" "data.file=$course" data.stride=1 \
    schedule.epochs=10 run.precision=bf16 checkpoint.every_steps=0 monitor.every_steps=4000 \
    monitor.validate_every_steps=0 monitor.sample_tokens=0; then
    course_text=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.0f s", b - a }')
  else
    course_text=failed
    failed+=(course)
  fi
fi

# 6. The table.
cat <<EOT2

Training step on a GPU: forward, backward, clipping, AdamW; one rank, one card
$machine
peer      $peer
date      $(date +%Y-%m-%d), medians of $rounds rounds of $steps steps

                             tokens/s                     a card's    of the card's   card memory, MiB
model       precision      ours       peer   ratio (goal)  TFLOP/s  products (goal)      ours     peer
EOT2
goal() { # MODEL PRECISION WHAT
  case $1:$2:$3 in
    jsc:bf16:ratio) echo "(2.00)" ;;
    gpt2_124m:bf16:ratio) echo "(1.15)" ;;
    gpt2_1558m:bf16:products) echo "(0.65)" ;;
  esac
}
for model in $chosen; do
  for precision in $(precisions "$model"); do
    us=$results/ours-$model-$precision them=/dev/null
    [[ $precision != bf16 ]] || them=$results/theirs-$model
    speed=$(median "$us" tokens/s) peer_speed=$(median "$them" tokens/s)
    printf '%-11s %-9s %9s %10s %7s %-6s %8s %8s %-6s %9s %8s\n' "$model" "$precision" \
      "$(thousands "$speed")" "$(thousands "$peer_speed")" "$(quotient "$speed" "$peer_speed" 2)" \
      "$(goal "$model" "$precision" ratio)" "$(median "$us" TFLOP/s)" "$(quotient "$(median "$us" of_roof)" 1 2)" \
      "$(goal "$model" "$precision" products)" "$(thousands "$(median "$us" peak_MiB)")" \
      "$(thousands "$(median "$them" peak_MiB)")"
  done
  [[ -z ${keys[$model]} ]] || echo "            with ${keys[$model]}"
done
echo
llama=$results/ours-llama_8b16
printf 'fp8 over bf16, llama_8b16%s: %s (1.30)\n' "${keys[llama_8b16]:+ with ${keys[llama_8b16]}}" \
  "$(quotient "$(median "$llama-fp8" tokens/s)" "$(median "$llama-bf16" tokens/s)" 2)"
printf 'memory-bound kernels: %s reach 0.85 of a copy'"'"'s speed; the others:\n' \
  "$(awk '$1 == "kernel" { ++n; if ($NF >= 0.85) ++good } END { printf "%d of %d", good, n }' "$results/kernels")"
awk '$1 == "kernel" && $NF < 0.85 { print "  " $0 }' "$results/kernels"
echo "course run (10 epochs, stride 1; 180 s): $course_text"
cat <<'EOT2'

products: operations of the model a second over those of the fastest square product in bf16 (fp32: in
fp32) that was measured in the same process. An fp8 step is held against bf16 products too.
EOT2
[[ ${#failed[@]} == 0 ]] || { echo "FAILED: ${failed[*]}" >&2; exit 1; }
