"""Bars: where the session's time went, and the memory of each rank."""
import math
import re

import numpy
from matplotlib import ticker

from . import svg, words
from .curves import number_axis, words_number
from .folder import session_words
from .pictures import NARROW, Legend, Picture, render

# Groups of ranks and their colours; a group that is none of these has the grey of what is "other".
GROUPS = {"data": 2, "tensor": 3, "shard": 4, "context": 5, "pipeline": 12, "world": 9, "embedding": 13, "key/value": 14,
          "replica": 15, "not attributed": 16}


class Account:
    """Seconds of a session by what they were spent on: (name, seconds, colour). `source` says where they come from."""

    def __init__(self, parts, source, roof_fraction):
        self.parts = [(name, seconds, colour) for name, seconds, colour in parts if seconds > 0]
        self.source, self.roof_fraction = source, roof_fraction
        self.total = sum(seconds for _, seconds, _ in self.parts)
        self.below_measure = False  # computing took less time than the roof's speed needs


def traffic_rows(run):
    """Rows of summary.json, or of the table in log.txt: dictionaries with group, transfer and seconds_waited."""
    rows = run.part("traffic")
    if isinstance(rows, list):
        return [row for row in rows if isinstance(row, dict)]
    found = []
    for line in run.log.get("traffic", "").splitlines():
        row = re.match(r"(\S+)\s+(\S+)\s+.*?([\d.,]+)\s+(?:[\d.]+%|-)\s+([\d.,]+)\s+([\d.,]+)$", line.strip())
        if row:
            found.append({"group": row[1], "transfer": row[2], "seconds_waited": float(row[3].replace(",", "")),
                          "longest_waited": float(row[4].replace(",", "")), "seconds_hidden": float(row[5].replace(",", ""))})
    return found


def _communication(run, exposed, bubble):
    """(group, seconds) that add up to the exposed communication. Waits of stages for each other are the bubble first."""
    groups = {}
    for row in traffic_rows(run):
        waited = words_number(row.get("seconds_waited"))
        if waited > 0:
            groups[str(row.get("group"))] = groups.get(str(row.get("group")), 0.0) + waited
    if "pipeline" in groups:
        groups["pipeline"] = max(0.0, groups["pipeline"] - bubble)
    total = sum(groups.values())
    if total > exposed > 0:
        groups = {name: seconds * exposed / total for name, seconds in groups.items()}
    else:
        groups["not attributed"] = exposed - total
    return sorted(groups.items(), key=lambda entry: -entry[1])


def _from_records(run):
    metrics, weights = run.metrics, run.metrics.weights()
    if metrics.count == 0:
        return None

    def total(name):
        return float(numpy.nansum(metrics.steps[name] * weights))

    validation = sum(words_number(r.get("step_seconds")) for r in metrics.evaluations if words.known(r.get("step_seconds")))
    seconds = metrics.steps["step_seconds"] * weights
    good = numpy.isfinite(seconds) & numpy.isfinite(metrics.steps["roof_fraction"])
    roof = float((metrics.steps["roof_fraction"] * seconds)[good].sum() / seconds[good].sum()) if good.any() and seconds[good].sum() > 0 else math.nan
    return {"compute": total("seconds_compute"), "exposed_communication": total("seconds_exposed_communication"),
            "bubble": total("seconds_bubble"), "data": total("seconds_data"), "checkpoint": total("seconds_checkpoint"),
            "validation": validation, "other": 0.0}, roof, "summed over the records of metrics.jsonl"


def account_of(run):
    """The Account of a run; None where nothing is known."""
    time = run.part("time")
    if isinstance(time, dict) and words.known(time.get("compute")):
        values = {name: max(0.0, words_number(time.get(name))) if words.known(time.get(name)) else 0.0
                  for name in ("compute", "exposed_communication", "bubble", "data", "checkpoint", "validation", "other")}
        roof, source = run.value("speed", "roof_fraction"), f"{session_words(run) or 'the last session'}, mean over ranks"
    else:
        made = _from_records(run)
        if made is None:
            return None
        values, roof, source = made
    step_time = sum(values[name] for name in ("compute", "exposed_communication", "bubble", "data"))
    ideal = min(values["compute"], roof * step_time) if math.isfinite(roof) else 0.0
    if ideal > 0:
        parts = [("at the roof", ideal, 0), ("computing below the roof", values["compute"] - ideal, 1)]
    else:
        parts = [("compute", values["compute"], 1)]
    if run.value("ranks") == 1:  # talks to nobody: what its few calls of MPI take
        values["other"] += values["exposed_communication"]
        values["exposed_communication"] = 0.0
    for group, seconds in _communication(run, values["exposed_communication"], values["bubble"]):
        parts.append((f"communication: {group}", seconds, GROUPS.get(group, 10)))
    parts += [("pipeline bubble", values["bubble"], 6), ("data", values["data"], 7), ("checkpoint", values["checkpoint"], 8),
              ("validation", values["validation"], 11), ("other", values["other"], 10)]
    account = Account(parts, source, roof)
    account.below_measure = math.isfinite(roof) and roof * step_time > 1.02 * values["compute"]
    return account


