#!/usr/bin/env bash
# On a machine with a GPU: builds for its cards, runs the conformance and system tests on them, then
# the kernel tests under compute-sanitizer, then the benchmarks:
#   bash test/run_gpu.sh [--no-sanitizer] [--no-benchmark] [-B BUILD]
# Nothing is installed: CUDA 12.4 or newer, NCCL, MPI and the libraries of the CPU's build have to be
# there (doc/gpu.md; on a cluster: their modules). Exit code 77 where there is no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
source jobscripts/machine.sh
source jobscripts/cuda.sh

build=build-cuda sanitizer=yes benchmark=yes
while [[ $# -gt 0 ]]; do
  case $1 in
    --no-sanitizer) sanitizer=no ;;
    --no-benchmark) benchmark=no ;;
    -B) build=${2:?a folder}; shift ;;
    *) sed -n '4p' "$0" | sed 's/^# *//' >&2; exit 2 ;;
  esac
  shift
done

nvcc=$(find_nvcc) || { echo "skipped: no CUDA device: $nvcc"; exit 77; }
find_cudnn_frontend build/venv python3
mkdir -p "$build"
generator=()
[[ -f $build/CMakeCache.txt ]] || ! command -v ninja >/dev/null || generator=(-G Ninja)
# The architectures of the cards here; those of the release where there are none.
architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u | paste -sd';' || true)
cmake -S . -B "$build" "${generator[@]}" -DTRIREME_CUDA=ON -DTRIREME_WERROR=ON -DTRIREME_TESTS=ON -DTRIREME_BENCHMARKS=ON \
  "-DCMAKE_CUDA_COMPILER=$nvcc" "-DCMAKE_CUDA_ARCHITECTURES=${architectures:-80;90}" "${cuda_options[@]}" >"$build/configure.log" 2>&1 ||
  { cat "$build/configure.log"; exit 1; }
cmake --build "$build" --parallel "$(build_jobs)"
"$build/trireme" --version
if "$build/trireme" --version | grep -q 'no CUDA device'; then
  echo "skipped: no CUDA device: built, nothing was run"
  exit 77
fi

failed=()
ctest --test-dir "$build" --output-on-failure --timeout 1200 -L gpu || failed+=(tests)

if [[ $sanitizer == yes ]]; then
  check=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
  if [[ -x $check ]]; then
    for tool in memcheck racecheck synccheck; do
      for test in "$build"/kernels_cuda_*_test; do
        echo "== compute-sanitizer $tool $(basename "$test")"
        "$check" --tool "$tool" --error-exitcode 1 --print-limit 5 "$test" >"$build/sanitizer.log" 2>&1 ||
          { tail -n 30 "$build/sanitizer.log"; failed+=("$tool:$(basename "$test")"); }
      done
    done
  else
    echo "skipped: compute-sanitizer is not there"
  fi
fi

[[ $benchmark == no ]] || bash test/benchmark/gpu.sh -B "$build" || failed+=(benchmark)

[[ ${#failed[@]} == 0 ]] || { echo "FAILED: ${failed[*]}" >&2; exit 1; }
echo "passed"
