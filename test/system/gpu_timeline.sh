#!/usr/bin/env bash
# Timelines of ranks with a GPU each, and of ranks that share one: the GPU's queue has the layers, transfers and waits come
# from its events, all rules of trace_check.py hold, and no number changes.
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
PYTHON
}
traced serial 1 host,GPU run.graphs=no
traced graph 1 host,GPU
traced data 2 "host,GPU,transfers: data" grid.data=2 run.graphs=no
traced stages 2 "host,GPU,transfers: pipeline" grid.pipeline=2 data.micro_batch=2
train plain 2 "${model[@]}" grid.pipeline=2 data.micro_batch=2
agree 0 stages plain
export TRIREME_EMULATOR_DEVICES=1 CUDA_VISIBLE_DEVICES=0
traced shared 2 "host,GPU,transfers: tensor" grid.tensor=2 run.share_device=yes
