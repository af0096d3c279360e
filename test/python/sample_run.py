"""Run folders for tests of vis/: of this version, of an older one, damaged, of any length."""
import gzip
import json
import math
import pathlib


def step_record(step, kind="step", **members):
    """A step record as the program writes it; loss falls from 10 towards 4."""
    loss = 4 + 6 * math.exp(-step / 300) + 0.05 * math.sin(1.7 * step)
    record = {"kind": kind, "step": step, "epoch": step / 400, "tokens": 512 * step, "loss": loss, "perplexity": math.exp(loss),
              "learning_rate": 1e-3 * min(1, step / 50), "grad_norm": 0.8 + 0.3 * math.cos(step), "step_seconds": 0.1,
              "tokens_per_second": 5120 + 40 * math.sin(step), "flops_per_second": 8e9, "roof_fraction": 0.4 + 0.003 * math.sin(step),
              "seconds_compute": 0.07, "seconds_exposed_communication": 0.02, "seconds_bubble": 0.005, "seconds_data": 0.002,
              "seconds_checkpoint": 0.003, "bad_steps": 0}
    record.update(members)
    return record


def event(name, step, text, **members):
    return {"kind": "event", "event": name, "step": step, "rank": 0, "host": "node1", "text": text, **members}


def records(steps, every=1):
    """A whole run's records, with validations, a checkpoint, a test and the end."""
    made = []
    for step in range(1, steps + 1):
        if step == 1 or step % every == 0 or step == steps:
            made.append(step_record(step))
        if step % max(50, every) == 0:
            members = {"loss": made[-1]["loss"] + 0.1, "step_seconds": 0.5}
            if every == 1:
                made.append({**step_record(step, "interval"), "slowest_rank": 1, "slowest_host": "node1", "seconds_slowest": 0.08})
            made.append(step_record(step, "valid", **members))
            made.append(event("checkpoint", step, "19 MiB in 0.15 s"))
    made.append(step_record(steps, "test", loss=4.2))
    made.append(step_record(steps, "done"))
    return made


def ranks(count=4, hosts=2):
    return [{"rank": rank, "host": f"node{rank * hosts // count + 1}", "pipeline": rank // 2, "data": 0, "context": 0, "tensor": rank % 2,
             "planned_bytes": 300 << 20, "used_bytes": (330 + 5 * rank) << 20, "seconds_compute": 0.07 + 0.001 * rank}
            for rank in range(count)]


def summary(steps, **members):
    made = {
        "format": 1, "version": "0.1.0", "commit": "3f2a9c1", "started": "2026-11-24T10:00:00+01:00", "ended": "2026-11-24T10:01:00+01:00",
        "outcome": "done", "reason": "", "step": steps, "total_steps": steps, "epoch": steps / 400, "tokens": 512 * steps, "ranks": 4,
        "hosts": ["node1", "node2"], "threads": 1, "device": "cpu (AVX-512)", "precision": "fp32",
        "grid": "pipeline 2 x data 1 x context 1 x tensor 2", "model": "2 layers, dim 128, 4 heads, vocabulary 33,278; 9.71 M parameters",
        "data": "wikitext2.h5: 2,088,628 / 217,646 / 245,569 tokens", "parameters": 9710000,
        "losses": {"first": 10.0, "best_valid": 4.3, "best_valid_step": steps, "last": 4.1, "last_valid": 4.3, "test": 4.2,
                   "entropy_floor": 3.5},
        "samples": ["the ship sails north , the other lies in port ."],
        "deck": {"job.task": "train", "model.dim": "128", "optimizer.learning_rate": "1e-3", "data.batch": "16"},
        "deck_given": ["model.dim", "data.batch"],
        "time": {"elapsed": 60.0, "compute": 36.0, "exposed_communication": 12.0, "bubble": 3.0, "data": 1.0, "checkpoint": 2.0,
                 "validation": 5.0, "other": 1.0},
        "speed": {"tokens_per_second": 5120.0, "flops_per_second": 8e9, "roof_fraction": 0.41, "roof_flops": 2e10},
        "memory": {"planned": [{"term": "parameters", "bytes": 37 << 20}, {"term": "moments", "bytes": 74 << 20}], "ranks": ranks()},
        "traffic": [{"group": "data", "transfer": "all-reduce", "ranks": 4, "calls": 400, "bytes": 3.2e9, "seconds_waited": 7.5,
                     "longest_waited": 8.1, "seconds_hidden": 3.0},
                    {"group": "tensor", "transfer": "all-gather", "ranks": 4, "calls": 800, "bytes": 1.2e8, "seconds_waited": 3.5,
                     "longest_waited": 4.0, "seconds_hidden": 0.0}],
        "predicted": {"machine": "here (trireme --calibrate)", "terms": [
            {"term": "step", "predicted_seconds": 0.094, "seconds": 0.1}, {"term": "compute", "predicted_seconds": 0.08, "seconds": 0.09},
            {"term": "exposed world", "predicted_seconds": 0.0, "seconds": 1e-5}, {"term": "other", "predicted_seconds": 0.014, "seconds": 0.01}],
            "planned_bytes": 98 << 20, "used_bytes": 100 << 20},
        "gathers": {"count": 0, "ready": 0}, "energy": {"not_available": "no counter can be read"}, "files": {}, "bad_steps": 0, "sources": {}}
    made.update(members)
    return made


