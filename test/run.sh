#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that can run here, the style checks among them:
# the CPU's in build/, those of the GPU code run on the CPU in build-emulated/, fuzz targets and tests under
# sanitizers in short (sanitizers.sh), and, where there is an nvcc of CUDA 12.4 or newer, the GPU code
# compiled for real cards in build-cuda/.
# With --mpi mpich instead: the tests of several ranks and of the program, built with MPICH in build-mpich/.
# From a fresh Debian or Ubuntu on; a second run only does what has changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

usage="usage: bash test/run.sh              every test that can run here
       bash test/run.sh --mpi mpich  labels parallel and system alone, with MPICH, in build-mpich/
       bash test/run.sh --help       this text"
wrong() {
  printf 'run.sh: %s\n%s\n' "$1" "$usage" >&2
  exit 2
}
mpi=
while (($# > 0)); do
  case $1 in
    --help | -h)
      echo "$usage"
      exit 0
      ;;
    --mpi)
      mpi=${2:-}
      [[ $mpi == mpich ]] || wrong "--mpi takes mpich, not '$mpi'"
      shift 2
      ;;
    *) wrong "'$1' is not an option" ;;
  esac
done

source jobscripts/machine.sh
source jobscripts/page_python.sh

bash jobscripts/install_debian.sh test
[[ $mpi != mpich ]] || bash jobscripts/install_debian.sh mpich

# Python's view of our files: h5py and numpy from Debian; from PyPI, where it can be reached, safetensors,
# `tokenizers` and `sentencepiece`, whose ids ours must equal (the latter in the library's own version),
# pyarrow, which reads Parquet, pyte, a terminal, sacrebleu, whose scores ours must equal, the readers of what others show of a run (TensorBoard, W&B, MLflow), and
# what the page of a run is made with.
python=/usr/bin/python3
[[ -x $python ]] || python=python3
venv=build/venv
mkdir -p build
sentencepiece=$(dpkg-query -W -f='${Version}' libsentencepiece-dev 2>/dev/null | sed 's/-.*//') || sentencepiece=
packages=(safetensors tokenizers "sentencepiece${sentencepiece:+==$sentencepiece}" "pyarrow<21" pyte sacrebleu tensorboard wandb mlflow-skinny
  matplotlib jinja2)
[[ -x $venv/bin/python3 ]] || "$python" -m venv --system-site-packages "$venv" >build/venv.log 2>&1 || true
for package in "${packages[@]}"; do
  [[ -x $venv/bin/python3 ]] || break
  module=${package%%[=<]*}
  ! "$venv/bin/python3" -c "import ${module%-skinny}" 2>/dev/null || continue
  if pip_install "$venv/bin/python3" "$package" >>build/venv.log 2>&1; then
    echo "$package: installed from PyPI into $venv"
  else
    echo "$package: not to be had from PyPI (see build/venv.log); the tests that use it are skipped"
  fi
done
[[ ! -x $venv/bin/python3 ]] || python=$PWD/$venv/bin/python3

options=(-DTRIREME_WERROR=ON -DTRIREME_TESTS=ON -DTRIREME_BENCHMARKS=ON "-DTRIREME_PYTHON=$python")
if command -v ccache >/dev/null; then
  options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  # With a precompiled header ccache works only if it is told not to mind the times and macros in it.
  export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
  [[ -w ${HOME:-/nowhere} ]] || export CCACHE_DIR=${CCACHE_DIR:-$PWD/build/ccache}
fi
# build_tree FOLDER OPTION...: configured and built.
build_tree() {
  local tree=$1 generator=()
  shift
  mkdir -p "$tree"
  # A build tree made by another generator keeps it.
  [[ -f $tree/CMakeCache.txt ]] || generator=(-G Ninja)
  cmake -S . -B "$tree" "${generator[@]}" "${options[@]}" "$@" >"$tree/configure.log" 2>&1 ||
    { cat "$tree/configure.log"; return 1; }
  cmake --build "$tree" --parallel "$(build_jobs)"
}
# test_tree FOLDER [OPTION...]: a tree's tests fail, the others still run. Options are ctest's.
failed=()
test_tree() {
  echo "== tests of $1 =="
  ctest --test-dir "$1" --output-on-failure --timeout 300 -LE nightly -j "$(usable_cores)" "${@:2}" || failed+=("$1")
}

if [[ $mpi == mpich ]]; then
  build_tree build-mpich -DTRIREME_MPI=mpich
  test_tree build-mpich -L '^(parallel|system)$'
  [[ ${#failed[@]} == 0 ]] || { echo "FAILED: tests of ${failed[*]}" >&2; exit 1; }
  exit 0
fi

build_tree build
test_tree build
# The other trees link the host libraries of the first.
host=-DTRIREME_HOST_BUILD=$PWD/build
build_tree build-emulated "$host" -DTRIREME_CUDA=EMULATED -DTRIREME_CHECK_KERNELS=ON
test_tree build-emulated
bash test/sanitizers.sh || failed+=(sanitizers)

# The GPU code for real cards: compiled and linked; its tests run where there is a card, else each says
# that it is skipped.
source jobscripts/cuda.sh
if nvcc=$(find_nvcc); then
  find_cudnn_frontend "$venv" "$python"
  # Its figures are checked against the kernels' bounds.
  [[ ! -x $venv/bin/python3 ]] || pip_install "$venv/bin/python3" nvidia-cuda-cuobjdump >>build/venv.log 2>&1 || true
  build_tree build-cuda "$host" -DTRIREME_CUDA=ON "-DCMAKE_CUDA_COMPILER=$nvcc" "${cuda_options[@]}"
  test_tree build-cuda
else
  echo "== SKIPPED: the GPU code was not compiled for real cards: $nvcc =="
fi

[[ ${#failed[@]} == 0 ]] || { echo "FAILED: tests of ${failed[*]}" >&2; exit 1; }
