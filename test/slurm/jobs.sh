#!/usr/bin/env bash
# The real job scripts under a real Slurm of the test's own: training on two nodes, the signal before the time limit, nodes that
# are lost with and without a spare one, scancel, an array for a scaling study, and inputs that are wrong. Wherever a run
# was disturbed it ends in the bits of one that was not.
# Open MPI 4.1's TCP transport loses a race between connections, and then its process, once in some fifty starts of four ranks on
# one loopback device; a test that failed so is repeated, once.
if [[ -z ${TRIREME_SLURM_ATTEMPT:-} ]]; then
  TRIREME_SLURM_ATTEMPT=1 bash "${BASH_SOURCE[0]}" "$@" && exit
  code=$?
  ((code == 99)) || exit "$code"
  echo "Open MPI did not connect two ranks on the loopback device: once more"
  TRIREME_SLURM_ATTEMPT=2 exec bash "${BASH_SOURCE[0]}" "$@"
fi
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$TRIREME_SOURCE/test/fault/background.sh"
# shellcheck source=test/slurm/cluster.sh
source "$TRIREME_SOURCE/test/slurm/cluster.sh"
cluster_can_run
tiny_deck
tokens
start_cluster 8

# As installed, in a folder with a blank in its name: the scripts find the program by their own place.
run 0 cmake --install "$(dirname "$TRIREME")" --prefix "$scratch/a prefix"
installed="$scratch/a prefix/share/trireme/jobscripts/slurm"
built=$TRIREME_SOURCE/jobscripts/slurm
# Nodes are one machine here: Open MPI on its loopback device.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include=lo
unset TRIREME_ROOT MACHINE MODULES
unset TRIREME

# Disturbed runs are short of cores here: one rank on each node but where that is the point.
keys=(schedule.steps=100 checkpoint.every_steps=15 checkpoint.keep=3 monitor.validate_every_steps=50 monitor.sample_tokens=0)
# begin_job NAME SCRIPT [OPTION ...] -- [KEY ...]: two ranks a node; its log is NAME.log, its run NAME; sets id.
begin_job() {
  local name=$1 script=$2 options=()
  shift 2
  while [[ $1 != -- ]]; do
    options+=("$1")
    shift
  done
  id=$(submit "$name.log" --ntasks-per-node="${per_node:-1}" --cpus-per-task=1 "${options[@]}" "$script" deck.in "$name" "${keys[@]}" "${@:2}") ||
    cluster_fail "$name was not submitted"
}
# log_says NAME TEXT
log_says() { grep -qsF -- "$2" "$1.log"; }
expects() { log_says "$1" "$2" || cluster_fail "$1.log lacks: $2"; }
never_says() { ! log_says "$1" "$2" || cluster_fail "$1.log says: $2"; }
has_checkpoints() { [[ -e $1/metrics.jsonl && $(grep -cs '"event":"checkpoint"' "$1/metrics.jsonl") -ge $2 ]]; }
awaits_checkpoints() { until_true 60 has_checkpoints "$1" "$2" || cluster_fail "$1 has no $2 checkpoints"; }
# awaits_new_checkpoint NAME: one that is published after this call. Events of sessions before it stay in the records.
awaits_new_checkpoint() {
  until_true 60 has_moved "$1" "$(readlink "$1/checkpoints/latest")" || cluster_fail "$1 writes no further checkpoint"
}
has_moved() { [[ $(readlink "$1/checkpoints/latest") != "$2" ]]; }
# node_of JOB NUMBER: the name of its node, counted from 1.
node_of() { scontrol show hostnames "$(job_field "$1" NodeList)" | sed -n "$2p"; }
# Processes of the program that belong to a job, on all nodes.
ranks_of() {
  local each
  for each in $(pgrep -x trireme); do
    ! grep -qsxz "SLURM_JOB_ID=$1" "/proc/$each/environ" || echo "$each"
  done
}
no_ranks() { [[ -z $(ranks_of "$1") ]]; }
# starts_again JOB RESTARTS: it is in the queue again. Slurm holds it there for two minutes, which an operator
# shortens; a longer limit keeps the signal before it from coming again.
is_requeued() { [[ $(job_field "$1" Restarts) -ge $2 && $(job_state "$1") =~ ^(PENDING|RUNNING|COMPLETED)$ ]]; }
is_released() {
  [[ $(job_state "$1") != PENDING ]] || scontrol update "JobId=$1" StartTime=now TimeLimit=30 2>/dev/null || true
  [[ $(job_state "$1") != PENDING ]]
}
starts_again() {
  until_true 60 is_requeued "$1" "$2" || cluster_fail "job $1 was not queued again: $(job_state "$1")"
  sleep 2 # A start within the same second would use the credential that was revoked.
  until_true 60 is_released "$1" || cluster_fail "job $1 does not start again"
}
# A step's line in the log after the text: training goes on.
steps_after() {
  awk -v text="$2" 'index($0, text) { seen = 1 } seen && /^ +[0-9]+ +[0-9]+\.[0-9]+ / { step = 1; exit } END { exit !step }' "$1.log" 2>/dev/null
}
ms_since() { echo $(((${EPOCHREALTIME/./} - ${1/./}) / 1000)); }

