#!/usr/bin/env bash
# Submits a job script of this folder with what the facts of a machine say: partition, GPUs, ranks per node and so on.
#   MACHINE=juwels_booster bash submit.sh train [option of sbatch ...] DECK RUN_FOLDER [section.key=value ...]
# train, verify or scaling. Options are written -A PROJECT or --account=PROJECT; they win over the facts, and the whole command
# is printed first. With SPARES the job lives on without a lost node (--no-kill); --nodes counts the spare ones too.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=jobscripts/slurm/common.sh
source "$here/common.sh"
usage="bash submit.sh train|verify|scaling [option of sbatch ...] DECK ... [section.key=value ...]"
(($# > 0)) || give_up "usage: $usage"
script=$here/$1.sbatch
[[ -r $script ]] || give_up "no job script $script" "usage: $usage"
shift
given=()
while [[ ${1:-} == -* ]]; do
  given+=("$1")
  # -A PROJECT, in two words.
  if [[ $1 =~ ^-[A-Za-z]$ && $1 != -[kHOsQW] ]]; then
    given+=("${2:?$1 needs a value}")
    shift
  fi
  shift
done
(($# > 0)) || give_up "usage: $usage"

machine=${MACHINE:-debian}
machine_facts "$machine"
options=()
# adds OPTION VALUE [SHORT]: --OPTION=VALUE unless VALUE is empty, the option was given, or sbatch's variable for it is set.
adds() {
  local each variable=SBATCH_${1//-/_}
  variable=${variable^^}
  [[ -n $2 && -z ${!variable:-} ]] || return 0
  for each in "${given[@]}"; do
    [[ $each != "--$1" && $each != "--$1="* && (-z ${3:-} || $each != "$3"*) ]] || return 0
  done
  options+=("--$1=$2")
}
adds partition "$TRIREME_MACHINE_PARTITION" -p
adds qos "$TRIREME_MACHINE_QOS" -q
adds constraint "$TRIREME_MACHINE_CONSTRAINT" -C
adds gres "$TRIREME_MACHINE_GRES"
if [[ $TRIREME_MACHINE_DEVICE == cuda || ${TRIREME_MACHINE_CORES_PER_RANK:-1} -gt 1 ]]; then
  adds ntasks-per-node "$TRIREME_MACHINE_RANKS_PER_NODE"
  adds cpus-per-task "$TRIREME_MACHINE_CORES_PER_RANK" -c
fi
if [[ $TRIREME_MACHINE_ACCOUNT == yes ]]; then
  before=${#options[@]}
  adds account PROJECT -A
  ((${#options[@]} == before)) || give_up "$machine needs an account" "Give the project that pays: -A PROJECT."
fi
((${SPARES:-0} == 0)) || options+=(--no-kill)
echo "MACHINE=$machine sbatch ${options[*]} ${given[*]} $script $*"
export MACHINE=$machine
exec sbatch "${options[@]}" "${given[@]}" "$script" "$@"
