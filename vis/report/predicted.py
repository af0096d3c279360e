"""The step as it was predicted, beside the mean of the session's."""
from . import words
from .words import Table

SHOWN = 0.002  # of a step: shorter terms are left out


def predicted_table(run):
    """Table and a sentence; no table where there was no prediction, no sentence where none was recorded."""
    found = run.part("predicted")
    if not isinstance(found, dict):
        return None, ""
    if found.get("not_available"):
        return None, f"Not compared with a prediction: {found['not_available']}."
    terms = found.get("terms") if isinstance(found.get("terms"), list) else []
    rows = [(str(term.get("term")), term.get("predicted_seconds"), term.get("seconds")) for term in terms if isinstance(term, dict)]
    rows = [row for row in rows if words.known(row[1]) and words.known(row[2])]
    step = max((actual for _, _, actual in rows), default=0)
    cells = [[name, _time(predicted), _time(actual), _ratio(predicted, actual)] for name, predicted, actual in rows
             if max(predicted, actual) >= SHOWN * step]
    memory = found.get("planned_bytes"), found.get("used_bytes")
    cells.append(["memory, largest rank", *(words.size(number) for number in memory), _ratio(*memory)])
    return Table(["a step", "predicted", "actual", "predicted / actual"], cells), f"By {found.get('machine')}."


def _time(seconds):
    return words.with_unit(seconds, "s") if seconds >= 1 else words.with_unit(1e3 * seconds, "ms")


def _ratio(predicted, actual):
    return f"{predicted / actual:.2f}" if words.known(predicted) and words.known(actual) and predicted > 0 and actual > 0 else words.DASH
