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

# cuDNN's attention takes the headers of cudnn-frontend, which a package of PyPI carries: sets
# cuda_options to what CMake needs to find them, or says that they are not to be had.
# find_cudnn_frontend FOLDER PYTHON: installed below FOLDER, a virtual environment or to become one.
cuda_options=()
find_cudnn_frontend() {
  local venv=$1 python=$2 found
  headers() { find "$venv" -path '*/include/cudnn_frontend.h' -print -quit 2>/dev/null; }
  found=$(headers)
  if [[ -z $found ]]; then
    [[ -x $venv/bin/python3 ]] || "$python" -m venv --system-site-packages "$venv" >/dev/null 2>&1 || true
    "$venv/bin/python3" -m pip install -q --no-cache-dir --no-deps --retries 0 --timeout 10 \
      nvidia-cudnn-frontend >/dev/null 2>&1 || true
    found=$(headers)
  fi
  if [[ -z $found ]]; then
    echo "cudnn-frontend: not to be had from PyPI; attention is our own kernels' throughout"
    return 0
  fi
  # shellcheck disable=SC2034  # used by those who source this
  cuda_options=("-DCUDNN_FRONTEND_INCLUDE_DIR=$PWD/$(dirname "$found")")
}
