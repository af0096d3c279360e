#!/usr/bin/env python3
"""vis/report.py on run folders of every state: what the page says, what it escapes, its size.

    report_page.py REPORT.PY [STEPS]    # STEPS: of the long run, 100,000 unless given
"""
import html.parser
import importlib.util
import json
import math
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

import sample_run

MOST_PAGE_BYTES = 5_000_000
MOST_SECONDS_A_MILLION = 120  # on a shared machine
MOST_MEMORY = 900 << 20  # bytes of the largest process

if any(importlib.util.find_spec(name) is None for name in ("matplotlib", "jinja2")):
    print("skipped: matplotlib or Jinja2 is not there, so no page can be made (test/run.sh installs both)")
    sys.exit(77)

SCRIPT = pathlib.Path(sys.argv[1]).resolve()
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
sys.path.insert(0, str(SCRIPT.parent))


class Reader(html.parser.HTMLParser):
    """Text of a page, its elements, and whether each is closed."""

    VOID = {"meta", "br", "img", "hr", "use", "path", "rect", "stop"}

    def __init__(self):
        super().__init__()
        self.open, self.text, self.tags, self.attributes, self.ids = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


def call(*arguments, code=0, **options):
    result = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, **options)
    assert result.returncode == code, f"exit code {result.returncode} instead of {code}: {result.stdout}{result.stderr}"
    return result


def page_of(*runs):
    """The page of the runs: its source and a Reader, checked for what every page must have."""
    call(*runs)
    source = (pathlib.Path(runs[0]) / "report.html").read_text()
    reader = Reader()
    reader.feed(source)
    assert not reader.open, f"not closed: {reader.open}"
    assert "script" not in reader.tags, "a page needs no script"
    assert len(set(reader.ids)) == len(reader.ids), "an id is there twice"
    for name, value in reader.attributes:
        assert not name.startswith("on"), f"a handler: {name}"
        if name in ("href", "src", "xlink:href"):
            assert value.startswith("#"), f"the page refers to {value}"
    assert "url(http" not in source and "@import" not in source
    order = [source.index(f'<section id="{name}"') for name in ("quality", "samples", "how-fast", "memory", "events", "map", "deck", "traffic")]
    assert order == sorted(order), "the sections stand in another order"
    return source, reader, " ".join(" ".join(reader.text).split())


def holds(text, *parts):
    for part in parts:
        assert part in text, f"the page lacks: {part}"


def whole_run(scratch):
    run = sample_run.write_run(scratch / "whole", sample_run.records(400), sample_run.summary(400))
    source, reader, text = page_of(run)
    holds(text, "9.71 M parameters", "perplexity", "entropy floor", "uniform guess", "the ship sails north", "At the roof", "Where the session's time went",
          "communication: data", "communication: tensor", "pipeline bubble", "validation", "checkpoint: 8", "node1", "node2",
          "optimizer.learning_rate", "2 keys of 4 not their default", "all-gather", "not available: no counter can be read", "Slowest ranks",
          "Predicted and actual", "compute 80 ms 90 ms 0.89", "memory, largest rank 98.0 MiB 100 MiB 0.98", "By here (trireme --calibrate).")
    assert "exposed world" not in text, "a term of nothing"
    assert "Read this first" not in text, "a whole run has nothing to warn of"
    pictures = [dict(reader.attributes[at:at + 2]) for at, pair in enumerate(reader.attributes) if pair == ("role", "img")]
    assert len(pictures) >= 12, "figures are missing"
    assert source.count("<svg") == len(pictures)
    for label in re.findall(r'role="img"[^>]*aria-label="([^"]*)"', source):
        assert re.search(r"\d", label), f"a text alternative without a number: {label}"
    assert "<tr class=\"given\"><th scope=\"row\" class=\"text\">model.dim" in source, "a key that was set is not marked"
    assert "#0101" not in source and "#0102" not in source, "a colour was not replaced by its variable"
    assert "prefers-color-scheme: dark" in source and "@media print" in source
    # Shares of the time: 36 s computing at 0.41 of the roof over 52 s of steps.
    table = re.search(r"at the roof</th><td>([\d.]+)</td><td>([\d.]+)%", source)
    assert abs(float(table[1]) - 0.41 * 52) < 0.01, table[0]
    # Exposed communication: 7.5 + 3.5 of 12 seconds have a group.
    holds(source, 'communication: not attributed</th><td>1.000</td>')


