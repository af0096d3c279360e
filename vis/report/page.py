"""The page: its sections are put together here and become HTML in templates/report.html.j2."""
import datetime
import pathlib

import jinja2
import matplotlib
import numpy

from . import bars, curves, kernels, sections, svg, words
from .folder import read_run, session_words
from .pictures import Picture
from .predicted import predicted_table

TEMPLATES = pathlib.Path(__file__).parent / "templates"


def labels_of(paths):
    """A short name for each path; the path itself where two end alike."""
    names = [path.resolve().name if path.name != "metrics.jsonl" else path.resolve().parent.name for path in paths]
    return [words.printable(name if names.count(name) == 1 else path) for name, path in zip(names, paths)]


def timeline_of(run, number):
    """The Gantt chart of the run's trace, and the table of its kernels; None where there is none."""
    path = run.path / "trace.json.gz"
    if not path.exists():
        return None, None
    try:
        import gantt
    except ImportError:
        run.note("note", "trace.json.gz is there, but vis/gantt.py, which draws it, is not.")
        return None, None
    name = f"timeline-{number}"
    table = None
    try:
        trace = gantt.read(path)
        table = kernels.kernel_table(gantt.kernel_totals(trace[0]), trace[1])
        with matplotlib.rc_context(svg.STYLE):
            text = svg.to_inline(gantt.draw(path, trace=trace), name)
    except Exception as error:  # noqa: BLE001  a trace may be torn in any way: the page stands without it
        run.note("warning", f"trace.json.gz cannot be drawn: {error}")
        return None, table
    for black in ("#000000", "black"):
        text = text.replace(f": {black}", ": var(--ink)")
    alt = f"Gantt chart of {run.label}: a row for each rank, its computation, transfers and waits over time. trace.json.gz opens in Perfetto."
    return Picture(name, "Timeline", alt, "What each rank did during the traced steps. The whole trace, with its numbers, opens in Perfetto: trace.json.gz.",
                   [], None, text, None), table


class RunSection:
    """Contents that each run has for itself."""

    def __init__(self, run, number):
        self.label = run.label
        self.tiles = sections.tiles(run)
        self.samples = sections.samples_of(run)
        self.split = curves.split_picture(run, number)
        self.memory = bars.memory_picture(run, number)
        self.slowest = sections.slowest_table(run)
        self.predicted, self.predicted_note = predicted_table(run)
        self.timeline, self.kernels = timeline_of(run, number)
        self.event_counts, self.events, self.routine = sections.events_tables(run)
        self.map, self.map_note = sections.map_tables(run), sections.map_note(run)
        self.map_text = run.log.get("map", "")
        self.memory_text = run.log.get("memory", "")
        self.session = session_words(run) or "the last session"
        self.traffic = sections.traffic_table(run)
        self.traffic_text = run.log.get("traffic", "")
        self.deck = run.deck
        self.marked = "not their default" if run.summary else "set by the deck or the command line"
        self.given = [entry for entry in run.deck if entry[2]]
        self.unknown = sum(entry[2] is None for entry in run.deck)
        self.notes = run.notes


def _speed_pictures(runs):
    roofed = len(runs) == 1 and numpy.isfinite(runs[0].metrics.steps["roof_fraction"]).any()
    made = [curves.simple_picture(runs, "tokens_per_second", "Speed", "tokens a second",
                                  second=("of the roof (%)", "roof_fraction") if roofed else None),
            bars.account_picture(runs)]
    return [picture for picture in made if picture]


def _training_pictures(runs):
    drawable = any(run.metrics.count or curves.valid_points(run) for run in runs)
    made = [curves.loss_picture(runs, sections.levels_of(runs)) if drawable else None,
            curves.simple_picture(runs, "grad_norm", "Gradient norm", "norm before clipping", log=True),
            curves.simple_picture(runs, "learning_rate", "Learning rate", "learning rate")]
    return [picture for picture in made if picture]


def make_page(paths):
    """The HTML text of the page of these run folders. Raises FileNotFoundError for one that is none."""
    paths = [pathlib.Path(path) for path in paths]
    runs = [read_run(path, label) for path, label in zip(paths, labels_of(paths))]
    context = {
        "title": runs[0].label if len(runs) == 1 else f"{len(runs)} runs: " + ", ".join(run.label for run in runs),
        "single": len(runs) == 1,
        "outcomes": [(run.label, sections.outcome(run)) for run in runs],
        "model": runs[0].text("model") or runs[0].log.get("model", ""),
        "data": runs[0].text("data") or runs[0].log.get("data", ""),
        "overview": sections.overview_table(runs),
        "training": _training_pictures(runs),
        "speed": _speed_pictures(runs),
        "sources": sections.sources_table(runs),
        "evaluation": sections.evaluation_table(runs),
        "translations": sections.translation_table(runs),
        "planned": sections.planned_table(runs),
        "differing": sections.differing_table(runs) if len(runs) > 1 else None,
        "runs": [RunSection(run, number) for number, run in enumerate(runs)],
        "made": datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
    }
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.globals["plural"] = words.plural
    return environment.get_template("report.html.j2").render(context)
