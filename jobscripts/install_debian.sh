#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that are missing: `install_debian.sh build` what Trireme is
# built from, `install_debian.sh test` also what its tests use, `mpich` that MPI library besides Open MPI, `python` and `page` what the page of a run is made with.
# Calls nothing when all are there.
set -euo pipefail

build=(build-essential cmake ninja-build git ca-certificates curl
  openmpi-bin libopenmpi-dev libhdf5-openmpi-dev libdnnl-dev libeigen3-dev
  libboost-program-options-dev nlohmann-json3-dev libfmt-dev libxxhash-dev libssl-dev
  libpcre2-dev libicu-dev libsentencepiece-dev zlib1g-dev libzstd-dev
  libncurses-dev libarchive-dev libprotobuf-dev protobuf-compiler)
tests=(mandoc groff-base man-db tcl lua5.3 lua-posix lua-filesystem lua-term lua-json
  libboost-context-dev libgtest-dev libgmock-dev libbenchmark-dev hdf5-tools python3 python3-numpy python3-h5py
  python3-venv python3-dev clang clang-format clang-tidy libclang-rt-dev libomp-dev ccache faketime qemu-user iproute2 procps strace
  chromium)
# A Slurm of the tests' own.
tests+=(munge slurm-client slurmctld slurmd)

mpich=(mpich libmpich-dev libhdf5-mpich-dev)

case "${1:-}" in
  build) wanted=("${build[@]}") ;;
  test) wanted=("${build[@]}" "${tests[@]}") ;;
  mpich) wanted=("${mpich[@]}") ;;
  python) wanted=(python3 python3-venv) ;;
  page) wanted=(python3-matplotlib python3-jinja2) ;;
  *) echo "usage: install_debian.sh build|test|mpich|python|page" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "This is not Debian or Ubuntu: nothing is installed. Needed: a C++20 compiler, CMake 3.22, Ninja,"
  echo "MPI, HDF5 built with MPI, oneDNN (or OpenBLAS), Eigen, Boost.Program_options, nlohmann-json, fmt,"
  echo "xxHash, OpenSSL, PCRE2, ICU, SentencePiece, zlib, zstd, ncurses, libarchive and protobuf."
  exit 0
fi

# Older releases have clang's sanitizers within libclang-common-*-dev.
has_sanitizers() { compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a' >/dev/null; }
missing=()
for package in "${wanted[@]}"; do
  if [[ $package == libclang-rt-dev ]] && has_sanitizers; then continue; fi
  status=$(dpkg-query -W -f='${db:Status-Status} ' "$package" 2>/dev/null) || status=
  [[ $status == *"installed "* && $status != "not-installed "* ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) != 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "Missing packages, and neither root nor sudo to install them: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
source "$(dirname "${BASH_SOURCE[0]}")/live.sh"
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" </dev/null
}
# apt_install PACKAGE...: apt says on descriptor 3 how far it is.
apt_install() {
  local began=$SECONDS line doing
  apt install -y --no-install-recommends -o APT::Status-Fd=3 "$@" 3>&1 >/dev/null | {
    while IFS= read -r line; do
      [[ $line =~ ^(dl|pm)status:.*:([0-9]+)[.0-9]*: ]] || continue
      if [[ ${BASH_REMATCH[1]} == dl ]]; then doing=fetched; else doing=installed; fi
      live "packages: ${BASH_REMATCH[2]}% $doing, $(minutes $((SECONDS - began)))"
    done
    live_ends "packages: installed in $(minutes $((SECONDS - began)))"
  }
}

updated=no
if ! apt-cache show --no-all-versions "${missing[@]}" >/dev/null 2>&1; then
  apt update
  updated=yes
fi
# Not in every release: tests that want them say so. (Ubuntu has Chromium as a snap alone.)
for package in libclang-rt-dev chromium; do
  apt-cache show --no-all-versions "$package" >/dev/null 2>&1 && continue
  for i in "${!missing[@]}"; do [[ ${missing[i]} != "$package" ]] || unset "missing[i]"; done
done
[[ ${#missing[@]} -gt 0 ]] || exit 0
echo "Installing ${#missing[@]} packages: ${missing[*]}"
if ! apt_install "${missing[@]}"; then
  # Package lists that are too old name files that no mirror has any more.
  [[ $updated == no ]] || exit 1
  apt update
  apt_install "${missing[@]}"
fi
