#!/usr/bin/env bash
# Training steps on a GPU, in turn with the same step in PyTorch; its memory-bound kernels against a
# copy in the card's memory; NCCL's transfers where there are several cards; the table so far after
# each model:
#   bash test/benchmark/gpu.sh [-B BUILD | -p PACK] [-m "jsc gpt2_124m gpt2_124m_dropout gpt2_1558m llama_8b16"] [-k KERNELS]
#                              [-r ROUNDS]
#                              [-s STEPS] [-c TOKENS] [-o DIR]
#   -p PACK        what test/pack_gpu.sh made elsewhere, in place of a build tree
#   -m MODELS      some of the models, or none
#   -k KERNELS     kernels with KERNELS in their line (gpt2_124m, norm, attention), or none; all without it
#   -r ROUNDS      1; the table has medians
#   -c TOKENS      also the course's run, on the token file of WikiText-2: 10 epochs of windows that
#                  slide by one token
#   -o DIR         keeps all outputs there
#   PYTHON=path/to/python3   of the peer, torch_step.py: one that has torch
#   LAUNCH="mpirun -n"                                starts so many ranks (a cluster: "srun -n")
# The two programs alternate, so that a card's clocks are the same for both. A model that is too large
# for the card's memory takes smaller micro-batches and computes more again, as it says. Nothing is
# installed. Exit code 77 where there is no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source jobscripts/machine.sh
source jobscripts/cuda.sh
source test/prebuilt.sh
source test/benchmark/numbers.sh

build=build-cuda pack='' models="jsc gpt2_124m gpt2_124m_dropout gpt2_1558m llama_8b16" kernels='' rounds=1 steps=20 course='' out=''
usage() {
  sed -n '5,14s/^# *//p' "$0" >&2
  exit 2
}
while getopts B:p:m:k:r:s:c:o: option; do
  case $option in
    B) build=$OPTARG ;;
    p) pack=$OPTARG ;;
    m) models=$OPTARG ;;
    k) kernels=$OPTARG ;;
    r) rounds=$OPTARG ;;
    s) steps=$OPTARG ;;
    c) course=$OPTARG ;;
    o) out=$OPTARG ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
