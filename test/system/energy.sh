#!/usr/bin/env bash
# Energy of a run by counters of RAPL in a tree of the test's own, mounted over the system's: on one host, on two
# (namespaces of Linux), with counters that vanish, and where there are none.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tiny_deck
tokens
keys=(checkpoint.every_steps=0 monitor.validate_every_steps=0 monitor.sample_tokens=0)

# Without counters the reason is said, and no record has an energy.
if [[ ! -e /sys/class/powercap && ! -e /sys/cray ]]; then
  run 0 "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" schedule.steps=20
  says_once "energy  not available: CPUs: /sys/class/powercap: no counters of RAPL"
  ! grep -q joules run/metrics.jsonl || fail "joules from nowhere"
  grep -q '"energy": *{ *"not_available": *"CPUs: ' <(tr -d '\n' <run/summary.json) || fail "summary.json lacks the reason"
  rm -rf run
fi

[[ $(id -u) == 0 ]] || skip "only root mounts"
unshare --mount true 2>output || skip "no namespaces here: $(cat output)"

# counters FOLDER WATTS: packages of WATTS and WATTS / 2, memory of WATTS / 10, parts and doubles of these that must not
# be added; they count until the folder has a file `stop`, and are gone after `vanish`.
counters() {
  "$python" - "$@" <<'PYTHON' &
import os, pathlib, shutil, sys, time
folder, watts = pathlib.Path(sys.argv[1]), float(sys.argv[2])
zones = {"intel-rapl:0": ("package-0", 1), "intel-rapl:0:0": ("core", 0.7), "intel-rapl:0:1": ("dram", 0.1),
         "intel-rapl:1": ("package-1", 0.5), "intel-rapl:2": ("psys", 3), "intel-rapl-mmio:0": ("package-0", 1)}
WRAPS = 20000.0  # joules
def put(path, text):
    new = path.with_name("new")
    new.write_text(text)
    new.rename(path)
tree = folder / "powercap"
for zone, (name, _) in zones.items():
    (tree / zone).mkdir(parents=True)
    (tree / zone / "name").write_text(name + "\n")
    (tree / zone / "max_energy_range_uj").write_text(f"{WRAPS * 1e6:.0f}\n")
start = time.monotonic() - 0.99 * WRAPS / watts  # wraps around soon
while not (folder / "stop").exists():
    if (folder / "vanish").exists() and tree.exists():
        shutil.rmtree(tree)
    for zone, (_, share) in zones.items():
        if tree.exists():
            put(tree / zone / "energy_uj", f"{watts * share * (time.monotonic() - start) % WRAPS * 1e6:.0f}\n")
    time.sleep(0.003)
PYTHON
  writers+=($!)
  until [[ -e $1/powercap/intel-rapl-mmio:0/energy_uj ]]; do sleep 0.05; done
}
writers=()
leave() {
  local each
  touch "$scratch"/{first,second}/stop 2>/dev/null || true
  remove_hosts
  for each in "${writers[@]}"; do wait "$each" 2>/dev/null || true; done
  rm -rf "$scratch"
}
mkdir first second
counters first 400
counters second 800

# with FOLDER COMMAND...: COMMAND sees the tree of FOLDER in the place of the system's.
cat >with <<'WITH'
#!/usr/bin/env bash
tree=$1
shift
exec unshare --mount bash -c 'mount -t tmpfs none /sys/class && ln -s "$0/powercap" /sys/class/powercap && exec "$@"' "$tree" "$@"
WITH
chmod +x with

# near FOLDER WATTS NODES: the records and the summary of FOLDER tell of so many watts a node.
near() {
  "$python" - "$@" <<'PYTHON'
import json, sys
folder, watts, nodes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
records = [json.loads(line) for line in open(folder + "/metrics.jsonl", encoding="utf-8")]
intervals = [r for r in records if r["kind"] == "interval" and r["steps"] > 1]
done = [r for r in records if r["kind"] == "done"][0]
energy = json.load(open(folder + "/summary.json", encoding="utf-8"))["energy"]
def check(what, value, wanted, tolerance=0.1):
    if not abs(value - wanted) <= tolerance * wanted:
        sys.exit(f"FAILED: {what}: {value} instead of {wanted}: {energy}")
for record in intervals + [done, energy]:
    check("watts", record["watts_per_node"], watts)
seconds = energy["seconds"]
check("joules", energy["joules"], watts * nodes * seconds)
tokens = done["tokens"]
check("joules per token", energy["joules_per_token"], energy["joules"] / tokens, 1e-6)
check("sum of the intervals", sum(r["joules"] for r in records if r["kind"] == "interval" and "joules" in r), energy["joules"], 0.3)
check("nodes", energy["nodes"], nodes, 0)
if energy["covers"] != "CPU packages, memory" or energy["seconds_lost"] != 0 or len(intervals) != 3:
    sys.exit(f"FAILED: {energy} of {len(intervals)} intervals")
print(f"{folder}: {energy['watts_per_node']:.1f} W per node instead of {watts:.1f}, {energy['joules']:.1f} J in {seconds:.1f} s")
PYTHON
}

run 0 ./with "$scratch/first" "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" schedule.steps=1500 monitor.every_steps=500 job.output=alone
says_once "energy  "
says "J of CPU packages, memory, "
near alone 640 1

# Counters that vanish, and rubbish in their place, end no run.
{
  until grep -qs '^ *500 ' lost/log.txt; do sleep 0.05; done
  touch second/vanish
} &
run 0 ./with "$scratch/second" "${mpi[@]}" 2 "$TRIREME" -i deck.in "${keys[@]}" schedule.steps=3000 monitor.every_steps=500 \
  job.output=lost
says_once "; no readings for "
"$python" - <<'PYTHON'
import json, sys
energy = json.load(open("lost/summary.json", encoding="utf-8"))["energy"]
if not energy["seconds_lost"] > 0.5 or not 1000 < energy["watts_per_node"] < 1500:
    sys.exit(f"FAILED: {energy}")
PYTHON
rm second/vanish
touch second/stop
wait "${writers[1]}"
rm -r second
mkdir second
counters second 800

# Two hosts, each with counters of its own.
make_hosts 2 "$scratch/with" "$scratch/second" || {
  echo "one host alone: no network namespaces here: $(cat output)"
  exit 0
}
run 0 "$scratch/on" "$one" "$scratch/with" "$scratch/first" "${hosts[@]}" "$TRIREME" -i deck.in "${keys[@]}" \
  schedule.steps=900 monitor.every_steps=300 job.output=pair
near pair 960 2
