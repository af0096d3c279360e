#!/usr/bin/env python3
"""Draws the loss of one or more runs over their steps, perplexity on the right.

    python3 vis/loss_curve.py runs/wikitext2_small                      # -> runs/wikitext2_small/loss.svg
    python3 vis/loss_curve.py runs/a runs/b --label ours peer -o loss.png
    python3 vis/loss_curve.py runs/harbour --floor data/harbour.h5      # with the corpus' entropy rate

A run is its folder or a metrics.jsonl: of any length (more steps than the picture has columns are drawn as the least and
the greatest loss of each column) and of any version (records of every step, or of some). Needs matplotlib (Debian: python3-matplotlib), and h5py to
read the floor from a token file; exit code 4: one of them is missing.
"""
import argparse
import json
import math
import pathlib
import re
import sys

NO_PACKAGES = 4
COLUMNS = 1000  # of a curve; the picture is 7.2 inches wide
COLOURS = ["#1f4e79", "#c0504d", "#4f7f3f", "#8064a2", "#b7791f"]


# The whole line of a step, as runs write it; any other record is parsed.
STEP = re.compile(rb'\{"kind":"step","step":(\d+),[^{}]*?"loss":([-+.\deE]+),[^{}]*\}\n')


def read_run(path):
    """(steps, losses) of a run by kind; a torn last line (the run goes on) and losses that are not numbers are left
    out."""
    path = pathlib.Path(path)
    if path.is_dir():
        path = path / "metrics.jsonl"
    records = {"step": ([], []), "valid": ([], []), "test": ([], [])}
    with path.open("rb") as lines:
        for line in lines:
            if step := STEP.fullmatch(line):
                kind, at, loss = "step", int(step[1]), float(step[2])
            else:
                try:
                    record = json.loads(line)
                    kind, at, loss = record["kind"], record["step"], record["loss"]
                except (ValueError, KeyError, TypeError):  # torn, or another kind
                    continue
                if kind not in records or loss is None:
                    continue
            records[kind][0].append(at)
            records[kind][1].append(loss)
    if not records["step"][0] and not records["valid"][0]:
        raise SystemExit(f"{path}: no loss to draw yet")
    return records


def thin(steps, losses, columns=COLUMNS):
    """At most two points a column of the picture, its least and its greatest loss: no spike is lost."""
    if len(steps) <= 2 * columns:
        return steps, losses
    kept = []
    for column in range(columns):
        part = range(column * len(steps) // columns, (column + 1) * len(steps) // columns)
        kept += sorted({min(part, key=losses.__getitem__), max(part, key=losses.__getitem__)})
    return [steps[i] for i in kept], [losses[i] for i in kept]


def read_floor(text):
    """Nats a token: a number, or the entropy_rate of a token file."""
    try:
        return float(text)
    except ValueError:
        try:
            import h5py
        except ImportError as error:
            sys.exit(f"loss_curve.py: {error}\n  The entropy rate of a token file needs h5py: apt-get install python3-h5py, or pip install h5py.")

        with h5py.File(text, "r") as file:
            if "entropy_rate" not in file.attrs:
                raise SystemExit(f"{text}: its corpus has no known entropy rate")
            return float(file.attrs["entropy_rate"])


def smooth(values, weight):
    """Exponential mean, with the bias of its start taken out."""
    result, mean, norm = [], 0.0, 0.0
    for value in values:
        mean = weight * mean + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        result.append(mean / norm)
    return result


def load_pyplot():
    try:
        import matplotlib
    except ImportError as error:
        print(f"loss_curve.py: {error}\n  The picture needs matplotlib: apt-get install python3-matplotlib, or pip install matplotlib.",
              file=sys.stderr)
        sys.exit(NO_PACKAGES)
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def draw_run(axes, records, label, colour, weight):
    steps, losses = records["step"]
    if weight > 0 and len(losses) > 2:
        axes.plot(*thin(steps, losses), color=colour, linewidth=0.8, alpha=0.3)
        losses = smooth(losses, weight)
    axes.plot(*thin(steps, losses), color=colour, linewidth=1.4, label=f"{label}training")
    steps, losses = records["valid"]
    if steps:
        axes.plot(*thin(steps, losses), color=colour, linewidth=1.2, linestyle="--", marker="o", markersize=4,
                  label=f"{label}validation")
        axes.annotate(f"{losses[-1]:.3f}", (steps[-1], losses[-1]), color=colour, fontsize=9,
                      textcoords="offset points", xytext=(2, 8), horizontalalignment="right")


def perplexity_ticks(low, high, most=12):
    """At most about `most` values of 1, 2, 5 times powers of ten, or of powers of ten alone, that lie between two
    losses, as (loss, perplexity)."""
    values = [digit * 10**exponent for exponent in range(13) for digit in (1, 2, 5)]
    ticks = [(math.log(value), value) for value in values if low <= math.log(value) <= high]
    if len(ticks) <= most:
        return ticks
    powers = [tick for tick in ticks if str(tick[1]).strip("0") == "1"]
    return powers[::-(-len(powers) // most)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="run folders or metrics.jsonl files")
    parser.add_argument("-o", "--output", help="picture, .svg or .png (default: loss.svg in the first run)")
    parser.add_argument("--label", nargs="+", default=[], help="a name for each run")
    parser.add_argument("--floor", help="entropy floor in nats a token, or the token file that states it")
    parser.add_argument("--smooth", type=float, default=0.0, help="weight of the past, a step: 0 (none) to 0.999")
    parser.add_argument("--title", default="")
    arguments = parser.parse_args()

    plt = load_pyplot()
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "svg.hashsalt": "trireme"})
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    for number, path in enumerate(arguments.runs):
        label = ""
        if len(arguments.runs) > 1 or arguments.label:
            given = number < len(arguments.label)
            label = (arguments.label[number] if given else pathlib.Path(path).name) + ", "
        draw_run(axes, read_run(path), label, COLOURS[number % len(COLOURS)], arguments.smooth)
    if arguments.floor:
        floor = read_floor(arguments.floor)
        axes.axhline(floor, color="#555555", linewidth=1, linestyle=":", label=f"entropy rate {floor:.3f}")

    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats a token)")
    axes.set_xlim(left=0)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    ticks = perplexity_ticks(*axes.get_ylim())
    right.set_yticks([loss for loss, _ in ticks], [f"{value:,}" for _, value in ticks])
    right.set_ylabel("perplexity")
    axes.legend(frameon=False)
    if arguments.title:
        axes.set_title(arguments.title, fontsize=11)

    first = pathlib.Path(arguments.runs[0])
    output = arguments.output or (first if first.is_dir() else first.parent) / "loss.svg"
    metadata = {"Date": None} if str(output).endswith(".svg") else None
    figure.savefig(output, dpi=160, metadata=metadata)
    print(output)


if __name__ == "__main__":
    main()
