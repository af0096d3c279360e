"""Reads metrics.jsonl, of any length and in any state: columns of numbers for steps, lists for the rest.

Step records go into one array of 8-byte numbers (13 a step: 104 MB for a million steps); what cannot be
read is counted and told, never guessed.
"""
import array
import collections
import json
import math

import numpy

COLUMNS = ("step", "tokens", "loss", "learning_rate", "grad_norm", "step_seconds", "tokens_per_second", "roof_fraction",
           "seconds_compute", "seconds_exposed_communication", "seconds_bubble", "seconds_data", "seconds_checkpoint")
LONGEST_LINE = 1 << 20  # bytes; the program writes no longer record
MOST_EVENTS = 20_000  # kept in memory; all are counted
MOST_EVALUATIONS = 200_000


def number(value):
    """A float of what a record holds; NaN for anything that is no number (null after a divergence)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


class Metrics:
    """Contents of metrics.jsonl."""

    def __init__(self):
        self.steps = {name: numpy.empty(0) for name in COLUMNS}
        self.evaluations = []  # records of kind valid, valid_other, test
        self.events = []
        self.event_counts = collections.Counter()
        self.slowest = collections.Counter()  # (rank, host) -> intervals in which it was the slowest
        self.energy = []  # (step, watts of a node)
        self.sources = {}
        self.done = None
        self.last_interval = None
        self.torn = []  # (line, reason), the first few
        self.torn_count = 0
        self.lines = 0
        self.repeated = 0  # step records that a later one of the same step replaces

    @property
    def count(self):
        return len(self.steps["step"])

    def every(self):
        """Steps between step records, the median; 1 where every step has one."""
        step = self.steps["step"]
        return 1 if len(step) < 2 else int(numpy.median(numpy.diff(step)))

    def weights(self):
        """Steps that each record stands for: of old runs, whose times are means since the last record."""
        step = self.steps["step"]
        if len(step) == 0:
            return step
        gaps = numpy.diff(step, prepend=step[0] - 1)
        return numpy.minimum(gaps, max(self.every(), 1))


def _row(record):
    return array.array("d", [value if type(value) is float else number(value)
                             for value in map(record.get, COLUMNS)])


def _tear(metrics, reason):
    metrics.torn_count += 1
    if len(metrics.torn) < 5:
        metrics.torn.append((metrics.lines, reason))


def _take_interval(metrics, record):
    rank = record.get("slowest_rank")
    if isinstance(rank, int):
        host = record.get("slowest_host")
        metrics.slowest[(rank, host if isinstance(host, str) else "")] += 1
    watts = number(record.get("watts_per_node"))
    if math.isfinite(watts):
        metrics.energy.append((number(record.get("step")), watts))
    if isinstance(record.get("sources"), dict):
        metrics.sources = record["sources"]


def _take_other(metrics, record):
    kind = record.get("kind")
    if kind == "event":
        metrics.event_counts[str(record.get("event"))] += 1
        if len(metrics.events) < MOST_EVENTS or record.get("event") != "checkpoint":
            metrics.events.append(record)
    elif kind in ("valid", "valid_other", "test"):
        if len(metrics.evaluations) < MOST_EVALUATIONS:
            metrics.evaluations.append(record)
    elif kind == "interval":
        metrics.last_interval = record
        _take_interval(metrics, record)
    elif kind == "done":
        metrics.done = record
        if isinstance(record.get("sources"), dict):
            metrics.sources = record["sources"]


def _lines(file):
    """Lines of a file opened for bytes; of one that is too long for a record, its start and False."""
    while True:
        line = file.readline(LONGEST_LINE)
        if not line:
            return
        whole = line.endswith(b"\n")
        part = line
        while not part.endswith(b"\n"):
            part = file.readline(LONGEST_LINE)
            if not part:
                break
        yield line, whole


def _put_in_order(metrics, rows):
    """Steps in order, each once: the last record of a step stands (a run that went back computes it again)."""
    table = numpy.frombuffer(rows, dtype=float).reshape(-1, len(COLUMNS)) if rows else numpy.empty((0, len(COLUMNS)))
    step = table[:, 0]
    if len(step) > 1 and not numpy.all(step[1:] > step[:-1]):
        kept, first = numpy.unique(step[::-1], return_index=True)
        order = (len(step) - 1 - first)[numpy.isfinite(kept)]
        metrics.repeated = len(step) - len(order)
        table = table[order]
    metrics.steps = {name: table[:, at] for at, name in enumerate(COLUMNS)}


def read_metrics(path):
    """Metrics of a file. Raises OSError if it cannot be read."""
    metrics, rows = Metrics(), array.array("d")
    with open(path, "rb") as file:
        for line, whole in _lines(file):
            metrics.lines += 1
            if not whole:
                _tear(metrics, "is torn: it has no end")
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                _tear(metrics, "is no JSON record")
                continue
            if not isinstance(record, dict):
                _tear(metrics, "is no record")
                continue
            if record.get("kind") == "step":
                rows.extend(_row(record))
                if "slowest_rank" in record:
                    _take_interval(metrics, record)
            else:
                _take_other(metrics, record)
    _put_in_order(metrics, rows)
    return metrics