# Slurm looks at time limits every 30 s: until its signal comes the ranks are stopped, so that the run does not end before.
begin_limit() {
  per_node=2 begin_job limit "$built/train.sbatch" --nodes=2 --time=4 --signal=USR1@235 --
  limit=$id
  awaits_checkpoints limit 1
  # shellcheck disable=SC2046  # one word a process
  kill -STOP $(ranks_of "$limit")
}
end_limit() {
  until_true 60 log_says limit "SIGUSR1: the run stops" || cluster_fail "Slurm sends no signal before the limit"
  starts_again "$limit" 1
  job_ends "$limit" COMPLETED 0
  expects limit "stopped by a signal after step"
  expects limit "stopped early with checkpoint step_"
  expects limit "started 2 time(s)"
  same_end calm limit step valid
}

# Undisturbed: two nodes of two ranks, and two of one.
calm() {
  per_node=2 begin_job calm "$installed/train.sbatch" --nodes=2 --
  begin_job calm_2 "$built/train.sbatch" --nodes=2 --
  job_ends "$id" COMPLETED 0
  until_true 60 log_says calm "ends with code 0" || cluster_fail "calm does not end"
  expects calm "machine   debian"
  expects calm "program   $scratch/a prefix/bin/trireme, scripts $installed"
  expects calm "4 ranks on 2 hosts"
  expects calm "2 to run on, 0 spare"
}

with_spare() {
  local began
  SPARES=1 per_node=2 begin_job spare "$built/train.sbatch" --nodes=3 --no-kill --
  awaits_checkpoints spare 1
  node=$(node_of "$id" 2)
  began=$EPOCHREALTIME
  take_down "$node"
  until_true 60 steps_after spare "starting again on" || cluster_fail "no step after the loss of $node"
  echo "restart inside the allocation: $(ms_since "$began") ms from the loss of $node to the next step's line"
  job_ends "$id" COMPLETED 0
  expects spare "lost $node after checkpoint step_"
  [[ $(job_field "$id" Restarts) == 0 ]] || cluster_fail "the job went through the queue"
  same_end calm spare step valid
  revive "$node"
}

# Without a spare node Slurm queues the job again.
without_spare() {
  begin_job bare "$built/train.sbatch" --nodes=2 --
  awaits_checkpoints bare 1
  node=$(node_of "$id" 2)
  take_down "$node"
  starts_again "$id" 1
  revive "$node"
  job_ends "$id" COMPLETED 0
  same_end calm_2 bare step valid
}

