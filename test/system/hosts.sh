# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # shared with the tests that source this file
# Two hosts with names and networks of their own (namespaces of Linux, joined by one cable). Sourced after common.sh,
# by root's tests: make_hosts, then `run 0 "$scratch/on" "$one" "${hosts[@]}" PROGRAM ...`; remove_hosts at the end. Open
# MPI's alone: MPICH starts ranks on other hosts by ssh.
one=triremea$$ two=triremeb$$
cable=trireme0

# make_hosts SLOTS [COMMAND ...]: sets hosts, the launcher that starts SLOTS ranks on each host from the first one; COMMAND runs
# what the launcher starts on the second. False, with the reason in ./output, where there are no such namespaces.
make_hosts() {
  local slots=$1 host number=0
  shift
  [[ $(mpi_family "$launcher") == open_mpi ]] || { echo "the agent is Open MPI's" >output; return 1; }
  { ip netns add "$one" && ip netns add "$two" &&
    ip link add $cable netns "$one" type veth peer name $cable netns "$two" &&
    ip netns exec "$one" true; } 2>output || return 1  # the last fails where / is no mount point (chroot)
  for host in "$one" "$two"; do
    number=$((number + 1))
    ip -n "$host" addr add "10.77.0.$number/24" dev $cable
    ip -n "$host" link set $cable up
    ip -n "$host" link set lo up
  done
  # on HOST COMMAND...: with the host's network and name.
  cat >on <<'ON'
#!/usr/bin/env bash
name=$1
shift
exec ip netns exec "$name" unshare --uts bash -c 'hostname "$0" && exec "$@"' "$name" "$@"
ON
  # Called by Open MPI instead of ssh: agent ADDRESS COMMAND.
  cat >agent <<AGENT
#!/usr/bin/env bash
shift
exec "$scratch/on" $two $* bash -c "\$*"
AGENT
  chmod +x on agent
  hosts=("$launcher" --oversubscribe --bind-to none --host "$one:$slots,10.77.0.2:$slots"
    --mca plm_rsh_agent "$scratch/agent" --mca oob_tcp_if_include "$cable" --mca btl_tcp_if_include "$cable"
    --mca btl "tcp,vader,self" -n $((2 * slots)))
}

# With the processes on them, even if there are none.
remove_hosts() {
  local host
  for host in "$one" "$two"; do
    # shellcheck disable=SC2046  # one word a process
    kill -KILL $(ip netns pids "$host" 2>/dev/null) 2>/dev/null || true
    ip netns del "$host" 2>/dev/null || true
  done
}
