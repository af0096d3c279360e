#!/usr/bin/env bash
# Facts of machines and the script that builds by them. With the word `build`: a build and an installation.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$TRIREME_SOURCE"
script=jobscripts/build.sh

# 1. Every file assigns the same facts, in one order, those that jobscripts/machines/README.md explains.
explained=$(grep -oE '^\| `[A-Z_`, ]+ \|' jobscripts/machines/README.md | grep -oE '[A-Z_]+' | sort)
for file in jobscripts/machines/*.sh; do
  facts=$(grep -oE '^TRIREME_MACHINE_[A-Z_]+' "$file")
  [[ $(sed 's/^TRIREME_MACHINE_//' <<<"$facts" | sort) == "$explained" ]] || fail "$file: other facts than README.md's"
  [[ $facts == "$(grep -oE '^TRIREME_MACHINE_[A-Z_]+' jobscripts/machines/debian.sh)" ]] || fail "$file: another order"
  (
    # shellcheck disable=SC1090  # one of jobscripts/machines
    source "$file"
    [[ $TRIREME_MACHINE_DATE =~ ^20[0-9]{2}-[01][0-9]-[0-3][0-9]$ ]] || fail "$file: no date"
    [[ $TRIREME_MACHINE_TRIED == yes || $TRIREME_MACHINE_SOURCE == https://* ]] || fail "$file: no source"
    for fact in $TRIREME_MACHINE_UNCONFIRMED; do
      grep -qx "$fact" <<<"$explained" || fail "$file: unconfirmed is $fact, no fact"
    done
    ((TRIREME_MACHINE_RANKS_PER_NODE * TRIREME_MACHINE_CORES_PER_RANK <= TRIREME_MACHINE_CORES_PER_NODE)) ||
      fail "$file: more cores in ranks than in a node"
    if [[ $TRIREME_MACHINE_DEVICE == cuda ]]; then
      [[ $TRIREME_MACHINE_RANKS_PER_NODE == "$TRIREME_MACHINE_GPUS_PER_NODE" ]] || fail "$file: ranks are not GPUs"
      [[ $TRIREME_MACHINE_CMAKE == *-DTRIREME_CUDA=ON* ]] || fail "$file: not built for GPUs"
    else
      [[ $TRIREME_MACHINE_DEVICE == cpu && $TRIREME_MACHINE_GPUS_PER_NODE == 0 ]] || fail "$file: device"
    fi
    for partition in $TRIREME_MACHINE_PARTITIONS; do
      [[ $partition =~ ^[a-z_-]+:([0-9]+|-):([0-9]+:[0-5][0-9]:[0-5][0-9]|-)$ ]] || fail "$file: partition $partition"
    done
    # Variables set by the job scripts; the user's own stay.
    # shellcheck source=jobscripts/slurm/common.sh
    source jobscripts/slurm/common.sh
    machine_facts "$(basename "$file" .sh)"
    unset CUDA_VISIBLE_DEVICES
    export NCCL_CROSS_NIC=mine MPICH_GPU_SUPPORT_ENABLED=1
    MODULES='' set_environment
    [[ $TRIREME_MACHINE_ENVIRONMENT != *CUDA_VISIBLE_DEVICES=0,1,2,3* || $CUDA_VISIBLE_DEVICES == 0,1,2,3 ]] ||
      fail "$file: its variables are not set"
    [[ $TRIREME_MACHINE_ENVIRONMENT != *"NCCL_NET=AWS Libfabric "* ||
      $NCCL_NET/$NCCL_CROSS_NIC/$MPICH_GPU_SUPPORT_ENABLED/$FI_CXI_RX_MATCH_MODE == "AWS Libfabric/mine/0/hybrid" ]] ||
      fail "$file: values with blanks, or the user's own"
    grep -q "^## $TRIREME_MACHINE_TITLE" doc/machines.md || fail "doc/machines.md: nothing of $TRIREME_MACHINE_TITLE"
  )
done

# Lines that no script reads are said to be for people.
for fact in $explained; do
  if ! grep -rqE "TRIREME_MACHINE_$fact\b" jobscripts/*.sh jobscripts/slurm && ! sed -n '/^For people/,$p' jobscripts/machines/README.md | grep -q "\`$fact\`"; then
    fail "jobscripts/machines/README.md: no script reads $fact"
  fi
done

# A program that is not there: the node and the PATH are named.
run 2 bash -c "source jobscripts/slurm/common.sh; jobscripts=$scratch/a/b/c TRIREME='' TRIREME_ROOT='' TRIREME_MACHINE_DEVICE=cpu
  SLURM_SUBMIT_DIR=$scratch; PATH=/usr/bin:/bin; unset -f module; find_program"
says "trireme was not found on $(hostname) (PATH names /usr/bin:/bin)"

# 2. The script's answers.
run 0 bash "$script" --help
says "bash jobscripts/build.sh MACHINE"
says "sudo"
run 0 bash "$script" --list
for name in debian juwels_booster jureca_dc jupiter leonardo perlmutter marenostrum5 lumi_c; do
  says "$name "
done
for name in debian juwels_booster jureca_dc jupiter leonardo perlmutter marenostrum5 lumi_c; do
  run 0 bash "$script" "$name" --dry-run --build "$scratch/none"
  says "cmake --install $scratch/none"
  is_missing "$scratch/none"
done
run 2 bash "$script" frontier
says "frontier: no facts of such a machine; known: debian jupiter"
run 2 bash "$script"
says "no machine was named"
run 2 bash "$script" debian --jobs many
says "--jobs many: not a number"
run 2 bash "$script" --prefix
says "--prefix needs a value"
run 2 env -u BASH_ENV -u 'BASH_FUNC_module%%' bash "$script" leonardo
says "the command 'module' is not here"
run 0 bash "$script" leonardo --dry-run --prefix /p/x -- -DEXTRA=1
says "module load gcc"
says "-DTRIREME_CUDA=ON"
says "-DCMAKE_INSTALL_PREFIX=/p/x"
says "-DEXTRA=1"

# 3. Recipes for package managers: their syntax.
recipes=(packaging/spack/spack_repo/trireme/packages/trireme/package.py packaging/easybuild/*.eb)
run 0 "$python" -c 'import ast, sys
for path in sys.argv[1:]: ast.parse(open(path, encoding="utf-8").read(), path)' "${recipes[@]}"
# The shell of an Apptainer definition, section by section.
definition=packaging/apptainer/trireme.def
for section in post environment runscript test; do
  sed -n "/^%$section\$/,/^%/{/^%/!p}" "$definition" >"$scratch/$section.sh"
  [[ -s $scratch/$section.sh ]] || fail "$definition has no section $section"
  run 0 bash -n "$scratch/$section.sh"
done
for recipe in "${recipes[@]}" "$definition"; do
  grep -qi 'never run' "$recipe" || fail "$recipe does not say that it was never run"
done
version=$(sed -n 's/^project(trireme VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
grep -qF "version = '$version'" packaging/easybuild/*.eb || fail "the EasyBuild recipe is of another version"

# 4. A machine's build, in a fresh folder.
[[ ${1:-} == build ]] || exit 0
# Beside the others, so that the compiler's cache knows the objects.
trap 'rm -rf "$TRIREME_SOURCE/build-machines-test"; leave' EXIT
rm -rf build-machines-test
run 0 bash "$script" debian --build build-machines-test --prefix "$scratch/prefix" --jobs 2
says "Installed in $scratch/prefix"
run 0 "$scratch/prefix/bin/trireme" --version
exists "$scratch/prefix/share/man/man1/trireme.1"
