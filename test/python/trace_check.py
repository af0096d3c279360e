#!/usr/bin/env python3
"""Checks the timeline of a run: trace.json.gz against its own rules and against metrics.jsonl.

    python3 test/python/trace_check.py RUN

Slices nest and last no negative time; every process and thread has a name; the times of each step,
summed by category over the host's slices, are those of metrics.jsonl to 1%; no receive ends before
its send began, and no sum over all ranks before its last rank began, within the stated error of the
clocks; kernels of a GPU lie within the task that queued them. Prints each fault and exits 1 if there is one. With trace_processor_shell on the path,
Perfetto's own reader is asked too.
"""
import collections
import gzip
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

CATEGORIES = {"step", "compute", "data", "wait", "transfer", "checkpoint", "validation", "kernel"}
ROUNDING_US = 0.002   # of a beginning and a length in whole nanoseconds, as doubles
RELATIVE = 0.01       # of a category's seconds
OF_STEP = 0.001       # or of the step's, for those that are small
KEYS = {"compute": "seconds_compute", "exposed": "seconds_exposed_communication",
        "bubble": "seconds_bubble", "data": "seconds_data", "total": "step_seconds",
        "checkpoint": "seconds_checkpoint"}


def read(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def names(trace):
    """Names of processes by pid and of threads by (pid, tid)."""
    processes, threads = {}, {}
    for event in trace["traceEvents"]:
        if event["ph"] != "M":
            continue
        if event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
    return processes, threads


def by_thread(trace):
    """Slices of each (pid, tid), outer ones first."""
    threads = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    for slices in threads.values():
        slices.sort(key=lambda s: (s["ts"], -s["dur"]))
    return threads


def shape_faults(trace):
    """Faults of single events: their members, their times, their names."""
    processes, threads = names(trace)
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            continue
        if event["ph"] != "X":
            yield f"an event of kind {event['ph']}"
            continue
        missing = {"name", "cat", "pid", "tid", "ts", "dur", "args"} - event.keys()
        if missing:
            yield f"a slice without {sorted(missing)}: {event}"
            continue
        if event["dur"] < 0:
            yield f"a slice of {event['dur']} us: {event}"
        if event["ts"] < -ROUNDING_US:
            yield f"a slice before the timeline began: {event}"
        if event["cat"] not in CATEGORIES:
            yield f"an unknown category: {event}"
        if event["pid"] not in processes or (event["pid"], event["tid"]) not in threads:
            yield f"a slice of a process or thread without a name: {event}"


def nesting_faults(slices):
    stack = []
    for one in slices:
        end = one["ts"] + one["dur"]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= one["ts"] + ROUNDING_US:
            stack.pop()
        if stack and end > stack[-1]["ts"] + stack[-1]["dur"] + ROUNDING_US:
            yield f"slices that neither nest nor follow each other: {stack[-1]} and {one}"
            return
        stack.append(one)


def own_times(slices):
    """(slice, microseconds in none of the slices within it, the outermost slice around it)."""
    stack, done = [], []
    for one in slices:
        while stack and stack[-1][0]["ts"] + stack[-1][0]["dur"] <= one["ts"] + ROUNDING_US:
            done.append(stack.pop())
        if stack:
            stack[-1][1] -= one["dur"]
        stack.append([one, one["dur"], stack[0][0] if stack else one])
    return done + stack


def kind_of(one):
    """The name by which the sum of a slice's own time stands in metrics.jsonl."""
    if one["cat"] == "wait":
        return "bubble" if one["name"] == "bubble" else "exposed"
    return one["cat"]


def step_sums(slices, waits=()):
    """{step: {category: seconds}} of a rank, from agreement to agreement, as a step's times count.

    waits: the GPU's, which the host's slices hold as computation.
    """
    agreements = sorted((s["ts"], s["args"]["step"]) for s in slices if s["name"] == "agreement")
    sums = {step: collections.defaultdict(float) for _, step in agreements[1:]}

    def step_at(time):
        for (begin, _), (end, step) in zip(agreements, agreements[1:]):
            if begin - ROUNDING_US <= time < end - ROUNDING_US:
                return step
        return None

    for one, own, outermost in own_times(slices):
        if outermost["cat"] == "checkpoint" and one is outermost and step_at(one["ts"]) is not None:
            sums[step_at(one["ts"])]["checkpoint"] += one["dur"] / 1e6
        if not outermost["name"].startswith("step "):
            continue  # between two steps
        if one is outermost:  # cut in two by its agreement
            begin, end = one["ts"], one["ts"] + one["dur"]
            cut = next(ts for ts, step in agreements if step == one["args"]["step"])
            for at, length in ((begin, cut - begin), (cut, end - cut)):
                if step_at(at) is not None:
                    sums[step_at(at)]["total"] += length / 1e6
            continue
        step = step_at(one["ts"])
        if step is not None:
            sums[step][kind_of(one)] += own / 1e6
            if one["cat"] == "validation":  # histograms: no part of a step's time
                sums[step]["total"] -= own / 1e6
    for wait in waits:
        step = step_at(wait["ts"])
        if step is not None:
            sums[step][kind_of(wait)] += wait["dur"] / 1e6
            sums[step]["compute"] -= wait["dur"] / 1e6
    return sums


def sum_faults(trace, records):
    """Means over the ranks against the step records, of each step but the first of the window."""
    other = trace["otherData"]
    if len(other["ranks_recorded"]) < other["ranks"]:
        return
    whole = min([left["from_step"] for left in other["slices_left_out"]], default=None)
    _, threads = names(trace)
    slices = by_thread(trace)
    hosts = sorted(key for key, name in threads.items() if name == "host")
    sums = []
    for pid, tid in hosts:
        gpu = [s for key, name in threads.items() if key[0] == pid and name == "GPU"
               for s in slices[key] if s["cat"] == "wait"]
        sums.append(step_sums(slices[pid, tid], gpu))
    if not sums:
        yield "no rank has a thread called host"
        return
    compared = 0
    for step in sorted(set.intersection(*(set(each) for each in sums))):
        record = records.get(step)
        if record is None or (whole is not None and step >= whole):
            continue
        compared += 1
        for category, key in KEYS.items():
            mean = sum(each[step][category] for each in sums) / len(sums)
            if category == "checkpoint":  # as rank 0 sees it
                mean = sums[0][step][category]
            allowed = max(RELATIVE * record[key], OF_STEP * record["step_seconds"])
            if abs(mean - record[key]) > allowed:
                yield (f"step {step}: {category} sums to {mean:.6f} s, metrics.jsonl has "
                       f"{key} {record[key]:.6f} s")
    if compared == 0 and other["steps"][0] < other["steps"][1]:
        yield "no step of the timeline has a record to compare with"


def order_faults(trace):
    """Messages and sums over all ranks that would have gone back in time."""
    error = {c["rank"]: c["error_us"] for c in trace["otherData"]["clocks"]}
    gpus = 2 * trace["otherData"].get("gpu_clock_error_us", 0) + 1
    sends, receives, sums = {}, {}, collections.defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] != "X" or event["cat"] != "transfer":
            continue
        args, pid = event["args"], event["pid"]
        if args.get("sequence"):
            rest = (args["group"], args["tag"], args["sequence"])
            if args["transfer"] == "send":
                sends[(pid, args["peer"]) + rest] = event
            else:
                receives[(args["peer"], pid) + rest] = event
        elif args["group"] == "world" and args["transfer"] == "all-reduce":
            sums[pid].append(event)
    unmatched = [key for key in receives if key not in sends and key[0] in error]
    if unmatched and not trace["otherData"]["slices_left_out"]:
        yield f"{len(unmatched)} receives without their send, the first: {unmatched[0]}"
    for key, receive in receives.items():
        if key not in sends:
            continue
        allowed = error[key[0]] + error[key[1]] + ROUNDING_US + (gpus if gpus > 1 else 0)
        early = sends[key]["ts"] - receive["ts"] - receive["dur"]
        if early > allowed:
            yield f"a receive ends {early:.3f} us before its send began: {sends[key]}, {receive}"
    lists = list(sums.values())
    if lists and len({len(each) for each in lists}) > 1 and not trace["otherData"]["slices_left_out"]:
        yield "ranks with different numbers of sums over all ranks"
    for together in zip(*lists):
        last = max(together, key=lambda s: s["ts"] - error[s["pid"]])
        for one in together:
            allowed = error[one["pid"]] + error[last["pid"]] + ROUNDING_US
            if last["ts"] - one["ts"] - one["dur"] > allowed:
                yield f"a sum ended before another rank began it: {one}, {last}"


