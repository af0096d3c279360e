"""Contents of the page's sections as texts and tables; figures come from curves and bars."""
import math
import re

import numpy

from . import words
from .bars import ranks_left_out, ranks_of, traffic_rows
from .curves import words_number
from .folder import last_step, session_words, total_steps
from .words import DASH, Table


def _log_word(run, word):
    return run.log.get(word, "")


def _fact(run, name, word):
    return run.text(name) or _log_word(run, word)


def losses_of(run):
    """first, last, last_valid, best_valid and test with their steps; NaN where unknown. From the summary, else from records."""
    metrics = run.metrics
    losses = metrics.steps["loss"]
    finite = losses[numpy.isfinite(losses)]
    valid = [(words_number(r.get("loss")), words_number(r.get("step"))) for r in metrics.evaluations if r.get("kind") == "valid"]
    valid = [pair for pair in valid if math.isfinite(pair[0])]
    test = [(words_number(r.get("loss")), words_number(r.get("step"))) for r in metrics.evaluations if r.get("kind") == "test"]
    test = test[-1] if test else (math.nan, math.nan)
    best = min(valid, default=(math.nan, math.nan))
    found = {"first": finite[0] if len(finite) else math.nan, "last": losses[-1] if len(losses) else math.nan,
             "last_valid": valid[-1][0] if valid else math.nan, "best_valid": best[0], "best_valid_step": best[1],
             "test": test[0], "test_step": test[1], "entropy_floor": math.nan}
    for name in found:
        value = run.value("losses", name)
        if math.isfinite(value):
            found[name] = value
    if found["test"] != test[0]:
        found["test_step"] = math.nan  # the record of the summary's test is lost
    return found


def levels_of(runs):
    """(name, nats per token) of the lines a loss is compared with: entropy floor, uniform guess, evaluated baselines."""
    levels = []
    for run in runs:
        floor = losses_of(run)["entropy_floor"]
        if math.isfinite(floor):
            levels.append(("entropy floor, which no honest model passes", floor))
        vocabulary = re.search(r"vocabulary ([\d,]+)", _fact(run, "model", "model"))
        if vocabulary and int(vocabulary[1].replace(",", "")) > 1:
            levels.append(("uniform guess", math.log(int(vocabulary[1].replace(",", "")))))
        for entry in run.evaluation:
            if entry.get("split") == "valid" and isinstance(entry.get("baselines"), dict):
                levels += [(f"{name} on validation", words_number(values.get("loss"))) for name, values in entry["baselines"].items()
                           if name != "uniform" and isinstance(values, dict) and words.known(values.get("loss"))]
    return list(dict.fromkeys(levels))


def evaluation_table(runs):
    """Losses of the whole splits, and of simple models on the same targets."""
    rows = []
    for run in runs:
        for entry in run.evaluation:
            split = " ".join(str(entry[key]) for key in ("split", "set") if entry.get(key))
            baselines = entry.get("baselines") if isinstance(entry.get("baselines"), dict) else {}
            for name, values in [("the model", entry), *baselines.items()]:
                if isinstance(values, dict) and words.known(values.get("loss")):
                    rows.append([run.label, split, str(name), words.loss(values["loss"]), words.perplexity(values["loss"]),
                                 words.power(values.get("perplexity_per_word")), words.loss(values.get("bits_per_byte"))])
    headers = ["run", "split", "predicted by", "loss", "perplexity", "perplexity a word", "bits a byte"]
    return Table(headers, rows, text=[1, 2]) if rows else None


def translation_table(runs):
    """Scores of the whole splits of models that translate."""
    rows = [[run.label, str(entry.get("split")), words.short(entry.get("texts"), 4), words.short(entry.get("exact_match"), 5),
             words.short(entry.get("bleu"), 5), words.short(entry.get("chrf"), 5)]
            for run in runs for entry in run.evaluation if words.known(entry.get("exact_match"))]
    return Table(["run", "split", "texts", "exact match, %", "BLEU", "chrF"], rows, text=[1]) if rows else None


def speed_of(run):
    """tokens/s, FLOP/s, roof fraction of the run as a whole."""
    found = {name: run.value("speed", name) for name in ("tokens_per_second", "flops_per_second", "roof_fraction")}
    done = run.metrics.done or {}
    for name in found:
        if not math.isfinite(found[name]):
            found[name] = words_number(done.get(name))
    metrics = run.metrics
    for name in ("tokens_per_second", "roof_fraction"):
        if not math.isfinite(found[name]) and metrics.count:
            weight = metrics.weights() * metrics.steps["step_seconds"]
            good = numpy.isfinite(weight) & numpy.isfinite(metrics.steps[name])
            if good.any() and weight[good].sum() > 0:
                found[name] = float((metrics.steps[name] * weight)[good].sum() / weight[good].sum())
    return found


