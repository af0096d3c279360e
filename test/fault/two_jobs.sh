#!/usr/bin/env bash
# Two jobs on one run folder: the second ends with code 2 and touches nothing; a lock whose holder was
# killed does not stop the next one.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
tiny_deck
tokens
steps=(schedule.steps=100000 monitor.validate_every_steps=0)

job=
end() {
  [[ -z $job ]] || kill -KILL $job 2>/dev/null || true
  leave
}
trap end EXIT
start() {
  "$TRIREME" -i deck.in "${steps[@]}" "$@" >first.log 2>&1 &
  job=$!
  for _ in $(seq 400); do
    [[ ! -e run/checkpoints/latest ]] || break
    sleep 0.05
  done
}
start
run 2 "$TRIREME" -i deck.in "${steps[@]}" -r run
says "run"
says "process $job"
says_once "error:"
run 2 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${steps[@]}"
says_once "error:"
kill -0 $job || fail "the first job has ended: $(cat first.log)"

# A branch of it is another run, and an evaluation takes no lock.
run 3 "$TRIREME" -i deck.in "${steps[@]}" schedule.walltime_minutes=0.001 -r run job.output=branch
run 0 "$TRIREME" -r run job.task=evaluate

kill -KILL $job
wait $job 2>/dev/null || true
job=
exists run/run.lock
reached=$(readlink run/checkpoints/latest)
run 3 "$TRIREME" -i deck.in "${steps[@]}" -r run schedule.walltime_minutes=0.001
says "took the run over"
says "resumed from run/checkpoints/$reached"
is_missing run/run.lock

# A job whose lock was removed, or is another's, ends and changes nothing in a folder that another may
# have taken. It is asked to end: a last checkpoint is due at a known moment.
foreign=run/checkpoints/step_99999999.tmp
taken_over() {
  rm -f first.log
  start -r run checkpoint.every_steps=1000000000
  for _ in $(seq 400); do
    [[ ! -e run/run.lock ]] || ! grep -q "^ *[0-9]" first.log || break
    sleep 0.05
  done
  kill -STOP $job
  "$@"
  mkdir $foreign
  echo theirs >$foreign/model.safetensors
  kill -CONT $job
  kill -TERM $job
  code=0
  wait $job || code=$?
  job=
  [[ $code == 1 ]] || fail "exit code $code instead of 1 after the lock was lost"
  grep -q "its run.lock is not this job's any more" first.log || fail "not said: $(tail -5 first.log)"
  exists $foreign/model.safetensors
  rm -r $foreign
}
taken_over rm run/run.lock
other_token() { sed -i 's/"token": "\(.\)\(.*\)"/"token": "\2\1"/' run/run.lock; }
taken_over other_token
