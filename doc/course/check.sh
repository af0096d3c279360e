#!/usr/bin/env bash
# Runs lessons of the course as a student would, and compares: bash doc/course/check.sh [LESSON...]. The program is build/trireme,
# or that of the folder TRIREME_BUILD.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$here/../../build/venv/bin/python3 # that of jobscripts/workstation.sh, which has matplotlib
[[ -x $python ]] || python=python3
exec "$python" "$here/check.py" "${TRIREME_BUILD:-$here/../../build}" "$@"
