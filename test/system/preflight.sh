#!/usr/bin/env bash
# Preflight: the task, and the look at every start: what is refused, what is warned of, once for all ranks; two hosts
# (namespaces of Linux), one of them slow.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
: "${TRIREME_FAKE_FACTS:?the library}"
tiny_deck
tokens
keys=(checkpoint.every_steps=0 monitor.validate_every_steps=0 monitor.sample_tokens=0 schedule.steps=2)

# warned FOLDER KIND...: the start's warnings in summary.json, their seconds, and an event for each.
warned() {
  "$python" - "$@" <<'PYTHON' || fail "$1: not the warnings that were expected"
import json, sys
folder, kinds = sys.argv[1], sys.argv[2:]
preflight = json.load(open(folder + "/summary.json", encoding="utf-8"))["preflight"]
events = [r for r in map(json.loads, open(folder + "/metrics.jsonl", encoding="utf-8")) if r.get("event") == "preflight"]
assert [w["kind"] for w in preflight["warnings"]] == kinds, preflight
assert len(events) == len(kinds), events
assert 0 < preflight["seconds"] < 0.3, preflight
assert preflight["facts"]["MPI"] and preflight["facts"]["built for"], preflight
PYTHON
}

# All is well: nothing is said.
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" job.output=well
! grep -q "preflight" output || fail "something is said of a start that is well"
warned well

# Other programs or decks on some ranks are refused, with the host, and nothing is written.
cp deck.in other.in
run 2 "${mpi[@]}" 1 "$TRIREME" -i deck.in job.output=refused : -n 1 "$TRIREME" -i other.in job.output=refused
says "another program or command line than rank 0's on $(hostname)"
is_missing refused
cp "$TRIREME" other
echo >>other
run 2 "${mpi[@]}" 1 "$TRIREME" -i deck.in job.output=refused : -n 2 ./other -i deck.in job.output=refused
says_once "another program or command line than rank 0's on $(hostname)"
says "(on ranks 1, 2 of 3)"
is_missing refused
rm other

# A network file system; a clock that is ahead.
run 0 env TRIREME_FAKE_FILE_SYSTEM=0x6969 "${mpi[@]}" 2 "${preloaded[@]}" "$TRIREME_FAKE_FACTS" "$TRIREME" -i deck.in \
  "${keys[@]}" job.output=nfs
says_once "warning: preflight: the run folder nfs lies on NFS"
warned nfs files
faketime=$(find /usr/lib -name libfaketime.so.1 2>/dev/null | head -n 1)
if [[ -n $faketime ]]; then
  run 0 "${mpi[@]}" 1 "$TRIREME" -i deck.in "${keys[@]}" job.output=ahead : \
    -n 1 env DONT_FAKE_MONOTONIC=1 FAKETIME=+300s "${preloaded[@]}" "$faketime" "$TRIREME" -i deck.in "${keys[@]}" job.output=ahead
  says_once "warning: preflight: clocks differ: that of $(hostname) (rank 1) is at least"
  warned ahead clock
else
  echo "clocks: skipped without libfaketime"
fi

# The task; its folder stays free for a run.
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.task=preflight -v
says "valid: nothing was measured or written"
is_missing run
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in job.task=preflight
says "matrix product, a rank"
says "report        run/preflight.json"
"$python" - <<'PYTHON' || fail "preflight.json"
import json
report = json.load(open("run/preflight.json", encoding="utf-8"))
assert report["format"] == 1 and report["unit"] == "rank" and len(report["units"]) == 2, report
assert all(report["median"][name] > 0 for name in ("product", "memory", "pairs", "together", "all_reduce")), report
assert all(unit["wrong_products"] == 0 for unit in report["units"]), report
PYTHON
run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}"

# A processor that lacks what the program was built for: a message, no illegal instruction.
if command -v qemu-x86_64 >/dev/null && ! grep -q __asan_init "$TRIREME" && ! grep -q __tsan_init "$TRIREME"; then
  run 2 qemu-x86_64 -cpu Nehalem "$TRIREME" --version
  says "trireme: error: the processor of $(hostname) lacks AVX, AVX2"
else
  echo "processors: skipped without qemu-user"
fi

# Two hosts: one has InfiniBand, which MPI does not use, and is slow.
[[ $(id -u) == 0 ]] || { echo "two hosts: only root mounts"; exit 0; }
leave() {
  remove_hosts
  rm -rf "$scratch"
}
{ unshare --mount true 2>output && make_hosts 1 "$scratch/wired"; } || {
  echo "two hosts: no namespaces here: $(cat output)"
  exit 0
}
mkdir -p sys/infiniband/mlx5_0/ports/1
echo "4: ACTIVE" >sys/infiniband/mlx5_0/ports/1/state
echo "InfiniBand" >sys/infiniband/mlx5_0/ports/1/link_layer
echo "200 Gb/sec (4X HDR)" >sys/infiniband/mlx5_0/ports/1/rate
# wired COMMAND...: with InfiniBand in its /sys/class.
cat >wired <<WIRED
#!/usr/bin/env bash
exec unshare --mount bash -c 'mount -t tmpfs none /sys/class && ln -s "$scratch/sys/infiniband" /sys/class/infiniband && exec "\$@"' bash "\$@"
WIRED
# Slow on the second host.
cat >ranks <<RANKS
#!/usr/bin/env bash
[[ \$(hostname) != $two ]] || export LD_PRELOAD=$TRIREME_FAKE_FACTS TRIREME_FAKE_SLOWNESS=4
exec "$TRIREME" "\$@"
RANKS
chmod +x wired ranks
run 0 "$scratch/on" "$one" "$scratch/wired" "${hosts[@]}" "$scratch/ranks" -i deck.in job.task=preflight job.output=pair
says "2 ranks on 2 hosts"
says "warning       MPI sends over TCP (pml ob1, btl self tcp"
says "), though there is InfiniBand: "
says "slow          $two (rank 1): matrix product, a rank"
says "slow          $two: memory"
"$python" - "$two" <<'PYTHON' || fail "slow nodes of preflight.json"
import json, sys
report = json.load(open("pair/preflight.json", encoding="utf-8"))
assert report["unit"] == "node" and report["hosts"] == 2, report
assert {s["host"] for s in report["slow"] if s["quantity"] in ("product", "memory")} == {sys.argv[1]}, report["slow"]
PYTHON
