#!/usr/bin/env bash
# Timelines of ranks with a GPU each, and of ranks that share one: the GPU's queue has the layers, transfers and waits come
# from its events, kernels from CUPTI (emulated: from test/common/stub_cupti.c) and why not if they are not told apart, all
# rules of trace_check.py hold, and no number changes.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=test/system/gpu_common.sh
source "$TRIREME_SOURCE/test/system/gpu_common.sh"
tiny_deck
tokens
model=(run.device=cuda model.layers=4 model.heads=4 model.dim=32 schedule.steps=10 monitor.validate_every_steps=0
  checkpoint.every_steps=100 monitor.sample_tokens=0)

# traced NAME RANKS THREADS KEY...: with a timeline; its threads are among others THREADS (with commas).
traced() {
  local name=$1 ranks=$2 threads=$3
  shift 3
  for attempt in 1 2 3; do
    rm -rf "$name"
    train "$name" "$ranks" "${model[@]}" monitor.trace_steps=6-9 "$@"
    says "clocks within"
    if "$python" "$TRIREME_SOURCE/test/python/trace_check.py" "$name" >check; then break; fi
    # Times of an emulated GPU are those of threads that share cores with other programs: sums, and they alone, may
    # fail twice.
    cat check
    if ((attempt == 3)) || grep -qvE '^step [0-9]+: ' check; then fail "$name: $(cat check)"; fi
  done
  "$python" - "$name" "$threads" <<'PYTHON' || fail "the timeline of $name lacks something"
import gzip, json, sys
trace = json.load(gzip.open(sys.argv[1] + "/trace.json.gz", "rt", encoding="utf-8"))
names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
missing = set(sys.argv[2].split(",")) - names
assert not missing, (missing, names)
gpu = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name" and e["args"]["name"] == "GPU"}
assert len({pid for pid, _ in gpu}) == len(trace["otherData"]["ranks_recorded"])
on_gpu = {e["name"] for e in trace["traceEvents"] if (e["pid"], e.get("tid")) in gpu and e["ph"] == "X"}
assert "update" in on_gpu, on_gpu
if sys.argv[1] != "graph":
    assert {"layer 1", "forward 0", "backward 0"} <= on_gpu, on_gpu
assert trace["otherData"]["gpu_clock_error_us"] > 0
told = trace["otherData"]["kernels"]
assert (told["count"] > 0) == ("why_not" not in told), told
PYTHON
}
# kernels NAME: what must be seen of its kernels, if they were told apart; emulated they are.
kernels() {
  "$python" - "$1" "${TRIREME_CUPTI:-}" <<'PYTHON' || fail "the kernels of $1 are not as they must be"
import collections, gzip, json, os, sys
sys.path.insert(0, os.environ["TRIREME_SOURCE"] + "/test/python")
import trace_check
name, emulated = sys.argv[1:]
trace = json.load(gzip.open(name + "/trace.json.gz", "rt", encoding="utf-8"))
told = trace["otherData"]["kernels"]
if not emulated and told["count"] == 0:
    print(f"kernels are not told apart here: {told['why_not']}")
    sys.exit(0)
kernels = [e for e in trace["traceEvents"] if e.get("cat") == "kernel"]
names = collections.Counter(e["name"] for e in kernels)
tasks = {e["args"].get("task") for e in kernels}
assert "CUPTI 1" in told["library"] and told["clock_error_us"] > 0 and not told["left_out"], told
assert not any(n.endswith(")") or "::" in n or n.startswith("_Z") or not n for n in names), names
assert {e["args"]["step"] for e in kernels} == {6, 7, 8, 9}, "steps"
assert {"update", "gradients" if name == "graph" else "layer"} <= tasks, tasks
of_graph = [e for e in kernels if e["args"].get("graph")]
assert bool(of_graph) == (name == "graph"), (len(of_graph), name)
if name == "graph":
    each = collections.Counter(e["args"]["step"] for e in of_graph)
    assert set(each.values()) == {each[6]}, each  # the same nodes in each step
elif name == "serial":
    layers = {e["args"].get("layer") for e in kernels if e["args"].get("task") == "layer"}
    assert layers == {1, 2, 3, 4}, layers
    of_layer = collections.Counter((e["args"]["step"], e["args"]["layer"], e["args"]["micro_batch"], e["args"]["phase"], e["name"])
                                   for e in kernels if e["args"].get("task") == "layer")
    assert len({tuple(sorted(c for k, c in of_layer.items() if k[:4] == (s, l, 0, "forward"))) for s in (6, 9) for l in layers}) == 1
    copies = [e for e in kernels if e["name"] == "copy"]
    assert copies and all(e["args"]["bytes"] > 0 for e in copies)
    # The checks of kernels notice what is wrong.
    def later(kernel, trace): kernel["ts"] += 1e9
    def longer(kernel, trace): kernel["dur"] += 1e9
    def twice(kernel, trace): trace["traceEvents"].append(dict(kernel))
    def strange(kernel, trace): kernel["args"]["layer"] = 77
    for change, says in ((later, "outside its task"), (longer, "overlap"), (twice, f"{len(kernels) + 1} kernels, where"),
                         (strange, "has not")):
        spoilt = json.loads(json.dumps(trace))
        change(next(e for e in spoilt["traceEvents"] if e.get("cat") == "kernel" and e["args"].get("task") == "layer"), spoilt)
        found = list(trace_check.kernel_faults(spoilt))
        assert any(says in fault for fault in found), (change.__name__, found)
elif emulated:
    assert any(n.startswith("ncclDevKernel") for n in names), names
    threads = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {"kernels", "kernels: queue 2"} <= threads, threads
print(f"{name}: {len(kernels)} kernels, {len(names)} names: {sorted(names)[:4]}")
PYTHON
}
if [[ $TRIREME_DEVICE_LABEL == emulated && -z ${TRIREME_STUB_CUPTI_LIBRARY:-} ]]; then fail "no stand-in of CUPTI"; fi
if [[ -n ${TRIREME_STUB_CUPTI_LIBRARY:-} ]]; then export TRIREME_CUPTI=$TRIREME_STUB_CUPTI_LIBRARY; fi
traced serial 1 host,GPU run.graphs=no
kernels serial
traced graph 1 host,GPU
kernels graph
agree 0 serial graph
sharing_for 2
traced data 2 "host,GPU,transfers: data" grid.data=2 run.graphs=no "${sharing[@]}"
kernels data
if [[ -n ${TRIREME_CUPTI:-} ]]; then
  # Another subscriber: a note says so, and the timeline is that of events.
  export TRIREME_STUB_CUPTI=subscribed
  traced refused 1 host,GPU run.graphs=no
  says "does not tell kernels apart: rank 0: CUPTI"
  says "MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED; another profiler records this process"
  agree 0 serial refused
  unset TRIREME_STUB_CUPTI TRIREME_CUPTI
fi
traced stages 2 "host,GPU,transfers: pipeline" grid.pipeline=2 data.micro_batch=2 monitor.trace_kernels=no "${sharing[@]}"
train plain 2 "${model[@]}" grid.pipeline=2 data.micro_batch=2 "${sharing[@]}"
agree 0 stages plain
export TRIREME_EMULATOR_DEVICES=1 CUDA_VISIBLE_DEVICES=0
traced shared 2 "host,GPU,transfers: tensor" grid.tensor=2 run.share_device=yes
