"""The kernels of a run's timeline that took most of the GPUs' time, as a table."""
from . import words
from .words import Table


def kernel_table(totals, other):
    """totals: of gantt.kernel_totals; other: otherData of the trace. None for a run without a GPU."""
    told = other.get("kernels")
    if not told:
        return None
    if not totals:
        return Table(["kernel"], [], caption=f"Kernels were not told apart: {words.printable(told.get('why_not', 'none ran'))}")
    whole = sum(time for _, _, time in totals) or 1
    steps = other.get("steps", [0, 0])
    rows = [[words.printable(name or "all others"), f"{count:,}", f"{time / 1e3:,.2f}", f"{time / count:,.1f}", words.share(time / whole)]
            for name, count, time in totals]
    caption = f"All ranks, steps {steps[0]} to {steps[1]}; the share is that of all kernels and copies, also of those that ran at the same time."
    if told.get("left_out"):
        missing = sum(entry["kernels"] for entry in told["left_out"])
        caption += f" {missing:,} found no room, from step {min(entry['from_step'] for entry in told['left_out'])} on."
    return Table(["kernel", "runs", "time (ms)", "each (µs)", "share"], rows, caption=caption)
