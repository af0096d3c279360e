#!/usr/bin/env bash
# Installs what is missing, builds and tests; doc/testing.md says which test is in which size.
#   bash test/run.sh             every kind of proof, each in its smallest form
#   bash test/run.sh --all       all tests but those of hours: what passed just now is not repeated
#   bash test/run.sh --nightly   those of hours, after --all
#   bash test/run.sh --mpi mpich   labels parallel and system alone, with MPICH, in build-mpich/
#   bash test/run.sh --only X    the tests of a label, or whose names match X (a regular expression), whatever their size
# From a fresh Debian or Ubuntu on; a second run only does what has changed. A summary comes last: minutes, slowest, skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

wrong() {
  printf 'run.sh: %s\n' "$1" >&2
  sed -n '3,7s/^#   //p' "${BASH_SOURCE[0]}" >&2
  exit 2
}
size=standard
only=
while (($# > 0)); do
  case $1 in
    --help | -h) sed -n '2,8s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --all) size=all ;;
    --nightly) size=nightly ;;
    --mpi) [[ ${2:-} == mpich ]] || wrong "--mpi takes mpich, not '${2:-}'"; size=mpich; shift ;;
    --only) only=${2:-}; [[ -n $only ]] || wrong "--only takes a label or a regular expression"; shift ;;
    *) wrong "'$1' is not an option" ;;
  esac
  shift
done

source jobscripts/machine.sh
source jobscripts/page_python.sh

# Minutes of each part, and ctest's results, for the summary.
parts=$(mktemp)
began=$SECONDS
part_ends() { # NAME [JUNIT]
  printf '%s' "$((SECONDS - began))" >>"$parts"
  printf '\t%s' "$@" >>"$parts"
  printf '\n' >>"$parts"
  began=$SECONDS
}

bash jobscripts/install_debian.sh test