def tokens_of(run):
    tokens = run.value("tokens")
    if math.isfinite(tokens):
        return tokens
    steps = run.metrics.steps["tokens"]
    return steps[-1] if len(steps) else math.nan


def outcome(run):
    if run.text("outcome") == "done" or (run.metrics.done and not run.summary):
        return "done"
    if run.text("outcome") == "stopped":
        return "stopped" + (f" by {run.text('reason')}" if run.text("reason") else "")
    return "not ended, or killed"


def where(run):
    """Ranks, hosts, device and precision in a line."""
    if run.summary:
        hosts = run.part("hosts")
        hosts = [str(host) for host in hosts] if isinstance(hosts, list) else []
        number = len(dict.fromkeys(hosts))
        parts = [words.plural(int(run.value("ranks")), "rank") if math.isfinite(run.value("ranks")) else "",
                 f"on {words.plural(number, 'host')}" if number else ""]
        threads = run.value("threads")
        text = " ".join(part for part in parts if part)
        if math.isfinite(threads):
            text += f", {words.plural(int(threads), 'thread')} each"
        return ", ".join(part for part in (text, run.text("device"), run.text("precision")) if part)
    line = _log_word(run, "program")
    return re.sub(r"^Trireme \S+ \(\S*\)\s*", "", re.sub(r"\s{2,}", ", ", line.strip(), count=0)).lstrip(", ")


def overview_table(runs):
    """One column a run: what it was and how it ended."""
    rows = []

    def row(name, texts):
        texts = [text or DASH for text in texts]
        if any(text != DASH for text in texts):
            rows.append([name, *texts])

    losses, speeds = [losses_of(run) for run in runs], [speed_of(run) for run in runs]
    row("outcome", [outcome(run) for run in runs])
    row("model", [_fact(run, "model", "model") for run in runs])
    row("parameters", [words.whole(run.value("parameters")) for run in runs])
    row("data", [_fact(run, "data", "data") for run in runs])
    row("steps", [f"{last_step(run):,}" + (f" of {total_steps(run):,}" if total_steps(run) else "") for run in runs])
    row("epochs", [f"{run.value('epoch'):.3g}" if math.isfinite(run.value("epoch")) else DASH for run in runs])
    row("tokens seen", [words.whole(tokens_of(run)) for run in runs])
    for name, key in (("training loss, first", "first"), ("training loss, last", "last"), ("validation loss, last", "last_valid"),
                      ("validation loss, best", "best_valid"), ("test loss", "test"), ("entropy floor", "entropy_floor")):
        row(name, [f"{words.loss(loss[key])} (perplexity {words.perplexity(loss[key])}){_at_step(loss, key)}" if math.isfinite(loss[key])
                   else DASH for loss in losses])
    sessions = [session_words(run) for run in runs]
    of = f" of {sessions[0]}" if len(runs) == 1 and sessions[0] else " of the last session" if any(sessions) else ""
    if len(runs) > 1:
        row("last session", [session.partition("(")[2].rstrip(")") or "the whole run" if any(sessions) else "" for session in sessions])
    row(f"tokens a second{of}", [words.whole(speed["tokens_per_second"]) for speed in speeds])
    row(f"share of the roof{of}", [words.share(speed["roof_fraction"]) for speed in speeds])
    row(f"time{of}", [words.seconds(run.value("time", "elapsed")) for run in runs])
    row(f"begin{of}" if of else "began", [run.text("started").replace("T", " ") for run in runs])
    row("ended", [run.text("ended").replace("T", " ") for run in runs])
    row("where", [where(run) for run in runs])
    row("hosts", [_hosts(run) for run in runs])
    row("grid", [_fact(run, "grid", "grid") for run in runs])
    row("program", [f"Trireme {run.text('version')} ({run.text('commit')})" if run.text("version") else
                    re.sub(r"\s{3,}.*", "", _log_word(run, "program")) for run in runs])
    row("bad steps", [words.whole(run.value("bad_steps")) for run in runs])
    row(f"energy{of}", [energy_words(run) for run in runs])
    row("folder", [words.printable(run.path) for run in runs])
    return Table(["", *(run.label for run in runs)], rows, text=range(len(runs) + 1))


def _at_step(losses, key):
    step = losses.get(f"{key}_step", math.nan)
    return f" at step {int(step):,}" if math.isfinite(step) else ""


def _hosts(run):
    hosts = run.part("hosts")
    if not isinstance(hosts, list):
        return ""
    hosts = list(dict.fromkeys(str(host) for host in hosts))
    return ", ".join(hosts[:8]) + (f" and {len(hosts) - 8:,} more" if len(hosts) > 8 else "")


