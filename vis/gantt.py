#!/usr/bin/env python3
"""Draws one step of a run's timeline (monitor.trace_steps) as a Gantt chart: a row for each rank.

    python3 vis/gantt.py runs/a                      # -> runs/a/gantt.svg
    python3 vis/gantt.py runs/a --step 12 -o b.svg   # another step than the last whole one
    python3 vis/gantt.py runs/a --kernels            # instead, the kernels that took most of a GPU's time

The upper part of a row is what the rank computes or waits for, the lower part are the transfers that
are under way meanwhile. A run is its folder or a trace.json.gz. A picture needs matplotlib (Debian:
python3-matplotlib). Exit codes: 0 done; 1 the timeline cannot be drawn; 4 matplotlib is missing.
"""
import argparse
import collections
import gzip
import json
import pathlib
import sys

# Kinds of bars: colour, hatch. The order is that of the legend. All stand out from a dark ground, too.
BARS = {
    "forward": ("#4477aa", None),
    "backward": ("#66b266", None),
    "input gradient": ("#66b266", None),
    "weight gradient": ("#b7d98b", None),
    "recompute": ("#aa6fb8", None),
    "update": ("#ee9933", None),
    "data": ("#8c6d46", None),
    "other": ("#9aa3ab", None),
    "bubble": ("#f4f4f4", "////"),
    "wait for a transfer": ("#cc3344", None),
    "checkpoint": ("#84742a", None),
    "validation": ("#77aadd", None),
}
TRANSFERS = {"tensor": "#ddaa33", "data": "#138a77", "shard": "#44bb99", "pipeline": "#5570d8",
             "context": "#55aadd", "embedding": "#a8489a", "key/value": "#ee8866",
             "replica": "#808890", "world": "#a3573a"}
NO_PACKAGES = 4          # exit code
BAR, LINE = 0.62, 0.14   # heights of a row's two parts; a row is 1
NARROWEST = 1 / 3000     # of the picture's width; what is narrower joins its neighbour
LETTER = 1 / 130         # of the picture's width, of a number in a bar