# Python's view of our files: h5py and numpy from Debian; from PyPI, where it can be reached, safetensors,
# `tokenizers` and `sentencepiece`, whose ids ours must equal (the latter in the library's own version, which is compiled),
# pyarrow, which reads Parquet, pyte, a terminal, sacrebleu, whose scores ours must equal, the readers of what others show of a run (TensorBoard, W&B, MLflow), and
# what the page of a run is made with.
python=/usr/bin/python3
[[ -x $python ]] || python=python3
venv=build/venv
mkdir -p build
sentencepiece=$(dpkg-query -W -f='${Version}' libsentencepiece-dev 2>/dev/null | sed 's/-.*//') || sentencepiece=
packages=(safetensors tokenizers "pyarrow<21" pyte sacrebleu matplotlib jinja2)
[[ $size == standard && -z $only ]] || packages+=("sentencepiece${sentencepiece:+==$sentencepiece}" tensorboard wandb mlflow-skinny)
[[ -x $venv/bin/python3 ]] || "$python" -m venv --system-site-packages "$venv" >build/venv.log 2>&1 || true
lacking() { # prints those of `packages` that the environment has not
  "$venv/bin/python3" - "${packages[@]}" <<'PYTHON' 2>/dev/null
import importlib.util, re, sys
for package in sys.argv[1:]:
    if importlib.util.find_spec(re.split("[=<]", package)[0].removesuffix("-skinny")) is None:
        print(package)
PYTHON
}
fetching=
if [[ -x $venv/bin/python3 ]]; then
  mapfile -t missing < <(lacking)
  if [[ ${#missing[@]} -gt 0 ]]; then
    # Beside the build. All at once; where that fails, what is to be had.
    (pip_install "$venv/bin/python3" "${missing[@]}" ||
      for package in "${missing[@]}"; do pip_install "$venv/bin/python3" "$package" || true; done) >>build/venv.log 2>&1 &
    fetching=$!
  fi
  python=$PWD/$venv/bin/python3
fi
packages_are_there() {
  [[ -n $fetching ]] || return 0
  wait "$fetching" || true
  fetching=
  mapfile -t still < <(lacking)
  echo "from PyPI into $venv: ${missing[*]}"
  [[ ${#still[@]} == 0 ]] || echo "not to be had from PyPI (see build/venv.log), the tests that use it are skipped: ${still[*]}"
}

part_ends "packages"

options=(-DTRIREME_WERROR=ON -DTRIREME_TESTS=ON "-DTRIREME_PYTHON=$python")
of_a_new_tree=(-G Ninja)
if command -v ccache >/dev/null; then
  of_a_new_tree+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  # With a precompiled header ccache works only if it is told not to mind the times and macros in it.
  export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
  [[ -w ${HOME:-/nowhere} ]] || export CCACHE_DIR=${CCACHE_DIR:-$PWD/build/ccache}
fi
# build_tree FOLDER "TARGET..." OPTION...: configured and built; no target: all.
build_tree() {
  local tree=$1 targets=$2 new=() wanted=()
  shift 2
  mkdir -p "$tree"
  # A build tree that is there keeps its generator, and its compiler's launcher: another one would compile all of it again.
  [[ -f $tree/CMakeCache.txt ]] || new=("${of_a_new_tree[@]}")
  cmake -S . -B "$tree" "${new[@]}" "${options[@]}" "$@" >"$tree/configure.log" 2>&1 ||
    { cat "$tree/configure.log"; return 1; }
  # shellcheck disable=SC2206  # a list of names
  [[ -z $targets ]] || wanted=(--target $targets)
  cmake --build "$tree" --parallel "$(build_jobs)" "${wanted[@]}"
  part_ends "build $tree"
}
# test_tree FOLDER OPTION...: the other parts still run after a test failed. Options are ctest's.
failed=()
test_tree() {
  local tree=$1
  shift
  packages_are_there
  echo "== tests of $tree =="
  rm -f "$tree/tests.xml"
  ctest --test-dir "$tree" --output-on-failure --timeout 300 --no-tests=ignore -j "$(usable_cores)" --output-junit "$PWD/$tree/tests.xml" "$@" ||
    failed+=("$tree")
  if [[ -f $tree/tests.xml ]]; then part_ends "tests of $tree" "$tree/tests.xml"; else part_ends "tests of $tree"; fi
}
# in_time PART: whether it may begin. TRIREME_TEST_UNTIL: Unix seconds after which no part of --all does.
in_time() {
  [[ -z ${TRIREME_TEST_UNTIL:-} || $(date +%s) -lt $TRIREME_TEST_UNTIL ]] && return
  echo "== SKIPPED: $1: the time of this run is over =="
  part_ends "SKIPPED, no time left: $1"
  return 1
}
finish() {
  "$python" test/summary.py "$parts"
  rm -f "$parts"
  [[ ${#failed[@]} == 0 ]] || { echo "FAILED: tests of ${failed[*]}" >&2; exit 1; }
  exit 0
}

# Tests of the CPU's build that only --all runs; of the emulated GPU's those that the standard size runs, with their programs.
later="^($(sed 's/ *#.*//' test/only_in_all.txt | grep . | paste -sd'|'))\$"
emulated_programs=(trireme kernels_cuda_rowwise_test kernels_cuda_products_test kernels_cuda_attention_test)
emulated_tests='^(kernels_cuda_(rowwise|products|attention)_test|system_gpu_train)$'
# The other trees link the host libraries of the first.
host=-DTRIREME_HOST_BUILD=$PWD/build
emulated=("$host" -DTRIREME_CUDA=EMULATED -DTRIREME_CHECK_KERNELS=ON)

if [[ -n $only ]]; then
  build_tree build ""
  build_tree build-emulated "" "${emulated[@]}" -DTRIREME_BENCHMARKS=ON
  for tree in build build-emulated; do
    if ctest --test-dir "$tree" --print-labels | grep -qx "  $only"; then test_tree "$tree" -L "^$only\$"; else test_tree "$tree" -R "$only"; fi
  done
  finish
fi

with_mpich() { # "TARGET..." OPTION OF CTEST...
  bash jobscripts/install_debian.sh mpich
  build_tree build-mpich "$1" -DTRIREME_MPI=mpich
  test_tree build-mpich "${@:2}"
}
if [[ $size == mpich ]]; then
  with_mpich "" -L '^(parallel|system)$' -LE nightly
  finish
fi

# Of all that a build is made from: what passed for it in the standard size is not repeated by --all.
state() {
  git -c safe.directory="$PWD" ls-files -co --exclude-standard -z >/dev/null 2>&1 || { echo "no git: $RANDOM$SECONDS"; return; }
  git -c safe.directory="$PWD" ls-files -co --exclude-standard -z | xargs -0 sha256sum 2>/dev/null | sha256sum
}
if [[ $size == standard ]]; then
  rm -f build/passed
  build_tree build ""
  test_tree build -LE nightly -E "$later"
  build_tree build-emulated "${emulated_programs[*]}" "${emulated[@]}"
  test_tree build-emulated -R "$emulated_tests"
  [[ ${#failed[@]} != 0 ]] || state >build/passed
  finish
fi

remaining=() remaining_emulated=()
if [[ -f build/passed && $(state) == "$(<build/passed)" ]]; then
  echo "The standard size passed for these sources: its tests are not repeated."
  remaining=(-R "$later") remaining_emulated=(-E "$emulated_tests")
fi
build_tree build "" -DTRIREME_BENCHMARKS=ON
test_tree build -LE nightly "${remaining[@]}"
build_tree build-emulated "" "${emulated[@]}" -DTRIREME_BENCHMARKS=ON
test_tree build-emulated -LE nightly "${remaining_emulated[@]}"

# The GPU code for real cards: compiled and linked; its tests run where there is a card, else each says that it is skipped.
source jobscripts/cuda.sh
if ! nvcc=$(find_nvcc); then
  echo "== SKIPPED: the GPU code was not compiled for real cards: $nvcc =="
elif in_time "the GPU code for real cards"; then
  find_cudnn_frontend "$venv" "$python"
  # Its figures are checked against the kernels' bounds.
  [[ ! -x $venv/bin/python3 ]] || pip_install "$venv/bin/python3" nvidia-cuda-cuobjdump >>build/venv.log 2>&1 || true
  architectures=(-DCMAKE_CUDA_ARCHITECTURES=90)
  [[ $size != nightly ]] || architectures=("-DCMAKE_CUDA_ARCHITECTURES=80;90;100")
  build_tree build-cuda "" "$host" -DTRIREME_CUDA=ON "-DCMAKE_CUDA_COMPILER=$nvcc" "${architectures[@]}" "${cuda_options[@]}"
  test_tree build-cuda -LE nightly
fi
if in_time sanitizers; then
  bash test/sanitizers.sh || failed+=(sanitizers)
  part_ends sanitizers
fi
# The same sources with MPICH: several ranks.
if in_time MPICH; then with_mpich parallel_tests -L '^parallel$' -LE nightly -E "$later"; fi
if in_time "clang-tidy of src/"; then
  bash test/lint.sh tidy build || (($? == 77)) || failed+=(clang-tidy)
  part_ends "clang-tidy of src/"
fi

if [[ $size == nightly ]]; then
  for tree in build build-emulated; do test_tree "$tree" -L nightly; done
  bash test/sanitizers.sh --whole || failed+=("sanitizers --whole")
  part_ends "sanitizers --whole"
fi
finish