# With the first node the job script is lost: the guard on another node queues the job again.
first_node() {
  SPARES=1 GUARD_SECONDS=1 begin_job first "$built/train.sbatch" --nodes=3 --no-kill --
  awaits_checkpoints first 1
  node=$(node_of "$id" 1)
  take_down "$node"
  starts_again "$id" 1
  revive "$node"
  job_ends "$id" COMPLETED 0
  expects first "the first node, $node, was lost: queueing again"
  same_end calm_2 first step valid
}

# Slurm does not know of the loss: the ranks' watchdogs end the step, and the node that does not answer is left out.
silent_node() {
  local began
  SPARES=1 PROBE_SECONDS=3 begin_job silent "$built/train.sbatch" --nodes=3 --no-kill -- run.hang_timeout=2
  awaits_checkpoints silent 1
  node=$(node_of "$id" 2)
  began=$EPOCHREALTIME
  lose_node "$node"
  until_true 90 steps_after silent "starting again on" || cluster_fail "no step after the silent loss of $node"
  echo "the same before Slurm knows, run.hang_timeout = 2, PROBE_SECONDS = 3: $(ms_since "$began") ms"
  scontrol update "NodeName=$node" State=DOWN Reason=lost
  job_ends "$id" COMPLETED 0
  expects silent "node $node does not answer: left out"
  same_end calm_2 silent step valid
  revive "$node"
}

# A rank that is killed, three times: once again on the same nodes, then through the queue; RESTARTS ends it.
kills_a_rank() {
  local victim=
  for ((i = 0; i < 200; ++i)); do
    victim=$(ranks_of "$1" | tail -n 1)
    [[ -z $victim ]] || break
    sleep 0.05
  done
  [[ -n $victim ]] || cluster_fail "no rank of job $1 to kill"
  kill -KILL "$victim"
}
deaths() {
  local keys=(schedule.steps=100000 checkpoint.every_steps=15 checkpoint.keep=3 monitor.validate_every_steps=0)
  RESTARTS=2 begin_job deaths "$built/train.sbatch" --nodes=2 --
  awaits_checkpoints deaths 1
  kills_a_rank "$id"
  until_true 60 steps_after deaths "starting again on" || cluster_fail "not started again after a rank was killed"
  awaits_new_checkpoint deaths
  kills_a_rank "$id"
  starts_again "$id" 1
  awaits_new_checkpoint deaths
  kills_a_rank "$id"
  job_ends "$id" FAILED
  expects deaths "the second time on these nodes: queueing again"
  expects deaths "not started again, this was death 3 (RESTARTS=2"
}

# A death that lost everything would only be repeated.
early_death() {
  local keys=(schedule.steps=100000 checkpoint.every_steps=0 monitor.validate_every_steps=0)
  begin_job early "$built/train.sbatch" --nodes=1 --
  until_true 60 steps_after early "on loss" || cluster_fail "early makes no step"
  kills_a_rank "$id"
  job_ends "$id" FAILED 137
  expects early "died with code 137 after checkpoint none, which is not new: not started again"
  never_says early "no line of the program was printed"
  # Before its first line: MPI's start may fail once and not the next time.
  printf '#!/bin/sh\nkill -SEGV $$\n' >dies
  chmod +x dies
  TRIREME=$PWD/dies begin_job silent "$built/train.sbatch" --nodes=1 --
  job_ends "$id" FAILED 139
  expects silent "died with code 139 after checkpoint none, which is not new: not started again"
  expects silent "no line of the program was printed: MPI may have failed to start; submit again"
}

cancelled() {
  begin_job cancelled "$built/train.sbatch" --nodes=2 --
  awaits_checkpoints cancelled 1
  scancel "$id"
  job_ends "$id" CANCELLED
  until_true 10 no_ranks "$id" || cluster_fail "ranks are left after scancel"
  sleep 0.5
  [[ $(job_state "$id") == CANCELLED ]] || cluster_fail "a cancelled job is $(job_state "$id")"
  never_says cancelled "queueing again"
}

