#!/usr/bin/env bash
# Replicas: an MPI that adds in another order in some groups does no harm, and one that gives a rank
# wrong bits is found, with the rank named and, if asked for, the run restored.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
tiny_deck
tokens
short=(schedule.steps=4 schedule.warmup_steps=0 checkpoint.every_steps=0 monitor.validate_every_steps=0
  monitor.sample_tokens=0 optimizer.clip_norm=0.01)
host=$(hostname)

# in_other_order RANKS GROUP KEYS...: copies that are compared at every step stay equal.
in_other_order() {
  local ranks=$1 group=$2
  rm -rf run changed
  run 0 "${mpi[@]}" "$ranks" -x LD_PRELOAD="$TRIREME_CHANGE_SUMS" -x TRIREME_SUMS_GROUP="$group" \
    -x TRIREME_SUMS_LOG="$scratch/changed" "$TRIREME" -i deck.in "${short[@]}" run.check_replicas_every=1 "${@:3}"
  grep -q 'another order' changed || fail "no sum was changed"
  says "replicas compared 4 times"
}
# One replica's norm of the gradient, and its sum of the norms' gradients; in fp64, since a clipping
# factor is rounded to fp32 otherwise.
in_other_order 8 4,5,6,7 grid.data=2 grid.tensor=4 grid.sequence_parallel=yes model.heads=4 run.precision=fp64
# One tensor rank's sums over the data ranks, of norms and biases that others hold, too.
in_other_order 6 1,3,5 grid.data=3 grid.tensor=2
in_other_order 6 1,3,5 grid.data=3 grid.tensor=2 grid.sharding=optimizer

# wrong_bit CODE RANKS KEYS...: rank 1 gets a wrong bit in step 13.
wrong=(-x LD_PRELOAD="$TRIREME_CHANGE_SUMS" -x TRIREME_SUMS_WRONG=1 -x TRIREME_SUMS_NTH=13)
wrong_bit() {
  rm -rf run
  run "$1" "${mpi[@]}" "$2" "${wrong[@]}" "$TRIREME" -i deck.in monitor.sample_tokens=0 "${@:3}"
}
wrong_bit 1 3 run.check_replicas_every=5
says_once "step 15: rank 1 on $host holds other bits of"
says_once "than ranks 0, 2 of 3, which agree"
says_once "The last checkpoint, compared before it was written, is run/checkpoints/step_00000010."
grep '"event":"corruption"' run/metrics.jsonl | grep -q '"rank":1,' || fail "no event that names rank 1"
is_missing run/checkpoints/step_00000015
is_missing run/checkpoints/step_00000020
# Before a checkpoint, too; two copies are named both.
wrong_bit 1 2 checkpoint.every_steps=7
says_once "step 14: rank 0 on $host and rank 1 on $host differ in"
says_once "with two copies it cannot be told which one is wrong"
is_missing run/checkpoints/step_00000014
exists run/checkpoints/step_00000007

# Back to step 10, and to the same end as a run that nothing befell.
wrong+=(-x TRIREME_SUMS_COUNT=1)
wrong_bit 0 3 run.check_replicas_every=5 run.on_corruption=restore
says_once "back to the checkpoint of step 10"
mv run restored
run 0 "${mpi[@]}" 3 -x LD_PRELOAD="$TRIREME_CHANGE_SUMS" "$TRIREME" -i deck.in monitor.sample_tokens=0
for file in model optimizer; do
  cmp {run,restored}/checkpoints/step_00000020/$file.safetensors || fail "other bits after the restore"
done
# The same rank again: the end.
wrong=("${wrong[@]/TRIREME_SUMS_COUNT=1/TRIREME_SUMS_COUNT=9}")
wrong_bit 1 3 run.check_replicas_every=5 run.on_corruption=restore
says_once "and a rank is named for the second time in this job"
