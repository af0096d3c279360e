#!/usr/bin/env bash
# Builds Trireme on a machine whose facts are known, and installs it with its module file:
#   bash jobscripts/build.sh MACHINE [--prefix DIR] [--build DIR] [--jobs N] [--dry-run] [-- OPTION OF CMAKE ...]
#   bash jobscripts/build.sh --list
# MACHINE is a file of jobscripts/machines: its modules are loaded, its options given to CMake. The prefix is
# install/MACHINE unless named, the build folder build-MACHINE; jobs are compilers at once. --dry-run says what would
# be done. `debian` installs missing packages first, with apt-get (as root, else through sudo). Run it again after a change:
# only what is left is done. doc/machines.md goes on from here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source jobscripts/machine.sh
source jobscripts/cuda.sh

machines() { find jobscripts/machines -name '*.sh' -printf '%f\n' | sed 's/[.]sh$//' | sort; }
usage() { sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
wrong() { printf 'build.sh: %s\n' "$@" >&2; exit 2; }

machine='' prefix='' build='' jobs='' dry=no more=()
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --list)
      for name in $(machines); do
        # shellcheck disable=SC1090  # one of jobscripts/machines
        (source "jobscripts/machines/$name.sh"
          printf '%-16s %s%s\n' "$name" "$TRIREME_MACHINE_TITLE" "$([[ $TRIREME_MACHINE_TRIED == yes ]] || echo ' (never run there by us)')")
      done
      exit 0
      ;;
    --prefix | --build | --jobs)
      [[ $# -gt 1 ]] || wrong "$1 needs a value"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    --dry-run) dry=yes ;;
    --) shift; more=("$@"); break ;;
    -*) wrong "'$1' is not an option; see build.sh --help" ;;
    *)
      [[ -z $machine ]] || wrong "two machines: $machine and $1"
      machine=$1
      ;;
  esac
  shift
done
[[ -n $machine ]] || wrong "no machine was named" "known: $(machines | paste -sd' ')"
if [[ $machine == */* || ! -f jobscripts/machines/$machine.sh ]]; then
  wrong "$machine: no facts of such a machine; known: $(machines | paste -sd' ')" \
    "A file like jobscripts/machines/debian.sh makes another one known (jobscripts/machines/README.md)."
fi
[[ -z $jobs || $jobs =~ ^[1-9][0-9]*$ ]] || wrong "--jobs $jobs: not a number of compilers"
# shellcheck disable=SC1090  # one of jobscripts/machines
source "jobscripts/machines/$machine.sh"
prefix=${prefix:-$PWD/install/$machine}
[[ $prefix == /* ]] || prefix=$OLDPWD/$prefix
build=${build:-$PWD/build-$machine}
[[ $build == /* ]] || build=$OLDPWD/$build
if [[ -z $jobs ]]; then
  jobs=$(build_jobs)
  # Login nodes are shared.
  [[ -z $TRIREME_MACHINE_MODULES || $jobs -le 8 ]] || jobs=8
fi

# step COMMAND...: said, and run.
step() {
  printf '+'
  printf ' %q' "$@"
  printf '\n'
  [[ $dry == yes ]] || "$@"
}

echo "== $TRIREME_MACHINE_TITLE (facts of $TRIREME_MACHINE_DATE)"
if [[ $TRIREME_MACHINE_TRIED != yes ]]; then
  echo "   Trireme was never run there by its authors. Not confirmed by the centre's pages: ${TRIREME_MACHINE_UNCONFIRMED:-nothing}."
fi

if [[ $machine == debian ]]; then
  step bash jobscripts/install_debian.sh build
elif [[ -n $TRIREME_MACHINE_MODULES ]]; then
  if [[ $dry == no ]] && ! type module >/dev/null 2>&1; then
    wrong "the command 'module' is not here: is this $TRIREME_MACHINE_TITLE? Run this in a login shell (bash -l)."
  fi
  set +u  # not all module commands are written for it
  for each in $TRIREME_MACHINE_MODULES; do
    step module load "$each" || wrong "the module $each cannot be loaded: 'module spider $each' shows today's" \
      "names, for TRIREME_MACHINE_MODULES of jobscripts/machines/$machine.sh."
  done
  set -u
fi

read -ra options <<<"$TRIREME_MACHINE_CMAKE"
options+=(-DTRIREME_TESTS=OFF "-DTRIREME_MODULES=$TRIREME_MACHINE_MODULES" "-DCMAKE_INSTALL_PREFIX=$prefix")
! command -v ccache >/dev/null || options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
options+=("${more[@]}")
if [[ $TRIREME_MACHINE_DEVICE == cuda ]]; then
  nvcc=nvcc
  [[ $dry == yes ]] || nvcc=$(find_nvcc) || wrong "$nvcc"
  step configure_for_gpus "$build" "$nvcc" "${options[@]}"
else
  generator=()
  [[ -f $build/CMakeCache.txt ]] || ! command -v ninja >/dev/null || generator=(-G Ninja)

  step mkdir -p "$build"
  step cmake -S . -B "$build" "${generator[@]}" "${options[@]}"
fi
step cmake --build "$build" --parallel "$jobs"
step cmake --install "$build"
[[ $dry == no ]] || exit 0
echo "Installed in $prefix. To use it:"
echo "  module use $prefix/share/modulefiles && module load trireme"
echo "  man trireme; trireme --version"
