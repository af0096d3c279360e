#!/usr/bin/env bash
# Questions that need no MPI, and bad command lines, decks and files: exit code 2, one message, nothing
# written.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck

# Without MPI: a transport that does not exist would end MPI_Init.
without_mpi=(env OMPI_MCA_pml=nonexistent "$TRIREME")
run 0 "${without_mpi[@]}" --help
says "usage: trireme -i DECK"
run 0 "${without_mpi[@]}" --version
says "Trireme "
run 0 "${without_mpi[@]}" --help-deck
says "sequence_length"
says "[monitor]"
run 0 "${without_mpi[@]}" --help-deck checkpoint
says "every_minutes"
run 0 "${without_mpi[@]}" --help-deck model.dim
[[ $(grep -c ' = ' output) == 1 ]] || fail "--help-deck of one key shows others"
# What standard output cannot take is no answer.
for question in --help --version --help-deck "-i deck.in -n" "-i deck.in -v grid.ranks=2"; do
  code=0
  # shellcheck disable=SC2086
  "$TRIREME" $question >/dev/full 2>output || code=$?
  [[ $code == 1 ]] || fail "$question: exit code $code with standard output on a full disk"
  says_once "error: standard output: No space left on device"
done
# A plan warns as the run would.
run 0 "$TRIREME" -i deck.in -v grid.ranks=9 data.batch=6
says_once "warning: 9 data ranks share data.batch = 6: 3 of them have nothing to do"
run 2 "$TRIREME" deck.in
says "A deck goes after -i"
run 2 "$TRIREME" --help-deck chekpoint
says "checkpoint"
run 0 "${without_mpi[@]}" -i deck.in -n data.batch=4
grep -q '^batch *= *4' output || fail "the command line's value is not in the resolved deck"

# A typo in the deck: its line and the nearest name, from one rank of several.
sed 's/^every_steps = 1$/evry_steps = 1/' deck.in >typo.in
line=$(grep -n evry_steps typo.in | cut -d : -f 1)
run 2 "${mpi[@]}" 2 "$TRIREME" -i typo.in
says_once "typo.in:$line"
says "monitor.every_steps"
run 2 "$TRIREME" -i typo.in -n
says "typo.in:$line"

run 2 "$TRIREME"
says "--help"
run 2 "$TRIREME" -i missing.in
says "missing.in"
run 2 "$TRIREME" -i deck.in --resume run
says "--resume"
run 2 "$TRIREME" -i deck.in data.batch=none
says "data.batch"
says "command line"

# Files: missing, and not HDF5.
run 2 "$TRIREME" -i deck.in data.file=missing.h5
says "missing.h5"
head -c 100000 /dev/zero >zero.h5
run 2 "${mpi[@]}" 2 "$TRIREME" -i deck.in data.file=zero.h5
says_once "zero.h5"

# A grid that the ranks do not fill.
run 2 "${mpi[@]}" 2 "$TRIREME" -i deck.in grid.data=3
says "grid.data"

is_missing run
