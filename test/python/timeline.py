"""timeline.py TRIREME MPIRUN GANTT: timelines of several layouts keep all rules of trace_check.py and change no number; the
checks notice what is wrong with a spoilt one; windows that the run does not reach, or passes twice, are told of.

Code 77: skipped, saying why."""
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import trace_check

TRIREME, MPIRUN, GANTT = sys.argv[1:4]
LAUNCH = str(pathlib.Path(__file__).parents[1] / "mpirun.sh")
DECK = """# Steps of milliseconds.
[job]
output = run
[data]
file = harbour.h5
sequence_length = 64
stride = 64
batch = 16
micro_batch = 2
[model]
dim = 64
heads = 4
layers = 8
ffn = 256
max_positions = 64
dropout = 0.1
[schedule]
steps = 12
warmup_steps = 4
[checkpoint]
every_steps = 9
[monitor]
every_steps = 1
validate_every_steps = 9
sample_tokens = 0
"""
# Layouts: ranks, keys.
LAYOUTS = {
    "serial": (1, []),
    "serial_recompute": (1, ["model.recompute=full"]),
    "pipeline4": (4, ["grid.pipeline=4"]),
    "interleaved": (2, ["grid.pipeline=2", "pipeline.schedule=interleaved", "pipeline.chunks=2"]),
    "zero_bubble": (2, ["grid.pipeline=2", "pipeline.schedule=zero_bubble"]),
    "data2_zero3": (2, ["grid.data=2", "grid.sharding=parameters"]),
    "cube": (8, ["grid.pipeline=2", "grid.data=2", "grid.tensor=2"]),
    "context2": (2, ["grid.context=2"]),
}
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", OMPI_MCA_mpi_yield_when_idle="1", OMPI_ALLOW_RUN_AS_ROOT="1",
                   OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
TRACE = "monitor.trace_steps=6-11"


