# shellcheck shell=bash
# Sourced by pack_gpu.sh, run_gpu.sh, one_card.sh and gpu.sh: what a pack has, and how it is run.

# Python is started with what the loader searched before: not with what the pack needs. Exported,
# since one script starts the other.
export TRIREME_OUTER_LIBRARY_PATH=${TRIREME_OUTER_LIBRARY_PATH-${LD_LIBRARY_PATH:-}}
outer_python() { env LD_LIBRARY_PATH="$TRIREME_OUTER_LIBRARY_PATH" "$@"; }

# unpack PACK: sets prebuilt to its folder; an archive's below FOLDER.
unpack() { # PACK FOLDER
  prebuilt=$1
  if [[ -f $1 ]]; then
    prebuilt=$2/pack
    rm -rf "$prebuilt"
    mkdir -p "$prebuilt"
    if command -v xz >/dev/null; then
      tar -C "$prebuilt" -xJf "$1"
    else
      python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$1" "$prebuilt"
    fi
  fi
  [[ -f $prebuilt/manifest ]] || { echo "$1 is no pack of pack_gpu.sh" >&2; return 1; }
  prebuilt=$(cd "$prebuilt" && pwd)
}

# Libraries that a program and its libraries name and that are not found, or are too old.
unresolved() { # PROGRAM
  ldd "$1" 2>&1 | sed -nE 's/^\s*(\S+) => not found.*/\1/p; s/.*\/([^/]+): version `(GLIBCXX|CXXABI|GCC|GOMP|OACC)[^ ]* not found.*/\1/p' | sort -u
}

# Folders where CUDA's libraries lie: the toolkit's, the driver's, and those of Python's packages.
cuda_folders() {
  local wheels root
  for root in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    [[ -z $root ]] || printf '%s\n' "$root/lib64" "$root/lib" "$root"/targets/*/lib
  done
  wheels=$(outer_python "${PYTHON:-python3}" -c 'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null || true)
  while read -r root; do
    [[ -z $root ]] || printf '%s\n' "$root"/*/lib
  done <<<"$wheels"
  printf '%s\n' /usr/local/nvidia/lib64 /usr/local/nvidia/lib
}

# Adds the folder of one of CUDA's libraries to what the loader searches, behind all else.
add_folder_of() { # NAME
  local folder
  while read -r folder; do
    [[ -e $folder/$1 ]] || continue
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    echo "$1: from $folder"
    return
  done < <(cuda_folders)
}

# The environment of the packed programs: the packed Open MPI, for ranks of one node; the compiler's
# libraries where the system's are missing or older; CUDA's from wherever they are.
use_pack() { # FOLDER
  local pack=$1 name one tried=" "
  export TRIREME_MPIRUN=$pack/bin/mpirun
  export OPAL_PREFIX=$pack OPAL_LIBDIR=$pack/lib OPAL_PKGLIBDIR=$pack/lib/openmpi OPAL_BINDIR=$pack/bin
  export OPAL_DATADIR=$pack/share OPAL_PKGDATADIR=$pack/share/openmpi OPAL_SYSCONFDIR=$pack/etc
  export PMIX_INSTALL_PREFIX=$pack PMIX_MCA_mca_base_component_path=$pack/lib/pmix
  # A system's own PMIx may be of another version: its plugins do not load, and nobody needs them.
  export PMIX_MCA_pmix_mca_base_component_show_load_errors=none PMIX_MCA_pcompress_base_silence_warning=1
  # Within a node, by shared memory; a container may not let a process read another one's memory.
  export OMPI_MCA_plm=isolated OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
  # Each found library may name more.
  while true; do
    name=
    for one in $(unresolved "$pack/bin/trireme"); do
      [[ $tried == *" $one "* ]] || name=$one
    done
    [[ -n $name ]] || break
    tried+="$name "
    if [[ -d $pack/runtime/$name ]]; then
      export LD_LIBRARY_PATH=$pack/runtime/$name${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    else
      add_folder_of "$name"
    fi
  done
  name=$(unresolved "$pack/bin/trireme" | paste -sd' ')
  [[ -z $name ]] || { echo "not found here, neither in the pack nor with CUDA: $name" >&2; return 1; }
  # The driver's, which CUDA loads by itself.
  ldconfig -p 2>/dev/null | grep -qF libcuda.so.1 || add_folder_of libcuda.so.1
}

# The tests on GPUs, or on emulated ones, of a configured build tree, one a line: name, seconds it may take, ranks (0: without
# mpirun), and its program or its script; tabs between them.
list_gpu_tests() { # BUILD
  ctest --test-dir "$1" --show-only=json-v1 | python3 -c '
import json, os, sys
for test in json.load(sys.stdin)["tests"]:
    properties = {p["name"]: p["value"] for p in test["properties"]}
    if {"gpu", "emulated"} & set(properties.get("LABELS", [])):
        # A program that is not built yet has no command; a test of one process has its name.
        command = test.get("command", [test["name"]])
        ranks = command[command.index("-n") + 1] if "-n" in command else 0
        seconds = int(properties.get("TIMEOUT", 1200))
        print(test["name"], seconds, ranks, os.path.basename(command[-1]), sep="\t")'
}