def energy_words(run):
    energy = run.part("energy")
    if not isinstance(energy, dict):
        return ""
    if energy.get("not_available"):
        return f"not available: {energy['not_available']}"
    texts = {name: energy[name] for name in ("covers", "leaves_out") if isinstance(energy.get(name), str) and energy[name]}
    numbers = {name: value for name, value in energy.items() if words.known(value)}
    parts = []
    if "joules" in numbers:
        parts.append(words.with_unit(numbers["joules"], "J") + (f" of {texts['covers']}" if "covers" in texts else ""))
    if "watts_per_node" in numbers:
        parts.append(f"{words.with_unit(numbers['watts_per_node'], 'W')} per node")
    if "joules_per_token" in numbers:
        parts.append(f"{words.with_unit(numbers['joules_per_token'], 'J')} per token")
    text = ", ".join(parts)
    cards = [f"GPUs {100 * numbers['gpu_utilisation']:.0f}% busy"] if "gpu_utilisation" in numbers else []
    if "gpu_memory_bytes" in numbers:
        cards.append(f"{words.size(numbers['gpu_memory_bytes'])} of the fullest in use")
    more = [", ".join(cards)] if cards else []
    if numbers.get("seconds_lost", 0) >= 0.5:
        lost = numbers["seconds_lost"]
        more.append(f"no readings for {words.seconds(lost)} of {words.seconds(lost + numbers.get('seconds', 0))}")
    if "leaves_out" in texts:
        more.append(f"without {texts['leaves_out']}")
    return "; ".join(part for part in (text, *more) if part)


def tiles(run):
    """(name, value, remark) of the few numbers that come first."""
    losses, speed, session = losses_of(run), speed_of(run), session_words(run)
    made = []

    def tile(name, value, remark="", of_session=False):
        if value != DASH and of_session and session:
            steps = session.partition("(")[2].rstrip(")")
            made.append((f"{name} of the last session", value, f"{steps}; {remark}" if remark else steps))
        elif value != DASH:
            made.append((name, value, remark))

    best = losses["best_valid"]
    tile("validation perplexity, best", words.perplexity(best),
         f"loss {words.loss(best)}{_at_step(losses, 'best_valid')}")
    tile("test perplexity", words.perplexity(losses["test"]), f"loss {words.loss(losses['test'])}{_at_step(losses, 'test')}")
    if not math.isfinite(best):
        tile("training perplexity, last", words.perplexity(losses["last"]), f"loss {words.loss(losses['last'])}")
    floor = losses["entropy_floor"]
    tile("perplexity at the entropy floor", words.perplexity(floor), f"loss {words.loss(floor)}")
    tile("tokens a second", words.short(speed["tokens_per_second"]),
         f"{words.share(speed['roof_fraction'])} of the roof" if math.isfinite(speed["roof_fraction"]) else "", of_session=True)
    tile("tokens seen", words.short(tokens_of(run)), f"in {words.plural(last_step(run), 'step')}")
    tile("time", words.seconds(run.value("time", "elapsed")), where(run).split(",")[0], of_session=True)
    return made


def samples_of(run):
    """Texts; of several blank lines in a row one is left."""
    samples = run.part("samples")
    samples = [str(sample) for sample in samples] if isinstance(samples, list) else [run.log["sample"]] if run.log.get("sample") else []
    return [re.sub(r"\n{3,}", "\n\n", sample).strip("\n") for sample in samples]


MOST_ROWS = 150
ROUTINE = ("checkpoint",)  # events of every run


