#!/usr/bin/env bash
# A stop in the middle of a long validation, or of the test at the end, is answered at once; what was
# skipped is done first when the run goes on. A run that goes on may be evaluated at any time.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$TRIREME_SOURCE/test/fault/background.sh"
tiny_deck
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=1500000
keys=(monitor.sample_tokens=0)
limit=3 # seconds from a signal to the end

run 0 "$TRIREME" -i deck.in "${keys[@]}" job.output=calm

evaluations() { grep -c '"kind":"\(valid\|test\)"' run/metrics.jsonl || true; }
# stops_in KIND STEP ARGUMENTS...: while the evaluation after the records of that step runs.
stops_in() {
  local lines begin
  begins "$TRIREME" -i deck.in "${keys[@]}" "${@:3}"
  awaits run/metrics.jsonl "{\"kind\":\"$1\",\"step\":$2,"
  pause 0.1
  lines=$(evaluations)
  begin=$SECONDS
  kill -USR1 "$job"
  ends 3
  ((SECONDS - begin <= limit)) || fail "it took $((SECONDS - begin)) s to stop"
  says_once "stopped by a signal after step $2"
  [[ $(evaluations) == "$lines" ]] || fail "the evaluation ended before the stop"
}
stops_in step 10
[[ $(count run/metrics.jsonl '"kind":"valid"') == 0 ]] || fail "a validation was recorded"
[[ $(readlink run/checkpoints/latest) == step_00000010 ]] || fail "no checkpoint of step 10"

# Twice in the same one, then in the test.
stops_in event\",\"event\":\"restart 10 -r run
stops_in valid 20 -r run
diff <(losses calm/metrics.jsonl valid) <(losses run/metrics.jsonl valid) || fail "other validation losses"
run 0 "$TRIREME" -i deck.in "${keys[@]}" -r run
grep -q '"kind":"done"' run/metrics.jsonl || fail "no record of the end"
[[ $(count run/metrics.jsonl '"kind":"valid"') == 2 ]] || fail "a validation was repeated"
same_end calm run
for link in best latest; do
  [[ $(readlink run/checkpoints/$link) == $(readlink calm/checkpoints/$link) ]] || fail "$link differs"
done
run 0 "$TRIREME" -i deck.in "${keys[@]}" -r run
says "nothing is left to do"
same_end calm run

# Of several sets none is recorded before all are, so that none is recorded twice.
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=2000 data.file=small.h5
rm -rf run
sets=(data.validation=small:small.h5,large:harbour.h5)
stops_in step 10 "${sets[@]}"
[[ $(evaluations) == 0 ]] || fail "a set was recorded of a validation that was cut short"
run 0 "$TRIREME" -i deck.in "${keys[@]}" "${sets[@]}" -r run schedule.stop_at=11
for kind in valid valid_other; do
  [[ $(grep -c "\"kind\":\"$kind\",.*\"step\":10," run/metrics.jsonl) == 1 ]] || fail "not one record $kind of step 10"
done

# Evaluated while it goes on: checkpoints are removed between being found and being read.
# goes_on_writing EVERY: a run that holds nothing but its newest checkpoint, of every EVERY steps.
goes_on_writing() {
  begins "$TRIREME" -i deck.in "${keys[@]}" data.file=small.h5 "job.output=every_$1" schedule.steps=1000000 \
    "checkpoint.every_steps=$1" checkpoint.keep=1 checkpoint.best=no monitor.validate_every_steps=0
  awaits "every_$1/metrics.jsonl" '"event":"checkpoint"' 2
}
goes_on_writing 1
for _ in 1 2 3 4 5; do
  run 0 "$TRIREME" -r every_1 job.task=evaluate
  says_once "checkpoint  every_1/checkpoints/step_"
  run 0 "$TRIREME" -r every_1 job.task=generate
done
run 0 "$TRIREME" -r every_1 -v
kill -0 "$job" || fail_with_log "the run has ended"
killed
# Several ranks on few cores agree more slowly than such a run writes: less often.
goes_on_writing 100
for _ in 1 2; do run 0 "${mpi[@]}" 2 "$TRIREME" -r every_100 job.task=evaluate; done
kill -0 "$job" || fail_with_log "the run has ended"
killed
