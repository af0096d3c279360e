#!/usr/bin/env bash
# A rank stops exactly as it comes to a call of MPI, in a step or a checkpoint: it is named, whatever the call.
# hang_calls.sh [every]: each call of two steps and a checkpoint, stopped and killed, instead of one of a kind.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$(dirname "${BASH_SOURCE[0]}")/background.sh"
: "${TRIREME_STOP_AT_CALL:?the library}"
ranks=4 host=$(uname -n) every=${1:-}
tiny_deck
tokens
keys=(run.hang_timeout=1 schedule.steps=12 checkpoint.every_steps=2 monitor.sample_tokens=0 monitor.validate_every_steps=0)
layouts=("grid.data=2 grid.tensor=2" "grid.data=2 grid.pipeline=2" "grid.data=2 grid.context=2 grid.sharding=parameters")

# train RANK NTH SIGNAL KEYS...: nth call of the rank; 0: none, and all are listed in the file calls.
train() {
  local log=() code=0
  rm -rf run
  [[ $2 != 0 ]] || log=("TRIREME_STOP_LOG=$scratch/calls")
  timeout 60 env "TRIREME_STOP_RANK=$1" "TRIREME_STOP_NTH=$2" "TRIREME_STOP_SIGNAL=$3" "${log[@]}" \
    "${mpi[@]}" "$ranks" env "LD_PRELOAD=$TRIREME_STOP_AT_CALL" "$TRIREME" -i deck.in "${keys[@]}" "${@:4}" \
    >output 2>&1 </dev/null || code=$?
  echo "$code" >code
}
# named RANK NTH SIGNAL NAME KEYS...
named() {
  local rank=$1 what=stopped code
  train "$1" "$2" "$3" "${@:5}"
  code=$(cat code)
  [[ $3 == 19 ]] || what=gone
  echo "signal $3 of rank $rank at its call $2, $4 (${*:5}): $(grep -E '^  rank' output | head -n 1)"
  [[ $code != 0 && $code != 124 ]] || fail "exit code $code"
  [[ $what == gone || $code == 1 ]] || fail "exit code $code"
  says_once "trireme: error: "
  grep -qE "^  rank $rank on $host .*: it is $what" output || fail "rank $rank is not named"
  [[ $(grep -cE '^  rank [0-9]+ on ' output) == 1 ]] || fail "not one rank is named"
}

for i in "${!layouts[@]}"; do
  read -ra layout <<<"${layouts[i]}"
  rank=$(((i + 1) % ranks))
  rm -f calls
  train "$rank" 0 19 "${layout[@]}"
  [[ $(cat code) == 0 ]] || fail "exit code $(cat code)"
  # Twelve steps and six checkpoints between the set-up and the end: here are two steps and a checkpoint.
  all=$(wc -l <calls)
  declare -A seen=()
  for ((n = all * 6 / 10; n < all * 8 / 10; ++n)); do
    name=$(sed -n "${n}s/^[0-9]* //p" calls)
    [[ -n $every || -z ${seen[$name]:-} ]] || continue
    seen[$name]=yes
    named "$rank" "$n" 19 "$name" "${layout[@]}"
    [[ -z $every ]] || named "$rank" "$n" 9 "$name" "${layout[@]}"
  done
  unset seen
done

# In the set-up, before the run folder is this job's: the report goes there all the same, not into the current one.
found=
for n in 50 60 70 80 100; do
  train 1 $n 9 grid.data=2 grid.tensor=2
  is_missing hang
  [[ -e run/log.txt || ! -e run/hang ]] || found=yes
done
[[ -n $found ]] || fail "no report of a set-up"
