"""Studies: scaling.csv and deck.in of one or more folders, merged, with speed-ups over the fewest ranks of all."""
import csv
import pathlib

from . import statistics

# Keys of a deck that may differ between studies which are merged: what is measured, and where it goes.
FREE = {"job.name", "job.output", "scaling.ranks", "scaling.kind", "scaling.base_ranks", "scaling.steps",
        "scaling.warmup_steps", "scaling.repeats", "grid.ranks"}
CAUSES = ("compute", "imbalance", "communication", "bubble", "data", "other")
SAME_LOSS = 1e-5  # relative, of fp32 (doc/reference/numerics.md)
SAME_LOSS_HALF = 1e-3
SAME_WORK = 0.02  # relative: one window of the text is short


class Refused(Exception):
    """A study that is not there, or studies that cannot be compared."""


class Point:
    """One number of ranks in one kind of scaling."""

    def __init__(self, row, folder):
        self.row, self.folder = row, folder
        self.kind, self.ranks = row["kind"], int(row["ranks"])
        self.oversubscribed = row["oversubscribed"] == "yes"
        self.tokens, self.seconds = float(row["tokens"]), float(row["step_seconds"])
        self.loss = float(row["loss"])
        # Seconds a token, of each round.
        self.costs = [float(text) / self.tokens for text in row["round_seconds"].split(";")]
        self.predicted = self.number("predicted_step_seconds")
        waited = sum(float(value) for name, value in row.items() if name.startswith("seconds_exposed_"))
        imbalance = float(row["seconds_imbalance"])
        self.split = {"compute": float(row["seconds_compute"]), "imbalance": imbalance,
                      "communication": waited - imbalance, "bubble": float(row["seconds_bubble"]),
                      "data": float(row["seconds_data"]), "other": float(row["seconds_other"])}
        self.step_interval = (self.number("step_seconds_low"), self.number("step_seconds_high"))

    def number(self, name):
        return float(self.row[name]) if self.row[name] else None

    def compare(self, base):
        """Speed-up, efficiency, Karp and Flatt's fraction and causes of the loss, over the baseline's."""
        self.base, ratio = base, self.ranks / base.ranks
        self.speedup = self.tokens / self.seconds * base.seconds / base.tokens
        self.efficiency = self.speedup / ratio
        if self is base:
            factor = 1.0
        elif self.folder == base.folder:
            factor = statistics.paired_factor(base.costs, self.costs)
        else:
            factor = statistics.separate_factor(base.costs, self.costs)
        self.speedup_interval = (self.speedup / factor, self.speedup * factor) if factor else None
        self.efficiency_interval = tuple(end / ratio for end in self.speedup_interval) if factor else None
        self.serial = self.serial_interval = None
        if self.kind == "strong" and ratio > 1:
            fraction = lambda speedup: (1 / speedup - 1 / ratio) / (1 - 1 / ratio)  # noqa: E731
            self.serial = fraction(self.speedup)
            if factor:
                self.serial_interval = tuple(fraction(end) for end in reversed(self.speedup_interval))
        work = self.tokens / base.tokens
        self.lost = {cause: (self.ranks * self.split[cause] - work * base.ranks * base.split[cause])
                     / (self.ranks * self.seconds) for cause in CAUSES}
        self.predicted_speedup = None
        if self.predicted and base.predicted:
            self.predicted_speedup = self.tokens / self.predicted * base.predicted / base.tokens


def read_deck(folder):
    """section.key -> value of a resolved deck."""
    path, values, section = pathlib.Path(folder, "deck.in"), {}, ""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error
    for line in lines:
        line = line.split("#")[0].strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif "=" in line:
            key, value = line.split("=", 1)
            values[f"{section}.{key.strip()}"] = value.strip()
    return values


def _read_rows(folder):
    path = pathlib.Path(folder, "scaling.csv")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [Point(row, folder) for row in csv.DictReader(file)]
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}\n  job.task = scaling writes it.") from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Refused(f"{path}: not a table of job.task = scaling ({error})") from error


def _check_decks(folders):
    first = read_deck(folders[0])
    for folder in folders[1:]:
        deck = read_deck(folder)
        for key in sorted(set(first) | set(deck)):
            if key not in FREE and first.get(key) != deck.get(key):
                raise Refused(f"{key} differs: {first.get(key, 'not set')} in {folders[0]}, {deck.get(key, 'not set')} in "
                              f"{folder}\n  Merge studies of one deck.")
    return first


def _check_losses(points, deck):
    most = SAME_LOSS_HALF if deck.get("run.precision") in ("bf16", "fp8") else SAME_LOSS
    for point in points:
        if point.kind == "strong" and not abs(point.loss / point.base.loss - 1) <= most:
            raise Refused(f"strong scaling: the loss is {point.loss} on {point.ranks} ranks ({point.folder}) and {point.base.loss} "
                          f"on {point.base.ranks} ({point.base.folder})\n  They computed different things.")


def _check_weak(points):
    """Weak scaling has the same work on each rank."""
    weak = [point for point in points if point.kind == "weak"]
    for point in weak:
        if not abs(point.tokens * weak[0].ranks / (weak[0].tokens * point.ranks) - 1) <= SAME_WORK:
            raise Refused(f"weak scaling: {point.tokens / point.ranks:g} tokens a rank in {point.folder}, {weak[0].tokens / weak[0].ranks:g} "
                          f"in {weak[0].folder}\n  Give all studies one scaling.base_ranks.")


def read(folders):
    """Points of all folders, by kind (strong first), then by ranks. Raises Refused."""
    folders = [str(folder) for folder in folders]
    points = [point for folder in folders for point in _read_rows(folder)]
    deck = _check_decks(folders)
    points.sort(key=lambda point: (point.kind, point.ranks))
    for before, after in zip(points, points[1:]):
        if (before.kind, before.ranks) == (after.kind, after.ranks):
            raise Refused(f"{after.ranks} ranks, {after.kind}, are in {before.folder} and in {after.folder}\n  Name one of them.")
    if not points:
        raise Refused(f"{folders[0]}: nothing was measured")
    for point in points:
        point.compare(next(other for other in points if other.kind == point.kind))
    _check_losses(points, deck)
    _check_weak(points)
    return points
