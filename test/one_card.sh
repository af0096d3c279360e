#!/usr/bin/env bash
# Everything that one GPU can prove about the program, in the order of its worth, several ranks that
# talk through NCCL on this one card among them (NCCL 2.30 or newer):
#   bash test/one_card.sh [-B BUILD | --prebuilt PACK] [--budget SECONDS] [--only PARTS] [--mps] [--peer] [-o DIR]
#   -B BUILD            a build tree with tests and benchmarks (build-cuda)
#   --prebuilt PACK     what pack_gpu.sh made elsewhere
#   --budget SECONDS    of all parts together (600); a part that no longer fits is named
#   --only PARTS        some of the parts, with commas, in this order: versions meet kernels channels
#                       layouts deaths programs benchmark tables memory sanitizer eager
#   --mps               ranks share the card by NVIDIA's multi-process service, which is started here and ended in the end
#                       (nvidia-cuda-mps-control), where without it they take turns; only two ranks that meet: on an
#                       H200 the service had no room for four or eight of our ranks
#   --peer              PyTorch's step, too, after each of the benchmark's models
#   -o DIR              keeps all outputs (build-one-card)
# ONE_CARD_MODELS, _TABLES, _LAYERS, _KERNELS: models of the benchmark and of the tables (gpt2_1558m, llama, tiny), layers of the
# Llama, arguments of trireme_gpu_kernels_benchmark. Each part has a time limit of its own and says in one line how it ended; a
# table of all comes last, and DIR/one_card.tar.xz has all logs and figures, also if the script is cut off. Exit code 77 where
# there is no GPU.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
exec </dev/null
source jobscripts/machine.sh
source test/prebuilt.sh

usage() {
  sed -n '4,14s/^# *//p' "$0" >&2
  exit 2
}
build=build-cuda pack='' budget=600 only='' out=build-one-card peer=no mps_pipe=''
while [[ $# -gt 0 ]]; do
  case $1 in
    -B) build=${2:?a folder}; shift ;;
    --prebuilt) pack=${2:?a pack of pack_gpu.sh}; shift ;;
    --budget) budget=${2:?seconds}; shift ;;
    --only) only=${2:?parts}; shift ;;
    --peer) peer=yes ;;
    --mps) mps_pipe=wanted ;;
    -o) out=${2:?a folder}; shift ;;
    *) usage ;;
  esac
  shift
done
[[ $budget =~ ^[1-9][0-9]*$ ]] || usage
began=$SECONDS
mkdir -p "$out"
out=$(cd "$out" && pwd)
rm -rf "$out"/*.log "$out"/table "$out"/kernels-* "$out"/traced-*
scratch=$(mktemp -d)
running= # the part's process

# Whatever ends the script, what there is so far is packed: logs and figures, no checkpoints.
finish() {
  trap - EXIT INT TERM
  [[ -z $running ]] || { kill "$running"; wait "$running"; }
  [[ ! -s $out/table ]] || { echo; echo "one card: $(sed -n 's/^card  *//p' "$out/machine" 2>/dev/null)"; cat "$out/table"; }
  [[ ! -d $mps_pipe ]] || echo quit | timeout 20 env CUDA_MPS_PIPE_DIRECTORY="$mps_pipe" nvidia-cuda-mps-control
  # Long logs by their beginning and end.
  find "$out" -name '*.log' -size +512k -exec sh -c 'for f; do { head -c 200000 "$f"; echo; echo ...; tail -c 200000 "$f"; } >"$f.cut" && mv "$f.cut" "$f"; done' _ {} +
  "${TRIREME_PYTHON:-python3}" - "$out" <<'PYTHON' || true
import os, sys, tarfile
out = sys.argv[1]
with tarfile.open(out + "/one_card.tar.xz", "w:xz", preset=6) as archive:
    for folder, _, files in os.walk(out):
        for name in files:
            path = os.path.join(folder, name)
            if not name.endswith((".tar.xz", ".h5", ".safetensors")) and os.path.getsize(path) < 4 << 20:
                archive.add(path, os.path.relpath(path, out))
print(f"{out}/one_card.tar.xz: {os.path.getsize(out + '/one_card.tar.xz') / 2**20:.1f} MiB")
PYTHON
  rm -rf "$scratch"
  exit "${1:-1}"
}
trap 'finish 1' EXIT INT TERM

# Programs, and the environment that they need.
if [[ -n $pack ]]; then
  unpack "$pack" "$scratch" || exit 1
  pack=$prebuilt
  use_pack "$pack" || exit 1
  programs=$pack/bin
  tests=(--prebuilt "$pack") bench=(-p "$pack")
