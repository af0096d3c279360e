"""The table of a study for LaTeX, with booktabs."""
import math

from .studies import CAUSES

NAMES = {"compute": "more computation", "imbalance": "imbalance", "communication": "communication", "bubble": "bubble",
         "data": "data", "other": "other"}


def with_error(value, interval, unit=1.0, digits=2):
    """$1.93 \\pm 0.03$: half of the interval, with `digits` decimals; the value alone without one."""
    if not interval or interval[0] is None:
        return f"${unit * value:.{digits}f}$"
    return f"${unit * value:.{digits}f} \\pm {unit * (interval[1] - interval[0]) / 2:.{digits}f}$"


def _main_cause(point):
    cause = max(CAUSES, key=lambda name: point.lost[name])
    if point is point.base or point.lost[cause] < 5e-4:
        return "--"
    return f"{NAMES[cause]} ({100 * point.lost[cause]:.1f}\\,\\%)"


def _digits(unit_value):
    """Decimals for about four digits."""
    return max(0, 3 - math.floor(math.log10(unit_value))) if unit_value > 0 else 2


def table(points):
    lines = ["% made by vis/scaling.py; needs \\usepackage{booktabs}. Intervals: 95 %.", "\\begin{tabular}{lrrlllll}", "\\toprule",
             "scaling & ranks & nodes & step (s) & speed-up & efficiency (\\%) & serial fraction & lost most to \\\\", "\\midrule"]
    for point in points:
        serial = "--" if point.serial is None else with_error(point.serial, point.serial_interval, digits=3)
        mark = "$^{*}$" if point.oversubscribed else ""
        lines.append(" & ".join([
            point.kind, f"{point.ranks}{mark}", point.row["nodes"],
            with_error(point.seconds, point.step_interval, digits=_digits(point.seconds)),
            with_error(point.speedup, point.speedup_interval if point is not point.base else None),
            with_error(point.efficiency, point.efficiency_interval if point is not point.base else None, 100, 1), serial,
            _main_cause(point)]) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    if any(point.oversubscribed for point in points):
        lines.append("% * more ranks than cores")
        lines.append("\\\\{\\footnotesize $^{*}$ more threads than cores: no measure of scaling}")
    return "\n".join(lines) + "\n"