[[ $# == 0 ]] || usage
[[ $models != none ]] || models=
for model in $models; do [[ $model =~ ^(tiny|jsc|gpt2_124m|gpt2_124m_dropout|gpt2_1558m|llama_8b16)$ ]] || usage; done
[[ $rounds =~ ^[1-9][0-9]*$ && $steps =~ ^[1-9][0-9]*$ ]] || usage
[[ -z $course || -f $course ]] || { echo "-c: $course is no file (job.task = tokenize writes it)" >&2; exit 2; }

# Results: one file a side, model and precision, one line a round.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
results=${out:-$scratch}
mkdir -p "$results"
rm -f "$results"/{ours,theirs,plan,failed}-* "$results"/{kernels,transfers,table}
failed=()

# 1. Build our side, find the card and the peer.
if [[ -n $pack ]]; then
  unpack "$pack" "$scratch"
  [[ ${OPAL_PREFIX:-} == "$prebuilt" ]] || use_pack "$prebuilt"
  programs=$prebuilt/bin
else
  if [[ ! -f $build/CMakeCache.txt ]]; then
    nvcc=$(find_nvcc) || { echo "skipped: no CUDA device: $nvcc"; exit 77; }
    architectures=$(card_architectures)
    configure_for_gpus "$build" "$nvcc" "-DCMAKE_CUDA_ARCHITECTURES=${architectures:-80;90}" -DTRIREME_TESTS=OFF
  fi
  cmake -S . -B "$build" -DTRIREME_BENCHMARKS=ON >/dev/null
  cmake --build "$build" --target trireme trireme_gpu_benchmark trireme_gpu_kernels_benchmark --parallel "$(build_jobs_alone)" >/dev/null
  programs=$build
fi
program=$programs/trireme_gpu_benchmark
code=0
machine=$("$program" machine) || code=$?
if [[ $code != 0 ]]; then
  echo "$machine"
  exit "$code"
fi
cards=$(awk '$1 == "cards" { print $2 }' <<<"$machine")
capability=$(sed -n 's/.*compute capability \([0-9]*\)\..*/\1/p' <<<"$machine")
python=${PYTHON:-python3} torch=
if ! torch=$(outer_python "$python" -c 'import torch; assert torch.cuda.is_available(); print(torch.__version__)' 2>/dev/null); then
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
too_large() { # OUTPUT: a plan that is refused, or memory that is not there after all
  grep -qE 'nothing was allocated|CUDA says out of memory|out of memory:' "$1"
}
declare -A keys tried
# The first variant of a model behind those tried that fits; fails where none does.
choose() { # MODEL
  local variant words code all count=0
  all=$(precisions "$1")
  while read -r variant; do
    ((++count > ${tried[$1]:-0})) || continue
    read -ra words <<<"$variant"
    code=0
    "$program" "$1" "${all##* }" 0 "${words[@]}" </dev/null >"$results/plan-$1" 2>&1 || code=$?
    tried[$1]=$count keys[$1]=$variant
    [[ $code != 0 ]] || { cat "$results/plan-$1"; return 0; }
    if ! too_large "$results/plan-$1"; then
      failed+=("$1")
      break
    fi
  done < <(variants "$1")
  [[ ! -s $results/plan-$1 ]] || cat "$results/plan-$1"
  echo "$1 cannot be measured on this card" >&2
  return 1
}

# 3. Steps, in turn, and the table's lines as they come.
ours() { # MODEL: in all precisions, with one variant; what fails is noted
  local precision words code fits=no
  while [[ $fits == no ]]; do
    fits=yes
    read -ra words <<<"${keys[$1]}"
    for precision in $(precisions "$1"); do
      code=0
      "$program" "$1" "$precision" "$steps" "${words[@]}" </dev/null >"$scratch/line" 2>&1 || code=$?
      cat "$scratch/line"
      if [[ $code == 0 ]]; then
        cat "$scratch/line" >>"$results/ours-$1-$precision"
      elif too_large "$scratch/line"; then
        echo "$1 $precision: its plan fitted, but the card's memory was too small"
        rm -f "$results"/ours-"$1"-*
        choose "$1" || return 0
        fits=no
        break
      else
        cp "$scratch/line" "$results/failed-$1-$precision"
        failed+=("$1:$precision")
      fi
    done
  done
}
theirs() { # MODEL
  outer_python "$python" test/benchmark/torch_step.py --preset "$1" --steps "$steps" </dev/null
}
goal() { # MODEL PRECISION WHAT
  case $1:$2:$3 in
    jsc:bf16:ratio) echo "(2.00)" ;;
    gpt2_124m:bf16:ratio) echo "(1.15)" ;;
    gpt2_1558m:bf16:products) echo "(0.65)" ;;
  esac
}
header() {
  cat <<'EOT2'
                                   tokens/s                     a card's    of the card's   card memory, MiB
model             precision      ours       peer   ratio (goal)  TFLOP/s  products (goal)      ours     peer
EOT2
}
rows() { # MODEL
  local precision us them speed peer_speed
  for precision in $(precisions "$1"); do
    us=$results/ours-$1-$precision them=/dev/null
    [[ $precision != bf16 ]] || them=$results/theirs-$1
    speed=$(median "$us" tokens/s) peer_speed=$(median "$them" tokens/s)
    printf '%-17s %-9s %9s %10s %7s %-6s %8s %8s %-6s %9s %8s\n' "$1" "$precision" \
      "$(thousands "$speed")" "$(thousands "$peer_speed")" "$(quotient "$speed" "$peer_speed" 2)" \
      "$(goal "$1" "$precision" ratio)" "$(median "$us" TFLOP/s)" "$(quotient "$(median "$us" of_roof)" 1 2)" \
      "$(goal "$1" "$precision" products)" "$(thousands "$(median "$us" peak_MiB)")" \
      "$(thousands "$(median "$them" peak_MiB)")"
  done
  [[ -z ${keys[$1]:-} ]] || echo "            with ${keys[$1]}"
}
chosen=
for round in $(seq "$rounds"); do
  for model in $models; do
    if [[ $round == 1 ]]; then
      if ! choose "$model"; then continue; fi
      chosen+=" $model"
    fi
    [[ " $chosen " == *" $model "* ]] || continue
    ours "$model"
    if [[ -n $torch && $model != tiny ]]; then
      theirs "$model" | tee -a "$results/theirs-$model" || echo "the peer failed at $model" >&2
    fi
    { echo "-- after $model, round $round of $rounds"; header; for one in $chosen; do rows "$one"; done; echo "--"; } |
      tee "$results/table"
  done