else
  programs=$(realpath -m "$build")
  [[ -x $programs/trireme ]] || { echo "$build holds no program (doc/gpu.md), and no --prebuilt PACK is given" >&2; finish 2; }
  TRIREME_MPIRUN=${TRIREME_MPIRUN:-$(sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=//p' "$programs/CMakeCache.txt")}
  export TRIREME_MPIRUN
  tests=(-B "$programs") bench=(-B "$programs")
fi
export TRIREME=$programs/trireme TRIREME_SOURCE=$PWD TRIREME_DEVICE_LABEL=${TRIREME_DEVICE_LABEL:-gpu} TRIREME_PYTHON=${TRIREME_PYTHON:-python3}
"$TRIREME" --version >"$out/version" 2>&1
if grep -q 'no CUDA device' "$out/version"; then
  echo "skipped: $(grep -m 1 -o 'no CUDA device.*' "$out/version")"
  finish 77
fi

if [[ -n $mps_pipe ]]; then
  mps_pipe=$scratch/mps
  mkdir "$mps_pipe"
  export CUDA_MPS_PIPE_DIRECTORY=$mps_pipe CUDA_MPS_LOG_DIRECTORY=$out/mps CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50
  mkdir -p "$out/mps"
  nvidia-cuda-mps-control -d || { echo "--mps: nvidia-cuda-mps-control does not start" >&2; mps_pipe=; finish 2; }
fi

# part NAME SECONDS COMMAND...: runs it within its limit and the budget, and says how it ended. The last line of its
# output that begins with "verdict: " is shown.
bad=0
part() {
  local name=$1 limit=$2 left=$((budget - (SECONDS - began))) code=0 start=$SECONDS said word
  shift 2
  [[ -z $only || ,$only, == *,$name,* ]] || return 0
  if ((left < 15)); then
    printf '%-11s not run: %d of %d s are left\n' "$name" "$left" "$budget" | tee -a "$out/table"
    return 0
  fi
  ((limit <= left)) || limit=$left
  # A shell of its own, in a group of processes of its own: nothing of it is left when its time is over.
  timeout --kill-after=5 "$limit" bash -c "$shared; $*" >"$out/$name.log" 2>&1 &
  running=$!
  wait "$running" || code=$?
  running=
  said=$(sed -n 's/^verdict: //p' "$out/$name.log" | tail -n 1)
  case $code in
    0) word=passed ;;
    77) word=skipped ;;
    124 | 137) word="NOT DONE" ;;
    *) word=FAILED ;;
  esac
  [[ $word == passed || $word == skipped ]] || bad=1
  printf '%-11s %-8s %4d s  %s\n' "$name" "$word" "$((SECONDS - start))" "${said:-$(tail -n 1 "$out/$name.log" | cut -c 1-150)}" |
    tee -a "$out/table"
}
# What each part's shell begins with.
export out scratch peer
export pack_argument="${tests[*]}" bench_argument="${bench[*]}" programs
# shellcheck disable=SC2016  # expanded there
shared='set -uo pipefail; read -ra tests <<<"$pack_argument"; read -ra bench <<<"$bench_argument"
ranks() { local n=$1; shift; OMP_NUM_THREADS=1 bash test/mpirun.sh "$TRIREME_MPIRUN" -n "$n" "$@"; }
run_tests() { bash test/run_gpu.sh "${tests[@]}" --only tests -o "$out/$1" -R "$2" "${@:3}"; local code=$?
  echo "verdict: $(grep "^tests: " "$out/$part_log" | tail -n 1 | cut -c 8-)$(awk "/^FAILED +[a-z]/ { printf \"; %s\", \$2 }" "$out/$part_log")"; return $code; }'

versions() {
  "$programs/trireme_gpu_benchmark" machine | tee "$out/machine" || return 1
  cat "$out/version"
  command -v nvidia-smi >/dev/null && nvidia-smi
  command -v nvidia-cuda-mps-control && echo "MPS is here"
  df -h /dev/shm
  echo "verdict: $(sed -n 's/^libraries *//p' "$out/machine")"
}

# Two ranks on the card: a training of seconds through NCCL, against the same one through the host. Says which transport
# NCCL took, and how long a step takes.
meet() {
  local way code=0 bad=0
  cd "$scratch" || return 1
  cat >deck.in <<'DECK'
[job]
output = run
[run]
device = cuda
[data]
file = harbour.h5
sequence_length = 16
stride = 16
batch = 8
[model]
dim = 32
heads = 2
layers = 2
ffn = 64
max_positions = 16
[schedule]
steps = 20
[checkpoint]
every_steps = 0
[monitor]
every_steps = 1
validate_every_steps = 0
sample_tokens = 0
report = no
DECK
  "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=20000 tokenize.overwrite=yes || return 1
  local words=
  for way in yes nccl; do
    for graphs in auto no; do
      [[ $way == nccl || $graphs == auto ]] || continue
      rm -rf "meet-$way-$graphs"
      code=0
      NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,P2P,SHM,NET timeout 60 bash "$TRIREME_SOURCE/test/mpirun.sh" "$TRIREME_MPIRUN" -n 2 \
        "$TRIREME" -i deck.in "job.output=meet-$way-$graphs" grid.data=2 "run.share_device=$way" "run.graphs=$graphs" \
        >"$out/meet-$way-$graphs.log" 2>&1 || code=$?
      ((code == 0)) || { bad=1; words+=" $way/$graphs: code $code;"; tail -n 30 "$out/meet-$way-$graphs.log"; continue; }
      words+=" $way/$graphs: $("$TRIREME_PYTHON" - "meet-$way-$graphs" meet-yes-auto <<'PYTHON'
import json, sys
def steps(run):
    return [r for r in map(json.loads, open(run + "/metrics.jsonl")) if r["kind"] == "step"]
a, b = steps(sys.argv[1]), steps(sys.argv[2])
worst = max(abs(x["loss"] - y["loss"]) / y["loss"] for x, y in zip(a, b))
times = sorted(r["step_seconds"] for r in a[5:])
print(f"{1e3 * times[len(times) // 2]:.1f} ms a step, losses within {worst:.1e}", end="")
PYTHON
);"
    done
  done
  words+=" transport$(grep -ohE ' via [A-Za-z0-9/]+' "$out"/meet-nccl-*.log | sort | uniq -c | sort -rn | head -n 2 | awk '{ printf " %s x%s", $3, $1 }')"
  echo "verdict:$words"
  return $bad
}