def run(folder, ranks, keys, code=0):
    """Output of a run in a folder of its own."""
    command = ["bash", LAUNCH, MPIRUN, "-n", str(ranks), TRIREME] + keys
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode != code:
        sys.exit(f"code {done.returncode} instead of {code} from {command}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def expect(condition, text):
    if not condition:
        sys.exit(f"FAILED: {text}")


def losses(folder):
    return {step: record["loss"] for step, record in trace_check.step_records(folder).items()}


def slices_of(folder):
    return [e for e in trace_check.read(folder / "trace.json.gz")["traceEvents"] if e["ph"] == "X"]


def check_layout(root, name):
    """A timeline keeps the rules. Times on cores that many ranks share are those of the system's scheduler too, which
    may stop a rank between two readings of the clock: of three runs one must be in order."""
    ranks, keys = LAYOUTS[name]
    for attempt in range(3):
        output = f"{name}_{attempt}"
        said = run(root, ranks, ["-i", "deck.in", f"job.output={output}", TRACE] + keys)
        expect("clocks within" in said and "trace.json.gz" in said, f"{name}: the screen tells of the timeline: {said}")
        found = trace_check.faults(root / output)
        hard = [fault for fault in found if not fault.startswith("step ")]
        expect(not hard, f"{name}: {hard[:3]}")
        if not found:
            break
        print(f"{name}, attempt {attempt + 1}: {found[:4]}")
    expect(not found, f"{name}: {found[:5]}")
    return root / output


def check_contents(folder, name):
    ranks, _ = LAYOUTS[name]
    slices = slices_of(folder)
    phases = {s["args"].get("phase") for s in slices}
    expect({"forward", "backward", "update"} <= phases or name == "zero_bubble", f"{name}: phases are {phases}")
    expect({s["pid"] for s in slices} == set(range(ranks)), f"{name}: a process for each rank")
    layers = {s["args"]["layer"] for s in slices if s["name"].startswith("layer")}
    expect(layers == set(range(1, 9)), f"{name}: layers are {layers}")
    expect({"step", "compute", "data", "checkpoint", "validation"} <= {s["cat"] for s in slices}, f"{name}: categories")
    groups = {s["args"]["group"] for s in slices if s["cat"] == "transfer"}
    for group, key in (("pipeline", "pipeline4"), ("context", "context2"), ("shard", "data2_zero3")):
        expect(name != key or group in groups, f"{name}: transfers of {groups}")
    if name == "cube":
        expect({"pipeline", "tensor", "data", "world"} <= groups, f"{name}: transfers of {groups}")
        expect(all(s["args"]["bytes"] > 0 for s in slices if s["cat"] == "transfer"), f"{name}: bytes of transfers")
    if name == "pipeline4":
        expect(any(s["name"] == "bubble" for s in slices), f"{name}: no bubble")
        batches = {s["args"].get("micro_batch") for s in slices if s["name"].startswith("forward")}
        expect(batches == set(range(8)), f"{name}: micro-batches are {batches}")
    if name == "serial_recompute":
        expect("recompute" in phases, f"{name}: no recomputation in {phases}")
    if name == "zero_bubble":
        expect({"input gradient", "weight gradient"} <= phases, f"{name}: phases are {phases}")


def spoil(folder, root, change):
    """Faults of a copy of a run whose trace was changed."""
    copy = root / "spoilt"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    shutil.copy(folder / "metrics.jsonl", copy)
    trace = trace_check.read(folder / "trace.json.gz")
    change(trace, [e for e in trace["traceEvents"] if e["ph"] == "X"])
    with gzip.open(copy / "trace.json.gz", "wt", encoding="utf-8") as file:
        json.dump(trace, file)
    return trace_check.faults(copy)


def check_checker(folder, root):
    """Notices each fault of a trace, for its own reason."""
    def first(slices, test):
        return next(s for s in slices if test(s))

    def negative(_, slices):
        first(slices, lambda s: s["cat"] == "transfer")["dur"] = -1.0

    def crossed(_, slices):
        layer = first(slices, lambda s: s["name"].startswith("layer"))
        layer["dur"] += 1e6

    def late_clock(_, slices):
        for one in slices:
            if one["pid"] == 1:
                one["ts"] += 1e6

    def shorter(_, slices):
        for one in slices:
            if one["name"] == "bubble":
                one["cat"], one["name"] = "compute", "layer 1"

    def nameless(trace, _):
        trace["traceEvents"] = [e for e in trace["traceEvents"] if e["name"] != "thread_name"]

    for change, says in ((negative, "a slice of -1.0"), (crossed, "neither nest"), (late_clock, "before"),
                         (shorter, "bubble sums to"), (nameless, "without a name")):
        found = spoil(folder, root, change)
        expect(any(says in fault for fault in found), f"{change.__name__} is not noticed: {found[:3]}")


def check_windows(root):
    """Windows that the run does not fill."""
    said = run(root, 2, ["-i", "deck.in", "job.output=beyond", "monitor.trace_steps=13-20"])
    expect("lies beyond the last step, 12" in said, f"a window beyond the end: {said}")
    expect(not (root / "beyond/trace.json.gz").exists(), "a timeline of no step")

    said = run(root, 2, ["-i", "deck.in", "job.output=over", "monitor.trace_steps=11-40"])
    expect("the run ended before step 40" in said, f"a window over the end: {said}")
    other = trace_check.read(root / "over/trace.json.gz")["otherData"]
    expect(other["steps"] == [11, 12] and other["ended_early"] == "the run ended", f"steps are {other['steps']}")

    # Stopped in the middle and gone on with; then once more, after the window.
    said = run(root, 2, ["-i", "deck.in", "job.output=resumed", "monitor.trace_steps=6-10", "schedule.stop_at=8"])
    expect("the run ended before step 10" in said, f"a window over a stop: {said}")
    expect(trace_check.read(root / "resumed/trace.json.gz")["otherData"]["steps"] == [6, 8], "steps before the stop")
    run(root, 2, ["-r", "resumed", "schedule.stop_at=11"])
    expect(trace_check.read(root / "resumed/trace.json.gz")["otherData"]["steps"] == [9, 10], "steps after the stop")
    expect(not trace_check.faults(root / "resumed"), "the timeline of a resumed run")
    before = (root / "resumed/trace.json.gz").read_bytes()
    said = run(root, 2, ["-r", "resumed"])
    expect("lies before step 12" in said, f"a window that lies before: {said}")
    expect((root / "resumed/trace.json.gz").read_bytes() == before, "the timeline of before was touched")

    said = run(root, 2, ["-i", "deck.in", "job.output=shorter", "schedule.stop_at=4", TRACE])
    expect("lies beyond the last step, 4" in said, f"a window beyond schedule.stop_at: {said}")
    said = run(root, 2, ["-i", "deck.in", "job.output=early", "schedule.walltime_minutes=0.0001", TRACE], code=3)
    expect("no timeline: the run ended before step 6" in said, f"a run that ends before: {said}")

    for text in ("0-3", "5-4", "some"):
        said = run(root, 1, ["-i", "deck.in", "job.output=refused", f"monitor.trace_steps={text}"], code=2)
        expect("names no steps" in said, f"{text}: {said}")

    # A file that cannot be made stops nothing.
    blocked = root / "blocked"
    blocked.mkdir()
    (blocked / "trace.json.gz" / "full").mkdir(parents=True)
    said = run(root, 2, ["-i", "deck.in", "job.output=blocked", TRACE])
    expect("was not written" in said and "training goes on" in said, f"a file that cannot be made: {said}")
    expect(losses(root / "blocked") == losses(root / "over"), "a failure to write changes numbers")


def check_no_matplotlib(folder, root):
    """The scripts say what helps where matplotlib is missing."""
    missing = root / "missing/matplotlib"
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'matplotlib'\")\n")
    for script, *arguments in (("gantt.py", folder), ("course.py", root, root / "pictures")):
        done = subprocess.run([sys.executable, pathlib.Path(GANTT).with_name(script), *arguments],
                              env={**os.environ, "PYTHONPATH": str(missing.parent)}, capture_output=True, text=True, check=False)
        expect(done.returncode == 4 and "build/venv/bin/python3" in done.stderr and "Traceback" not in done.stderr,
               f"{script} without matplotlib: {done.returncode}, {done.stderr}")


