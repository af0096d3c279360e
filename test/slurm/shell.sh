#!/usr/bin/env bash
# A Slurm of several nodes on this machine, to try job scripts by hand:
#   bash test/slurm/shell.sh [NODES [COMMAND...]]      # 3 nodes, n1 to n3; a shell, or the command
# sbatch, srun, squeue, scontrol and so on work in there; `lose NODE` ends all processes of a node at once, as a loss of
# power does, and tells Slurm; `revive NODE` starts it again. Everything ends with the shell. Root only: namespaces of Linux.
set -euo pipefail
case ${1:-} in
  -h | --help)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit
    ;;
esac
nodes=${1:-3}
[[ $nodes =~ ^[1-9][0-9]?$ ]] || {
  echo "shell.sh: a number of nodes expected, '$nodes' found; bash ${BASH_SOURCE[0]} --help" >&2
  exit 2
}
(($# == 0)) || shift
here=$PWD
TRIREME_SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
TRIREME=${TRIREME:-$TRIREME_SOURCE/build/trireme}
# shellcheck source=test/system/common.sh
source "$TRIREME_SOURCE/test/system/common.sh"
# shellcheck source=test/slurm/cluster.sh
source "$TRIREME_SOURCE/test/slurm/cluster.sh"
cluster_can_run
visible+=("$here")
: "${scratch:?}" "${cluster:?}"

# command_of NAME TEXT: a command for the shell, with what nodes are started and ended by.
command_of() {
  {
    echo '#!/usr/bin/env bash'
    declare -p cluster visible scratch
    declare -f start_node lose_node take_down revive has_registered until_true cluster_fail fail
    echo "[[ -e \$cluster/\${1:-}/process ]] || { echo '$1: a node is expected, n1 to n$nodes' >&2; exit 2; }"
    echo "$2"
  } >"$scratch/bin/$1"
  chmod +x "$scratch/bin/$1"
}
mkdir "$scratch/bin"
# shellcheck disable=SC2016  # expanded by the commands
command_of lose 'take_down "$1"'
# shellcheck disable=SC2016
command_of revive 'revive "$1"; sinfo -N'

start_cluster "$nodes"
for name in "$cluster"/n*/process; do disown "$(cat "$name")"; done # Nothing is said of nodes that are lost.
# Nodes are one machine here: Open MPI on its loopback device.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include=lo
unset TRIREME TRIREME_SOURCE OMP_NUM_THREADS
export PATH=$scratch/bin:$PATH
cd "$here"
if (($# > 0)); then
  "$@"
  exit
fi
echo "Slurm with the nodes n1 to n$nodes, of 4 cores each; its logs: $cluster/log. 'exit' ends it, 'lose n2' is the loss of a node."
interactive=()
[[ ! -t 0 ]] || interactive=(-i)
bash "${interactive[@]}" || true
