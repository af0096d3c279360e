#!/usr/bin/env bash
# On a machine with a GPU: builds for its cards, runs the conformance and system tests on them, then
# the benchmarks, then the kernel tests under compute-sanitizer:
#   bash test/run_gpu.sh [-B BUILD | --prebuilt PACK] [--only build,tests,benchmark,sanitizer] [-R REGEX] [-o DIR]
#                        [-j TESTS_AT_ONCE] [--test-seconds N] [--sanitizer-seconds N] [-- OPTIONS OF test/benchmark/gpu.sh]
#   --prebuilt PACK         what pack_gpu.sh made elsewhere: no compiler and no library is needed here
#   --only PARTS            some of the four parts, in that order; without `build` as the build tree is
#   -R REGEX                the tests, and the kernel tests under compute-sanitizer, of these names
#   -o DIR                  keeps all outputs (BUILD/results; with --prebuilt build-gpu-results)
#   --test-seconds N        of each test, in place of its own limit
#   --sanitizer-seconds N   of each program under each tool (120): what does not end by then is named
# Nothing is installed: CUDA 12.4 or newer, NCCL, MPI and the libraries of the CPU's build have to be
# there (doc/gpu.md; on a cluster: their modules). CMAKE_OPTIONS: more options for cmake.
# Exit code 77 where there is no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
source jobscripts/machine.sh
source jobscripts/cuda.sh
source test/prebuilt.sh

usage() {
  sed -n '4,10s/^# *//p' "$0" >&2
  exit 2
}
build=build-cuda pack='' parts=build,tests,benchmark,sanitizer regex=. out='' at_once=4 test_seconds='' sanitizer_seconds=120
benchmark=()
while [[ $# -gt 0 ]]; do
  case $1 in
    -B) build=${2:?a folder}; shift ;;
    --prebuilt) pack=${2:?a pack of pack_gpu.sh}; shift ;;
    --only) parts=${2:?parts}; shift ;;
    -R) regex=${2:?a regular expression}; shift ;;
    -o) out=${2:?a folder}; shift ;;
    -j) at_once=${2:?a number}; shift ;;
    --test-seconds) test_seconds=${2:?seconds}; shift ;;
    --sanitizer-seconds) sanitizer_seconds=${2:?seconds}; shift ;;
    --) shift; benchmark=("$@"); break ;;
    *) usage ;;
  esac
  shift
done
[[ $parts =~ ^(build|tests|benchmark|sanitizer)(,(build|tests|benchmark|sanitizer))*$ ]] || usage
for number in "$at_once" "$sanitizer_seconds" "${test_seconds:-1}"; do [[ $number =~ ^[1-9][0-9]*$ ]] || usage; done
wanted() { [[ ,$parts, == *,$1,* ]]; }
seconds_now() { date +%s; }

# 1. Programs: built here, or packed elsewhere.
configure_and_build() {
  local nvcc architectures options
  nvcc=$(find_nvcc) || { echo "skipped: no CUDA device: $nvcc"; exit 77; }
  read -ra options <<<"${CMAKE_OPTIONS:-}"
  # The architectures of the cards here; those of the release where there are none.
  architectures=$(card_architectures)
  configure_for_gpus "$build" "$nvcc" "-DCMAKE_CUDA_ARCHITECTURES=${architectures:-80;90}" -DTRIREME_TESTS=ON \
    -DTRIREME_BENCHMARKS=ON "${options[@]}"
  cmake --build "$build" --parallel "$(build_jobs_alone)"
}
if [[ -n $pack ]]; then
  out=${out:-build-gpu-results}
  mkdir -p "$out"
  unpacked=$(mktemp -d)
  trap 'rm -rf "$unpacked"' EXIT
  unpack "$pack" "$unpacked"
  use_pack "$prebuilt"
  programs=$prebuilt/bin
  cp "$prebuilt/tests" "$out/tests"
  benchmark+=(-p "$prebuilt")
