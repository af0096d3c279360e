#!/usr/bin/env bash
# Two hosts with names, networks and processes of their own (namespaces of Linux, joined by one cable):
# the cable is cut in the middle of a step. Both sides end in time with one named error, nothing is left
# running, and the run goes on afterwards and ends as an undisturbed one does.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$(dirname "${BASH_SOURCE[0]}")/background.sh"
[[ $(id -u) == 0 ]] || skip "only root makes network namespaces"
leave_hosts() {
  remove_hosts
  background_leave
}
trap leave_hosts EXIT
make_hosts 2 || skip "no network namespaces here: $(cat output)"
hosts=("$scratch/on" "$one" "${hosts[@]}")
tiny_deck
tokens
keys=(run.hang_timeout=2 schedule.steps=150 monitor.sample_tokens=0 monitor.every_steps=1 checkpoint.keep=3)

# Processes of the program on both hosts.
ranks() {
  local host each
  for host in "$one" "$two"; do
    for each in $(ip netns pids "$host"); do
      [[ $(cat "/proc/$each/comm" 2>/dev/null) != trireme ]] || echo "$each"
    done
  done
}
# cut KEYS...: ranks 0 and 1 on one host, 2 and 3 on the other.
cut_cable() {
  local began
  rm -rf run calm
  run 0 "${mpi[@]}" 4 "$TRIREME" -i deck.in "${keys[@]}" "$@" job.output=calm
  begins "${hosts[@]}" "$TRIREME" -i deck.in "${keys[@]}" "$@"
  awaits run/metrics.jsonl '"event":"checkpoint"' 2
  [[ $(ranks | wc -l) == 4 ]] || fail_with_log "not four ranks on two hosts"
  ip -n "$two" link set "$cable" down
  began=$SECONDS
  # The launcher may wait for its daemon behind the cut for ever; the ranks must not.
  while [[ -n $(ranks) ]]; do
    ((SECONDS - began < 14)) || fail_with_log "ranks are left after $((SECONDS - began)) s"
    pause 0.1
  done
  echo "$*: all ranks gone after $((SECONDS - began)) s"
  # shellcheck disable=SC2046  # one word a process
  kill -KILL $(ip netns pids "$one") $(ip netns pids "$two") 2>/dev/null || true
  wait "$job" || true
  job=
  cp log output
  says_once "trireme: error: "
  says "Nobody is missing: the network between $one and $two, MPI or a device holds the transfer up."
  exists run/hang/*/node_0.json
  exists run/hang/*/node_1.json
  ip -n "$two" link set "$cable" up
  run 0 "${hosts[@]}" "$TRIREME" -i deck.in -r run "${keys[@]}" "$@"
  same_end calm run step
}
cut_cable grid.data=2 grid.tensor=2
