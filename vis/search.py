#!/usr/bin/env python3
"""Finds the deck that trains best in a given time, by successive halving.

    python3 vis/search.py first.in runs/search "model.dim=128|192 optimizer.learning_rate=2e-3|4e-3" "optimizer.kind=lion"
    python3 vis/search.py first.in runs/search --minutes 1.25 2.5 5 --keep 0.4 --launch "mpirun -n 2 build/trireme"

Each text is a set of settings for the deck; a | b stands for both, and several for all their combinations. Every
candidate trains for the first time limit, from the start and with its whole schedule: a few steps measure its speed,
which gives schedule.steps, so batches must not grow. The best ones, by the loss of the validation split, train for the
next limit, and so on.
The test split decides nothing. The folder gets the runs, search.json, search.md (the table) and search.svg (the
picture; needs matplotlib); after an interruption the same command goes on where it stopped. One candidate runs at a
time: run nothing else beside it. Exit code 1: a candidate failed in a way that is not its deck's fault.
"""
import argparse
import itertools
import json
import math
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

PROBE_STEPS = 40
DECK_AT_FAULT = 2  # Trireme's exit code for a deck that it refuses


def candidates(texts):
    """The settings of every candidate, in order and without repetition."""
    found = []
    for text in texts or [""]:
        choices = [[key + "=" + value for value in values.split("|")]
                   for key, values in (setting.split("=", 1) for setting in shlex.split(text))]
        for settings in itertools.product(*choices):
            if list(settings) not in found:
                found.append(list(settings))
    return found


def records(folder):
    with (folder / "metrics.jsonl").open() as lines:
        return [json.loads(line) for line in lines if line.endswith("\n")]


def run(arguments, settings, folder):
    """Trains once; the last record of each kind, or None for a deck that Trireme refuses."""
    command = shlex.split(arguments.launch) + ["-i", arguments.deck, *settings, f"job.output={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == DECK_AT_FAULT:
        print(" ", done.stderr.strip().splitlines()[0] if done.stderr.strip() else "refused", flush=True)
        return None
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(command)}\nended with code {done.returncode}:\n{done.stderr}")
    return {record["kind"]: record for record in records(folder)}


def measure(arguments, settings, folder, minutes):
    """A candidate's result for one time limit."""
    shutil.rmtree(folder, ignore_errors=True)  # of a search that was interrupted here
    # Steps whose loss is not finite are skipped: the candidate's own result says how bad it is.
    quick = {"checkpoint.every_steps": 0, "monitor.sample_tokens": 0, "monitor.tensorboard": "no", "monitor.report": "no",
             "run.max_bad_steps": 1_000_000}

    def trained(part, keys):
        own = {**dict(setting.split("=", 1) for setting in settings), **quick, **keys}
        return run(arguments, [f"{key}={value}" for key, value in own.items()], folder / part)

    probe = trained("probe", {"schedule.steps": PROBE_STEPS, "schedule.warmup_steps": 0, "monitor.validate_every_steps": 0})
    if probe is None:
        return None
    resolved = (folder / "probe/deck.in").read_text(encoding="utf-8", errors="replace")
    if not re.search(r"^batch_ramp *= *0\b", resolved, re.MULTILINE):
        raise SystemExit("With schedule.batch_ramp the first steps do not tell the speed: leave it out of the search.")
    steps = max(1, round(60 * minutes / probe["interval"]["step_seconds_mean"]))
    last = trained("run", {"schedule.steps": steps, "monitor.validate_every_steps": steps})
    if last is None:
        return None
    return {"minutes": minutes, "steps": steps, "tokens": last["done"]["tokens"], "epochs": last["done"]["epoch"],
            "tokens_per_second": last["done"]["tokens_per_second"], "train": last["done"]["loss"],
            "valid": last["valid"]["loss"]}


def best_first(results, minutes):
    """(loss, number) of the candidates that trained for this limit; a loss that is not a number comes last."""
    losses = ((row["valid"], number) for (number, limit), row in results.items() if limit == minutes and row)
    return sorted((loss if loss is not None and math.isfinite(loss) else math.inf, number) for loss, number in losses)


