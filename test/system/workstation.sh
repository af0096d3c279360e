#!/usr/bin/env bash
# The folder that jobscripts/workstation.sh trains in: a run that was stopped or killed is continued
# there, whatever it had written; beside a finished one, or one of another deck, a new one is begun.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=jobscripts/run_folder.sh
source "$TRIREME_SOURCE/jobscripts/run_folder.sh"
tiny_deck
tokens
# shellcheck disable=SC2034  # of run_folder.sh
trireme=$TRIREME deck=deck.in overrides=(monitor.sample_tokens=0)

# chooses FOLDER [-r FOLDER]
chooses() {
  choose_run_folder >chosen
  # shellcheck disable=SC2154  # set by choose_run_folder
  [[ "$run ${resume[*]}" == "$1 ${*:2}" ]] || fail "$run ${resume[*]} was chosen instead of $*"
}
trains() { run "$1" "$TRIREME" -i deck.in "${resume[@]}" "${overrides[@]}" "job.output=$run" "${@:2}"; }

chooses run
# Ended before its first checkpoint.
trains 2 model.heads=3
is_missing run
trains 3 schedule.walltime_minutes=1e-9
sed -i 's/^walltime_minutes .*/walltime_minutes = 0/' run/deck.in
rm -r run/checkpoints run/metrics.jsonl
for name in "" checkpoints checkpoints/step_00000005.tmp; do
  mkdir -p "run/$name"
  chooses run -r run
done
trains 3 schedule.walltime_minutes=1e-9
sed -i 's/^walltime_minutes .*/walltime_minutes = 0/' run/deck.in
# Killed after the checkpoint was published, before the link.
rm run/checkpoints/latest
chooses run -r run
trains 0
chooses run-2
overrides+=(schedule.steps=30)
chooses run-2
trains 3 schedule.walltime_minutes=1e-9
chooses run-3

# A folder named on the script's command line: the run is there, and the program gets the key once.
# shellcheck source=jobscripts/prepared_deck.sh
source "$TRIREME_SOURCE/jobscripts/prepared_deck.sh"
take_arguments script "$PWD" deck.in job.output=elsewhere monitor.sample_tokens=0
[[ "${overrides[*]}" == monitor.sample_tokens=0 ]] || fail "overrides are ${overrides[*]}"
chooses elsewhere
trains 3 schedule.walltime_minutes=1e-9
sed -i 's/^walltime_minutes .*/walltime_minutes = 0/' elsewhere/deck.in
chooses elsewhere -r elsewhere
trains 0
chooses elsewhere-2

# The token file of a deck of one's own: made if its section [tokenize] says how, else the command is shown.
mkdir -p build
overrides=(data.file=own.h5)
code=0
make_tokens >output 2>&1 || code=$?
[[ $code == 2 ]] || fail "exit code $code without a way to make the token file"
says "job.task=tokenize tokenize.kind=sentencepiece tokenize.vocabulary_size=8000 tokenize.train=TEXTS"
is_missing own.h5
printf '\n[tokenize]\nkind = harbour\nharbour_tokens = 60000\n' >>deck.in
make_tokens >output 2>&1 || fail "the token file is not made"
exists own.h5