def task_of(slice_):
    """Task of a slice of the thread GPU, as a kernel that the slice queued states it."""
    args = slice_["args"]
    name = slice_["name"]
    if name == f"{args.get('phase')} {args.get('micro_batch')}":
        name = "task"
    elif name.startswith("layer "):
        name = "layer"
    return (name,) + tuple(args.get(key) for key in ("step", "layer", "micro_batch", "chunk", "phase"))


def kernel_faults(trace):
    """Kernels that overlap on a thread, or that the computation's queue runs outside their task."""
    other = trace["otherData"]
    _, threads = names(trace)
    slices = by_thread(trace)
    mine = {key: slices[key] for key, name in threads.items() if name.startswith("kernels")}
    count, told = sum(map(len, mine.values())), other.get("kernels", {"count": 0})
    if count != told["count"]:
        yield f"{count} kernels, where otherData has {told['count']}"
    if count == 0:
        return
    error = told["clock_error_us"] + other["gpu_clock_error_us"] + 1
    for (pid, tid), kernels in mine.items():
        for one, after in zip(kernels, kernels[1:]):
            if after["ts"] < one["ts"] + one["dur"] - ROUNDING_US:
                yield f"kernels that overlap on one thread: {one} and {after}"
                return
        if not threads[pid, tid].split(" (")[0] == "kernels":
            continue  # transfers go on after what queued them
        spans, sums = {}, collections.defaultdict(float)
        for key, name in threads.items():
            for around in slices[key] if key[0] == pid and name == "GPU" else ():
                begin, end = spans.get(task_of(around), (around["ts"], 0))
                spans[task_of(around)] = (min(begin, around["ts"]), max(end, around["ts"] + around["dur"]))
        for one in kernels:
            task = one["args"].get("task")
            key = (task,) + tuple(one["args"].get(key) for key in ("step", "layer", "micro_batch", "chunk", "phase"))
            if key not in spans:
                if task in ("gradients", "layer", "task", "embedding", "head", "update") and not other["slices_left_out"]:
                    yield f"a kernel of a task that the GPU has not: {one}"
                    return
                continue
            begin, end = spans[key]
            sums[key] += one["dur"]
            if one["ts"] < begin - error or one["ts"] + one["dur"] > end + error:
                yield f"a kernel outside its task, {begin:.3f} to {end:.3f}, by more than {error:.3f} us: {one}"
                return
        for key, total in sums.items():
            if total > spans[key][1] - spans[key][0] + 2 * error:
                yield f"kernels of {total:.3f} us in a task of {spans[key][1] - spans[key][0]:.3f} us: {key}"
                return


