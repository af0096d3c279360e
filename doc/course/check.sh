#!/usr/bin/env bash
# Runs lessons of the course and compares: bash doc/course/check.sh [LESSON...]. The program is that of the folder TRIREME_BUILD, or
# build/trireme, or the one in the PATH (a loaded module's). LAUNCH=srun: every program is started by `srun -n RANKS`, not mpirun.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$here/../../build/venv/bin/python3 # that of jobscripts/workstation.sh, which has matplotlib
[[ -x $python ]] || python=python3
build=${TRIREME_BUILD:-$here/../../build}
if [[ -z ${TRIREME_BUILD:-} && ! -x $build/trireme ]]; then
  program=$(command -v trireme) || { echo "check.sh: no program: build it, load its module, or name its folder, TRIREME_BUILD" >&2; exit 2; }
  build=$(dirname "$program")
fi
exec "$python" "$here/check.py" "$build" "$@"
