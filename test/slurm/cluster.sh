# shellcheck shell=bash
# Sourced after test/system/common.sh: a Slurm of the test's own on this machine. munge, slurmctld and one
# slurmd per node run from the scratch folder with ports of their own. Each node has processes, mounts, /tmp and a
# name of its own (namespaces of Linux), so that ending its first process ends everything on it, as a loss of
# power does. All processes are ended by their ids when the test leaves, also after a failure.
: "${scratch:?source test/system/common.sh first}"
cluster=$scratch/cluster
visible=("$scratch" "$(dirname "$TRIREME")" "$TRIREME_SOURCE") # on the nodes, even if they lie in /tmp
services=() # processes of munged and slurmctld; those of nodes are in $cluster/NAME/process

# cluster_can_run: skips, saying why, unless a Slurm can be started here.
cluster_can_run() {
  local command missing=()
  for command in munged slurmctld slurmd sbatch srun scontrol unshare; do
    command -v "$command" >/dev/null || missing+=("$command")
  done
  ((${#missing[@]} == 0)) ||
    skip "no Slurm is tested: ${missing[*]} missing (bash jobscripts/install_debian.sh test: slurmd, slurmctld, slurm-client, munge)"
  [[ $(id -u) == 0 ]] || skip "no Slurm is tested: only root starts slurmd for several nodes"
  unshare --mount --pid --uts --fork true 2>"$scratch/output" ||
    skip "no Slurm is tested: no namespaces here: $(cat "$scratch/output")"
  ls /usr/lib/*/slurm*/mpi_pmix.so >/dev/null 2>&1 || skip "no Slurm is tested: its plug-in mpi_pmix is missing"
}

# Free TCP ports, one a line.
free_ports() {
  "$python" - "$1" <<'PYTHON'
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for each in sockets:
    each.bind(("127.0.0.1", 0))
    print(each.getsockname()[1])
PYTHON
}

# write_configuration NODES: slurm.conf for nodes n1, n2, ... of four pretended cores. ReturnToService=1: an answer that a node gave
# before it was set down does not put it into service again.
write_configuration() {
  local ports number host
  mapfile -t ports < <(free_ports $(($1 + 1)))
  host=$(hostname)
  cat >"$cluster/slurm.conf" <<CONF
ClusterName=suite
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$cluster/munge.socket
StateSaveLocation=$cluster/state
SlurmdSpoolDir=$cluster/%n/spool
SlurmctldPidFile=$cluster/slurmctld.pid
SlurmdPidFile=$cluster/%n/slurmd.pid
SlurmctldLogFile=$cluster/log/slurmctld
SlurmdLogFile=$cluster/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=pmix
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=1
KillWait=5
MinJobAge=3600
JobCompType=jobcomp/filetxt
JobCompLoc=$cluster/log/jobs
CONF
  for ((number = 1; number <= $1; number++)); do
    echo "NodeName=n$number NodeHostname=n$number NodeAddr=127.0.0.1 Port=${ports[number]} CPUs=4 CoresPerSocket=4" \
      "RealMemory=1000 State=UNKNOWN"
  done >>"$cluster/slurm.conf"
  echo "PartitionName=main Nodes=n[1-$1] Default=YES MaxTime=INFINITE State=UP" >>"$cluster/slurm.conf"
}

# start_node NAME: its slurmd, the first process of a namespace. Its /tmp is its own, with the scratch folder in it.
start_node() {
  local home=$cluster/$1
  mkdir -p "$home/spool" "$home/tmp"
  # shellcheck disable=SC2016  # expanded by the node
  unshare --mount --pid --uts --fork --kill-child --mount-proc bash -c '
    name=$0 home=$1
    shift
    hostname "$name"
    for folder; do
      [[ $folder == /tmp/* ]] || continue
      mkdir -p "$home/tmp/${folder#/tmp/}"
      mount --bind "$folder" "$home/tmp/${folder#/tmp/}"
    done
    mount --rbind "$home/tmp" /tmp
    exec slurmd -D -N "$name"' "$1" "$home" "${visible[@]}" >"$cluster/log/$1.out" 2>&1 </dev/null &
  echo $! >"$home/process"
}
# lose_node NAME: everything on it is gone at once. Slurm does not know yet.
lose_node() {
  local process
  process=$(cat "$cluster/$1/process")
  # shellcheck disable=SC2046  # one word a process
  kill -KILL $(pgrep -P "$process") "$process" 2>/dev/null || true
  wait "$process" 2>/dev/null || true
}

# take_down NODE: lost, and Slurm is told.
take_down() {
  lose_node "$1"
  scontrol update "NodeName=$1" State=DOWN Reason=lost
}
# revive NODE: started again, and in service.
revive() {
  local starts
  starts=$(grep -c "slurmd started" "$cluster/log/$1")
  start_node "$1"
  until_true 20 has_registered "$1" "$starts" || cluster_fail "$1 does not come up again"
}
has_registered() {
  (($(grep -c "slurmd started" "$cluster/log/$1") > $2)) || return
  scontrol update "NodeName=$1" State=RESUME 2>/dev/null
  [[ $(sinfo -h -n "$1" -o %t) =~ ^(idle|alloc|mix)$ ]]
}

# start_cluster NODES: up and idle, or a failure with the logs.
start_cluster() {
  local number
  mkdir -p "$cluster/state" "$cluster/log"
  chmod 755 "$scratch" "$cluster"
  head -c 64 /dev/urandom >"$cluster/key"
  chmod 400 "$cluster/key"
  write_configuration "$1"
  export SLURM_CONF=$cluster/slurm.conf
  munged --force --foreground --key-file="$cluster/key" --socket="$cluster/munge.socket" --pid-file="$cluster/munged.pid" \
    --log-file="$cluster/log/munged" --seed-file="$cluster/munge.seed" >"$cluster/log/munged.out" 2>&1 </dev/null &
  services+=($!)
  until_true 10 test -S "$cluster/munge.socket" || cluster_fail "munged does not start"
  slurmctld -D -i >"$cluster/log/slurmctld.out" 2>&1 </dev/null &
  services+=($!)
  for ((number = 1; number <= $1; number++)); do start_node "n$number"; done
  until_true 20 nodes_idle "$1" || cluster_fail "the nodes do not come up: $(sinfo 2>&1)"
}
nodes_idle() { [[ $(sinfo -h -N -o '%N %t' 2>/dev/null | grep -c ' idle$') == "$1" ]]; }

stop_cluster() {
  local home process
  for home in "$cluster"/n*/; do
    [[ ! -e $home/process ]] || lose_node "$(basename "$home")"
  done
  for process in "${services[@]}"; do kill "$process" 2>/dev/null || true; done
  for process in "${services[@]}"; do wait "$process" 2>/dev/null || true; done
}
trap 'stop_cluster; leave' EXIT

# cluster_fail MESSAGE: fails with the ends of all logs of Slurm and of jobs; with code 99 if a
# log holds what Open MPI says when it cannot connect ranks.
cluster_fail() {
  tail -n 15 "$cluster"/log/* ./*.log 2>/dev/null | sed 's/^/  : /' >&2 || true
  grep -qsE "connect\(\) to 127.0.0.1|Segmentation fault" ./*.log || fail "$@"
  (fail "$@") || exit 99
}

# until_true SECONDS COMMAND...: repeats it until it is true.
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.05
  done
}

# submit LOG OPTION... SCRIPT ARGUMENT...: prints the job's number.
submit() {
  local log=$1
  shift
  sbatch --parsable --output="$log" "$@"
}
# job_field JOB NAME: a field of `scontrol show job`.
job_field() { scontrol show job "$1" 2>/dev/null | grep -oE "(^| )$2=[^ ]*" | head -n 1 | cut -d = -f 2; }
job_state() { job_field "$1" JobState; }
has_ended() { [[ ! $(job_state "$1") =~ ^(PENDING|RUNNING|COMPLETING|CONFIGURING|SUSPENDED|REQUEUED)$ ]]; }
# job_ends JOB STATE [CODE]: in this state and with this exit code of the batch script.
job_ends() {
  local state code
  until_true 90 has_ended "$1" || cluster_fail "job $1 does not end: $(job_state "$1")"
  state=$(job_state "$1")
  code=$(job_field "$1" ExitCode)
  [[ $state == "$2" ]] || cluster_fail "job $1 ended as $state ($code), not $2"
  [[ -z ${3:-} || $code == "$3:0" ]] || cluster_fail "job $1 ended with exit code $code, not $3"
}
