#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that can run here, the style checks among them.
# From a fresh Debian or Ubuntu on; a second run only does what has changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
source jobscripts/machine.sh

bash jobscripts/install_debian.sh test

# Python's view of our files: h5py and numpy from Debian, safetensors from PyPI where it can be reached.
python=/usr/bin/python3
[[ -x $python ]] || python=python3
venv=build/venv
mkdir -p build
if ! "$venv/bin/python3" -c 'import safetensors' 2>/dev/null; then
  if "$python" -m venv --system-site-packages "$venv" >build/venv.log 2>&1 &&
      "$venv/bin/python3" -m pip install -q --no-cache-dir --retries 0 --timeout 10 safetensors >>build/venv.log 2>&1; then
    echo "safetensors: installed from PyPI into $venv"
  else
    echo "safetensors: not to be had from PyPI (see build/venv.log); the tests that use it are skipped"
  fi
fi
[[ ! -x $venv/bin/python3 ]] || python=$PWD/$venv/bin/python3

options=(-DTRIREME_WERROR=ON -DTRIREME_TESTS=ON "-DTRIREME_PYTHON=$python")
if command -v ccache >/dev/null; then
  options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  [[ -w ${HOME:-/nowhere} ]] || export CCACHE_DIR=${CCACHE_DIR:-$PWD/build/ccache}
fi
# A build tree made by another generator keeps it.
[[ -f build/CMakeCache.txt ]] || options+=(-G Ninja)
cmake -S . -B build "${options[@]}" >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
cmake --build build --parallel "$(build_jobs)"

exec ctest --test-dir build --output-on-failure --timeout 300 -LE nightly -j "$(usable_cores)"
