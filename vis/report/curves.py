"""Figures over steps: loss and perplexity, gradient norm, learning rate, speed, the split of a step's time."""
import math

import numpy
from matplotlib import ticker

from . import svg, words
from .pictures import NARROW, Legend, Picture, render, thin_bins
from .thin import bin_means, bin_starts, thin

VALIDATION = 1  # the colour of a single run's validation losses
DASHES = ["-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5))]


def dash_of(number):
    """Run 9 has the colour of run 1, but another dash: 32 runs differ."""
    return (number + number // len(svg.SERIES)) % len(DASHES)


def style_of(number):
    return {"color": svg.SERIES[number % len(svg.SERIES)], "linestyle": DASHES[dash_of(number)]}


def draw_curve(axes, x, y, number, width):
    """A run's curve: all points, or the extremes of bins with their mean on top."""
    style = style_of(number)
    curve = thin(x, y, thin_bins(width))
    if curve.mean_x is None:
        axes.plot(curve.x, curve.y, linewidth=1.5, marker="." if len(x) <= 40 else None, markersize=4, **style)
        return
    axes.plot(curve.x, curve.y, color=style["color"], linewidth=0.7, alpha=0.45)
    axes.plot(curve.mean_x, curve.mean_y, linewidth=1.6, **style)


def step_axis(axes, width):
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(4 if width == NARROW else 8, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: words.tick(value)))
    axes.margins(x=0.01)


def number_axis(axis, bins):
    axis.set_major_locator(ticker.MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: words.tick(float(f"{value:.6g}"))))


def thinned_words(runs):
    longest = max((run.metrics.count for run in runs), default=0)
    wide = thin_bins(svg_width=0)
    if longest <= 2 * wide:
        return ""
    return (f" {longest:,} steps in {wide} bins: the pale line joins the smallest and the largest value of each bin, "
            "so no extreme is lost; the strong one is the mean of each bin.")


def run_legend(runs):
    if len(runs) == 1:
        return []
    return [Legend(f"--series-{number % len(svg.SERIES)}", run.label, ("solid", "dashed", "dotted", "dashdot")[dash_of(number)])
            for number, run in enumerate(runs)]


def _perplexity_axis(axes, width):
    low, high = axes.get_ylim()
    ticks = [(math.log(digit * 10.0**power), digit * 10**power) for power in range(0, 13) for digit in (1, 2, 5)]
    ticks = [(place, value) for place, value in ticks if low <= place <= high]
    if len(ticks) < 3:  # a narrow range: round numbers of any kind
        values = ticker.MaxNLocator(5).tick_values(math.exp(min(low, 700)), math.exp(min(high, 700)))
        ticks = [(math.log(value), value) for value in values if value > 0 and low <= math.log(value) <= high]
    most = 7 if width == NARROW else 9
    if len(ticks) > most:
        ticks = [(place, value) for place, value in ticks if f"{value:.0f}"[0] == "1"] or ticks[:most]
    right = axes.twinx()
    right.grid(False)
    right.set_ylim(low, high)
    right.set_yticks([place for place, _ in ticks], [words.tick(value) for _, value in ticks])
    right.set_ylabel("perplexity")
    right.spines["left"].set_visible(False)
    return right


def valid_points(run):
    pairs = [(words_number(r.get("step")), words_number(r.get("loss"))) for r in run.metrics.evaluations if r.get("kind") == "valid"]
    return [(step, loss) for step, loss in pairs if math.isfinite(step) and math.isfinite(loss)]


def words_number(value):
    return float(value) if words.known(value) else math.nan


def _loss_limits(runs, levels):
    """The range of the axis: all losses, but spikes far above the start and the bulk, which are marked at its top."""
    bulk, low, high = [], math.inf, -math.inf
    for run in runs:
        values = run.metrics.steps["loss"]
        values = values[numpy.isfinite(values)]
        valid = [loss for _, loss in valid_points(run)]
        if len(values):
            low, high = min(low, values.min()), max(high, values.max())
            bulk += [values[0], numpy.sort(values)[int(0.99 * (len(values) - 1))]]
        if valid:
            low, high = min(low, *valid), max(high, *valid)
            bulk += [max(valid)]
    if not bulk:
        return 0, 1, False
    low = min(low, *levels) if levels else low
    top = max(bulk)
    clipped = high > low + 2 * (top - low) and high > 1.3 * top
    top = top if clipped else high
    gap = max(0.04 * (top - low), 1e-4)
    return low - gap, top + gap, clipped


def _mark_spikes(axes, run, number, top):
    x, y = run.metrics.steps["step"], run.metrics.steps["loss"]
    above = numpy.isfinite(y) & (y > top)
    if not above.any():
        return
    places = x[above]
    kept = places[numpy.unique(numpy.searchsorted(places, numpy.linspace(places[0], places[-1], 60)).clip(0, len(places) - 1))]
    axes.plot(kept, numpy.full(len(kept), 0.985), transform=axes.get_xaxis_transform(), linestyle="none", marker="^", markersize=6,
              color=svg.SERIES[number % len(svg.SERIES)], clip_on=False)