DECK = """# Resolved by Trireme.
[job]
task   = train
output = runs/a     # from command line
[model]
dim    = 128        # from input/a.in:3
heads  = 4
kv_heads = 4        # from model.heads
"""

OLD_LOG = """Trireme 0.1.0 (fe874c4)   4 ranks on 1 host, 1 thread each   device cpu (AVX-512)   precision fp32
grid    pipeline 1 x data 2 x context 1 x tensor 2
map     rank 0   vm   pipeline 0  data 0  tensor 0    rank 2   vm   pipeline 0  data 1  tensor 0
        rank 1   vm   pipeline 0  data 0  tensor 1    rank 3   vm   pipeline 0  data 1  tensor 1
model   2 layers, dim 32, 2 heads, vocabulary 50,257; 1.63 M parameters
data    books.h5: 28,816 / 1,837 / 1,473 tokens
memory  largest rank: parameters 3 + gradients 3 = 6 MiB
    step   epoch     loss  perplexity    rate   |grad|  tokens/s  roof   comm  elapsed     left
       1    0.00  10.8182    49,918.7  7.5e-04    1.86       842    4%  17.0%     0:00     0:04
warning: run/log.txt: cannot be written: No space left on device; the run goes on without it
sample  the old harbour lies still
done    30 steps, 3,840 tokens, 0:03; 3,020 tokens/s; peak memory 135 MiB per rank
traffic group      transfer        calls/step sent/step      sent   waited  share  longest   hidden
        data       all-reduce             1.0   3.1 MiB   373 MiB    0.226  17.8%    0.403    0.078
        tensor     all-gather             1.0   2.0 KiB   240 KiB    0.165  13.0%    0.208    0.000
        training steps only; calls, bytes per step: of one rank that takes part; sent: by all ranks;
"""


def write_trace(folder, kernels, **told):
    """A timeline of one step on one GPU; kernels: {name: its times in microseconds}; told: otherData's kernels."""
    def thread(tid, name):
        return {"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": name}}

    def slice_(tid, name, begin, length, category, **arguments):
        return {"ph": "X", "name": name, "cat": category, "pid": 0, "tid": tid, "ts": begin, "dur": length, "args": {"step": 7, **arguments}}

    every = [(name, time) for name, times in kernels.items() for time in times]
    whole = sum(time for _, time in every) + 10
    events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "rank 0 on node1"}}, thread(1, "host"), thread(2, "GPU"),
              thread(10000, "kernels"), slice_(1, "step 7", 0.0, whole, "step")]
    for at, phase in ((0.0, "forward"), (whole / 2, "backward")):
        events.append(slice_(2, f"{phase} 0", at, whole / 2, "compute", micro_batch=0, phase=phase))
    begin = 1.0
    for name, time in every:
        events.append(slice_(10000, name, begin, time, "kernel", task="task"))
        begin += time
    other = {"program": "Trireme", "grid": "pipeline 1 x data 1", "stages": 1, "schedule": "1f1b", "chunks": 1, "micro_batches": 1,
             "device": "cuda", "asked": [7, 7], "steps": [7, 7], "ranks": 1, "ranks_recorded": [0], "clock_error_us": 0.0,
             "gpu_clock_error_us": 1.0, "clocks": [{"rank": 0, "error_us": 0.0}], "slices": 3, "slices_left_out": [],
             "kernels": {"count": len(every), "left_out": [], **told}}
    with gzip.open(pathlib.Path(folder) / "trace.json.gz", "wt", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "otherData": other}, file)


def write_run(folder, lines=None, summary_=None, deck=DECK, log=None):
    """A run folder of these records and files; None leaves a file out."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    if lines is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if summary_ is not None:
        (folder / "summary.json").write_text(json.dumps(summary_))
    if deck is not None:
        (folder / "deck.in").write_text(deck)
    if log is not None:
        (folder / "log.txt").write_text(log)
    return folder


def write_long(folder, steps, spikes):
    """A run of so many steps, quickly. spikes: step -> loss. Lines are as long as the program's."""
    folder = write_run(folder, None, summary(steps))
    rest = json.dumps({name: value for name, value in step_record(1).items() if name not in ("kind", "step", "tokens", "loss")})[1:]

    def line(step):
        loss = spikes.get(step) or 4 + 6e4 / (1e4 + step) + 0.1 * ((step * 7919) % 101) / 101
        return f'{{"kind": "step", "step": {step}, "tokens": {512 * step}, "loss": {loss}, {rest}\n'

    with open(folder / "metrics.jsonl", "w") as file:
        for first in range(1, steps + 1, 10000):
            file.write("".join(line(step) for step in range(first, min(first + 10000, steps + 1))))
            at = min(first + 9999, steps)
            file.write(json.dumps(step_record(at, "valid")) + "\n" + json.dumps(event("checkpoint", at, "in 1 s")) + "\n")
        file.write(json.dumps(step_record(steps, "done")) + "\n")
    return folder
