#!/usr/bin/env bash
# Every deck that we ship is accepted, opens with what it reproduces, and says what its keys mean.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

for deck in "$TRIREME_SOURCE"/input/*.in; do
  run 0 "$TRIREME" -i "$deck" -n
  cp output resolved.in
  run 0 "$TRIREME" -i resolved.in -n
  diff <(sed 's/ *#.*//' resolved.in) <(sed 's/ *#.*//' output) >difference ||
    fail "$(basename "$deck"): the resolved deck does not resolve to itself: $(cat difference)"
  [[ $(head -c 2 "$deck") == "# " ]] || fail "$deck does not open with what it reproduces"
  grep -q 'Reproduces:\|Reference:' "$deck" || fail "$deck names no reference"
done

# Layouts that a deck states in comments ("#   64 GPUs: grid.tensor=2 ...") are planned, with the numbers of
# parameters that the deck names. Whether they fit into GPUs is plan_unit_test's.
stated=0
for deck in "$TRIREME_SOURCE"/input/llama3_*.in; do
  while read -r _ count _ keys; do
    # shellcheck disable=SC2086  # a list of keys
    run 0 "$TRIREME" -i "$deck" -v "grid.ranks=$count" run.device=cpu run.precision=fp32 $keys
    grep -q "^valid: planned" output || fail "$(basename "$deck") on $count: $(cat output)"
    stated=$((stated + 1))
  done < <(grep -E '^# +[0-9]+ GPUs: ' "$deck")
done
((stated >= 16)) || fail "only $stated layouts were found"
