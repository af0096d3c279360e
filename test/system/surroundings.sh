#!/usr/bin/env bash
# What surrounds a job: a lost terminal, a limit on file sizes, a launcher that MPI does not know, a small /dev/shm.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens

# 1. A terminal that is gone asks a run to stop, with a checkpoint; under nohup it does not.
long=(schedule.steps=100000 monitor.validate_every_steps=0 checkpoint.every_steps=0)
hang_up() { # FOLDER COMMAND...: SIGHUP once it trains; the exit code is left in $code
  local folder=$1 job
  shift
  "$@" "job.output=$folder" >output 2>&1 </dev/null &
  job=$!
  for _ in $(seq 200); do
    ! grep -q '"step":1,' "$folder/metrics.jsonl" 2>/dev/null || break
    sleep 0.05
  done
  kill -HUP $job
  code=0
  wait $job || code=$?
}
hang_up gone "$TRIREME" -i deck.in "${long[@]}"
[[ $code == 3 ]] || fail "SIGHUP: exit code $code instead of 3"
says_once "trireme: SIGHUP: the run stops at the end of a step and writes a checkpoint"
[[ -n $(ls gone/checkpoints) ]] || fail "SIGHUP: no checkpoint"
hang_up kept nohup "$TRIREME" -i deck.in schedule.steps=300
[[ $code == 0 ]] || fail "under nohup: exit code $code instead of 0"
exists kept/checkpoints/step_00000300

# 2. A file that may not grow any more is a failure as a full disk is: one message, the earlier checkpoint stays. The limit comes
# while it runs, since MPI makes files of its own.
rm -rf run
"$TRIREME" -i deck.in model.dim=128 schedule.steps=100000 monitor.validate_every_steps=0 checkpoint.every_steps=50 >output 2>&1 </dev/null &
job=$!
for _ in $(seq 400); do
  [[ ! -e run/checkpoints/step_00000050 ]] || break
  sleep 0.05
done
exists run/checkpoints/step_00000050
prlimit --fsize=$(($(stat -c %s run/checkpoints/step_00000050/optimizer.safetensors) - 5000)) --pid $job
code=0
wait $job || code=$?
[[ $code == 1 ]] || fail "a limit on file sizes: exit code $code instead of 1"
says_once "error:"
says "File too large"
last=$(ls run/checkpoints | grep -v best | tail -n 1)
[[ $last == step_*[0-9] ]] || fail "a part of a checkpoint was left: $last"
run 0 "$TRIREME" -i deck.in model.dim=128 schedule.steps=100000 monitor.validate_every_steps=0 -v -r "run/checkpoints/$last"
yes "a text of many bytes" | head -c 36000000 >bytes.txt || true
bytes=(-i deck.in job.task=tokenize tokenize.kind=byte tokenize.train=bytes.txt tokenize.valid=deck.in tokenize.test=deck.in)
limited() { (ulimit -f 40000 && "$@"); }
run 1 limited "$TRIREME" "${bytes[@]}" data.file=limited.h5
says "File too large"
[[ -z $(find . -name 'limited*') ]] || fail "a part of a token file was left"

# A run folder that is moved away, a limit of address space, a program without its files: each is named.
"$TRIREME" -i deck.in job.output=moved schedule.steps=1000000 monitor.validate_every_steps=0 >output 2>&1 </dev/null &
training=$!
until [[ -e moved/checkpoints/latest ]]; do sleep 0.05; done
mv moved elsewhere
code=0
wait $training || code=$?
[[ $code == 1 ]] || fail "exit code $code of a run whose folder was moved"
says "moved: the run folder was removed or moved while the run went on"
is_missing moved
limited() { (ulimit -v 400000 && "$@"); }
run 1 limited "$TRIREME" -i deck.in job.output=limited model.dim=1024 model.ffn=8192
says_once "out of memory"
says "The address space of this process is limited to 390 MiB: raise it (ulimit -v unlimited)."
cp "$TRIREME" alone
run 2 ./alone -i deck.in job.task=plan plan.machine=juwels_booster grid.ranks=8
says "This program lies without the files that come with it"

# 3. srun without PMIx starts programs of one rank each: none of them trains.
step() { SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=$1 "${@:2}"; }
run 2 step 0 "$TRIREME" -i deck.in job.output=twice
says_once "error: the Slurm step has 2 tasks, MPI sees 1"
says "srun --mpi=pmix"
run 2 step 1 "$TRIREME" -i deck.in job.output=twice
[[ ! -s output ]] || fail "the second task spoke"
is_missing twice
run 0 step 0 "${mpi[@]}" 1 "$TRIREME" -i deck.in job.output=once
unset SLURM_STEP_NUM_TASKS SLURM_PROCID

# 4. /dev/shm of 64 MiB, as in Docker: a checkpoint's writers work without it, tokens say what helps.
[[ $(id -u) == 0 ]] && unshare -m true 2>/dev/null || skip "a small /dev/shm: only root can mount it"
# shellcheck disable=SC2016
small_shm() { unshare -m bash -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"' small "$@"; }
small_shm true 2>/dev/null || skip "a small /dev/shm: tmpfs cannot be mounted here"
wide=(model.dim=512 model.ffn=2048 checkpoint.async=yes schedule.steps=10)
run 0 small_shm timeout 120 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${wide[@]}" job.output=small
says_once "warning: checkpoint.writers = 1: 2 ranks of a node cannot share"
says "Each rank writes for itself instead."
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${wide[@]}" job.output=roomy
for file in model optimizer; do
  cmp small/checkpoints/step_00000010/$file.safetensors roomy/checkpoints/step_00000010/$file.safetensors || fail "another $file"
done
run 0 "$TRIREME" "${bytes[@]}" data.file=bytes.h5
run 1 small_shm timeout 120 "${mpi[@]}" 2 "$TRIREME" -i deck.in data.file=bytes.h5 job.output=tokens monitor.validate_every_steps=0
says_once "error:"
says "of tokens for the 2 ranks of a node: No space left on device"
says "/dev/shm has"
says "data.staging = none keeps a copy per rank instead"
