#!/usr/bin/env bash
# Two builds of Trireme compute the same bits, write the same files and say the same texts; see same_bits.py.
#   bash test/same_bits.sh [--quick] OLD_BUILD NEW_BUILD [OLD_EMULATED NEW_EMULATED]
# Exit code 0: nothing differs. 1: something does; each such item has a line. 2: this script or its arguments are at fault.
python=${TRIREME_PYTHON:-/usr/bin/python3} # the one that has Debian's h5py and numpy
command -v "$python" >/dev/null || python=python3
exec "$python" "$(dirname "${BASH_SOURCE[0]}")/same_bits.py" "$@"
