#!/usr/bin/env bash
# Local checkpoints with hosts on this machine (a name and a mount of its own for each group of ranks): the job is killed,
# a node's folder is gone, and the run goes on from its partner's copies and ends in the bytes of a run that lost nothing.
# The run folder survives where local checkpoints do not, with one line.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../system/common.sh"
# shellcheck source=test/fault/background.sh
source "$(dirname "${BASH_SOURCE[0]}")/background.sh"
: "${TRIREME_FAIL_CALLS:?the library}"
[[ $(id -u) == 0 ]] || skip "only root gives hosts folders of their own"
unshare --uts --mount true 2>output || skip "no namespaces here: $(cat output)"
leave_mounts() {
  ! mountpoint -q "$scratch/node_b" || umount -l "$scratch/node_b" || true
  background_leave
}
trap leave_mounts EXIT
tiny_deck
tokens
mkdir local
# on HOST COMMAND...: under that name, with its own folder as the local one. With HOLD, files of that local checkpoint
# open a minute late.
cat >on <<ON
#!/usr/bin/env bash
host=\$1
shift
[[ -z \${HOLD:-} ]] || export LD_PRELOAD=$TRIREME_FAIL_CALLS\${LD_PRELOAD:+:\$LD_PRELOAD} TRIREME_FAULT_CALL=open TRIREME_FAULT_PATH=\$HOLD TRIREME_FAULT_NTH=0 TRIREME_FAULT_DELAY=60000
exec unshare --uts --mount bash -c 'hostname "\$0" && mount --bind "$scratch/node_\$0" "$scratch/local" && exec "\$@"' "\$host" "\$@"
ON
chmod +x on
run 2 "$TRIREME" -i deck.in -n checkpoint.local=local
says "'local' is not an absolute path"
run 2 "$TRIREME" -i deck.in -n checkpoint.local=/tmp checkpoint.drain_every=3 checkpoint.auto=yes run.mtbf_hours=9
says "checkpoint.auto = yes chooses the interval"
keys=(schedule.steps=22 checkpoint.every_steps=4 checkpoint.drain_every=2 checkpoint.keep=0 monitor.validate_every_steps=0
  monitor.sample_tokens=0 monitor.every_steps=5 "checkpoint.local=$scratch/local")