def _first_and_last(events):
    """At most 150 of them, as many from the start as from the end."""
    return events if len(events) <= MOST_ROWS else events[:MOST_ROWS // 2] + events[len(events) - MOST_ROWS // 2:]


def _events_table(events):
    def place(event):
        return event["step"] if words.known(event.get("step")) else math.inf

    rows = [[words.whole(event.get("step")), str(event.get("event")), "" if event.get("rank") is None else str(event["rank"]),
             str(event.get("host") or ""), str(event.get("text") or "")] for event in sorted(_first_and_last(events), key=place)]
    return Table(["step", "event", "rank", "host", "what"], rows, text=[1, 2, 3, 4])


def events_tables(run):
    """(counts in words, table of what is not routine, table of checkpoints); beyond 150 rows the first and the last ones."""
    counts = ", ".join(f"{name}: {count:,}" for name, count in run.metrics.event_counts.most_common(20))
    notable = [event for event in run.metrics.events if event.get("event") not in ROUTINE]
    routine = [event for event in run.metrics.events if event.get("event") in ROUTINE]
    for name, events in (("events", notable), ("checkpoints", routine)):
        if len(events) > MOST_ROWS:
            counts += f". Of {len(events):,} {name} the first and the last {MOST_ROWS // 2} are shown"
    return counts, _events_table(notable), _events_table(routine)


AXES = ("pipeline", "data", "context", "tensor")


def _span(values):
    """0–3, 5: whole numbers in short."""
    values = sorted(set(values))
    spans, start = [], 0
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[at - 1] + 1:
            first, last = values[start], values[at - 1]
            spans.append(f"{first}" if first == last else f"{first}–{last}")
            start = at
    return ", ".join(spans[:6]) + (" …" if len(spans) > 6 else "")


def map_note(run):
    """Note on ranks that the map lacks."""
    left_out = ranks_left_out(run)
    if not left_out:
        return ""
    shown = len(ranks_of(run))
    return (f"This map is partial: it has {shown:,} of {shown + left_out:,} ranks, those that use most and least memory. "
            "Hosts of which no rank is among them are missing.")


def map_tables(run):
    """(a row a host, a row a rank), or None: which coordinates of the grid run where."""
    ranks = sorted((rank for rank in ranks_of(run) if isinstance(rank.get("rank"), int)), key=lambda rank: rank["rank"])
    if not ranks:
        return None
    hosts = {}
    for rank in ranks:
        hosts.setdefault(str(rank.get("host")), []).append(rank)
    by_host = [[host, str(len(members)), _span([rank["rank"] for rank in members]),
                *(_span([rank[axis] for rank in members if isinstance(rank.get(axis), int)]) for axis in AXES)]
               for host, members in hosts.items()]
    by_rank = [[str(rank["rank"]), str(rank.get("host")), *(str(rank.get(axis, DASH)) for axis in AXES)] for rank in ranks]
    return (Table(["host", "ranks", "which", *AXES], by_host, text=[2, 3, 4, 5, 6]),
            Table(["rank", "host", *AXES], by_rank, text=[1]))


def traffic_table(run):
    rows = traffic_rows(run)
    if not isinstance(run.part("traffic"), list):
        return None
    cells = [[str(row.get("group")), str(row.get("transfer")), words.whole(row.get("ranks")), words.whole(row.get("calls")),
              words.size(row.get("bytes")), *(f"{row[key]:.3f}" if words.known(row.get(key)) else DASH
                                              for key in ("seconds_waited", "longest_waited", "seconds_hidden"))] for row in rows]
    return Table(["group", "transfer", "ranks", "calls", "sent", "waited (s)", "longest (s)", "hidden (s)"], cells, text=[1])


def planned_table(runs):
    terms = list(dict.fromkeys(str(term.get("term")) for run in runs for term in _terms(run)))
    rows = []
    for term in terms:
        cells = [next((t.get("bytes") for t in _terms(run) if str(t.get("term")) == term), None) for run in runs]
        rows.append([term, *(words.size(cell) for cell in cells)])
    if not rows:
        return None
    rows.append(["sum", *(words.size(sum(t["bytes"] for t in _terms(run) if words.known(t.get("bytes")))) for run in runs)])
    return Table(["planned, the largest rank", *((run.label for run in runs) if len(runs) > 1 else ["bytes"])], rows)


def _terms(run):
    terms = run.part("memory", "planned")
    return [term for term in terms if isinstance(term, dict)] if isinstance(terms, list) else []


def differing_table(runs):
    """Deck keys whose values differ between runs."""
    decks = [run.deck_values() for run in runs]
    keys = list(dict.fromkeys(key for deck in decks for key in deck))
    rows = [[key, *(deck.get(key, "(no such key)") or "(empty)" for deck in decks)] for key in keys
            if len({deck.get(key) for deck in decks}) > 1]
    return Table(["key", *(run.label for run in runs)], rows, text=range(len(runs) + 1))


def sources_table(runs):
    rows = []
    for run in runs:
        sources = run.part("sources")
        sources = sources if isinstance(sources, dict) and sources else run.metrics.sources
        total = sum(value for value in sources.values() if words.known(value))
        rows += [[str(name), run.label, words.whole(value), words.share(value / total) if words.known(value) and total else DASH]
                 for name, value in sources.items()]
    return Table(["file of the mixture", "run", "tokens", "share"], rows, text=[1]) if rows else None


def slowest_table(run):
    """Ranks that computed longest, by the number of intervals."""
    counts = run.metrics.slowest
    total = sum(counts.values())
    if total < 2 or len(counts) < 1:
        return None
    rows = [[str(rank), host or DASH, f"{count:,}", words.share(count / total)] for (rank, host), count in counts.most_common(5)]
    again = run.metrics.event_counts["restart"]
    caption = f"Intervals of all {again + 1} sessions together: the same number may have been another process in each." if again else ""
    return Table(["slowest rank", "host", "intervals", "share"], rows, text=[1], caption=caption)