def loss_picture(runs, levels):
    """levels: (name, nats per token) of horizontal lines: entropy floor, uniform guess, baselines."""
    low, high, clipped = _loss_limits(runs, [value for name, value in levels if name.startswith("entropy floor")])
    shown = [(name, value) for name, value in levels if low <= value <= high]

    def draw(figure, width):
        axes = figure.add_subplot()
        for number, run in enumerate(runs):
            if run.metrics.count:
                draw_curve(axes, run.metrics.steps["step"], run.metrics.steps["loss"], number, width)
            valid = valid_points(run)
            if valid:
                many = len(valid) > 60
                # One run has a second colour to spare; several keep theirs, with a dark edge.
                alone = len(runs) == 1
                axes.plot(*zip(*valid), color=svg.SERIES[VALIDATION if alone else number % len(svg.SERIES)], linewidth=1.2, linestyle=":",
                          marker="D", markersize=4 if many else 7, markeredgecolor=svg.PAPER if alone else svg.INK,
                          markeredgewidth=0.3 if many else 0.8, zorder=4)
        for order, (_, value) in enumerate(shown):
            axes.axhline(value, color=svg.INK, linewidth=1.1, linestyle=((0, (1, 2)), (0, (6, 3)), (0, (3, 2, 1, 2)))[order % 3])
        axes.set_ylim(low, high)
        if clipped:
            for number, run in enumerate(runs):
                _mark_spikes(axes, run, number, high)
        axes.set_ylabel("loss (nats a token)")
        step_axis(axes, width)
        number_axis(axes.yaxis, 7)
        _perplexity_axis(axes, width)

    legend = run_legend(runs) or [Legend("--series-0", "training", "solid")]
    legend.append(Legend(f"--series-{VALIDATION}" if len(runs) == 1 else "--ink", "validation (diamonds)", "diamond"))
    legend += [Legend("--ink", f"{name}: {value:.4f}", ("dotted", "dashed", "dashdot")[order % 3])
               for order, (name, value) in enumerate(shown)]
    caption = "Training loss of each step and validation loss; perplexity is its exponential." + thinned_words(runs)
    if clipped:
        highest = max(float(numpy.nanmax(run.metrics.steps["loss"])) for run in runs if run.metrics.count)
        caption += f" Triangles at the top mark losses beyond the axis, of which the largest is {words.short(highest, 4)}."
    outside = [f"{name} {value:.4f}" for name, value in levels if not low <= value <= high]
    if outside:
        caption += " Outside the axis: " + ", ".join(outside) + "."
    return Picture("loss", "Loss and perplexity", "; ".join(_curve_words(run, "loss", words.loss) for run in runs), caption,
                   legend, loss_table(runs), *render("loss", draw, 420))


def _curve_words(run, name, form):
    x, y = run.metrics.steps["step"], run.metrics.steps[name]
    finite = numpy.flatnonzero(numpy.isfinite(y))
    if len(finite) == 0:
        return f"{run.label}: nothing recorded"
    first, last = finite[0], finite[-1]
    least, most = finite[numpy.argmin(y[finite])], finite[numpy.argmax(y[finite])]
    return (f"{run.label}: {form(y[first])} at step {int(x[first]):,} to {form(y[last])} at step {int(x[last]):,}, "
            f"smallest {form(y[least])} at step {int(x[least]):,}, largest {form(y[most])} at step {int(x[most]):,}")


def _few(rows, most):
    """At most so many rows, evenly taken, the first and the last among them."""
    if len(rows) <= most:
        return rows
    return [rows[round(at)] for at in numpy.linspace(0, len(rows) - 1, most)]


def loss_table(runs):
    rows = []
    for run in runs:
        step, loss = run.metrics.steps["step"], run.metrics.steps["loss"]
        for at in _few(list(range(len(step))), 12):
            rows.append((run.label, "training", int(step[at]), float(loss[at])))
        evaluations = [(run.label, _kind_words(r), int(words_number(r.get("step"))), words_number(r.get("loss")))
                       for r in run.metrics.evaluations if words.known(r.get("step"))]
        rows += _few(evaluations, 30)
    cells = [[label, kind, f"{step:,}", words.loss(loss), words.perplexity(loss)] for label, kind, step, loss in rows]
    return words.Table(["run", "split", "step", "loss", "perplexity"], cells, text=[1], caption="Some of the values drawn")


def _kind_words(record):
    name = {"valid": "validation", "valid_other": "validation", "test": "test"}[record["kind"]]
    return f"{name}: {record['set']}" if isinstance(record.get("set"), str) else name


def _summary_table(runs, name, form):
    """First, last, extremes and the mean of a column, a row per run."""
    rows = []
    for run in runs:
        values = run.metrics.steps[name]
        values = values[numpy.isfinite(values)]
        if len(values):
            rows.append([run.label, *(form(value) for value in (values[0], values[-1], values.min(), values.max(), values.mean()))])
    return words.Table(["run", "first", "last", "smallest", "largest", "mean"], rows)