def table(limits, trials, results):
    lines = ["| settings | " + " | ".join(f"{limit:g} min" for limit in limits) + " | tokens/s | epochs |",
             "|---|" + "---|" * (len(limits) + 2)]
    placed = []
    for limit in reversed(limits):
        placed += [number for _, number in best_first(results, limit) if number not in placed]
    for number in placed:
        rows = [results.get((number, limit)) for limit in limits]
        last = [row for row in rows if row][-1]
        cells = [f"{math.exp(min(row['valid'] or 99, 99)):.1f}" if row else "" for row in rows]
        lines.append(f"| {' '.join(trials[number]) or '(the deck as it is)'} | {' | '.join(cells)} | "
                     f"{last['tokens_per_second']:,.0f} | {last['epochs']:.1f} |")
    return "\n".join(lines) + "\n"


def draw(path, limits, trials, results):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    best = [number for _, number in best_first(results, limits[-1])] or [None]
    for number, settings in enumerate(trials):
        points = [(limit, math.exp(results[number, limit]["valid"])) for limit in limits
                  if results.get((number, limit)) and results[number, limit]["valid"] is not None]
        if points:
            first, ends = number == best[0], points[-1][0] == limits[-1]
            colour = "#1f4e79" if first else "#8a8f94"
            axes.plot(*zip(*points), marker="o", linewidth=2.2 if first else 0.9, markersize=4, color=colour, zorder=2 if first else 1)
            axes.annotate(" ".join(settings) or "the deck as it is", points[-1], (9, 5 * (1 - 2 * first) if ends else 0),
                          textcoords="offset points", va="center", fontsize=7, color=colour, annotation_clip=False)
    axes.set(xscale="log", yscale="log", xlabel="minutes of training", ylabel="perplexity of the validation split")
    axes.set_xticks(limits, [f"{limit:g}" for limit in limits])
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["right", "top"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deck")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("settings", nargs="*", help="a set of candidates: key=value|value key=value ...")
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.25, 2.5, 5], help="time limits, ascending")
    parser.add_argument("--keep", type=float, default=1 / 3, help="share of the candidates that goes on")
    parser.add_argument("--launch", default="build/trireme", help="the command that starts Trireme")
    arguments = parser.parse_intermixed_args()
    if not 0 < arguments.keep <= 1 or sorted(set(arguments.minutes)) != arguments.minutes or arguments.minutes[0] <= 0:
        parser.error("--keep is between 0 and 1, --minutes ascend from above 0")
    if not all("=" in setting for text in arguments.settings for setting in shlex.split(text)):
        parser.error("settings are key=value, with blanks between them")
    trials = candidates(arguments.settings)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    kept = arguments.folder / "search.json"
    known = json.loads(kept.read_text()) if kept.exists() else []
    results = {}
    going = list(range(len(trials)))
    for limit in arguments.minutes:
        for number in going:
            row = next((r for r in known if r["settings"] == trials[number] and r["minutes"] == limit), None)
            if row is None:
                print(f"{limit:g} minutes: {' '.join(trials[number])}", flush=True)
                folder = arguments.folder / f"{len(known):03}"
                row = {"settings": trials[number], "minutes": limit, **(measure(arguments, trials[number], folder, limit) or {})}
                known.append(row)
                kept.write_text(json.dumps(known, indent=1) + "\n")
            if "valid" in row:
                results[number, limit] = row
                print(f"  perplexity {math.exp(row['valid']):.1f}, {row['tokens_per_second']:,.0f} tokens/s"
                      if row["valid"] is not None else "  no finite loss", flush=True)
        order = best_first(results, limit)
        if not order:
            raise SystemExit("Trireme refused every candidate")
        going = [number for _, number in order[:max(1, round(arguments.keep * len(order)))]]
    (arguments.folder / "search.md").write_text(table(arguments.minutes, trials, results))
    print(table(arguments.minutes, trials, results), end="")
    try:
        draw(arguments.folder / "search.svg", arguments.minutes, trials, results)
    except ImportError:
        print("search.svg needs matplotlib (Debian: python3-matplotlib)", file=sys.stderr)


if __name__ == "__main__":
    main()
