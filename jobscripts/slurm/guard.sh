#!/usr/bin/env bash
# guard.sh NODE MACHINE LOG: runs on another node of a job that was submitted with --no-kill, and queues the job again once Slurm
# has taken NODE, the first one, out of it. Slurm itself leaves such a job without its script until the time limit.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
machine=$2
# Not through srun, which is lost with NODE.
exec >>"$3" 2>&1
machine_facts "$machine"
say "guard on $SLURMD_NODENAME: queues the job again if $1 is lost"
while sleep "${GUARD_SECONDS:-15}"; do
  nodes=$(job_field NodeList)
  # An empty answer: the controller is busy or away.
  [[ -n $nodes ]] || continue
  scontrol show hostnames "$nodes" | grep -qxF "$1" && continue
  may_requeue "the first node, $1, was lost"
  exit
done
