# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # trireme, deck and overrides are set by the script that sources this
# Sourced by job scripts: the folder of a deck's run, and whether a run is to be continued there. Needs
# $trireme, $deck and the list overrides, without job.output, which is in $output.

# resolved KEY: a value of the deck as the program sees it.
resolved() {
  "$trireme" -i "$deck" -n "${overrides[@]}" | awk -v key="$1" '
    { sub(/#.*/, "") }
    /^[ \t]*\[/ { gsub(/[][ \t]/, ""); section = $0; next }
    index($0, "=") {
      name = $0; sub(/=.*/, "", name); gsub(/[ \t]/, "", name)
      value = $0; sub(/^[^=]*=/, "", value); gsub(/^[ \t]+|[ \t]+$/, "", value)
      if (section "." name == key) print value
    }'
}

is_same_deck() {  # run folder
  local strip='s/[ \t]*#.*//; /^$/d'
  cmp -s <("$trireme" -i "$deck" -n "${overrides[@]}" "job.output=$1" | sed "$strip") \
    <(sed "$strip" "$1/deck.in" 2>/dev/null)
}

# Sets run and resume: the run's own folder; a stopped run of the same deck is continued, with or
# without a checkpoint yet; beside any other a new one is begun.
choose_run_folder() {
  local base finished number=1
  base=${output:-$(resolved job.output)}
  [[ -n $base ]] || base=runs/$(resolved job.name)
  run=$base
  resume=()
  # A run that has begun has a deck.in.
  while [[ -e $run/deck.in ]]; do
    finished=no
    ! tail -n 1 "$run/metrics.jsonl" 2>/dev/null | grep -q '"kind":"done"' || finished=yes
    if [[ $finished == no ]] && is_same_deck "$run"; then
      echo "$run was stopped before its end: continuing it (-r $run)"
      resume=(-r "$run")
      break
    fi
    number=$((number + 1))
    run=$base-$number
  done
}