def evaluated_run(scratch):
    """evaluation.json beside the run: simple models in the figure and in a table."""
    run = sample_run.write_run(scratch / "evaluated", sample_run.records(400), sample_run.summary(400))
    (run / "evaluation.json").write_text(json.dumps({"sets": [
        {"split": "valid", "loss": 5.5, "perplexity_per_word": 1870.785, "bits_per_byte": 1.5,
         "baselines": {"uniform": {"loss": 10.4}, "unigram": {"loss": 6.8}, "5-gram": {"loss": 5.9}, "left_out": "x"}}, "odd", {}]}))
    holds(page_of(run)[2], "Evaluation of whole splits", "5-gram on validation: 5.9000", "unigram", "the model", "1,871")
    (run / "evaluation.json").write_text(json.dumps({"sets": [
        {"split": "test", "loss": 0.1, "texts": 2000, "exact_match": 99.75, "bleu": 99.9, "chrf": 99.95}]}))
    holds(page_of(run)[2], "Translations of whole splits", "exact match, %", "99.75")
    (run / "evaluation.json").write_text("[")
    holds(page_of(run)[2], "evaluation.json is torn")


def contrasts():
    """Colours of both themes against what they stand on (WCAG 2: 4.5 for text, 3 for lines and areas)."""
    style = (SCRIPT.parent / "report/templates/style.css").read_text()

    def product(one, other):
        return sum(a * b for a, b in zip(one, other))

    def linear(colour):
        parts = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
        return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055)**2.4 for part in parts]

    def light(colour):
        return product((0.2126, 0.7152, 0.0722), linear(colour))

    def lab(colour):
        """Place in CIE 1976, in which distances are differences that an eye sees."""
        rows = (0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8729)
        x, y, z = [product(row, linear(colour)) for row in rows]
        x, y, z = [part**(1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z)]
        return 116 * y - 16, 500 * (x - y), 200 * (y - z)

    blocks = re.findall(r":root \{(.*?)\}", style, re.S)
    assert len(blocks) == 3
    for block in blocks:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        assert sum(name.startswith("series-") for name in colours) == 8 and sum(name.startswith("part-") for name in colours) == 17

        def contrast(one, other):
            low, high = sorted((light(colours[one]), light(colours[other])))
            return (high + 0.05) / (low + 0.05)

        for name in colours:
            if name.startswith(("series-", "part-")):
                assert contrast(name, "paper") >= 3, f"{name}: {contrast(name, 'paper'):.2f} in {block[:60]}"
        for ground in ("paper", "panel", "mark"):
            assert contrast("ink", ground) >= 7
        for name, ground in (("soft", "paper"), ("soft", "panel"), ("bad", "mark"), ("bad", "paper"), ("link", "paper")):
            assert contrast(name, ground) >= 4.5, f"{name} on {ground}: {contrast(name, ground):.2f}"
        parts = {name: lab(colour) for name, colour in colours.items() if name.startswith("part-")}
        near = [(one, other) for one in parts for other in parts if one < other and math.dist(parts[one], parts[other]) < 16]
        assert not near, f"colours that look alike: {near}"
    dark = light(re.search(r"--paper: (#[0-9a-f]{6})", blocks[1])[1])
    import gantt
    for name, colour in [*((kind, bar[0]) for kind, bar in gantt.BARS.items()), *gantt.TRANSFERS.items()]:
        assert colour != "#000000" and (light(colour) + 0.05) / (dark + 0.05) >= 3, f"{name} of the timeline: {colour}"
    # Every group of the program has a colour of its own, and none that of another part.
    from report.bars import GROUPS
    names = re.findall(r'"([a-z/]+)"', (SCRIPT.parent.parent / "src/comm/ledger.cpp").read_text().split("NameOf(Transfer")[0])
    assert len(names) == 9 and set(names) <= set(GROUPS) == set(gantt.TRANSFERS) | {"not attributed"}, names
    assert len(set(GROUPS.values()) | {0, 1, 6, 7, 8, 10, 11}) == len(GROUPS) + 7