def read(path):
    """The slices and otherData of a run's timeline."""
    path = pathlib.Path(path)
    if path.is_dir():
        path = path / "trace.json.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            trace = json.load(file)
        return trace["traceEvents"], trace["otherData"]
    except (OSError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: no timeline can be read: {error}") from error


def is_task(event):
    """Whether a slice is a task of the schedule: forward 3, backward 3."""
    return "micro_batch" in event["args"] and event["name"] == f"{event['args'].get('phase')} {event['args']['micro_batch']}"


def kind_of(event):
    """The kind of bar of a slice of the host or the GPU; None: none of its own, but its task's."""
    if event["name"] == "bubble":
        return "bubble"
    if event["cat"] == "wait":
        return "wait for a transfer"
    for kind in (event["name"], event["cat"]):
        if kind in BARS:
            return kind
    if is_task(event):
        phase = event["args"]["phase"]
        return "forward" if phase == "evaluate" else phase
    return None if "micro_batch" in event["args"] else "other"


class Rank:
    """One rank's part of the picture."""

    def __init__(self, name):
        self.name = name
        self.host, self.gpu, self.transfers = [], [], []

    def queue(self):
        """Slices of the queue that computes."""
        return self.gpu if self.gpu else self.host

    def step(self, number):
        found = [e for e in self.host if e["name"] == f"step {number}"]
        return (found[0]["ts"], found[0]["ts"] + found[0]["dur"]) if found else None


def collect(events):
    """Ranks by pid."""
    ranks, threads = {}, {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            ranks[event["pid"]] = Rank(event["args"]["name"].split(" on ")[0])
        elif event["ph"] == "M" and event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
    for event in events:
        if event["ph"] != "X":
            continue
        rank, thread = ranks[event["pid"]], threads[event["pid"], event["tid"]]
        if thread == "host":
            rank.host.append(event)
        elif thread == "GPU":
            rank.gpu.append(event)
        elif event["cat"] == "kernel":
            continue  # the picture has the tasks that they are of
        elif event["args"].get("transfer") != "receive":
            rank.transfers.append(event)
    return ranks


def kernel_totals(events, most=15):
    """The kernels that took most time on all ranks: (name, times run, microseconds), and the rest as one, named None."""
    count, time = collections.Counter(), collections.Counter()
    for event in events:
        if event.get("cat") == "kernel":
            count[event["name"]] += 1
            time[event["name"]] += event["dur"]
    ordered = sorted(time, key=lambda name: (-time[name], name))
    rows = [(name, count[name], time[name]) for name in ordered[:most]]
    rest = ordered[most:]
    if rest:
        rows.append((None, sum(count[name] for name in rest), sum(time[name] for name in rest)))
    return rows


def kernel_lines(events, other):
    """kernel_totals as lines of text."""
    rows = kernel_totals(events)
    if not rows:
        why = other.get("kernels", {}).get("why_not", "there is no GPU")
        raise ValueError(f"the timeline does not tell kernels apart: {why}")
    whole = sum(time for _, _, time in rows) or 1
    yield f"{'kernel':<80} {'runs':>9} {'ms':>10} {'us each':>9} {'share':>6}"
    for name, count, time in rows:
        yield f"{name or 'all others':<80} {count:>9,} {time / 1e3:>10,.2f} {time / count:>9.1f} {time / whole:>6.1%}"


def bars_of(events, begin, end):
    """(kind, from, to, micro-batch or None) of a queue, inner slices over outer ones."""
    bars = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        kind = kind_of(event)
        left, right = max(event["ts"], begin), min(event["ts"] + event["dur"], end)
        if kind is None or right <= left:
            continue
        bars.append((kind, left, right, event["args"]["micro_batch"] if is_task(event) else None,
                     event["args"].get("chunk", 0)))
    return bars


def joined(bars, width):
    """Bars of one kind as (from, length); those that lie closer than a line is wide become one."""
    result = []
    for left, right in sorted(bars):
        if result and left - result[-1][1] < NARROWEST * width:
            result[-1][1] = max(result[-1][1], right)
        else:
            result.append([left, right])
    return [(left, right - left) for left, right in result]


def share(bars, kinds, width):
    """Fraction of the step in bars of these kinds."""
    return sum(right - left for kind, left, right, *_ in bars if kind in kinds) / width


def draw_row(axes, row, rank, begin, end):
    """One rank; returns its bars."""
    width = end - begin
    bars = bars_of(rank.queue(), begin, end)
    plain, tasks = collections.defaultdict(list), []
    for bar in bars:
        if bar[3] is None:
            plain[bar[0]].append(bar[1:3])
        else:
            tasks.append(bar)
    middle = -row - 0.08
    base = middle - BAR / 2
    for kind, left, right, number, chunk in tasks:
        axes.broken_barh([((left - begin) / 1e3, (right - left) / 1e3)], (base, BAR),
                         facecolor=BARS[kind][0], edgecolor="white", linewidth=0.4,
                         alpha=1 - 0.3 * (chunk % 3), zorder=2)
        if right - left > LETTER * width * len(str(number)):
            axes.text(((left + right) / 2 - begin) / 1e3, middle, str(number), ha="center",
                      va="center", fontsize=7, color="white", zorder=6, clip_on=True)
    for kind, (colour, hatch) in BARS.items():
        pieces = joined(plain[kind], width)
        if pieces:
            axes.broken_barh([((left - begin) / 1e3, length / 1e3) for left, length in pieces],
                             (base, BAR), facecolor=colour, hatch=hatch, zorder=1 if kind == "other" else 4,
                             edgecolor="#b0b0b0" if hatch else "none", linewidth=0)
    under = collections.defaultdict(list)
    for event in rank.transfers:
        left, right = max(event["ts"], begin), min(event["ts"] + event["dur"], end)
        if right > left:
            under[event["args"]["group"]].append((left, right))
    for group, pieces in under.items():
        axes.broken_barh([((left - begin) / 1e3, length / 1e3) for left, length in joined(pieces, width)],
                         (base - 0.04 - LINE, LINE), facecolor=TRANSFERS[group], linewidth=0, zorder=3)
    return bars, set(under)


def note(axes, height, *texts):
    """Texts in columns at the right of a row."""
    for text, at in zip(texts, (1.07, 1.13)):
        axes.text(at, height, text, fontsize=8, va="center", ha="right", transform=axes.get_yaxis_transform())


def last_whole_step(ranks, other):
    """The last step that all drawn ranks recorded, and that no bound cut."""
    cut = min((left["from_step"] for left in other.get("slices_left_out", [])), default=None)
    for step in range(other["steps"][1], other["steps"][0] - 1, -1):
        if all(rank.step(step) for rank in ranks) and (cut is None or step < cut):
            return step
    raise ValueError("the timeline holds no whole step")


def legend(figure, kinds, groups, chunks):
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, hatch=hatch, edgecolor="#b0b0b0" if hatch else "none",
                     label=kind) for kind, (colour, hatch) in BARS.items() if kind in kinds]
    if chunks > 1:
        handles.append(Patch(facecolor=BARS["forward"][0], alpha=0.7, label="paler: the rank's next chunk"))
    handles += [Patch(facecolor=TRANSFERS[group], label=f"{group} group, under way")
                for group in TRANSFERS if group in groups]
    figure.legend(handles=handles, loc="lower center", ncol=min(5, len(handles)), fontsize=8,
                  frameon=False)
    return -(-len(handles) // min(5, len(handles)))


def draw(path, ranks=64, step=None, trace=None):
    """A matplotlib Figure of one step (the last whole one) of the first `ranks` ranks recorded.

    trace: what read(path) gave. ValueError if there is no timeline that can be read.
    """
    from matplotlib.figure import Figure

    events, other = trace or read(path)
    every = collect(events)
    shown = [every[pid] for pid in sorted(every)][:ranks]
    if not shown:
        raise ValueError(f"{path}: the timeline has no rank")
    if step is None:
        step = last_whole_step(shown, other)
    spans = [rank.step(step) for rank in shown]
    if None in spans:
        raise ValueError(f"{path}: the timeline has no step {step}")
    begin, end = min(s[0] for s in spans), max(s[1] for s in spans)
    height = 1.5 + max(0.17, 0.42 - 0.004 * len(shown)) * len(shown)
    figure = Figure(figsize=(10, height))
    axes = figure.add_subplot()
    kinds, groups, all_bars = set(), set(), []
    for row, rank in enumerate(shown):
        bars, under = draw_row(axes, row, rank, begin, end)
        kinds.update(bar[0] for bar in bars)
        groups.update(under)
        all_bars += bars
        idle = share(bars, ("bubble",), end - begin)
        wait = share(bars, ("wait for a transfer",), end - begin)
        note(axes, -row - 0.08, f"{idle:.0%}", f"{wait:.0%}")
    note(axes, 0.62, "bubble", "wait")
    axes.set_yticks([-row - 0.08 for row in range(len(shown))], [rank.name for rank in shown],
                    fontsize=8 if len(shown) <= 16 else 6)
    axes.set_ylim(-len(shown) + 0.35, 0.5)
    axes.set_xlim(0, (end - begin) / 1e3)
    axes.set_xlabel("milliseconds since the step began", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    schedule = f", {other['schedule']}" if other.get("stages", 1) > 1 else ""
    count = "" if len(shown) == other["ranks"] else f"; {len(shown)} of {other['ranks']} ranks"
    figure.suptitle(f"Step {step}: {other['grid']}{schedule}{count}", fontsize=10)
    rows = legend(figure, kinds, groups, 1 + max((bar[4] for bar in all_bars), default=0))
    figure.subplots_adjust(left=0.08, right=0.88, top=1 - 0.55 / height,
                           bottom=(0.55 + 0.2 * rows) / height)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="run folder, or a trace.json.gz")
    parser.add_argument("-o", "--output", help="picture (.svg, .png, .pdf); default gantt.svg in the run folder")
    parser.add_argument("--step", type=int, help="step to draw; default the last whole one")
    parser.add_argument("--ranks", type=int, default=64, help="most ranks to draw")
    parser.add_argument("--kernels", action="store_true", help="print the kernels that took most time; draw nothing")
    arguments = parser.parse_args()
    if arguments.kernels:
        try:
            print("\n".join(kernel_lines(*read(arguments.run))))
        except (ValueError, OSError) as error:
            raise SystemExit(f"gantt.py: {error}") from error
        return 0
    try:
        import matplotlib
    except ImportError as error:
        print(f"gantt.py: {error}\n  The picture needs matplotlib: use build/venv/bin/python3 (jobscripts/workstation.sh makes it), "
              "apt-get install python3-matplotlib, or pip install matplotlib.", file=sys.stderr)
        return NO_PACKAGES
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gantt"})  # texts stay texts
    run = pathlib.Path(arguments.run)
    folder = run if run.is_dir() else run.parent
    output = arguments.output or folder / "gantt.svg"
    try:
        draw(run, arguments.ranks, arguments.step).savefig(output)
    except (ValueError, OSError) as error:
        raise SystemExit(f"gantt.py: {error}") from error
    print(str(output).encode(errors="replace").decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
