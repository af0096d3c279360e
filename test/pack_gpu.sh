#!/usr/bin/env bash
# Builds the GPU tests and benchmarks here and packs them, with the libraries and the Open MPI that
# they need, for a machine with cards that has none of these and no network:
#   bash test/pack_gpu.sh [--nccl libnccl.so.2] [-B BUILD] [-a ARCHITECTURES] [-l MIB] PACK.tar.xz|FOLDER
#   bash test/one_card.sh --prebuilt PACK.tar.xz      there, in a copy of this source tree
# --nccl: an NCCL that the packed programs take in place of the one that is there (2.30 or newer lets ranks share a card).
# -a: of the cards there, as CMake has them: 90 (H100, H200; the default), 80 (A100); -l: fails where
# the pack, with the source tree, is larger. The machines must be of one architecture, the C library
# there no older than here. CUDA's own libraries stay out: they are taken from the toolkit or from
# Python's packages there. The packed Open MPI is for one node: on a cluster, build there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
source jobscripts/machine.sh
source jobscripts/cuda.sh
source test/prebuilt.sh

build=build-pack architectures=90 limit=60 nccl=''
usage() {
  sed -n '4,5s/^# *//p' "$0" >&2
  exit 2
}
if [[ ${1:-} == --nccl ]]; then
  nccl=${2:-}
  [[ -f $nccl ]] || { echo "--nccl: there is no file '$nccl'" >&2; exit 2; }
  shift 2
fi
while getopts B:a:l: option; do
  case $option in
    B) build=$OPTARG ;;
    a) architectures=$OPTARG ;;
    l) limit=$OPTARG ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