def escaped_text(scratch):
    evil = "<script>alert(1)</script>"
    summary = sample_run.summary(60, samples=[f"a {evil} b", '"><img src=x onerror=alert(1)>'], model=f"model {evil}", hosts=[evil],
                                 deck={"job.name": evil, f"x.{evil}": "y"}, deck_given=["job.name"], sources={evil: 5},
                                 reason=evil, outcome="stopped", grid="$x^2$ & <b>", energy={"not_available": evil})
    summary["memory"]["ranks"][0]["host"] = evil
    summary["traffic"][0]["group"] = evil
    summary["predicted"]["machine"] = summary["predicted"]["terms"][0]["term"] = evil
    lines = sample_run.records(60) + [sample_run.event(evil, 3, f"token {evil}", host=evil)]
    lines.append(sample_run.step_record(60, "valid", set=evil))
    run = sample_run.write_run(scratch / "<script>$a_b$ & co", lines, summary, log=f"sample  {evil}\nwarning: {evil}\n")
    other = sample_run.write_run(scratch / "b$<i>", sample_run.records(60), sample_run.summary(60))
    source, _, text = page_of(run, other)
    assert "<script" not in source and "<img" not in source and "<i>" not in source.replace('<i class', "")
    holds(text, f"a {evil} b", "onerror=alert(1)")
    assert source.count("&lt;script&gt;alert(1)") >= 10


def old_run(scratch):
    run = sample_run.write_run(scratch / "old", sample_run.records(2000, every=50), None, log=sample_run.OLD_LOG)
    source, _, text = page_of(run)
    holds(text, "A step is recorded every 50 steps", "summary.json is not there", "1.63 M parameters", "rank 3 vm pipeline 0",
          "the old harbour lies still", "all-gather", "communication: tensor", "Planned: largest rank", "runs/a", "2 keys of 5",
          "No space left on device")
    # Records stand for 50 steps each: 2,000 steps of 0.07 s.
    table = re.search(r"at the roof</th><td>([\d.,]+)</td>.*?computing below the roof</th><td>([\d.,]+)</td>", source, re.S)
    computing = sum(float(part.replace(",", "")) for part in table.groups())
    assert abs(computing - 140) < 0.1, computing


