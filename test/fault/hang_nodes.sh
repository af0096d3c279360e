#!/usr/bin/env bash
# Watchdogs of two nodes meet through their files: one verdict, from the lowest node that lives; a node
# that says nothing is named.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$(dirname "${BASH_SOURCE[0]}")/background.sh"
: "${TRIREME_HANG_NODES:?the program}"

run 1 "${mpi[@]}" 4 "$TRIREME_HANG_NODES" "$scratch" late
says_once "trireme: error: "
says "rank 3 on second has not entered barrier 2 of group world in step 7"
says "ranks 0-2 wait for it"
exists hang/session/node_0.json
exists hang/session/node_1.json
exists hang/session/verdict.txt
grep -q pause hang/session/node_1.json || fail "rank 3's stack does not say where it waits"
rm -r hang

start=$SECONDS
run 1 "${mpi[@]}" 4 "$TRIREME_HANG_NODES" "$scratch" silent
((SECONDS - start <= 11)) || fail "it took $((SECONDS - start)) s"
says_once "trireme: error: "
says "second (ranks 2, 3) says nothing"
exists hang/session/node_0.json
rm -r hang

# Suspended as a whole for longer than the bound, without progress just before and after.
begins "${mpi[@]}" 4 "$TRIREME_HANG_NODES" "$scratch" suspended
for rank in 0 1 2 3; do
  until [[ -e ready_$rank ]]; do pause 0.02; done
done
pause 0.6
# shellcheck disable=SC2046  # one word a process
kill -STOP $(pgrep -P "$job")
pause 4
# shellcheck disable=SC2046
kill -CONT $(pgrep -P "$job")
ends 0
is_missing hang
