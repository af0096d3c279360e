#!/usr/bin/env python3
"""Draws the loss of one or more runs over their steps, perplexity on the right.

    python3 vis/loss_curve.py runs/wikitext2_small                      # -> runs/wikitext2_small/loss.svg
    python3 vis/loss_curve.py runs/a runs/b --label ours peer -o loss.png
    python3 vis/loss_curve.py runs/harbour --floor data/harbour.h5      # with the corpus' entropy rate

A run is its folder or a metrics.jsonl. Needs matplotlib (Debian: python3-matplotlib), and h5py to
read the floor from a token file.
"""
import argparse
import json
import math
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

COLOURS = ["#1f4e79", "#c0504d", "#4f7f3f", "#8064a2", "#b7791f"]


def read_run(path):
    """The records of a run by kind; a torn last line (the run goes on) is left out."""
    path = pathlib.Path(path)
    if path.is_dir():
        path = path / "metrics.jsonl"
    records = {"step": [], "valid": [], "test": []}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record.get("kind") in records and record.get("loss") is not None:
            records[record["kind"]].append(record)
    if not records["step"] and not records["valid"]:
        raise SystemExit(f"{path}: no loss to draw yet")
    return records


def read_floor(text):
    """Nats a token: a number, or the entropy_rate of a token file."""
    try:
        return float(text)
    except ValueError:
        import h5py

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


def draw_run(axes, records, label, colour, weight):
    steps = [r["step"] for r in records["step"]]
    losses = [r["loss"] for r in records["step"]]
    if weight > 0 and len(losses) > 2:
        axes.plot(steps, losses, color=colour, linewidth=0.8, alpha=0.3)
        losses = smooth(losses, weight)
    axes.plot(steps, losses, color=colour, linewidth=1.4, label=f"{label}training")
    valid = records["valid"]
    if valid:
        axes.plot([r["step"] for r in valid], [r["loss"] for r in valid], color=colour, linewidth=1.2,
                  linestyle="--", marker="o", markersize=4, label=f"{label}validation")
        last = valid[-1]
        axes.annotate(f"{last['loss']:.3f}", (last["step"], last["loss"]), color=colour, fontsize=9,
                      textcoords="offset points", xytext=(2, 8), horizontalalignment="right")


def perplexity_ticks(low, high):
    """1, 2, 5 times powers of ten that lie between two losses, as (loss, perplexity)."""
    ticks = []
    for exponent in range(0, 13):
        for digit in (1, 2, 5):
            value = digit * 10**exponent
            if low <= math.log(value) <= high:
                ticks.append((math.log(value), value))
    return ticks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="run folders or metrics.jsonl files")
    parser.add_argument("-o", "--output", help="picture, .svg or .png (default: loss.svg in the first run)")
    parser.add_argument("--label", nargs="+", default=[], help="a name for each run")
    parser.add_argument("--floor", help="entropy floor in nats a token, or the token file that states it")
    parser.add_argument("--smooth", type=float, default=0.0, help="weight of the past, 0 (none) to 0.99")
    parser.add_argument("--title", default="")
    arguments = parser.parse_args()

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