def broken_runs(scratch):
    lines = sample_run.records(100)[:-2]
    run = sample_run.write_run(scratch / "killed", lines, None)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"kind":"step","step":101,"los')
    holds(page_of(run)[2], "has not ended, or was killed", "up to step 100", "is torn: it has no end")

    run = sample_run.write_run(scratch / "torn", sample_run.records(100), sample_run.summary(100))
    text = (run / "metrics.jsonl").read_bytes().split(b"\n")
    text[10] = text[10][:40]
    text[20] = b"\0" * 5000
    text[30] = b"[1, 2]"
    (run / "metrics.jsonl").write_bytes(b"\n".join(text))
    (run / "summary.json").write_text("{")
    holds(page_of(run)[2], "line 11 is no JSON record", "line 21", "line 31 is no record", "summary.json is torn", "3 steps between")

    # A disk that was full: records end, the summary tells of more.
    run = sample_run.write_run(scratch / "full", sample_run.records(100)[:60], sample_run.summary(400))
    holds(page_of(run)[2], "before the last step that the run tells of")

    run = sample_run.write_run(scratch / "diverged", sample_run.records(100), None)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines[40:50]:
        line["loss"] = None
    lines[60].update(loss=1e6, step="x", grad_norm={"a": 1}, tokens=10**400)
    lines[61].update(loss=1e6)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    holds(page_of(run)[2], "is not finite", "beyond the axis")

    for name, lines in (("empty", []), ("none", None), ("one", sample_run.records(1)), ("only_valid", [sample_run.step_record(5, "valid")])):
        run = sample_run.write_run(scratch / name, lines, None, deck=None)
        (run / "log.txt").write_text("")
        page_of(run)
    holds(page_of(scratch / "empty")[2], "No step has been recorded", "deck is unknown")

    for name, content in (("list", []), ("format", {"format": 2}), ("types", {key: 7 for key in sample_run.summary(1)} | {"format": 1}),
                          ("deep", {"format": 1, "memory": {"ranks": [1, {"rank": "a"}], "planned": "x"}, "traffic": [3, {}], "deck": {"a": [1]}, "deck_given": [["a"], 1],
                                    "first_step": 3, "step": math.inf, "energy": {"joules": "x", "covers": 1},
                                    "predicted": {"terms": [1, {"term": 3, "seconds": "x"}], "used_bytes": "y"}})):
        page_of(sample_run.write_run(scratch / f"summary_{name}", sample_run.records(60), content))
    with open(scratch / "one" / "metrics.jsonl", "wb") as file:  # a line longer than any record
        file.write(b"x" * (5 << 20) + b"\n" + json.dumps(sample_run.step_record(1)).encode() + b"\n")
    page_of(scratch / "one")


def went_back(scratch):
    """A run that was resumed: the later record of a step stands."""
    lines = sample_run.records(100)[:-2] + [sample_run.step_record(step, loss=2.0) for step in range(51, 101)]
    run = sample_run.write_run(scratch / "back", lines, None)
    from report.metrics import read_metrics
    metrics = read_metrics(run / "metrics.jsonl")
    assert metrics.count == 100 and metrics.repeated == 50 and (metrics.steps["loss"][50:] == 2.0).all()
    page_of(run)


def several_runs(scratch):
    runs = []
    for number in range(8):
        deck = {"model.dim": str(64 * (number + 1)), "data.batch": "16", "job.name": "same"}
        runs.append(sample_run.write_run(scratch / f"several/run_{number}", sample_run.records(200), sample_run.summary(200, deck=deck)))
    source, _, text = page_of(*runs)
    start = text.index("Keys that differ")
    table = text[start:text.index("Samples", start)]
    holds(table, "model.dim", "64", "512")
    assert "data.batch" not in table and "job.name" not in table
    holds(text, *(f"run_{number}" for number in range(8)))
    assert len(source) < MOST_PAGE_BYTES
    call(*runs[:2], "-o", scratch / "two.html")
    assert (scratch / "two.html").exists()


def thinned_curves():
    import numpy
    from report.thin import thin
    generator = numpy.random.default_rng(1)
    for count, bins in ((100_000, 700), (1401, 700), (50_000, 3), (2000, 999)):
        x = numpy.cumsum(generator.integers(1, 5, count)).astype(float)
        y = generator.standard_cauchy(count)
        y[generator.integers(0, count, 5)] = numpy.nan
        curve = thin(x, y, bins)
        assert len(curve.x) <= 2 * bins + 2 and numpy.all(numpy.diff(curve.x) > 0)
        finite = numpy.isfinite(y)
        kept = dict(zip(curve.x, curve.y))
        edges = numpy.linspace(x[0], x[-1], bins + 1)
        for low, high in zip(edges[:-1], edges[1:]):
            inside = finite & (x >= low) & (x < high)
            if inside.any():
                for extreme in (y[inside].min(), y[inside].max()):
                    assert any(kept.get(place) == extreme for place in x[inside][y[inside] == extreme]), "an extreme is lost"
        points = set(zip(x[finite], y[finite]))
        assert all((a, b) in points for a, b in zip(curve.x, curve.y) if numpy.isfinite(b)), "a point was made up"