else
  out=${out:-$build/results}
  mkdir -p "$out"
  if wanted build; then configure_and_build; fi
  programs=$PWD/$build
  [[ $build != /* ]] || programs=$build
  [[ -x $programs/trireme ]] || { echo "$build holds no program: --only without build takes what is built" >&2; exit 1; }
  list_gpu_tests "$build" >"$out/tests"
  TRIREME_MPIRUN=${TRIREME_MPIRUN:-$(sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=//p' "$build/CMakeCache.txt")}
  export TRIREME_MPIRUN
  benchmark+=(-B "$build")
fi
out=$(cd "$out" && pwd)
export TRIREME=$programs/trireme TRIREME_SOURCE=$PWD TRIREME_DEVICE_LABEL=${TRIREME_DEVICE_LABEL:-gpu}
[[ -n ${TRIREME_PYTHON:-} ]] || export TRIREME_PYTHON=python3
"$TRIREME" --version | tee "$out/version"
if grep -q 'no CUDA device' "$out/version"; then
  echo "skipped: no CUDA device: nothing was run"
  exit 77
fi
failed=() unfinished=()

# 2. Tests: small ones of one process several at once, then those of several ranks, those that time
# products, and the program's, one by one.
run_test() { # NAME SECONDS RANKS WHAT
  local command code=0 start limit=${test_seconds:-$(($2 * 2))}
  start=$(seconds_now)
  case $4 in
    *.sh) command=(bash "test/system/$4") ;;
    *) command=("$programs/$4") ;;
  esac
  [[ $3 == 0 ]] || command=(bash test/mpirun.sh "$TRIREME_MPIRUN" -n "$3" "${command[@]}")
  OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 timeout --kill-after=10 "$limit" "${command[@]}" \
    >"$out/$1.log" 2>&1 || code=$?
  if [[ $code == 77 || $code == 0 ]] && grep -q 'skipped: no CUDA device' "$out/$1.log"; then code=77; fi
  case $code in
    0) echo "passed   $1 ($(($(seconds_now) - start)) s)" ;;
    77) echo "skipped  $1: $(grep -m 1 -o 'skipped: .*' "$out/$1.log" | cut -c 10-)" ;;
    124 | 137) echo "FAILED   $1: not done after $limit s"; tail -n 40 "$out/$1.log" ;;
    *) echo "FAILED   $1: exit code $code"; tail -n 60 "$out/$1.log" ;;
  esac
  echo "$code" >"$out/$1.code"
}
run_tests() {
  local name seconds ranks what alone=() code
  rm -f "$out"/*.code
  while IFS=$'\t' read -r name seconds ranks what; do
    [[ $name =~ $regex ]] || continue
    if [[ $ranks != 0 || $what == *.sh || $what == *products* || $what == training* ]]; then
      alone+=("$name $seconds $ranks $what")
      continue
    fi
    while (($(jobs -rp | wc -l) >= at_once)); do wait -n || true; done
    run_test "$name" "$seconds" "$ranks" "$what" &
  done <"$out/tests"
  wait
  for what in "${alone[@]}"; do
    read -r name seconds ranks what <<<"$what"
    run_test "$name" "$seconds" "$ranks" "$what"
  done
  compgen -G "$out/*.code" >/dev/null || { echo "no test has a name like $regex" >&2; failed+=(tests); return; }
  for name in "$out"/*.code; do
    code=$(cat "$name")
    [[ $code == 0 || $code == 77 ]] || failed+=("$(basename "$name" .code)")
  done
  echo "tests: $(cat "$out"/*.code | awk '$1 == 0 { ++ok } $1 == 77 { ++skipped } END {
    printf "%d passed, %d skipped, %d failed", ok, skipped, NR - ok - skipped }')"
}
if wanted tests; then run_tests; fi

# 3. Benchmarks.
if wanted benchmark; then
  bash test/benchmark/gpu.sh -o "$out/benchmark" "${benchmark[@]}" || failed+=(benchmark)
fi

# 4. Kernel tests under compute-sanitizer: memcheck of everything that they run; races and barriers
# of our kernels alone, a sample of them where each comes in many variants.
sanitize() { # CHECK
  local check=$1 tool test name log help own='' code words arguments
  local -A options samples
  help=$("$check" --help 2>&1 || true)
  for own in --kernel-name --kernel-regex --filter ""; do
    [[ -n $own ]] || break
    ! grep -qE -- "$own( |,|\$)" <<<"$help" || break
  done
  # Mangled names of our kernels have the namespace.
  [[ -z $own ]] || own="$own kns=trireme"
  options=([memcheck]="" [racecheck]="$own" [synccheck]="$own")
  # Tests ask CUDA for what it has to refuse.
  ! grep -q -- --report-api-errors <<<"$help" || options[memcheck]="--report-api-errors no"
  samples=([kernels_cuda_rowwise_test]='-*fp64*:*gaps*:*ManyTokens*' [kernels_cuda_attention_test]='-*fp64*:*Cudnn*')
  for tool in memcheck racecheck synccheck; do
    for test in "$programs"/kernels_cuda_*_test; do
      name=$(basename "$test")
      [[ $name =~ $regex ]] || continue
      log=$out/$tool-$name.log code=0 arguments=()
      [[ $tool == memcheck || -z ${samples[$name]:-} ]] || arguments=("--gtest_filter=${samples[$name]}")
      read -ra words <<<"${options[$tool]}"
      # Lazily: each kernel that is loaded is instrumented first.
      CUDA_MODULE_LOADING=LAZY timeout --kill-after=10 "$sanitizer_seconds" "$check" --tool "$tool" --error-exitcode 9 --print-limit 5 \
        "${words[@]}" "$test" "${arguments[@]}" >"$log" 2>&1 || code=$?
      if grep -qE '^=+ +(Invalid|Error: (Race|Potential)|Barrier error|ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9])' "$log"; then
        code=9
      elif [[ $code == 0 ]] && grep -qE 'skipped: no CUDA device|PASSED  \] 0 tests' "$log"; then
        echo "stopped  $tool $name: the card is not seen under compute-sanitizer"
        unfinished+=("$tool:$name")
        continue
      fi
      case $code in
        0) echo "clean    $tool $name" ;;
        124 | 137)
          echo "stopped  $tool $name: $sanitizer_seconds s were too few, nothing was found in the first $(grep -c '^\[       OK' "$log") tests"
          unfinished+=("$tool:$name")
          ;;
        *)
          echo "FAILED   $tool $name: exit code $code"
          { grep -m 30 -A 8 '^========= ' "$log" | head -n 40; tail -n 15 "$log"; } || true
          failed+=("$tool:$name")
          ;;
      esac
    done
  done
}
if wanted sanitizer; then
  check=$(command -v compute-sanitizer || true)
  for folder in "${CUDA_HOME:-}/bin" "${CUDA_PATH:-}/bin" /usr/local/cuda/bin /usr/local/cuda/compute-sanitizer; do
    [[ -n $check || ! -x $folder/compute-sanitizer ]] || check=$folder/compute-sanitizer
  done
  if [[ -n $check ]]; then sanitize "$check"; else echo "skipped: compute-sanitizer is not there"; fi
fi

[[ ${#failed[@]} == 0 ]] || { echo "FAILED: ${failed[*]}; outputs are in $out" >&2; exit 1; }
[[ ${#unfinished[@]} == 0 ]] ||
  { echo "nothing failed, but these were not checked in full (--sanitizer-seconds): ${unfinished[*]}; outputs are in $out"; exit 0; }
echo "passed; outputs are in $out"
