# shellcheck shell=bash
# Sourced by job scripts at the root of the repository: a Python that can make a run's page.

# pip_install PYTHON PACKAGE...: from PyPI, into an environment that sees the system's packages. Its NumPy stays: compiled
# packages of the system (h5py) work with no other.
pip_install() {
  local python=$1 constraints=build/constraints.txt
  shift
  "$python" -c 'import numpy; print("numpy==" + numpy.__version__)' >"$constraints" 2>/dev/null || : >"$constraints"
  "$python" -m pip install -q --no-cache-dir --retries 0 --timeout 10 -c "$constraints" "$@"
}

# make_page_python: a virtual environment in build/venv with matplotlib and Jinja2, from PyPI, else from Debian's
# packages. Sets page_python. Returns 1, with a line that says why, where neither is to be had: a run needs no page.
make_page_python() {
  local venv=build/venv python=/usr/bin/python3
  page_python=$PWD/$venv/bin/python3
  mkdir -p build
  has_page_packages() { [[ -x $page_python ]] && "$page_python" -c 'import matplotlib, jinja2' 2>/dev/null; }
  if has_page_packages; then return 0; fi
  bash jobscripts/install_debian.sh python >>build/venv.log 2>&1 || true
  [[ -x $python ]] || python=python3
  [[ -x $page_python ]] || "$python" -m venv --system-site-packages "$venv" >>build/venv.log 2>&1 ||
    "$python" -m venv --system-site-packages --without-pip "$venv" >>build/venv.log 2>&1 || true
  if has_page_packages; then return 0; fi
  if pip_install "$page_python" matplotlib jinja2 >>build/venv.log 2>&1; then
    echo "matplotlib, Jinja2: installed from PyPI into $venv"
  elif bash jobscripts/install_debian.sh page >>build/venv.log 2>&1; then
    echo "matplotlib, Jinja2: Debian's packages"
  fi
  if has_page_packages; then return 0; fi
  page_python=python3
  echo "matplotlib and Jinja2 are not to be had (see build/venv.log): the run will have no page"
  return 1
}

# start_page_python: make_page_python in the background, while a model trains: the program looks for build/venv beside itself
# when the training makes its own page.
start_page_python() {
  mkdir -p build
  make_page_python >build/page_python.log 2>&1 </dev/null &
  page_maker=$!
}

# await_page_python: waits for it, says what it said, and sets page_python.
await_page_python() {
  wait "$page_maker" || true
  cat build/page_python.log
  page_python=$PWD/build/venv/bin/python3
  "$page_python" -c 'import matplotlib, jinja2' 2>/dev/null || page_python=python3
}