def long_run(scratch):
    spikes = {STEPS // 3: 29.75, STEPS // 2: 1.25}
    run = sample_run.write_long(scratch / "long", STEPS, spikes)
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    source, _, text = page_of(run)
    seconds = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    memory = after.ru_maxrss * 1024
    print(f"{STEPS:,} steps: {os.path.getsize(run / 'metrics.jsonl') / 1e6:.0f} MB of metrics, page {len(source) / 1e6:.2f} MB, "
          f"{seconds:.1f} s ({after.ru_utime - before.ru_utime:.1f} s of the processor), largest process {memory / 2**20:.0f} MiB")
    assert len(source) < MOST_PAGE_BYTES and seconds < 20 + MOST_SECONDS_A_MILLION * STEPS / 1e6 and memory < MOST_MEMORY
    holds(text, f"{STEPS:,} steps in 700 bins", "29.75")
    # The page's summary of the curve names both extremes and their steps.
    holds(source, f"smallest 1.2500 at step {STEPS // 2:,}", f"largest 29.7500 at step {STEPS // 3:,}")


def sessions(scratch):
    """Numbers of the last session beside those of the run; a summary of an earlier session; a test of an earlier one."""
    lines = [line for line in sample_run.records(400) if line["kind"] not in ("done", "test")]
    lines.insert(300, sample_run.step_record(220, "test", loss=4.25))
    losses = {**sample_run.summary(400)["losses"], "test": None}
    energy = {"joules": 1.23e6, "joules_per_token": 0.45, "watts_per_node": 412.0, "covers": "CPUs and memory", "leaves_out": "GPU 1: no counter",
              "seconds": 90.0, "seconds_lost": 10.0, "gpu_utilisation": 0.87, "gpu_memory_bytes": 31 << 30}
    run = sample_run.write_run(scratch / "resumed", lines, sample_run.summary(400, first_step=220, losses=losses, energy=energy))
    source, _, text = page_of(run)
    of = "of the last session (steps 221 to 400)"
    holds(text, f"tokens a second {of}", f"time {of}", f"begin {of}", f"energy {of}", f"share of the roof {of}", "time of the last session 60 s",
          "Times: the last session (steps 221 to 400)", "Of the last session (steps 221 to 400).", "Steps of the last session (steps 221 to 400).",
          "4.2500 (perplexity 70.11) at step 220", "loss 4.2500 at step 220", "steps 221 to 400; 41.0% of the roof",
          "1.23 MJ of CPUs and memory, 412 W per node, 0.45 J per token; GPUs 87% busy, 31.0 GiB of the fullest in use; "
          "no readings for 10 s of 1:40 min; without GPU 1: no counter")
    assert "may have been another process" not in text, "one session"
    values = {"model.dim": "64", "model.heads": "4", "model.kv_heads": "4", "model.head_dim": "16", "data.stride": "7",
              "data.sequence_length": "32", "job.output": "runs/again"}
    # A restart; one rank, which waits for nobody; keys that follow from others and were not set.
    again = sample_run.write_run(scratch / "again", lines + [sample_run.event("restart", 220, "start 2")],
                                 sample_run.summary(400, first_step=220, ranks=1, traffic=[], deck=values, deck_given=list(values)))
    text = page_of(again)[2]
    holds(text, "Intervals of all 2 sessions together", "4 keys of 7 not their default", "data.stride")
    assert "communication:" not in text, "one rank has nobody to talk to"
    whole = sample_run.write_run(scratch / "in_one", sample_run.records(60), sample_run.summary(60, first_step=0))
    assert "of the last session (" not in page_of(whole)[2]
    holds(page_of(run, whole)[2], "time of the last session", "steps 221 to 400 the whole run")

    stale = sample_run.write_run(scratch / "stale", lines, sample_run.summary(200, first_step=0, reason="SIGUSR1", outcome="stopped"))
    text = page_of(stale)[2]
    holds(text, "summary.json is of an earlier session, which ended with step 200: it is left out", "has not ended, or was killed", "up to step 400")
    assert "SIGUSR1" not in text and "summary.json is not there" not in text
    lines.insert(200, sample_run.step_record(200, "done"))
    assert "has not ended, or was killed" in page_of(sample_run.write_run(scratch / "done_before", lines, None))[2]


def resumed_deck(scratch):
    """A resumed run's deck names itself as the origin of every key: nothing is known of them."""
    from report.folder import parse_deck
    keys = "".join(f"k{number} = 1 # from runs/other/deck.in:{number}\n" for number in range(60))
    deck = "[job]\ntask = train # from runs/own/deck.in:3\noutput = x # from command line\n[model]\ndim = 2 # from mine/deck.in:5\n"
    assert [given for _, _, given in parse_deck(deck, "own")] == [None, True, True]
    assert {given for key, _, given in parse_deck(deck + keys, "own") if key.startswith("model.k")} == {None}
    text = page_of(sample_run.write_run(scratch / "own", sample_run.records(60), None, deck=deck))[2]
    holds(text, "2 keys of 3 set by the deck or the command line; marked in the whole deck. Of 1 key it is not known", "train not known")


def many_ranks(scratch):
    """Of 2,000 ranks the summary has 128: the map says so, the curve of memory has a gap at its true place."""
    import numpy
    from report.bars import percentiles
    memory = {"planned": [], "ranks": sample_run.ranks(128, 16), "ranks_left_out": 1872}
    text = page_of(sample_run.write_run(scratch / "partial", sample_run.records(60), sample_run.summary(60, memory=memory)))[2]
    holds(text, "This map is partial: it has 128 of 2,000 ranks", "1,872 ranks left out", "the smallest and the largest: 1,872; the curves have a gap")
    places = percentiles(128, 1872)
    assert places[0] == 0 and places[-1] == 100 and abs(places[63] - 100 * 63 / 1999) < 1e-9 and abs(places[64] - 100 * 1936 / 1999) < 1e-9
    assert numpy.allclose(percentiles(101, 0), numpy.arange(101))
    memory["ranks_left_out"] = 0
    text = page_of(sample_run.write_run(scratch / "all", sample_run.records(60), sample_run.summary(60, memory=memory)))[2]
    assert "partial" not in text and "left out" not in text


def log_and_names(scratch):
    """A sample of many lines in log.txt; nine runs; a name that is no UTF-8."""
    from report.curves import run_legend, style_of
    from report.folder import Run, parse_log
    sample = "he waited\n\nand time passed =\nloss of a ship\n        far off\ndone    with it\nmodel of\n"
    for after in ("done    40 steps, 3 tokens", "stopped 40 steps, 3 tokens", "time    compute 29.4%", "loss    train first 7.1", "energy  not available"):
        assert parse_log(f"Trireme 0.1.0\nsample  {sample}{after}\nfiles   a\n")[0]["sample"] == sample.rstrip("\n"), after
    run = sample_run.write_run(scratch / "log", sample_run.records(60), None, log=sample_run.OLD_LOG.replace("harbour lies still", "harbour\n\nlies still"))
    holds(page_of(run)[0], "the old harbour\n\nlies still</blockquote>")

    styles = [str(style_of(number)) for number in range(32)]
    assert len(set(styles)) == 32, "two runs have the same curve"
    marks = [(entry.variable, entry.mark) for entry in run_legend([Run(scratch, str(number)) for number in range(32)])]
    assert len(set(marks)) == 32, "two runs have the same mark"

    name = os.fsencode(scratch) + b"/caf\xe9"
    run = sample_run.write_run(os.fsdecode(name), sample_run.records(60), sample_run.summary(60))
    holds(page_of(run)[2], "caf?")
    assert "caf?" in call(run, run, "-o", run / "two.html").stdout
    assert "caf?" in call(run / "none", code=2).stderr


def kernels_of_a_timeline(scratch):
    """The 15 kernels that took most time and the rest, escaped; whether some are missing, and why there are none."""
    run = sample_run.write_run(scratch / "gpu", sample_run.records(60), sample_run.summary(60))
    times = {f"Kernel{number:02}<float>": [10.0 * (number + 1)] * 2 for number in range(18)}
    times["<script>alert(1)</script>"] = [3000.0]
    sample_run.write_trace(run, times, library="CUPTI 13.0", clock_error_us=0.1, left_out=[{"rank": 0, "kernels": 1234, "from_step": 7}])
    source, _, text = page_of(run)
    holds(text, "Kernels in the timeline", "<script>alert(1)</script>", "Kernel17<float>", "all others", "1,234 found no room, from step 7 on")
    assert "<script" not in source and "Kernel03<float>" not in text, "the table is not cut, or not escaped"
    rows = re.findall(r'<th scope="row" class="text">([^<]*)</th><td>([^<]*)</td><td>([^<]*)</td><td>([^<]*)</td><td>([^<]*)</td>',
                      source[source.index("Kernels in the timeline"):source.index('<section id="memory">')])
    assert len(rows) == 16 and rows[0][1:] == ("1", "3.00", "3,000.0", "46.7%"), rows
    assert rows[1] == ("Kernel17&lt;float&gt;", "2", "0.36", "180.0", "5.6%"), rows[1]
    assert rows[-1][:3] == ("all others", "8", "0.20"), rows[-1]
    lines = subprocess.run([sys.executable, SCRIPT.parent / "gantt.py", run, "--kernels"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == 17 and lines[1].split()[:3] == ["<script>alert(1)</script>", "1", "3.00"], lines[:2]
    sample_run.write_trace(run, {}, why_not="rank 0: CUPTI: another profiler")
    holds(page_of(run)[2], "Kernels were not told apart: rank 0: CUPTI: another profiler")
    failed = subprocess.run([sys.executable, SCRIPT.parent / "gantt.py", run, "--kernels"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1 and "another profiler" in failed.stderr and "Traceback" not in failed.stderr, failed


def places_and_messages(scratch):
    run = sample_run.write_run(scratch / "plain", sample_run.records(60), sample_run.summary(60))
    assert "no such run folder" in call(scratch / "nowhere", code=2).stderr
    (scratch / "nothing").mkdir()
    assert "holds no run" in call(scratch / "nothing", code=2).stderr
    page_of(run)
    before = (run / "report.html").read_bytes()
    # A full disk: the old page stays, nothing is left beside it.
    limit = lambda: (resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),)  # noqa: E731
    failed = call(run, code=1, preexec_fn=limit)
    assert "cannot be written" in failed.stderr and "-o FILE" in failed.stderr
    assert (run / "report.html").read_bytes() == before
    assert not [path for path in run.iterdir() if path.name.endswith(".tmp")], "a piece of a page was left"
    assert "cannot be written" in call(run, "-o", scratch / "no/such/page.html", code=1).stderr
    call(run, "-o", scratch / "elsewhere.html")
    call(run / "metrics.jsonl", "-o", scratch / "elsewhere.html")


def main():
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        if STEPS > 100_000:
            long_run(scratch)
            return
        thinned_curves()
        contrasts()
        for check in (whole_run, evaluated_run, escaped_text, old_run, broken_runs, went_back, several_runs, sessions, resumed_deck, many_ranks,
                      log_and_names, kernels_of_a_timeline, long_run, places_and_messages):
            check(scratch)
            print(f"{check.__name__}: as it should be")


if __name__ == "__main__":
    main()
