"""Reads a run folder: metrics.jsonl, summary.json, deck.in, log.txt, and what is missing among them."""
import collections
import json
import math
import pathlib
import re

from .metrics import Metrics, number, read_metrics

LONGEST_TEXT = 64 << 20  # bytes of a summary or a log that are read


class Run:
    """One run, as far as its folder tells it. Every member is there; empty where nothing is known."""

    def __init__(self, path, label):
        self.path, self.label = path, label
        self.summary, self.log, self.deck = {}, {}, []
        self.metrics = Metrics()
        self.evaluation = []  # results of a split each
        self.notes = []  # (severity, text): "bad", "warning" or "note"
        self.no_summary = ""  # why none of summary.json is used

    def note(self, severity, text):
        self.notes.append((severity, text))

    def part(self, *names):
        """A member of summary.json by its path; None where it is not there."""
        value = self.summary
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def value(self, *names):
        """Likewise a number; NaN where there is none."""
        return number(self.part(*names))

    def deck_values(self):
        return {key: value for key, value, _ in self.deck}

    def text(self, *names):
        value = self.part(*names)
        return value if isinstance(value, str) else ""


def _read_text(path, run):
    """The file's text; empty, with a note, if it cannot be read."""
    try:
        with open(path, "rb") as file:
            text = file.read(LONGEST_TEXT).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        run.note("warning", f"{path.name} cannot be read: {error.strerror}")
        return ""
    return text


def _read_summary(run):
    path = run.path / "summary.json"
    text = _read_text(path, run)
    if not text:
        run.no_summary = "is empty" if path.exists() else "is not there"
        return
    try:
        summary = json.loads(text)
    except (ValueError, RecursionError):
        run.no_summary = "is torn: it is left out"
        return
    if not isinstance(summary, dict) or summary.get("format") != 1:
        run.no_summary = "has another format than 1: it is left out"
        return
    step = run.metrics.steps["step"]
    ended = number(summary.get("step"))
    if len(step) and math.isfinite(ended) and ended < step[-1]:
        run.no_summary = f"is of an earlier session, which ended with step {int(ended):,}: it is left out"
        return
    run.summary = summary


def _read_evaluation(run):
    """Results of job.task = evaluate, where evaluate.results put them as workstation.sh does."""
    text = _read_text(run.path / "evaluation.json", run)
    if not text:
        return
    try:
        sets = json.loads(text).get("sets")
    except (ValueError, RecursionError, AttributeError):
        run.note("warning", "evaluation.json is torn: it is left out")
        return
    if isinstance(sets, list):
        run.evaluation = [entry for entry in sets if isinstance(entry, dict)]


