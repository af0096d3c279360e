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
