"""The figure of a study: speed-up, efficiency, and where the ranks' time went, for print; a column of panels for each kind."""
import os
import pathlib
import tempfile

from .studies import CAUSES

COLUMN, PAGE = 3.4, 7.0  # inches: one column, and two, of a page
HEIGHT = 6.4
# Okabe and Ito's colours, told apart with any kind of colour vision, and hatches, told apart without colour.
MEASURED, PREDICTED, IDEAL = "#0072B2", "#D55E00", "#555555"
USEFUL = ("#0072B2", "", "useful work")
LOST = {"compute": ("#56B4E9", "", "more computation"), "imbalance": ("#E69F00", "////", "imbalance"),
        "communication": ("#D55E00", "", "communication"), "bubble": ("#009E73", "....", "pipeline bubble"),
        "data": ("#F0E442", "", "data"), "other": ("#BBBBBB", "", "other")}
LEAST = 0.005  # of the ranks' time: a cause that is drawn
STYLE = {"font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
         "legend.fontsize": 6.5, "axes.linewidth": 0.6, "lines.linewidth": 1.1, "hatch.linewidth": 0.5, "pdf.fonttype": 42,
         "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "trireme"}


def _bars(axes, points, values, intervals):
    """Values with their intervals; hollow where threads share cores."""
    axes.plot([point.ranks for point in points], values, color=MEASURED, linewidth=0.9, zorder=2)
    for hollow in (False, True):
        chosen = [(point.ranks, value, interval) for point, value, interval in zip(points, values, intervals)
                  if point.oversubscribed == hollow]
        if not chosen:
            continue
        ranks, heights, ends = zip(*chosen)
        errors = [[value - end[0] if end else 0 for value, end in zip(heights, ends)],
                  [end[1] - value if end else 0 for value, end in zip(heights, ends)]]
        axes.errorbar(ranks, heights, yerr=errors, fmt="o", markersize=4, capsize=2.5, elinewidth=0.8, color=MEASURED,
                      markerfacecolor="white" if hollow else MEASURED, zorder=3,
                      label="measured, oversubscribed" if hollow else "measured")


def _predicted(axes, points, values):
    known = [(point.ranks, value) for point, value in zip(points, values) if value is not None]
    if known:
        axes.plot(*zip(*known), color=PREDICTED, linestyle="--", marker="x", markersize=3, label="predicted", zorder=2)


def _rank_axis(axes, points, ticker):
    ranks = [point.ranks for point in points]
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(ticker.FixedLocator(ranks))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    margin = 1.25
    axes.set_xlim(ranks[0] / margin, ranks[-1] * margin)
    axes.grid(True, linewidth=0.3, color="#DDDDDD", zorder=0)


def _speedup(axes, points, ticker):
    ideal = [point.ranks / points[0].ranks for point in points]
    _rank_axis(axes, points, ticker)
    axes.plot([point.ranks for point in points], ideal, color=IDEAL, linestyle=":", label="ideal", zorder=1)
    _predicted(axes, points, [point.predicted_speedup for point in points])
    _bars(axes, points, [point.speedup for point in points], [point.speedup_interval for point in points])
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("speed-up" if points[0].kind == "strong" else "scaled speed-up")
    axes.set_title(f"{points[0].kind} scaling, over {points[0].ranks} rank{'s' if points[0].ranks > 1 else ''}")
    axes.legend(frameon=False, loc="upper left")


def _efficiency(axes, points, ticker):
    _rank_axis(axes, points, ticker)
    axes.axhline(100, color=IDEAL, linestyle=":", zorder=1)
    ratios = [point.ranks / points[0].ranks for point in points]
    _predicted(axes, points, [point.predicted_speedup and 100 * point.predicted_speedup / ratio
                              for point, ratio in zip(points, ratios)])
    scaled = [tuple(100 * end for end in point.efficiency_interval) if point.efficiency_interval else None for point in points]
    values = [100 * point.efficiency for point in points]
    _bars(axes, points, values, scaled)
    axes.set_ylim(0, max(110, 1.05 * max([end[1] for end in scaled if end] + values)))
    axes.set_ylabel("efficiency (%)")
    axes.set_xlabel("ranks")


def _causes(axes, points):
    """Bars of all of the ranks' time: useful work, and what was lost to which cause. Gains lie below zero."""
    drawn = [cause for cause in CAUSES if any(abs(point.lost[cause]) >= LEAST for point in points)]
    for place, point in enumerate(points):
        top, bottom = 100 * point.efficiency, 0.0
        axes.bar(place, top, 0.7, color=USEFUL[0], edgecolor="white", linewidth=0.4, zorder=2)
        for cause in drawn:
            colour, hatch, _ = LOST[cause]
            height = 100 * point.lost[cause]
            start = top if height > 0 else bottom
            axes.bar(place, height, 0.7, bottom=start, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4, zorder=2)
            if height > 0:
                top += height
            else:
                bottom += height
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set_xticks(range(len(points)), [f"{point.ranks:,}{'*' if point.oversubscribed else ''}" for point in points])
    axes.set_ylabel("ranks' time (%)")
    axes.set_xlabel("ranks" + ("   (* oversubscribed)" if any(point.oversubscribed for point in points) else ""))
    return drawn


def draw(points, output, title=""):
    """Writes the figure; its format follows from the name. ImportError without matplotlib."""
    if not os.access(os.path.expanduser("~"), os.W_OK):
        os.environ.setdefault("MPLCONFIGDIR", os.path.join(tempfile.gettempdir(), f"matplotlib-{os.getuid()}"))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import patches, pyplot, ticker

    kinds = [kind for kind in ("strong", "weak") if any(point.kind == kind for point in points)]
    with pyplot.rc_context(STYLE):
        picture, grid = pyplot.subplots(3, len(kinds), figsize=(COLUMN if len(kinds) == 1 else PAGE, HEIGHT), squeeze=False,
                                        layout="constrained", height_ratios=[1.15, 1, 1.1])
        causes = []
        for column, kind in enumerate(kinds):
            chosen = [point for point in points if point.kind == kind]
            _speedup(grid[0][column], chosen, ticker)
            _efficiency(grid[1][column], chosen, ticker)
            causes += _causes(grid[2][column], chosen)
        entries = [patches.Patch(facecolor=USEFUL[0], label=USEFUL[2])]
        entries += [patches.Patch(facecolor=LOST[cause][0], hatch=LOST[cause][1], edgecolor="white", label=LOST[cause][2])
                    for cause in CAUSES if cause in causes]
        picture.legend(handles=entries, loc="outside lower center", ncols=3 if len(kinds) == 1 else 7, frameon=False,
                       handlelength=1.4, columnspacing=1.2)
        if title:
            picture.suptitle(title, fontsize=9)
        pathlib.Path(output).parent.mkdir(parents=True, exist_ok=True)
        picture.savefig(output, dpi=200, metadata={"Date": None} if str(output).endswith(".svg") else None)
        pyplot.close(picture)
