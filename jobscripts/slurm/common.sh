# shellcheck shell=bash
# Sourced by the job scripts of this folder: facts of the machine, the program, ranks per node and their binding, nodes
# that are well, and what happens after a step has ended. Calls `give_up` (exit code 2) with a message that says
# what to do if something is missing.
jobscripts=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { echo "$(date '+%F %T')  $*"; }
give_up() {
  echo "job script: error: $1" >&2
  shift
  (($# == 0)) || printf '  %s\n' "$@" >&2
  exit 2
}

# machine_facts NAME: TRIREME_MACHINE_* of jobscripts/machines/NAME.sh.
machine_facts() {
  local known
  known=$(cd "$jobscripts/machines" && printf '%s ' *.sh)
  [[ $1 =~ ^[A-Za-z0-9_-]+$ && -r $jobscripts/machines/$1.sh ]] ||
    give_up "no facts of a machine called '$1' in $jobscripts/machines" "MACHINE may be one of: ${known//.sh/}"
  # shellcheck source=jobscripts/machines/debian.sh
  source "$jobscripts/machines/$1.sh"
}

# load_modules NAME...: the site's command may use variables that are not set.
load_modules() {
  local code=0
  set +u
  module load "$@" || code=$?
  set -u
  return "$code"
}

# Modules and variables of the machine. A job inherits the environment of `sbatch`, so a module that is loaded stays so.
set_environment() {
  local each name modules=()
  read -ra modules <<<"${MODULES-${TRIREME_MACHINE_MODULES:-}}"
  if ((${#modules[@]} > 0)); then
    command -v module >/dev/null || give_up "no command 'module' to load: ${modules[*]}" \
      "Load them before sbatch and submit with MODULES= (empty)."
    load_modules "${modules[@]}" || give_up "a module of these is not there: ${modules[*]}" \
      "Name the site's own with MODULES=\"...\" (module spider finds them)."
  fi
  # A value goes on to the next NAME=; with "!" before its name it replaces another one.
  while IFS= read -r each || [[ -n $each ]]; do
    name=${each%%=*} name=${name#!}
    [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || continue
    [[ $each != "!"* && -n ${!name:-} ]] || export "${each#!}"
  done < <(tr '\n\t' '  ' <<<"${TRIREME_MACHINE_ENVIRONMENT:-}" | sed -E 's/ +(!?[A-Za-z_][A-Za-z0-9_]*=)/\n\1/g; s/ +$//; s/ +\n/\n/g')
}

# The program: TRIREME, or in the PATH (a loaded module's), or of the module `trireme`, or beside these scripts, or in the
# folder that the job was submitted from.
find_program() {
  local root folder
  program=${TRIREME:-$(command -v trireme || true)}
  if [[ -z $program ]] && command -v module >/dev/null && load_modules trireme 2>/dev/null; then
    program=$(command -v trireme || true)
  fi
  for root in "${TRIREME_ROOT:-}" "$jobscripts/../../.." "$jobscripts/.." "${SLURM_SUBMIT_DIR:-.}"; do
    for folder in bin build-cuda build; do
      [[ $folder != build-cuda || $TRIREME_MACHINE_DEVICE == cuda ]] || continue
      [[ -n $program || -z $root || ! -x $root/$folder/trireme ]] || program=$(cd "$root/$folder" && pwd)/trireme
    done
  done
  [[ -n $program ]] || give_up "trireme was not found on $(hostname) (PATH names $PATH)" \
    "Load its module before sbatch, or set TRIREME_ROOT to the folder it was built in or installed to, or TRIREME to the program." \
    "The folder must be on a file system that the nodes share: /tmp is often a node's own."
  [[ -x $program ]] || give_up "TRIREME=$program cannot be executed" "Build it, or name another."
}

# Ranks per node, cores per rank and options of srun. Flags of sbatch win over the facts of the machine.
find_layout() {
  local cores=${TRIREME_MACHINE_CORES_PER_NODE:-1} seen
  spares=${SPARES:-0}
  [[ $spares =~ ^[0-9]+$ ]] || give_up "SPARES=$spares is not a number of nodes"
  nodes=$((SLURM_JOB_NUM_NODES - spares))
  ((nodes > 0)) || give_up "SPARES=$spares of $SLURM_JOB_NUM_NODES nodes leaves none to run on" \
    "Ask sbatch for the nodes of the run plus the spare ones."
  ranks_per_node=${SLURM_NTASKS_PER_NODE:-$TRIREME_MACHINE_RANKS_PER_NODE}
  seen=${SLURM_GPUS_ON_NODE:-$ranks_per_node}
  if [[ $TRIREME_MACHINE_DEVICE == cuda && $seen -lt $ranks_per_node ]]; then
    give_up "$ranks_per_node ranks a node, but Slurm gave $seen GPUs" \
      "Ask for them: sbatch --gres=${TRIREME_MACHINE_GRES:-gpu:$ranks_per_node}, or for fewer ranks: --ntasks-per-node=$seen"
  fi
  cores_per_rank=${SLURM_CPUS_PER_TASK:-$TRIREME_MACHINE_CORES_PER_RANK}
  if [[ -z ${SLURM_CPUS_PER_TASK:-} && $ranks_per_node != "$TRIREME_MACHINE_RANKS_PER_NODE" ]]; then
    cores_per_rank=$((cores / ranks_per_node > 0 ? cores / ranks_per_node : 1))
  fi
  ranks=$((nodes * ranks_per_node))
  read -ra srun_options <<<"${SRUN_OPTIONS-$TRIREME_MACHINE_SRUN}"
  export OMP_NUM_THREADS=$cores_per_rank
  # When the job's time ends: the run stops early enough for its last checkpoint.
  export TRIREME_JOB_END_TIME=${SLURM_JOB_END_TIME:-$(squeue -h -j "$SLURM_JOB_ID" -o %e)}
}

# resolve: all of the above, said at the start of the log.
resolve() {
  [[ -n ${SLURM_JOB_ID:-} ]] || give_up "this is no job of Slurm" "Submit it: bash $jobscripts/slurm/submit.sh, or sbatch."
  machine=${MACHINE:-debian}
  machine_facts "$machine"
  set_environment
  find_program
  find_layout
  say "job $SLURM_JOB_ID${SLURM_ARRAY_TASK_ID:+ (array element $SLURM_ARRAY_TASK_ID)}, started $((${SLURM_RESTART_COUNT:-0} + 1)) time(s)"
  echo "  machine   $machine: $TRIREME_MACHINE_TITLE$([[ $TRIREME_MACHINE_TRIED == yes ]] || echo ' (its facts were never tried)')"
  echo "  program   $program, scripts $jobscripts/slurm"
  echo "  nodes     $SLURM_JOB_NODELIST: $nodes to run on, $spares spare"
  echo "  ranks     $ranks_per_node a node, $cores_per_rank core(s) each: srun ${srun_options[*]}"
  echo "  time      ends $TRIREME_JOB_END_TIME"
}

# A deck that is there: a missing one costs no launch on all nodes.
check_deck() {
  [[ -r $1 ]] || give_up "deck $1 cannot be read from $(hostname):$PWD" \
    "Paths count from the folder of sbatch; the file system must be there on the nodes."
}

# adds_default key=value ARGUMENT...: to settings, unless an argument gives that key.
adds_default() {
  local each
  for each in "${@:2}"; do [[ $each != "${1%%=*}="* ]] || return 0; done
  settings+=("$1")
}
# adds_device ARGUMENT...: the machine's.
adds_device() { [[ $TRIREME_MACHINE_DEVICE != cuda ]] || adds_default run.device=cuda "$@"; }

# job_field NAME: of `scontrol show job`, this job's. The number of an array's last element alone would mean the whole array.
job=${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:-0}}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
job_field() { scontrol show job "$job" 2>/dev/null | sed -nE "s/^(.* )?$1=([^ ]*).*/\2/p" | head -n 1; }

# find_well_nodes: sets well_nodes to nodes of the job that Slurm holds for well and that are not in left_out: the first one,
# on which the job script runs, foremost, those being drained last.
left_out=()
find_well_nodes() {
  local node state list first=() well=() draining=()
  local -A states=()
  list=$(job_field NodeList)
  while read -r node state; do states[$node]=$state; done < <(sinfo -h -N -n "$list" -o '%N %T')
  while read -r node; do
    state=${states[$node]:-unknown}
    if [[ $state == *'*' || $state =~ ^(down|fail|error|unknown|reboot|power) || " ${left_out[*]} " == *" $node "* ]]; then
      continue
    fi
    case $node/$state in
      "${SLURMD_NODENAME:-}"/*) first=("$node") ;;
      */drain*) draining+=("$node") ;;
      *) well+=("$node") ;;
    esac
  done < <(scontrol show hostnames "$list")
  well_nodes=("${first[@]}" "${well[@]}" "${draining[@]}")
}
# choose_nodes: sets step_nodes to as many of them as the run needs; false if there are not enough.
choose_nodes() {
  find_well_nodes
  ((${#well_nodes[@]} >= nodes)) || return 1
  step_nodes=("${well_nodes[@]:0:$nodes}")
}

# step ARGUMENT...: the program on $ranks ranks of step_nodes. Slurm ends what is left of a step 5 s after its first rank
# has left: others need not wait for one that was killed. To kill at any non-zero exit instead would turn the code 3 of
# those who leave last into 137.
step() {
  local list
  list=$(printf '%s,' "${step_nodes[@]}")
  srun --nodes="${#step_nodes[@]}" --nodelist="${list%,}" --ntasks="$ranks" --ntasks-per-node="$ranks_per_node" \
    --cpus-per-task="$cores_per_rank" --distribution=block --kill-on-bad-exit=0 --wait=5 "${srun_options[@]}" "$program" "$@"
}

# Nodes of step_nodes that do not answer, found by a step of one process a node that prints its node's name: Slurm may not
# have noticed a loss yet (SlurmdTimeout, often 5 minutes). They are added to left_out.
leave_out_silent_nodes() {
  local list node answers
  list=$(printf '%s,' "${step_nodes[@]}")
  # shellcheck disable=SC2016  # expanded on the nodes
  answers=$(timeout -k 2 "${PROBE_SECONDS:-20}" srun --overlap --no-kill --mpi=none --nodes="${#step_nodes[@]}" --nodelist="${list%,}" \
    --ntasks="${#step_nodes[@]}" --ntasks-per-node=1 --cpus-per-task=1 --gres=none bash -c 'echo "$SLURMD_NODENAME"' 2>/dev/null) || true
  for node in "${step_nodes[@]}"; do
    if ! grep -qxF "$node" <<<"$answers"; then
      left_out+=("$node")
      say "node $node does not answer: left out"
    fi
  done
}

# may_requeue REASON: queues this job again unless that is forbidden, was done often enough, or the job was cancelled.
may_requeue() {
  local again="Submit it again by hand: it goes on from its newest checkpoint."
  if [[ $TRIREME_MACHINE_REQUEUE == no ]]; then
    say "$1. Not queued again: $machine forbids it. $again"
  elif ((${SLURM_RESTART_COUNT:-0} >= ${REQUEUES:-100})); then
    say "$1. Not queued again: it was ${SLURM_RESTART_COUNT:-0} times (REQUEUES=${REQUEUES:-100}). $again"
  elif [[ $(job_field JobState) != RUNNING ]]; then
    say "$1. Not queued again: the job is $(job_field JobState)."
  else
    say "$1: queueing again"
    scontrol requeue "$job" || say "scontrol requeue failed. $again"
  fi
}