def account_table(runs, accounts):
    names = list(dict.fromkeys(name for account in accounts for name, _, _ in account.parts))
    headers, rows = ["part"], [[name] for name in names]
    for run, account in zip(runs, accounts):
        headers += ["seconds", "share"] if len(runs) == 1 else [f"{run.label}: seconds", "share"]
        seconds = {}
        for name, value, _ in account.parts:
            seconds[name] = seconds.get(name, 0.0) + value
        for row in rows:
            value = seconds.get(row[0], math.nan)
            row += [f"{value:,.3f}" if words.known(value) else words.DASH, words.share(value / account.total)]
    return words.Table(headers, rows)


def account_picture(runs):
    pairs = [(run, account_of(run)) for run in runs]
    pairs = [(run, account) for run, account in pairs if account and account.total > 0]
    if not pairs:
        return None
    runs, accounts = [run for run, _ in pairs], [account for _, account in pairs]

    measured_low = any(account.below_measure for account in accounts)

    def draw(figure, width):
        axes = figure.add_subplot()
        for row, account in enumerate(accounts):
            left = 0.0
            for _, seconds, colour in account.parts:
                part = 100 * seconds / account.total
                axes.barh(row, part, left=left, height=0.62, color=svg.PARTS[colour], edgecolor=svg.PAPER, linewidth=0.8)
                if part > (14 if width == NARROW else 5):
                    axes.text(left + part / 2, row, f"{part:.0f}%", color=svg.PAPER, fontsize=12, fontweight="bold",
                              horizontalalignment="center", verticalalignment="center")
                left += part
        axes.set_xlim(0, 100)
        axes.set_ylim(len(accounts) - 0.5, -0.5)
        axes.set_yticks(range(len(accounts)), [svg.plain(_clip(run.label, 14 if width == NARROW else 28)) if len(runs) > 1 else "" for run in runs])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(False)
        axes.set_xlabel("share of the session's time (%)")

    table = account_table(runs, accounts)
    colours = {name: colour for account in accounts for name, _, colour in account.parts}
    legend = [Legend(f"--part-{colours[row[0]]}", row[0], "area") for row in table.rows]
    alt = "; ".join(f"{run.label}: " + ", ".join(f"{name} {words.share(seconds / account.total)}" for name, seconds, _ in account.parts)
                    for run, account in zip(runs, accounts))
    source = "; ".join(dict.fromkeys(account.source for account in accounts))
    caption = ("At the roof: the time that the operations of the training steps would take at the matrix-multiply speed measured at the start; "
               f"all else held the run below it. Times: {source}. Communication counts where nothing was computed meanwhile, "
               "by the group of ranks that waited.")
    if measured_low:
        caption += " Steps computed faster than the measured roof allows: the machine was busy when it was measured."
    height = 64 + 44 * len(accounts)
    return Picture("account", "Where the session's time went", alt, caption, legend, table, *render("account", draw, height, height + 10))


def _clip(text, most):
    half = (most - 1) // 2
    return text if len(text) <= most else text[:half] + "…" + text[-half:]