done

# 4. Kernels and transfers.
tiny=()
[[ $models != *tiny* ]] || tiny=(tiny)
if [[ $kernels != none ]]; then
  only=()
  [[ -z $kernels ]] || only=("only=$kernels")
  "$programs/trireme_gpu_kernels_benchmark" "${tiny[@]}" "${only[@]}" </dev/null | tee "$results/kernels" || failed+=(kernels)
fi
ranks=$cards
[[ ${#tiny[@]} == 0 || $ranks -le 2 ]] || ranks=2
if [[ $ranks -gt 1 ]]; then
  read -ra launch <<<"${LAUNCH:-${TRIREME_MPIRUN:-mpirun} --oversubscribe -n}"
  "${launch[@]}" "$ranks" "$programs/trireme_gpu_kernels_benchmark" "${tiny[@]}" </dev/null | tee "$results/transfers" || failed+=(transfers)
else
  echo "transfers between cards: one card is here, nothing to measure"
fi

# 5. The course's run: the whole program, from its start to its end.
course_text="not asked for (-c TOKENS)"
if [[ -n $course ]]; then
  start=$(date +%s.%N)
  if "$programs/trireme" -i input/wikitext2_jsc.in "job.output=$scratch/course" "data.file=$course" data.stride=1 \
    schedule.epochs=10 run.precision=bf16 checkpoint.every_steps=0 monitor.every_steps=4000 \
    monitor.validate_every_steps=0 monitor.sample_tokens=0; then
    course_text=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.0f s", b - a }')
  else
    course_text=failed
    failed+=(course)
  fi
fi

# 6. The table.
report() {
  cat <<EOT2

Training step on a GPU: forward, backward, clipping, AdamW; one rank, one card
$machine
peer      $peer
date      $(date +%Y-%m-%d), medians of $rounds round(s) of $steps steps

EOT2
  header
  for model in $chosen; do rows "$model"; done
  echo
  llama=$results/ours-llama_8b16
  printf 'fp8 over bf16, llama_8b16%s: %s (1.30)\n' "${keys[llama_8b16]:+ with ${keys[llama_8b16]}}" \
    "$(quotient "$(median "$llama-fp8" tokens/s)" "$(median "$llama-bf16" tokens/s)" 2)"
  if [[ -f $results/kernels ]]; then
    printf 'memory-bound kernels: %s reach 0.85 of a copy'"'"'s speed; the others:\n' \
      "$(awk '$1 == "kernel" { ++n; if ($NF >= 0.85) ++good } END { printf "%d of %d", good, n }' "$results/kernels")"
    awk '$1 == "kernel" && $NF < 0.85 { print "  " $0 }' "$results/kernels"
  fi
  echo "course run (10 epochs, stride 1; 180 s): $course_text"
  cat <<'EOT2'

products: operations of the model a second over those of the fastest square product in bf16 (fp32: in
fp32) that was measured in the same process. An fp8 step is held against bf16 products too.
EOT2
}
report | tee "$results/table"
[[ ${#failed[@]} == 0 ]] || { echo "FAILED: ${failed[*]}" >&2; exit 1; }