# An element per number of ranks; the table has them all, and so has one allocation by itself.
scaling() {
  local keys=(scaling.repeats=2) element
  STEPS=6 per_node=2 begin_job scaling "$built/scaling.sbatch" --nodes=2 --array=1,2,4 --
  for element in 1 2 4; do job_ends "${id}_$element" COMPLETED 0; done
  [[ $(cut -d , -f 1-2 scaling/speeds.csv | tr '\n' ' ') == "ranks,nodes 1,1 2,1 4,2 " ]] ||
    cluster_fail "speeds.csv: $(cat scaling/speeds.csv)"
  "$python" - <<'PYTHON' || cluster_fail "speeds.csv: $(cat scaling/speeds.csv)"
import csv
rows = list(csv.DictReader(open("scaling/speeds.csv")))
for row in rows:
    (study,) = csv.DictReader(open(f"scaling/ranks_{row['ranks']}/scaling.csv"))
    assert study["ranks"] == row["ranks"] and study["nodes"] == row["nodes"] and study["steps"] == "6", study
    assert row["tokens_per_second"] == study["tokens_per_second"], row
    ratio = float(row["tokens_per_second"]) / float(rows[0]["tokens_per_second"])
    assert abs(float(row["speedup"]) / ratio - 1) < 1e-3, row
    assert abs(float(row["efficiency"]) * int(row["ranks"]) / ratio - 1) < 1e-3, row
PYTHON
  per_node=2 begin_job allocation "$built/scaling.sbatch" --nodes=2 --
  job_ends "$id" COMPLETED 0
  [[ $(cut -d , -f 1-3 allocation/scaling.csv | tr '\n' ' ') == "kind,ranks,nodes strong,1,1 strong,2,1 strong,4,2 " ]] ||
    cluster_fail "scaling.csv of one allocation: $(cat allocation/scaling.csv)"
}

# Mistakes are said in the log, with code 2, and not queued again.
wrong() {
  local keys=() typo lost machine spares nothing
  begin_job typo "$built/train.sbatch" --nodes=1 -- schedule.stepps=3
  typo=$id
  id=$(submit lost.log --ntasks-per-node=2 "$built/train.sbatch" absent.in lost)
  lost=$id
  per_node=2 MACHINE=atlantis begin_job machine "$built/train.sbatch" --nodes=1 --
  machine=$id
  SPARES=2 begin_job spares "$built/train.sbatch" --nodes=2 --
  spares=$id
  TRIREME=$scratch/nothing begin_job nothing "$built/train.sbatch" --nodes=1 --
  nothing=$id
  id=$(submit verify.log --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 "$built/verify.sbatch" deck.in grid.tensor=2)
  job_ends "$id" COMPLETED 0
  for id in "$typo" "$lost" "$machine" "$spares" "$nothing"; do job_ends "$id" FAILED 2; done
  expects typo "stepps"
  is_missing typo
  expects lost "deck absent.in cannot be read"
  expects machine "MACHINE may be one of: debian"
  expects spares "leaves none to run on"
  expects nothing "nothing cannot be executed"
  run 1 bash "$built/submit.sh" train -p nowhere deck.in run
  says "invalid partition specified: nowhere"
  MACHINE=juwels_booster run 2 bash "$built/submit.sh" train deck.in run
  says "Give the project that pays: -A PROJECT."
}

# in_turn CASE...: with their times.
in_turn() {
  local each began
  for each; do
    began=$EPOCHREALTIME
    "$each"
    echo "$each: $(ms_since "$began") ms"
  done
}
# jobs.sh CASE...: some of them only; those that compare with an undisturbed run need calm.
if (($# > 0)); then
  in_turn "$@"
  exit
fi
in_turn begin_limit calm
in_turn with_spare without_spare first_node &
some=$!
in_turn silent_node deaths early_death cancelled scaling wrong &
others=$!
in_turn end_limit &
limited=$!
code=0
wait "$some" || code=$?
wait "$others" || code=$?
wait "$limited" || code=$?
exit "$code"
