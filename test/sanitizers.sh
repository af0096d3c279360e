#!/usr/bin/env bash
# Tests under sanitizers: `sanitizers.sh [fuzz] [asan] [tsan] [gpu] [--whole]`, the first three without a name.
# In short (test/run.sh runs that), or with --whole everything, which takes hours.
#   fuzz      every fuzz target, 20 s each; whole: half an hour each      build-sanitized/
#   asan      AddressSanitizer and UndefinedBehaviorSanitizer             build-sanitized/
#   tsan      ThreadSanitizer, with libomp and its tool archer            build-threads/
#   gpu       alignment and bounds, by clang, in all code of the emulated GPU: kernels and device tests, whole: all of its
#             tests                                                       build-bounds/
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
source jobscripts/machine.sh

# Programs of the short forms: transfers and checkpoints of several ranks; the threads beside a rank's own.
asan_short=(test_input test_staged_channel test_checkpoint_layouts)
tsan_short=(checkpoint_writer_test hang_test test_stream)
gpu_short=(emulator_test device_cuda_test device_cuda_emulated_test kernels_cuda_rowwise_test kernels_cuda_products_test
  kernels_cuda_attention_test)

whole=no
parts=()
for argument in "$@"; do
  case $argument in
    --whole) whole=yes ;;
    fuzz | asan | tsan | gpu) parts+=("$argument") ;;
    *) sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
done
[[ ${#parts[@]} -gt 0 ]] || parts=(fuzz asan tsan)
bash jobscripts/install_debian.sh test

python=$PWD/build/venv/bin/python3
[[ -x $python ]] || python=python3
options=(-DTRIREME_WERROR=ON "-DTRIREME_PYTHON=$python")
if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
clang=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++)
# File by file and without the precompiled header: a file that lacks an include is seen here.
[[ $whole == no ]] || clang+=(-DTRIREME_BATCHES=OFF)

# build TREE "TARGET..." OPTION...: no target: all.
build() {
  local tree=$1 targets=$2 generator=() wanted=()
  shift 2
  mkdir -p "$tree"
  [[ -f $tree/CMakeCache.txt ]] || generator=(-G Ninja)
  cmake -S . -B "$tree" "${generator[@]}" "${options[@]}" "$@" >"$tree/configure.log" 2>&1 ||
    { cat "$tree/configure.log"; return 1; }
  # shellcheck disable=SC2206  # a list of names
  [[ -z $targets ]] || wanted=(--target $targets)
  cmake --build "$tree" --parallel "$(build_jobs)" "${wanted[@]}"
}
failed=()
# check TREE ARGUMENT...: ctest; a failure is noted, and the other parts still run.
check() {
  local tree=$1
  shift
  ctest --test-dir "$tree" --no-tests=error --output-on-failure --timeout 3600 -j "$(usable_cores)" "$@" || failed+=("$part ($tree)")
}
# tests PROGRAM...: a regular expression of their tests.
tests() { local IFS='|'; echo "^($*)(_mpi[0-9]+)?\$"; }
# under SANITIZER TREE PROGRAM...: the tests of these programs, or, whole, all of the CPU's.
under() {
  local sanitizer=$1 tree=$2 targets="${*:3}" chosen=(-R "$(tests "${@:3}")")
  [[ $whole == no ]] || { targets='' chosen=(-L 'unit|parallel'); }
  build "$tree" "$targets" "${clang[@]}" "-DTRIREME_SANITIZE=$sanitizer"
  check "$tree" "${chosen[@]}"
}

# Leaks are looked for by the fuzz targets alone: Open MPI's plug-ins leak and are unloaded, so that no list of
# suppressions can name them.
sanitizer_options() {
  export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:detect_leaks=0
  export UBSAN_OPTIONS=print_stacktrace=1
  # What Open MPI and HDF5, built without ThreadSanitizer, do among themselves is left out.
  # (called_from_lib would end the program when Open MPI unloads a plug-in.)
  export TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1:second_deadlock_stack=1
  OMP_TOOL_LIBRARIES=$(ls /usr/lib/llvm-*/lib/libarcher.so 2>/dev/null | tail -n 1 || true)
  export OMP_TOOL_LIBRARIES
}
sanitizer_options

for part in "${parts[@]}"; do
  echo "== sanitizers: $part =="
  case $part in
    fuzz)
      build build-sanitized fuzz_targets "${clang[@]}" -DTRIREME_SANITIZE=address
      if [[ $whole == yes ]]; then check build-sanitized -R '^fuzz_.*_nightly$'; else check build-sanitized -L fuzz; fi
      ;;
    asan) under address build-sanitized "${asan_short[@]}" ;;
    tsan)
      [[ -n $OMP_TOOL_LIBRARIES ]] || { echo "libarcher.so is missing (Debian/Ubuntu: libomp-dev)" >&2; exit 1; }
      under thread build-threads "${tsan_short[@]}"
      ;;
    gpu)
      targets="${gpu_short[*]}" chosen=(-R "$(tests "${gpu_short[@]}")")
      [[ $whole == no ]] || { targets='' chosen=(-L emulated -LE nightly); }
      # Warnings are those of the compiler that the emulated GPU is made for, GCC; with checks loops do not vectorise.
      build build-bounds "$targets" "${clang[@]}" -DTRIREME_SANITIZE=bounds -DTRIREME_CUDA=EMULATED -DTRIREME_CHECK_KERNELS=ON \
        -DTRIREME_WERROR=OFF
      check build-bounds "${chosen[@]}"
      ;;
  esac
done
[[ ${#failed[@]} == 0 ]] || { echo "FAILED: ${failed[*]}" >&2; exit 1; }
