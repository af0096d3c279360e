#!/usr/bin/env bash
# data.staging = node: the bits of every other staging on 1, 2 and 4 ranks, on one host and on two (namespaces of
# Linux), with mixtures and validation sets, after a resume that changes the staging; a folder without room is refused;
# nothing is left after the end, SIGTERM and SIGKILL.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
leave() {
  cd /
  remove_hosts
  umount "$scratch/disk" 2>/dev/null || umount -l "$scratch/disk" 2>/dev/null || true
  rm -rf "$scratch"
}
tiny_deck
tokens
run 0 "$TRIREME" -i deck.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=1500 tokenize.harbour_seed=2 \
  data.file=other.h5
mkdir node
keys=(monitor.sample_tokens=0 monitor.report=no)
all_losses() { losses "$1/metrics.jsonl" step && losses "$1/metrics.jsonl" valid && losses "$1/metrics.jsonl" test; }
same() { diff <(all_losses "$1") <(all_losses "$2") >difference || fail "$2 has other losses than $1: $(head -n 4 difference)"; }
is_empty() { [[ -z $(ls -A "$1") ]] || fail "$1 holds $(ls -A "$1")"; }

# train RANKS RUN KEYS...: one line about the copies, which leave no name.
train() { run 0 "${mpi[@]}" "$1" "$TRIREME" -i deck.in "${keys[@]}" job.output="$2" "${@:3}"; }
for ranks in 1 2 4; do
  layout=(grid.data=$((ranks < 2 ? 1 : 2)) grid.tensor=$((ranks < 4 ? 1 : 2)))
  train $ranks node_$ranks "${layout[@]}" data.staging=node data.staging_path=node
  says_once "staged  "
  says " of 1 file, read once, to node of 1 node in "
  is_empty node
  for staging in none shared_memory stream; do
    [[ $ranks == 2 || $staging == shared_memory ]] || continue
    train $ranks ${staging}_$ranks "${layout[@]}" data.staging=$staging
    ! grep -q "^staged" output || fail "a line about copies with data.staging = $staging"
    same ${staging}_$ranks node_$ranks
  done
done
"$python" - <<'PYTHON'
import json, os, sys
staging = json.load(open("node_2/summary.json", encoding="utf-8"))["staging"]
seconds = staging.pop("seconds")
if not seconds > 0 or staging.pop("bytes") < 2 * 2400 or staging != {"folder": "node", "files": 1, "nodes": 1}:
    sys.exit(f"FAILED: {staging}")
if "staging" in json.load(open("stream_2/summary.json", encoding="utf-8")):
    sys.exit("FAILED: staging without copies")
PYTHON

# Several files, and memory for them where the folder takes it: /dev/shm by default.
sets=(data.mixture=harbour.h5:0.7,other.h5:0.3 "data.validation=a:harbour.h5,b:other.h5")
unset TMPDIR
train 2 mixed "${sets[@]}" data.staging=stream
train 2 mixed_node "${sets[@]}" data.staging=node
says " of 4 files, read once, to /dev/shm of 1 node in "
says ", in memory"
same mixed mixed_node
run 0 "${mpi[@]}" 2 "$TRIREME" -r node_2 job.task=evaluate evaluate.baselines=yes data.staging=node data.staging_path=node
says_once "staged  "
cp output staged
run 0 "${mpi[@]}" 2 "$TRIREME" -r node_2 job.task=evaluate evaluate.baselines=yes data.staging=stream
diff <(grep -o 'loss .*tokens' output) <(grep -o 'loss .*tokens' staged) >difference || fail "evaluate differs: $(cat difference)"

# A run goes on with another staging.
train 2 first grid.data=2 data.staging=node data.staging_path=node schedule.stop_at=7
train 2 first grid.data=2 -r first data.staging=shared_memory schedule.stop_at=14
train 2 first grid.data=2 -r first data.staging=node data.staging_path=node
says "staged  "
diff <(losses node_2/metrics.jsonl step) <(losses first/metrics.jsonl step) >difference || fail "a resumed run has other losses"

# Refused before anything is written.
refused() {
  run 2 "${mpi[@]}" 2 "$TRIREME" -i deck.in data.staging=node job.output=refused "${@:2}"
  says_once "error"
  says "$1"
  is_missing refused
}
refused "missing: No such file or directory" data.staging_path=missing
refused "harbour.h5: Not a directory" data.staging_path=harbour.h5
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in -v data.staging=node data.staging_path=node
says "staged  "
is_empty node

[[ $(id -u) == 0 ]] || skip "all but full folders, signals and two hosts was tested: only root mounts"
mkdir disk
mount -t tmpfs -o size=1m tmpfs disk 2>/dev/null || skip "tmpfs cannot be mounted here"
used() { df --output=used disk | tail -n 1; }
before=$(used)
dd if=/dev/zero of=disk/filler bs=4k count=250 status=none
refused "disk: " data.staging_path=disk
says " MiB are free"
rm disk/filler
touch disk/trireme_tokens_killed # 6 letters, empty, held by nobody: left by a job that was killed
# ends SIGNAL: all ranks, in the middle of the steps; the kernel frees the copies.
ends() {
  local job
  rm -rf ended
  "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" data.staging=node data.staging_path=disk job.output=ended grid.data=2 \
    schedule.steps=1000000 monitor.validate_every_steps=0 checkpoint.every_steps=0 >output 2>&1 </dev/null &
  job=$!
  for _ in $(seq 400); do
    ! grep -q '"kind":"step"' ended/metrics.jsonl 2>/dev/null || break
    sleep 0.05
  done
  is_empty disk
  [[ $(used) -gt $before ]] || fail "the copies take no space in their folder"
  # shellcheck disable=SC2046  # one word a process
  if [[ $1 == KILL ]]; then kill -KILL $(ranks_of $job); else kill "-$1" $job; fi
  wait $job || true
  is_empty disk
  for _ in $(seq 100); do
    [[ $(used) != "$before" ]] || return 0
    sleep 0.05
  done
  fail "$(used) KiB are left after SIG$1, $before before it"
}
for signal in TERM KILL; do ends $signal; done

# Two hosts with names and networks of their own: a copy each, read by both in parts.
make_hosts 2 || {
  echo "one host alone: no network namespaces here: $(cat output)"
  exit 0
}
run 0 "$scratch/on" "$one" "${hosts[@]}" "$TRIREME" -i deck.in "${keys[@]}" grid.data=2 grid.tensor=2 \
  data.staging=node data.staging_path="$scratch/node" job.output=pair
says " to $scratch/node of 2 nodes in "
same shared_memory_4 pair
is_empty node