[[ $# == 1 && $limit =~ ^[1-9][0-9]*$ ]] || usage
target=$1
[[ ! -e $target || $target == *.tar.xz || -f $target/manifest ]] ||
  { echo "$target is there and is no pack" >&2; exit 1; }

# 1. Build. Programs look for libraries in the pack (an old-style run path counts for what a library
# needs too, where that has none of its own). Machine code of the cards alone: no PTX.
nvcc=$(find_nvcc) || { echo "$nvcc" >&2; exit 1; }
options=(-DTRIREME_TESTS=ON -DTRIREME_BENCHMARKS=ON -DTRIREME_WERROR=OFF
  "-DCMAKE_CUDA_ARCHITECTURES=$(sed -E 's/([0-9]+)(;|$)/\1-real\2/g' <<<"$architectures")"
  "-DCMAKE_INSTALL_RPATH=\$ORIGIN/../lib" -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON
  "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags")
if command -v ccache >/dev/null; then
  options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
fi
configure_for_gpus "$build" "$nvcc" "${options[@]}"
list_gpu_tests "$build" >"$build/gpu-tests"
mapfile -t programs < <({ echo trireme; echo trireme_gpu_benchmark; echo trireme_gpu_kernels_benchmark
  awk -F'\t' '$4 !~ /[.]sh$/ { print $4 }' "$build/gpu-tests"; } | sort -u)
cmake --build "$build" --parallel "$(build_jobs_alone)" --target "${programs[@]}"

# 2. Copy. Open MPI's own folders keep their order below one prefix.
mpi() { ompi_info --path "$1" --parsable 2>/dev/null | sed -n "s/^path:$1://p"; }
plugins=$(mpi pkglibdir) help=$(mpi pkgdatadir) settings=$(mpi sysconfdir)
[[ -n $plugins && -d $plugins ]] || { echo "pack_gpu.sh packs Open MPI 4; ompi_info tells of none here" >&2; exit 1; }
binaries=$(mpi bindir)
pack=$(mktemp -d)
trap 'rm -rf "$pack"' EXIT
mkdir -p "$pack"/{bin,lib/openmpi,lib/pmix,runtime,libexec,share/openmpi,etc}
for program in "${programs[@]}"; do
  cp "$build/$program" "$pack/bin/"
done
cp -L "$binaries/orterun" "$binaries/orted" "$pack/libexec/"
cp -rL "$help"/. "$pack/share/openmpi/"
[[ ! -f $settings/openmpi-mca-params.conf ]] || cp -L "$settings/openmpi-mca-params.conf" "$pack/etc/"
# Plugins for networks between nodes and for batch systems stay out, with their many libraries.
network='lib(uc[pst]|ucm|fabric|psm2?|psm_infinipath|ibverbs|rdmacm|nl-3|portals|lustre)'
for plugin in "$plugins"/mca_*.so; do
  [[ ! $plugin =~ _(slurm|flux|jsm|gridengine|tm|lsf|alps|pbs)[.]so$ ]] || continue
  ! ldd "$plugin" | grep -qE "$network" || continue
  cp -L "$plugin" "$pack/lib/openmpi/"
done
# Debian's Open MPI has a PMIx of its own with plugins.
pmix=$({ ldd "$plugins"/mca_pmix_*.so || true; } | awk '$1 ~ /^libpmix/ { print $3 }' | head -n 1)
if [[ -n $pmix ]]; then
  find "$(dirname "$(readlink -f "$pmix")")" -path '*pmix*' -name '*mca_*.so' ! -name '*slurm*' -exec cp -L {} "$pack/lib/pmix/" \;
fi

# Libraries that these name: not the C library's, nor CUDA's; the compiler's apart, for where there
# are none or older ones.
c_library='^(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl|mvec|thread_db))[.]so'
cuda_library='^lib(cuda|cudart|cublas|cublasLt|cudnn[_a-z]*|nccl|nvrtc[-_a-z]*|nvJitLink)[.]so'
find "$pack" -type f \( -path '*/bin/*' -o -name '*.so' -o -path '*/libexec/*' \) -exec ldd {} + 2>/dev/null |
  awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
  while read -r name path; do
    [[ ! $name =~ $c_library && ! $name =~ $cuda_library ]] || continue
    folder=lib
    [[ ! $name =~ ^lib(stdc\+\+|gcc_s|gomp|gfortran|quadmath)[.] ]] || folder=runtime/$name
    mkdir -p "$pack/$folder"
    cp -L "$path" "$pack/$folder/$name"
  done
[[ -z $nccl ]] || cp -L "$nccl" "$pack/lib/libnccl.so.2"
chmod -R u+w "$pack"
find "$pack" -type f \( -path '*/bin/*' -o -name '*.so*' -o -path '*/libexec/*' \) -exec strip --strip-unneeded {} + 2>/dev/null || true
find "$pack" -type f \( -name '*.so*' -o -path '*/libexec/*' \) -exec python3 test/drop_run_path.py {} +
# mpirun, and what a program that is started without it starts in the background.
for launcher in mpirun:orterun orted:orted; do
  cat >"$pack/bin/${launcher%:*}" <<SH
#!/bin/sh
# Of Open MPI, with the libraries beside it.
here=\$(cd "\$(dirname "\$0")/.." && pwd)
LD_LIBRARY_PATH=\$here/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} exec "\$here/libexec/${launcher#*:}" "\$@"
SH
  chmod +x "$pack/bin/${launcher%:*}"
done
cp "$build/gpu-tests" "$pack/tests"
# Descriptions of machines, which the program looks for in its installation.
mkdir -p "$pack/share/trireme/input"
cp -r input/machines "$pack/share/trireme/input/"
{
  echo "trireme $("$build/trireme" --version 2>/dev/null | head -n 1), built on $(date +%Y-%m-%d) for architectures $architectures"
  echo "nvcc $("$nvcc" --version | sed -n 's/.*release //p'); $("${CXX:-c++}" --version | head -n 1); $(ldd --version | head -n 1)"
  echo "bytes, file:"
  (cd "$pack" && find . -type f ! -name manifest -printf '%s %P\n' | sort -k 2)
} >"$pack/manifest"

# 3. Its place, and its size.
mib() { du -sk --apparent-size "$@" | awk '{ s += $1 } END { printf "%.1f\n", s / 1024 }'; }
if [[ $target == *.tar.xz ]]; then
  mkdir -p "$(dirname "$target")"
  # Programs share most of their code, hundreds of mebibytes apart at most.
  XZ_OPT="-6 --lzma2=dict=192MiB -T1" tar -C "$pack" -cJf "$target.new" .
  mv "$target.new" "$target"
else
  rm -rf "$target"
  mkdir -p "$target"
  cp -r "$pack"/. "$target"/
fi
source_mib=0
if tracked=$(git -c safe.directory="$PWD" ls-files 2>/dev/null) && [[ -n $tracked ]]; then
  source_mib=$(tr '\n' '\0' <<<"$tracked" | du -ck --apparent-size --files0-from=- 2>/dev/null | awk 'END { printf "%.1f", $1 / 1024 }')
fi
echo "$target: $(mib "$target") MiB ($(mib "$pack") unpacked), $(wc -l <"$pack/tests") tests; the source tree: $source_mib MiB"
awk -v a="$(mib "$target")" -v b="$source_mib" -v l="$limit" 'BEGIN { exit !(a + b > l) }' || exit 0
echo "together that is more than $limit MiB (-l)" >&2
[[ $target == *.tar.xz ]] || echo "a target named *.tar.xz is packed more tightly" >&2
exit 1