def ranks_of(run):
    ranks = run.part("memory", "ranks")
    return [rank for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []


def ranks_left_out(run):
    """Ranks of which the summary tells nothing: those between the ones that use most and least memory."""
    left_out = run.part("memory", "ranks_left_out")
    left_out = left_out if left_out is not None else run.part("ranks_left_out")
    return int(left_out) if words.known(left_out) and left_out > 0 else 0


MOST_BARS = 64


def percentiles(count, left_out):
    """Places of `count` sorted ranks from 0 to 100; those left out are missing in their middle."""
    places = numpy.arange(count, dtype=float)
    places[count // 2:] += left_out
    return 100 * places / max(count + left_out - 1, 1)


def _memory_curves(axes, planned, used, left_out):
    """Both sorted, each for itself. If ranks were left out, the two groups of those that are there, by what they use."""
    places = percentiles(len(used), left_out)
    by_use = numpy.argsort(used, kind="stable")
    planned = planned[by_use] if left_out else numpy.sort(planned)
    half = len(used) // 2
    groups = (slice(0, half), slice(half, None)) if left_out else (slice(None),)
    for values, colour, dash in ((planned, svg.SERIES[0], "-"), (used[by_use], svg.SERIES[1], (0, (5, 1.5)))):
        for group in groups:
            axes.plot(places[group], values[group], color=colour, linestyle=dash, linewidth=1.6,
                      marker="." if left_out else None, markersize=4)
    axes.set_xlabel("ranks, by the memory that they use (%)" if left_out else "ranks, from the smallest to the largest (%)")
    if left_out:
        middle = (places[half - 1] + places[half]) / 2 if half else 50
        axes.text(middle, 0.5, f"{left_out:,} ranks left out", color=svg.SOFT, transform=axes.get_xaxis_transform(),
                  horizontalalignment="center", verticalalignment="center")


def memory_picture(run, number):
    """Bars of planned and used memory of each rank; beyond 64 ranks, sorted curves."""
    ranks = ranks_of(run)
    used = numpy.array([words_number(rank.get("used_bytes")) for rank in ranks])
    planned = numpy.array([words_number(rank.get("planned_bytes")) for rank in ranks])
    if not len(ranks) or not numpy.isfinite(used).any():
        return None
    largest = max(numpy.nanmax(used), numpy.nanmax(planned) if numpy.isfinite(planned).any() else 0)
    unit, factor = ("GiB", 2.0**30) if largest >= 2**30 else ("MiB", 2.0**20)
    left_out = ranks_left_out(run)

    def draw(figure, width):
        axes = figure.add_subplot()
        if len(ranks) <= MOST_BARS:
            places = numpy.arange(len(ranks))
            axes.bar(places - 0.2, planned / factor, width=0.38, color=svg.SERIES[0])
            axes.bar(places + 0.2, used / factor, width=0.38, color=svg.SERIES[1])
            every = math.ceil(len(ranks) / (8 if width == NARROW else 32))
            axes.set_xticks(places[::every], [str(rank.get("rank", "")) for rank in ranks][::every])
            axes.set_xlabel("rank")
            axes.set_xlim(-0.6, max(len(ranks), 4) - 0.4)
        else:
            _memory_curves(axes, planned / factor, used / factor, left_out)
        axes.set_ylabel(f"memory ({unit})")
        axes.set_ylim(bottom=0)
        number_axis(axes.yaxis, 6)

    mark = "area" if len(ranks) <= MOST_BARS else "solid"
    caption = "Planned: the sum of the plan's terms. Used: the peak resident set, or what the GPU's card had in use; it includes libraries and MPI."
    if left_out:
        caption += (f" Ranks left out between the smallest and the largest: {left_out:,}" +
                    ("; the curves have a gap there, and planned is that of the ranks shown." if len(ranks) > MOST_BARS else "."))
    if session_words(run):
        caption += f" Of {session_words(run)}."
    alt = f"{run.label}: {words.plural(len(ranks), 'rank')}; used from {words.size(float(numpy.nanmin(used)))} to {words.size(float(numpy.nanmax(used)))}"
    if numpy.isfinite(planned).any():
        alt += f", planned from {words.size(float(numpy.nanmin(planned)))} to {words.size(float(numpy.nanmax(planned)))}"
    name = f"memory-{number}"
    return Picture(name, "Memory of each rank, planned and used", alt, caption,
                   [Legend("--series-0", "planned", mark), Legend("--series-1", "used", mark if mark == "area" else "dashed")],
                   ranks_table(ranks), *render(name, draw, 240))


def ranks_table(ranks):
    rows = [[str(rank.get("rank", words.DASH)), str(rank.get("host", words.DASH)), words.size(rank.get("planned_bytes")),
             words.size(rank.get("used_bytes")), words.seconds(rank.get("seconds_compute"))] for rank in ranks]
    return words.Table(["rank", "host", "planned", "used", "computing in the session"], rows, text=[1])