# Keys that follow from others unless somebody sets them, and what they then are.
DERIVED = {"model.kv_heads": lambda deck: deck["model.heads"],
           "model.head_dim": lambda deck: str(int(deck["model.dim"]) // int(deck["model.heads"])),
           "model.qkv_bias": lambda deck: deck["model.bias"],
           "data.stride": lambda deck: deck["data.sequence_length"]}


def _is_derived(key, value, deck, folder):
    """Whether the value is the one that follows from other keys: a resumed run has all keys from its own deck."""
    if key == "job.output":
        return pathlib.PurePath(str(value)).name == folder
    try:
        return key in DERIVED and DERIVED[key](deck) == value
    except (KeyError, ValueError, TypeError, ZeroDivisionError):
        return False


RESOLVED = re.compile(r"\s*from (.*)/deck\.in:\d+$")
MOST_GIVEN = 50  # keys of one file; nobody writes so many, a resolved deck has all


def _own_marks(entries, folder):
    """Files X/deck.in that marks name and that are resolved decks: of this run, or with all keys of another one."""
    names = collections.Counter(found[1] for found in (RESOLVED.match(comment) for _, _, comment in entries) if found)
    own = {folder, *(pathlib.PurePath(value).name for key, value, _ in entries if key == "job.output")}
    return {name for name, count in names.items() if pathlib.PurePath(name).name in own or count > MOST_GIVEN}


def parse_deck(text, folder=""):
    """(key, value, given) of a resolved deck; given: its comment says where it was set. None: a resumed run took the key
    from the resolved deck of a folder, so nothing is known of who set it."""
    entries, section = [], ""
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and "]" in line:
            section = line[1:line.index("]")].strip()
            continue
        name, equals, rest = line.partition("=")
        if not equals:
            continue
        value, _, comment = rest.partition("#")
        entries.append((f"{section}.{name.strip()}", value.strip(), comment))
    resolved = _own_marks(entries, folder)

    def given(comment):
        found = RESOLVED.match(comment)
        if found and found[1] in resolved:
            return None
        return bool(re.match(r"\s*from (.*:\d+$|the command line|command line)", comment))

    return [(key, value, given(comment)) for key, value, comment in entries]


def _read_deck(run):
    deck, given = run.part("deck"), run.part("deck_given")
    if isinstance(deck, dict):
        marked = {key for key in given if isinstance(key, str)} if isinstance(given, list) else set()
        run.deck = [(str(key), value if isinstance(value, str) else json.dumps(value),
                     key in marked and not _is_derived(key, value, deck, run.path.resolve().name)) for key, value in deck.items()]
        return
    run.deck = parse_deck(_read_text(run.path / "deck.in", run), run.path.resolve().name)
    if not run.deck:
        run.note("warning", "deck.in is not there: the deck is unknown")


FACTS = ("grid", "map", "model", "data", "memory", "roof", "done", "time", "loss", "sample")
SECTION = re.compile(r"^([a-z]+) {1,8}(?=\S)")
# Lines after a sample, which may have any lines itself.
AFTER_SAMPLE = re.compile(r"(done    |stopped )\d[\d,]* steps?\b|(time    (?=\w+ +[\d.]+%)|loss    (?=train |valid )|traffic group |files   |"
                          r"energy  |sample  |page    )\S|stopped by ")


def parse_log(text):
    """Facts of the newest session by their first word, warnings of all sessions."""
    facts, warnings, word = {}, [], ""
    for line in text.splitlines():
        if line.startswith("Trireme "):
            facts = {"program": line}
            word = ""
            continue
        if line.startswith("warning: "):
            warnings.append(line[len("warning: "):])
            continue
        if word == "sample" and not AFTER_SAMPLE.match(line):
            facts[word] += "\n" + line
            continue
        found = SECTION.match(line)
        if found:
            word = found[1] if found[1] in FACTS or found[1] == "traffic" else ""
            if word:
                facts[word] = line[8:].rstrip() if len(found[1]) < 8 else line
        elif word in ("map", "traffic") and line.startswith("        "):
            facts[word] += "\n" + line[8:].rstrip()
        else:
            word = ""
    return facts, warnings


def _read_log(run):
    run.log, warnings = parse_log(_read_text(run.path / "log.txt", run))
    for text in dict.fromkeys(warnings[:200]):
        run.metrics.events.append({"kind": "event", "event": "warning", "step": None, "text": text})
        run.metrics.event_counts["warning"] += 1


def _read_records(run):
    path = run.path / "metrics.jsonl"
    try:
        run.metrics = read_metrics(path)
    except FileNotFoundError:
        run.note("bad", "metrics.jsonl is not there: no curves")
    except OSError as error:
        run.note("bad", f"metrics.jsonl cannot be read: {error.strerror}")
    metrics = run.metrics
    if metrics.count and number((metrics.done or {}).get("step")) < metrics.steps["step"][-1]:
        metrics.done = None  # of an earlier session
    if metrics.torn_count:
        lines = ", ".join(f"line {line:,} {reason}" for line, reason in metrics.torn)
        more = metrics.torn_count - len(metrics.torn)
        run.note("warning", f"metrics.jsonl: {lines}" + (f", and {more:,} more" if more else "") +
                 ": left out. A full disk or a killed run leaves such lines.")
    if metrics.repeated:
        run.note("note", f"{metrics.repeated:,} step records are replaced by later ones of the same step: the run went back.")


def last_step(run):
    """The last step that the folder knows of; 0 for none."""
    step = run.metrics.steps["step"]
    known = [step[-1] if len(step) else 0, run.value("step"), number((run.metrics.done or {}).get("step"))]
    return int(max(value for value in known if math.isfinite(value)))


def session_words(run):
    """Part of the run that the summary's numbers cover, if an earlier session did another one; "" if they cover all."""
    first, last = run.value("first_step"), run.value("step")
    if not (first > 0 and math.isfinite(first) and math.isfinite(last)):
        return ""
    if not last > first:
        return "the last session (no step)"
    return f"the last session (steps {int(first) + 1:,} to {int(last):,})"


def total_steps(run):
    total = run.value("total_steps")
    if math.isfinite(total):
        return int(total)
    values = run.deck_values()
    for key in ("schedule.stop_at", "schedule.steps"):
        try:
            if int(values.get(key, "0")) > 0:
                return int(values[key])
        except ValueError:
            pass
    return 0


def _judge(run):
    """Notes about what the folder lacks."""
    metrics, step = run.metrics, run.metrics.steps["step"]
    if not run.summary:
        reason = "an older version wrote this run" if metrics.done else "the session has not ended, was killed, or is of an older version"
        reason = f" ({reason})" if run.no_summary == "is not there" else ""
        run.note("warning" if run.no_summary != "is not there" else "note",
                 f"summary.json {run.no_summary}{reason}. Memory of each rank, the process map and the table of traffic "
                 "come from log.txt, if at all.")
    if not metrics.done and run.text("outcome") != "done":
        stopped = run.text("outcome") == "stopped"
        reason = f" by {run.text('reason')}" if run.text("reason") else ""
        total = total_steps(run)
        of_total = f" of {total:,}" if total else ""
        run.note("note" if stopped else "warning",
                 (f"The run was stopped{reason}" if stopped else "The run has not ended, or was killed: it is still under way or lacks its end") +
                 f"; this page shows it up to step {last_step(run):,}{of_total}.")
    if len(step) == 0:
        run.note("bad", "No step has been recorded: there is no loss to draw.")
    elif metrics.every() > 1:
        run.note("note", f"A step is recorded every {metrics.every():,} steps (an older version wrote this run): "
                 "extremes between records are not known.")
    missing = last_step(run) - (int(step[-1]) if len(step) else 0)
    if missing > metrics.every():
        run.note("warning", f"Records end {missing:,} steps before the last step that the run tells of: "
                 "metrics.jsonl could not be written to its end.")
    gone = 0
    if len(step) > 1 and metrics.every() == 1:
        gone = int(step[-1] - step[0]) + 1 - len(step)
    if gone > 0:
        run.note("warning", f"{gone:,} steps between the first and the last one have no record.")
    if len(step) and step[0] > max(metrics.every(), 1):
        run.note("note", f"Records begin at step {int(step[0]):,}.")
    lost = int((~_finite(metrics.steps["loss"])).sum())
    if lost:
        first = int(step[~_finite(metrics.steps["loss"])][0])
        run.note("bad", f"The loss of {lost:,} steps is not finite, first at step {first:,}.")


def _finite(values):
    return abs(values) < math.inf


def read_run(path, label):
    """A Run of a folder (or of the metrics.jsonl inside). Raises FileNotFoundError if there is no run."""
    path = pathlib.Path(path)
    if path.name == "metrics.jsonl":
        path = path.parent
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such run folder")
    if not any((path / name).exists() for name in ("metrics.jsonl", "summary.json", "deck.in", "log.txt")):
        raise FileNotFoundError(f"{path}: holds no run (neither metrics.jsonl nor summary.json, deck.in, log.txt)")
    run = Run(path, label)
    _read_records(run)
    _read_summary(run)
    _read_evaluation(run)
    _read_deck(run)
    _read_log(run)
    _judge(run)
    return run
