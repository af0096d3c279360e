# shellcheck shell=bash
# Sourced by other scripts: where CUDA is, and what goes with it.

# Prints the path of an nvcc of CUDA 12.4 or newer; else why there is none, and fails.
find_nvcc() {
  local nvcc version
  nvcc=$(command -v nvcc || true)
  [[ -n $nvcc ]] || nvcc=${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}/bin/nvcc
  if [[ ! -x $nvcc ]]; then
    echo "no nvcc is in the PATH, in CUDA_HOME or in /usr/local/cuda"
    return 1
  fi
  version=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p')
  if [[ $(printf '%s\n' 12.4 "$version" | sort -V | head -n 1) != 12.4 ]]; then
    echo "$nvcc is of CUDA $version, older than 12.4"
    return 1
  fi
  echo "$nvcc"
}

# The architectures of this machine's cards as CMake wants them ("90", "80;90"); nothing where there
# are none.
card_architectures() {
  local smi
  smi=$(command -v nvidia-smi) || smi=/usr/local/nvidia/bin/nvidia-smi
  [[ -x $smi ]] || return 0
  { "$smi" --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true; } |
    { grep -xE '[0-9]+[.][0-9]+' || true; } | tr -d . | sort -u | paste -sd';'
}

# Options of CMake that the functions below add to.
cuda_options=()

# cuDNN's attention takes the headers of cudnn-frontend: those of CUDNN_FRONTEND_INCLUDE_DIR or
# CUDNN_FRONTEND_ROOT, else those of the package of PyPI. Says it where they are not to be had.
# find_cudnn_frontend FOLDER PYTHON: installed below FOLDER, a virtual environment or to become one.
find_cudnn_frontend() {
  local venv=$1 python=$2 found=
  headers() { find "$@" -maxdepth 8 -path '*/include/cudnn_frontend.h' -print -quit 2>/dev/null || true; }
  if [[ -n ${CUDNN_FRONTEND_INCLUDE_DIR:-} ]]; then
    found=$CUDNN_FRONTEND_INCLUDE_DIR/cudnn_frontend.h
    [[ -f $found ]] || { echo "CUDNN_FRONTEND_INCLUDE_DIR: there is no $found" >&2; return 1; }
  elif [[ -n ${CUDNN_FRONTEND_ROOT:-} ]]; then
    found=$(headers "$CUDNN_FRONTEND_ROOT")
    [[ -n $found ]] || { echo "CUDNN_FRONTEND_ROOT: no include/cudnn_frontend.h in $CUDNN_FRONTEND_ROOT" >&2; return 1; }
  fi
  [[ -n $found || ! -d $venv ]] || found=$(headers "$venv")
  if [[ -z $found ]]; then
    # Nothing is installed if the interpreter's own packages have them.
    found=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)/include/cudnn_frontend.h
    [[ -f $found ]] || found=
  fi
  if [[ -z $found ]]; then
    [[ -x $venv/bin/python3 ]] || "$python" -m venv --system-site-packages "$venv" >/dev/null 2>&1 || true
    # Not for long where there is no network.
    timeout 60 "$venv/bin/python3" -m pip install -q --no-cache-dir --no-deps --retries 0 --timeout 4 \
      nvidia-cudnn-frontend >/dev/null 2>&1 || true
    found=$(headers "$venv")
  fi
  if [[ -z $found ]]; then
    echo "cudnn-frontend: not to be had from PyPI; attention is our own kernels' throughout (CUDNN_FRONTEND_ROOT names a copy)"
    return 0
  fi
  cuda_options+=("-DCUDNN_FRONTEND_INCLUDE_DIR=$(cd "$(dirname "$found")" && pwd)")
}

# The folder `nvidia` of Python's packages, where it has one: they bring NCCL, cuDNN and cuBLAS.
nvidia_wheels() { # PYTHON
  "$1" -c 'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null | head -n 1 || true
}

# All that a build of ours needs and CMake does not find here, a line each.
missing_libraries() {
  local folder
  folder=$(mktemp -d)
  cmake -S jobscripts/missing -B "$folder" "$@" 2>&1 | sed -n 's/^-- missing: /  /p' || true
  rm -rf "$folder"
}

# Configures a build for GPUs in BUILD, with what of cudnn-frontend and of Python's packages is here.
# Where that fails the end of CMake's words and all that is missing go to standard error.
# configure_for_gpus BUILD NVCC [OPTIONS OF CMAKE]
configure_for_gpus() {
  local build=$1 nvcc=$2 wheels generator=()
  shift 2
  find_cudnn_frontend build/venv python3 || return
  wheels=$(nvidia_wheels python3)
  mkdir -p "$build"
  [[ -f $build/CMakeCache.txt ]] || ! command -v ninja >/dev/null || generator=(-G Ninja)
  cmake -S . -B "$build" "${generator[@]}" -DTRIREME_CUDA=ON "-DCMAKE_CUDA_COMPILER=$nvcc" "-DNVIDIA_WHEELS=$wheels" \
    "${cuda_options[@]}" "$@" >"$build/configure.log" 2>&1 && return
  {
    tail -n 30 "$build/configure.log"
    echo "not found here:"
    missing_libraries "-DCUDAToolkit_ROOT=${nvcc%/bin/nvcc}" "-DNVIDIA_WHEELS=$wheels" "$@"
  } >&2
  return 1
}