def simple_picture(runs, column, title, label, form=words.short, log=False, second=None):
    """A column over steps. second: (label, column) of a right axis, for one run whose two columns are proportional."""
    runs = [run for run in runs if numpy.isfinite(run.metrics.steps[column]).any() and numpy.nanmax(run.metrics.steps[column]) > 0]
    if not runs:
        return None

    def draw(figure, width):
        axes = figure.add_subplot()
        for number, run in enumerate(runs):
            values = run.metrics.steps[column]
            draw_curve(axes, run.metrics.steps["step"], numpy.where(values > 0, values, numpy.nan) if log else values, number, width)
        axes.set_ylabel(label)
        step_axis(axes, width)
        if log:
            axes.set_yscale("log")
            _log_ticks(axes)
        else:
            axes.set_ylim(bottom=0)
            number_axis(axes.yaxis, 6)
        if second:
            factor = _proportion(runs[0], column, second[1])
            right = axes.twinx()
            right.grid(False)
            right.spines["left"].set_visible(False)
            right.set_ylim(*(100 * factor * value for value in axes.get_ylim()))
            right.set_ylabel(second[0])
            number_axis(right.yaxis, 6)

    name = column.replace("_", "-")
    return Picture(name, title, "; ".join(_curve_words(run, column, form) for run in runs), (title + " over steps." + thinned_words(runs)),
                   run_legend(runs), _summary_table(runs, column, form), *render(name, draw, 260))


def _log_ticks(axes):
    low, high = axes.get_ylim()
    values = [digit * 10.0**power for power in range(-12, 13) for digit in (1, 2, 5)]
    values = [value for value in values if low <= value <= high]
    if len(values) > 8:
        values = [value for value in values if f"{value:e}"[0] == "1"]
    if len(values) < 2:
        values = [value for value in ticker.MaxNLocator(4).tick_values(low, high) if low <= value <= high and value > 0]
    axes.yaxis.set_major_locator(ticker.FixedLocator(values))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: words.tick(float(f"{value:.3g}"))))
    axes.yaxis.set_minor_locator(ticker.NullLocator())


def _proportion(run, column, other):
    values, others = run.metrics.steps[column], run.metrics.steps[other]
    both = numpy.isfinite(values) & numpy.isfinite(others) & (values > 0)
    return float((others[both] / values[both]).mean()) if both.any() else math.nan


SPLIT = (("seconds_compute", "compute", 1), ("seconds_exposed_communication", "exposed communication", 2),
         ("seconds_bubble", "pipeline bubble", 6), ("seconds_data", "data", 7), ("seconds_checkpoint", "checkpoint", 8))


def split_picture(run, number):
    """The mean split of a step's time, stacked, in bins of steps."""
    metrics = run.metrics
    x = metrics.steps["step"]
    parts = [(metrics.steps[column], words_, colour) for column, words_, colour in SPLIT
             if numpy.isfinite(metrics.steps[column]).any() and numpy.nanmax(metrics.steps[column]) > 0]
    if len(x) < 3 or not parts:
        return None

    def draw(figure, width):
        axes = figure.add_subplot()
        starts = bin_starts(x, min(thin_bins(width) // 4, max(len(x) // 8, 12)))
        means = [numpy.nan_to_num(bin_means(x, values, starts, metrics.weights())) for values, _, _ in parts]
        ends = numpy.append(x[starts[1:]], x[-1])
        largest = sum(means).max()
        unit, factor = ("ms", 1e3) if largest < 1 else ("s", 1)
        base = numpy.zeros(len(starts))
        for mean, (_, _, colour) in zip(means, parts):
            top = base + mean * factor
            axes.fill_between([x[0], *numpy.repeat(ends, 2)[:-1]], numpy.repeat(top, 2), numpy.repeat(base, 2),
                              color=svg.PARTS[colour], linewidth=0)
            base = top
        axes.set_ylabel(f"time a step ({unit})")
        axes.set_ylim(bottom=0)
        number_axis(axes.yaxis, 6)
        step_axis(axes, width)

    form = words.seconds
    name = f"split-{number}"
    rows = []
    for column, text, _ in SPLIT:
        values = metrics.steps[column]
        if numpy.isfinite(values).any():
            rows.append([text, form(float(numpy.average(numpy.nan_to_num(values), weights=metrics.weights()))),
                         form(float(numpy.nanmin(values))), form(float(numpy.nanmax(values)))])
    alt = f"Stacked areas of the time of a step, {run.label}. Means: " + ", ".join(f"{row[0]} {row[1]}" for row in rows)
    caption = "Means over bins of steps and over ranks; communication counts where nothing was computed meanwhile."
    return Picture(name, "Where the time of a step went", alt, caption, [Legend(f"--part-{colour}", text, "area") for _, text, colour in parts],
                   words.Table(["part", "mean", "smallest", "largest"], rows), *render(name, draw, 280))
