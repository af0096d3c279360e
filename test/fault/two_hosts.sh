#!/usr/bin/env bash
# Two hosts with names, networks and processes of their own (namespaces of Linux, joined by one cable):
# the cable is cut in the middle of a step. Both sides end in time with one named error, nothing is left
# running, and the run goes on afterwards and ends as an undisturbed one does.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$(dirname "${BASH_SOURCE[0]}")/background.sh"
[[ $(id -u) == 0 ]] || skip "only root makes network namespaces"
one=triremea$$ two=triremeb$$
remove_hosts() {
  local host
  for host in "$one" "$two"; do
    # shellcheck disable=SC2046  # one word a process
    kill -KILL $(ip netns pids "$host" 2>/dev/null) 2>/dev/null || true
    ip netns del "$host" 2>/dev/null || true
  done
  background_leave
}
trap remove_hosts EXIT
{ ip netns add "$one" && ip netns add "$two" &&
  ip link add trireme0 netns "$one" type veth peer name trireme0 netns "$two"; } 2>output ||
  skip "no network namespaces here: $(cat output)"
number=0
for host in "$one" "$two"; do
  number=$((number + 1))
  ip -n "$host" addr add "10.77.0.$number/24" dev trireme0
  ip -n "$host" link set trireme0 up
  ip -n "$host" link set lo up
done
# on HOST COMMAND...: with the host's network and name.
cat >on <<'ON'
#!/usr/bin/env bash
name=$1
shift
exec ip netns exec "$name" unshare --uts bash -c 'hostname "$0" && exec "$@"' "$name" "$@"
ON
# What Open MPI calls instead of ssh: `agent ADDRESS COMMAND`.
cat >agent <<AGENT
#!/usr/bin/env bash
shift
exec $scratch/on $two bash -c "\$*"
AGENT
chmod +x on agent
hosts=("$scratch/on" "$one" "${TRIREME_MPIRUN:-mpirun}" --oversubscribe --bind-to none --host "$one:2,10.77.0.2:2" --mca plm_rsh_agent
  "$scratch/agent" --mca oob_tcp_if_include trireme0 --mca btl_tcp_if_include trireme0 --mca btl "tcp,vader,self" -n 4)
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
  ip -n "$two" link set trireme0 down
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
  ip -n "$two" link set trireme0 up
  run 0 "${hosts[@]}" "$TRIREME" -i deck.in -r run "${keys[@]}" "$@"
  same_end calm run step
}
cut_cable grid.data=2 grid.tensor=2