kernels() { part_log=kernels.log; run_tests tests-kernels '^(kernels_cuda|device_|training_cuda|driver_cuda|translation_cuda)' -j 5 --test-seconds 100; }
channels() { part_log=channels.log; run_tests tests-channels '^(test_channels|test_nccl|generate_cuda)' --test-seconds 80; }
layouts() { part_log=layouts.log; run_tests tests-layouts '^system_gpu_layouts' --test-seconds 240; }
deaths() { part_log=deaths.log; run_tests tests-deaths '^system_gpu_failures' --test-seconds 150; }
programs() { part_log=programs.log; run_tests tests-programs '^system_gpu_(train|cudnn|timeline)' --test-seconds 110; }

benchmark() {
  local python=/nonexistent code=0
  [[ $peer == no ]] || python=${PYTHON:-python3}
  PYTHON=$python bash test/benchmark/gpu.sh "${bench[@]}" -o "$out/benchmark" -k none -s 12 \
    -m "${ONE_CARD_MODELS:-jsc gpt2_124m gpt2_124m_dropout llama_8b16 gpt2_1558m}" || code=$?
  source test/benchmark/numbers.sh
  echo "verdict: tokens/s$(for f in "$out"/benchmark/ours-*; do printf ' %s %s;' "${f##*/ours-}" "$(thousands "$(median "$f" tokens/s)")"; done)"
  return $code
}

# Kernels by time, of whole trainings of a large model on tokens of its vocabulary: one step. A run ends with a checkpoint
# of many gigabytes, which is written to memory where there is room for it.
tables() {
  local model code=0 runs=$scratch
  ! [[ -w /dev/shm && $(df --output=avail -BG /dev/shm | tail -n 1 | tr -dc 0-9) -ge 64 ]] || runs=$(mktemp -d -p /dev/shm)
  for model in ${ONE_CARD_TABLES:-gpt2_1558m llama}; do
    local vocabulary=50257 keys=(model.preset=gpt2_1558m model.dropout=0 model.attention_dropout=0 data.sequence_length=1024
      data.stride=1024 model.max_positions=1024 data.batch=16 data.micro_batch=8)
    [[ $model == gpt2_1558m ]] || { vocabulary=128256; keys=(model.dim=4096 model.heads=32 model.kv_heads=8 "model.layers=${ONE_CARD_LAYERS:-8}"
      model.ffn=14336 model.norm=rmsnorm model.activation=swiglu model.position=rope model.rope_theta=500000 model.bias=no
      model.tie_embeddings=no model.init=gpt2 model.norm_position=pre data.sequence_length=4096 data.stride=4096 model.max_positions=4096
      data.batch=8 data.micro_batch=2); }
    [[ $model != tiny ]] || keys=(model.dim=64 model.heads=4 model.layers=2 model.ffn=128 data.sequence_length=64 data.stride=64
      model.max_positions=64 data.batch=2 data.micro_batch=1) vocabulary=500
    outer_python "$TRIREME_PYTHON" - "$scratch/$model.h5" $vocabulary <<'PYTHON' || return 1
import sys
import h5py, numpy
path, types = sys.argv[1], int(sys.argv[2])
words = [str(i).encode() for i in range(types)]
with h5py.File(path, "w") as file:
    draw = numpy.random.default_rng(1)
    for split, count in (("train", 400_000), ("valid", 9_000), ("test", 9_000)):
        file[f"{split}/tokens"] = draw.integers(0, types, count).astype("uint16" if types <= 65536 else "uint32")
        file[f"{split}/documents"] = numpy.arange(0, count, 700, "uint64")
    file["vocabulary/bytes"] = numpy.frombuffer(b"".join(words), "uint8")
    file["vocabulary/offsets"] = numpy.cumsum([0] + [len(w) for w in words]).astype("uint64")
    file.attrs.update({"format": 1, "tokenizer": "word", "eos": 0, "unk": 1, "source_sha256": "0" * 64})
PYTHON
    for documents in no yes; do
      [[ $model != gpt2_1558m || $documents == no ]] || continue
      printf '[job]\noutput = %s\n[data]\nfile = %s\n' "$runs/traced-$model-$documents" "$scratch/$model.h5" >"$scratch/traced.in"
      "$TRIREME" -i "$scratch/traced.in" run.device=cuda run.precision=bf16 "${keys[@]}" "data.document_mask=$documents" schedule.steps=6 \
        checkpoint.every_steps=0 monitor.every_steps=1 monitor.validate_every_steps=0 monitor.sample_tokens=0 monitor.trace_steps=4 \
        monitor.report=no monitor.tensorboard=no || { code=1; continue; }
      { echo "$model, documents $documents"; outer_python "$TRIREME_PYTHON" vis/gantt.py "$runs/traced-$model-$documents" --kernels; } |
        tee "$out/kernels-$model-$documents.txt" || code=1
      cp "$runs/traced-$model-$documents/metrics.jsonl" "$out/traced-$model-$documents.jsonl"
      rm -rf "$runs/traced-$model-$documents"
    done
  done
  [[ $runs == "$scratch" ]] || rm -rf "$runs"
  echo "verdict: $(cat "$out"/traced-*.jsonl | "$TRIREME_PYTHON" -c '
import json, sys
for line in sys.stdin:
    r = json.loads(line)
    if r["kind"] == "step" and r["step"] == 3: print("%.0f tokens/s" % r["tokens_per_second"], end="; ")')"
  return $code
}

memory() {
  "$programs/trireme_gpu_kernels_benchmark" ${ONE_CARD_KERNELS:-} | tee "$out/memory-kernels" || return 1
  echo "verdict: $(awk '$1 == "kernel" { ++n; if ($NF >= 0.85) ++good } END { printf "%d of %d kernels reach 0.85 of a copy", good, n }' "$out/memory-kernels")"
}

sanitizer() {
  bash test/run_gpu.sh "${tests[@]}" --only sanitizer -o "$out/sanitizer" -R 'kernels_cuda_(attention|rowwise)' --sanitizer-seconds "${ONE_CARD_SANITIZER:-60}"
  local code=$?
  echo "verdict: $(grep -cE '^passed' "$out/sanitizer.log") passed; $(grep -E '^(FAILED|unfinished)' "$out/sanitizer.log" | tr '\n' ' ')"
  return $code
}

# How long one rank's start takes if all kernels are loaded at once, as several ranks do.
eager() {
  local mode start
  cd "$scratch" || return 1
  [[ -f deck.in ]] || return 77
  for mode in LAZY EAGER; do
    start=$(date +%s.%N)
    CUDA_MODULE_LOADING=$mode "$TRIREME" -i deck.in "job.output=load-$mode" schedule.steps=2 || return 1
    echo "$mode $(date +%s.%N) $start" | awk '{ printf "loading %s: %.1f s\n", $1, $2 - $3 }' | tee -a loading
  done
  echo "verdict: $(paste -sd';' loading)"
}
export -f outer_python versions meet kernels channels layouts deaths programs benchmark tables memory sanitizer eager

part versions 40 versions
part meet 150 meet
unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
part kernels 150 kernels
part channels 200 channels
part layouts 260 layouts
part deaths 160 deaths
part programs 240 programs
part benchmark 260 benchmark
part tables 120 tables
part memory 120 memory
part sanitizer 200 sanitizer
part eager 40 eager
finish $bad