# job RANKS "HOST..." ARGUMENTS...: so many ranks on each of these hosts.
job() {
  local host hosts
  read -ra hosts <<<"$2"
  command=("${launch[@]}")
  for host in "${hosts[@]}"; do
    mkdir -p "node_$host"
    command+=(-n "$1" ./on "$host" "$TRIREME" "${@:3}" :)
  done
  unset 'command[-1]'
}
# steps RUN EVENT: of these events.
steps() {
  "$python" - "$@" <<'PYTHON'
import json, sys
print(*[r["step"] for r in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")) if r.get("event") == sys.argv[2]])
PYTHON
}
# dies RANKS HOSTS KEYS...: a calm run; and one that is killed while it writes the local checkpoint of step 16, after that
# of step 12, while the run folder's last one is of step 8.
dies() {
  rm -rf run calm node_* saved
  job "$1" "$2" -i deck.in "${keys[@]}" "${@:3}" job.output=calm
  run 0 "${command[@]}"
  [[ -z $(find node_* -type f) ]] || fail "left on the nodes after the end: $(find node_* -type f)"
  job "$1" "$2" -i deck.in "${keys[@]}" "${@:3}"
  HOLD=/00000016. begins "${command[@]}"
  awaits run/metrics.jsonl '"event":"local checkpoint"' 3
  until [[ -n $(find node_* -name '00000012.*.part') ]]; do pause 0.02; done
  killed
  [[ $(readlink run/checkpoints/latest) == step_00000008 ]] || fail "the run folder's last is $(readlink run/checkpoints/latest)"
}
says_resumed() {
  says "resumed from the local checkpoint on the hosts, "
  says " of it from other hosts, at step 12"
}

# 1. Four hosts, sharded moments: weights are on all of them, moments on one and its partner.
four=(1 "a b c d") sharded=(grid.sharding=optimizer)
dies "${four[@]}" "${sharded[@]}"
[[ $(steps calm "local checkpoint") == "4 8 12 16 20 22" ]] || fail "local: $(steps calm "local checkpoint")"
[[ $(steps calm checkpoint) == "4 8 16 22" ]] || fail "run folder: $(steps calm checkpoint)"
[[ -z $(diff <(cd node_a/* && ls) - <<<"$(printf '%s\n' 000000{08,12}.{0.part,3.copy})") ]] || fail "node a has $(ls node_a/*)"
mkdir saved
cp -a run node_* saved
again() {
  rm -rf run node_*
  cp -a saved/* .
}
rm -r node_b
job "${four[@]}" -r run "${keys[@]}" "${sharded[@]}"
run 0 "${command[@]}"
says_resumed
[[ $(steps run "local checkpoint") == "4 8 12 16 20 22" ]] || fail "events: $(steps run "local checkpoint")"
same_end calm run step

# The nodes in another order, and a damaged part: its copy serves. Without a batch system the new first host cannot tell
# whether the job still runs.
again
rm run/run.lock
printf 'damage' | dd of="$(echo node_c/*/00000012.2.part)" bs=1 seek=2000 conv=notrunc status=none
job 1 "d a b c" -r run "${keys[@]}" "${sharded[@]}"
run 0 "${command[@]}"
says "passed over local files, which others replace: one file is damaged: $scratch/local/trireme-"
says_resumed
same_end calm run step

# An average that begins now begins with the weights.
again
job "${four[@]}" -r run "${keys[@]}" "${sharded[@]}" optimizer.average=0.9
run 0 "${command[@]}"
says "at step 12"
! grep -q "passed over the local" output || fail "the local checkpoint is not read"

# Two neighbours, all nodes, another layout: the run folder's, and nothing is changed.
again
rm -r node_b node_c
job "${four[@]}" -v -r run "${keys[@]}" "${sharded[@]}"
run 0 "${command[@]}"
says_once "passed over the local checkpoint of step 12: the part of rank 1 is on none of these hosts; the run folder's of step 8 is taken, 4 steps are lost"
rm -r node_a node_d
job "${four[@]}" -v -r run "${keys[@]}" "${sharded[@]}"
run 0 "${command[@]}"
says_once "passed over the local checkpoint of step 12: it is on none of these hosts; the run folder's of step 8 is taken, 4 steps are lost"
again
job "${four[@]}" -r run "${keys[@]}" grid.tensor=2
run 0 "${command[@]}"
says "another layout, which held other pieces of the state (grid pipeline 1 x data 2 x context 1 x tensor 2 after"
says "the run folder's of step 8 is taken, 4 steps are lost"
says "resumed from run/checkpoints/step_00000008 at step 8"

# A node whose disk is full: said once, and all checkpoints go to the run folder.
rm -rf run node_b
mkdir node_b
mount -t tmpfs -o size=48k tmpfs node_b
job "${four[@]}" -i deck.in "${keys[@]}" "${sharded[@]}"
run 0 "${command[@]}"
says_once "warning: checkpoint.local: $scratch/local on b has 0.0 MiB free, and local checkpoints need "
says_once "warning: the local checkpoint of step 4 was not written: "
says "No space left on device"
[[ $(grep -c 'was not written' output) == 1 ]] || fail "said again"
[[ $(steps run checkpoint) == "4 8 12 16 20 22" ]] || fail "run folder: $(steps run checkpoint)"
same_end calm run step
umount node_b

# 2. Tensor parallel within hosts, its replicas across; stages on hosts of their own.
for layout in "grid.tensor=2" "grid.pipeline=2 grid.sharding=gradients"; do
  read -ra keys_of_it <<<"$layout"
  dies 2 "a b" "${keys_of_it[@]}"
  rm -r node_a
  job 2 "a b" -r run "${keys[@]}" "${keys_of_it[@]}"
  run 0 "${command[@]}"
  says_resumed
  same_end calm run step
done

# 3. One host alone, whose run folder refuses the last checkpoint: the local one is completed by the next session.
alone() { "$TRIREME" "$@" "${keys[@]}" checkpoint.max_failures=1; }
rm -rf run calm
run 0 alone -i deck.in job.output=calm
says "there is one host alone: no partner keeps a copy"
LD_PRELOAD=$TRIREME_FAIL_CALLS TRIREME_FAULT_CALL=open TRIREME_FAULT_PATH=step_00000022.tmp TRIREME_FAULT_NTH=1 \
  TRIREME_FAULT_ERRNO=28 run 1 alone -i deck.in
[[ $(readlink run/checkpoints/latest) == step_00000016 ]] || fail "the run folder's last is $(readlink run/checkpoints/latest)"
run 0 alone -r run
says "at step 22"
same_end calm run step
[[ -z $(find local -type f) ]] || fail "left: $(find local -type f)"