def check_picture(folder, root, interleaved):
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        print(f"the picture is not drawn: {error}")
        return
    picture = root / "gantt.svg"
    done = subprocess.run([sys.executable, GANTT, str(folder), "-o", str(picture)], capture_output=True, text=True, check=False)
    expect(done.returncode == 0 and picture.stat().st_size > 10000, f"no picture: {done.stderr}")
    expect(picture.stat().st_size < 2_000_000, f"a picture of {picture.stat().st_size} bytes")
    text = picture.read_text(encoding="utf-8")
    expect(text.count("<path") > 50, "a picture without bars")
    # matplotlib 3.5 knows no ncols=.
    from matplotlib.figure import Figure
    sys.path.insert(0, str(pathlib.Path(GANTT).parent))
    import gantt
    legend, asked = Figure.legend, []
    Figure.legend = lambda figure, **options: (asked.append(set(options)), legend(figure, **options))[1]
    gantt.draw(folder)
    Figure.legend = legend
    expect(asked and "ncols" not in asked[0], f"options of the legend are {asked}")
    for run_folder in filter(None, (folder, interleaved)):
        words = [text.get_text() for text in gantt.draw(run_folder).legends[0].get_texts()]
        expect(any("chunk" in word for word in words) == (run_folder == interleaved), f"the legend of {run_folder}: {words}")
    broken = root / "torn"
    broken.mkdir()
    (broken / "trace.json.gz").write_bytes((folder / "trace.json.gz").read_bytes()[:1000])
    done = subprocess.run([sys.executable, GANTT, str(broken)], capture_output=True, text=True, check=False)
    expect(done.returncode == 1 and "no timeline can be read" in done.stderr and "Traceback" not in done.stderr,
           f"a torn file: {done.stderr}")


def main():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        (root / "deck.in").write_text(DECK)
        run(root, 1, ["-i", "deck.in", "job.task=tokenize", "tokenize.kind=harbour", "tokenize.harbour_tokens=20000"])
        folders = {}
        if sys.argv[4:] == ["windows"]:
            check_windows(root)
            return
        for layout in sys.argv[4:] or LAYOUTS:
            folders[layout] = check_layout(root, layout)
            check_contents(folders[layout], layout)
        for layout in set(folders) & {"serial", "pipeline4", "cube"}:
            ranks, keys = LAYOUTS[layout]
            run(root, ranks, ["-i", "deck.in", f"job.output={layout}_plain"] + keys)
            expect(not (root / f"{layout}_plain/trace.json.gz").exists(), "a timeline that nobody asked for")
            expect(losses(root / f"{layout}_plain") == losses(folders[layout]), f"{layout}: a timeline changes losses")
        if "pipeline4" in folders:
            check_checker(folders["pipeline4"], root)
            check_no_matplotlib(folders["pipeline4"], root)
            check_picture(folders["pipeline4"], root, folders.get("interleaved"))
        if len(sys.argv) == 4:
            check_windows(root)
    print("all timelines are in order")


main()