def perfetto_faults(path):
    """Faults found by Perfetto's reader, if it is installed."""
    shell = shutil.which("trace_processor_shell")
    if shell is None:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as query:
        query.write("select 'error', name, value from stats where severity = 'error' and value > 0;\n"
                    "select 'negative', name, dur from slice where dur < 0;\n")
        query.flush()
        found = subprocess.run([shell, "-q", query.name, str(path)], capture_output=True, text=True)
    if found.returncode != 0:
        yield f"trace_processor_shell: {found.stderr}"
    for line in found.stdout.splitlines():
        if line.startswith(('"error"', '"negative"')):
            yield f"trace_processor_shell: {line}"


def step_records(folder):
    records = {}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["kind"] == "step":
            records[record["step"]] = record
    return records


def faults(folder):
    """All faults of a run's timeline, as texts."""
    folder = pathlib.Path(folder)
    trace = read(folder / "trace.json.gz")
    found = list(shape_faults(trace))
    for slices in by_thread(trace).values():
        found += nesting_faults(slices)
    found += sum_faults(trace, step_records(folder))
    found += order_faults(trace)
    found += kernel_faults(trace)
    found += perfetto_faults(folder / "trace.json.gz")
    return found


def main():
    found = [fault for run in sys.argv[1:] for fault in faults(run)]
    print("\n".join(found[:20]) if found else "the timeline is in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
