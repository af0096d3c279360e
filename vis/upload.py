#!/usr/bin/env python3
"""Sends run folders to Weights & Biases or MLflow, after the fact or while they grow.

    python3 vis/upload.py wandb runs/first --project ships            # needs `wandb login` once
    python3 vis/upload.py wandb runs/first --project ships --offline  # no network: files below runs/first/wandb
    python3 vis/upload.py mlflow runs/a runs/b --experiment ships --uri http://tracking:5000
    python3 vis/upload.py mlflow runs/a --uri mlruns                  # a folder that `mlflow ui` shows

Training needs neither: call this on a node with internet. Sent are all numbers of metrics.jsonl by the names that
TensorBoard shows (loss/train, perf/tokens_per_second ...), the deck as configuration, the losses and times of
summary.json as final values, samples and events as text, and deck.in, log.txt, summary.json and report.html as files.

Call it again, and only what is new is sent, into the same run there: RUN/upload.json remembers how far it came. The last step
of a run that has not ended is held back, since more may be recorded of it. A run that went back to a checkpoint sends its
repeated steps not again: they have the same numbers, unless its deck was changed or a loss spike was rolled back; use
--again to send all of it into a new run. Needs the package wandb, or mlflow or mlflow-skinny (PyPI).
"""
import argparse
import importlib
import json
import math
import os
import pathlib
import secrets
import sys

FILES = ["deck.in", "log.txt", "summary.json", "report.html"]
# Members of records that are no measurement.
NOT_SENT = {"kind", "step", "steps", "set", "windows", "averaged", "sources", "event", "rank", "host", "text", "memory_host", "slowest_host"}
NAMES = {"loss": "loss/train", "perplexity": "perplexity/train", "learning_rate": "optimizer/learning_rate",
         "grad_norm": "optimizer/gradient_norm", "step_seconds": "perf/step_seconds",
         "tokens_per_second": "perf/tokens_per_second", "flops_per_second": "perf/flops_per_second",
         "roof_fraction": "perf/roof_fraction", "epoch": "progress/epoch", "tokens": "progress/tokens",
         "memory_bytes": "memory/bytes", "memory_rank": "memory/rank", "slowest_rank": "ranks/slowest",
         "seconds_slowest": "ranks/seconds_slowest", "bad_steps": "steps/bad",
         "seconds_compute": "time/compute", "seconds_exposed_communication": "time/exposed_communication",
         "seconds_bubble": "time/bubble", "seconds_data": "time/data", "seconds_checkpoint": "time/checkpoint"}
ENERGY = {"joules", "joules_per_token", "watts_per_node", "gpu_utilisation", "gpu_memory_bytes"}


def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def values_of(record):
    """{name: number} of a record, by the names that TensorBoard shows."""
    kind = record["kind"]
    if kind in ("valid", "valid_other", "test"):
        split = "test" if kind == "test" else "valid"
        if kind == "valid_other":
            split += "_" + str(record.get("set", ""))
        members = {"loss": f"loss/{split}", "perplexity": f"perplexity/{split}", "step_seconds": f"perf/{split}_seconds"}
        return {name: record[member] for member, name in members.items() if number(record.get(member))}
    values = {}
    for member, value in record.items():
        if member in NOT_SENT or not number(value):
            continue
        name = NAMES.get(member) or (f"energy/{member}" if member in ENERGY else f"{kind}/{member}")
        values[name] = value
    sources = record.get("sources")
    for source, tokens in (sources.items() if isinstance(sources, dict) else ()):
        values[f"sources/{source}"] = tokens
    return values


def read_records(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    record = json.loads(line)
                except json.JSONDecodeError:  # torn: the run goes on
                    continue
                if isinstance(record, dict) and isinstance(record.get("step"), int):
                    yield record
    except OSError as error:
        sys.exit(f"{path}: cannot be read: {error.strerror}. Name the folder of a run.")


class Run:
    """A run folder: [(step, {name: number})] in order, its configuration, its texts."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        path = self.folder / "metrics.jsonl"
        steps, self.events, self.seconds, self.ended = {}, [], {}, False
        for record in read_records(path):
            kind, step = record.get("kind"), record["step"]
            self.ended = self.ended or kind == "done"
            if kind == "event":
                self.events.append(f"step {step}: {record.get('event')}: {record.get('text', '')}")
            elif kind in ("step", "interval", "valid", "valid_other", "test"):
                # A step's own values go before the means of its interval.
                known = steps.setdefault(step, {})
                known.update({name: value for name, value in values_of(record).items() if name not in known})
                if kind != "interval" and number(record.get("step_seconds")):
                    self.seconds[step] = self.seconds.get(step, 0) + record["step_seconds"]
        self.steps = sorted(steps.items())
        self.summary = self.read_summary()
        # Records have no dates: the last step ended with the file, as far as this is the first call.
        self.begun, self.ends = path.stat().st_mtime - sum(self.seconds.values()), {}

    def read_summary(self):
        try:
            summary = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            return {}
        return summary if isinstance(summary, dict) else {}

    def ready(self, after):
        """Steps after `after` of which nothing more will be recorded."""
        steps = self.steps if self.ended else self.steps[:-1]
        return [(step, values) for step, values in steps if step > after]

    def deck(self):
        """{section.key: value}; numbers as numbers."""
        deck = self.summary.get("deck") or read_deck(self.folder / "deck.in")
        return {key: plain(value) for key, value in deck.items() if value != ""}

    def final(self):
        """Numbers of summary.json: losses, speed, times, energy."""
        final = {}
        for part in ("losses", "speed", "time", "energy"):
            members = self.summary.get(part)
            for member, value in (members.items() if isinstance(members, dict) else ()):
                if number(value):
                    final[f"final/{part}_{member}"] = value
        return final

    def samples(self):
        return [str(sample) for sample in self.summary.get("samples") or []]

    def files(self):
        return [self.folder / name for name in FILES if (self.folder / name).is_file()]

    def time_of(self, step):
        """Milliseconds since 1970: the times of steps added up from the start on."""
        if not self.ends:
            end = self.begun
            for at, _ in self.steps:
                end += self.seconds.get(at, 0)
                self.ends[at] = int(1000 * end)
        return self.ends[step]


def read_deck(path):
    deck, section = {}, ""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return deck
    for line in lines:
        line = line.split("#")[0].strip()
        if line.startswith("["):
            section = line.strip("[] ")
        elif "=" in line:
            key, value = (part.strip() for part in line.split("=", 1))
            deck[f"{section}.{key}"] = value
    return deck


def plain(text):
    for kind in (int, float):
        try:
            return kind(text)
        except (TypeError, ValueError):
            pass
    return text


def need(package, wanted):
    try:
        return importlib.import_module(package)
    except ImportError as error:
        sys.exit(f"the Python package {wanted} is not to be had ({error}). Install it: {sys.executable} -m pip install {wanted}")


class Notes:
    """RUN/upload.json: what was sent, by target. Replaced as a whole."""

    def __init__(self, run):
        self.path = run.folder / "upload.json"
        try:
            self.all = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.all = {}
        except (OSError, json.JSONDecodeError) as error:
            sys.exit(f"{self.path}: cannot be read ({error}). Without it all would be sent again: repair or remove it.")

    def keep(self, target, note):
        self.all[target] = note
        draft = self.path.with_name(self.path.name + ".tmp")
        draft.write_text(json.dumps(self.all, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, self.path)


def to_wandb(run, arguments):
    wandb = need("wandb", "wandb")
    target = f"wandb {arguments.project}"
    notes = Notes(run)
    note = {} if arguments.again else notes.all.get(target, {})
    known = note.get("id") or secrets.token_hex(4)
    run.begun = note.get("begun", run.begun)
    ready = run.ready(note.get("step", -1))
    if not ready and note.get("ended", False) == run.ended:
        return 0
    session = wandb.init(project=arguments.project, entity=arguments.entity, id=known, resume="allow",
                         name=arguments.name or run.folder.name, dir=str(run.folder),
                         mode="offline" if arguments.offline else "online", config=run.deck(),
                         settings=wandb.Settings(silent=True, x_disable_stats=True, console="off"))
    for step, values in ready:
        session.log({**values, "_timestamp": run.time_of(step) / 1000}, step=step)
    session.summary.update(run.final())
    for name, lines in (("samples", run.samples()), ("events", run.events)):
        if lines:
            session.summary[name] = "\n".join(lines)
    for path in run.files():
        session.save(str(path), base_path=str(run.folder), policy="now")
    session.finish()
    notes.keep(target, {"id": known, "begun": run.begun, "step": ready[-1][0] if ready else note.get("step", -1),
                        "ended": run.ended})
    return len(ready)


def to_mlflow(run, arguments):
    # MLflow 3 reads and writes folders, but wants to be asked for it.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    need("mlflow", "mlflow-skinny")
    entities, tracking = importlib.import_module("mlflow.entities"), importlib.import_module("mlflow.tracking")
    uri = arguments.uri
    if "://" not in uri:
        uri = pathlib.Path(uri).resolve().as_uri()
    target = f"mlflow {uri} {arguments.experiment}"
    notes = Notes(run)
    note = {} if arguments.again else notes.all.get(target, {})
    ready = run.ready(note.get("step", -1))
    if not ready and note.get("ended", False) == run.ended:
        return 0
    client = tracking.MlflowClient(tracking_uri=uri)
    known = note.get("id")
    run.begun = note.get("begun", run.begun)
    if known is None:
        experiment = client.get_experiment_by_name(arguments.experiment)
        number_of = experiment.experiment_id if experiment else client.create_experiment(arguments.experiment)
        start = run.time_of(run.steps[0][0]) if run.steps else None
        known = client.create_run(number_of, start_time=start, run_name=arguments.name or run.folder.name).info.run_id
        send_params(client, entities, known, run.deck())
        notes.keep(target, {"id": known, "begun": run.begun, "step": -1, "ended": False})
    last = run.steps[-1][0] if run.steps else 0
    for batch in batches(ready):
        client.log_batch(known, metrics=[entities.Metric(mlflow_name(name), value, run.time_of(step), step)
                                         for step, values in batch for name, value in values.items()])
        notes.keep(target, {"id": known, "begun": run.begun, "step": batch[-1][0], "ended": False})
    if run.ended:
        client.log_batch(known, metrics=[entities.Metric(mlflow_name(name), value, run.time_of(last), last)
                                         for name, value in run.final().items()])
    for name, lines in (("samples.txt", run.samples()), ("events.txt", run.events)):
        if lines:
            client.log_text(known, "\n".join(lines) + "\n", name)
    for path in run.files():
        client.log_artifact(known, str(path))
    if run.ended:
        client.set_terminated(known, "FINISHED", end_time=run.time_of(last))
    notes.keep(target, {"id": known, "begun": run.begun, "step": ready[-1][0] if ready else note.get("step", -1),
                        "ended": run.ended})
    return len(ready)


def batches(steps, most=1000):
    """Steps in groups of at most so many numbers, as a request may hold."""
    group, count = [], 0
    for step, values in steps:
        if group and count + len(values) > most:
            yield group
            group, count = [], 0
        group.append((step, values))
        count += len(values)
    if group:
        yield group


def send_params(client, entities, run_id, deck):
    params = [entities.Param(key, str(value)) for key, value in sorted(deck.items())]
    for first in range(0, len(params), 100):
        client.log_batch(run_id, params=params[first:first + 100])


def mlflow_name(name):
    """MLflow allows letters, digits and some signs."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    targets = parser.add_subparsers(dest="target", required=True, metavar="wandb|mlflow")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("runs", nargs="+", metavar="RUN", help="run folder")
    shared.add_argument("--name", help="name of the run there (default: that of its folder)")
    shared.add_argument("--again", action="store_true", help="send all of it, into a new run")
    one = targets.add_parser("wandb", parents=[shared], help="Weights & Biases")
    one.add_argument("--project", default="trireme", help="project there (default: trireme)")
    one.add_argument("--entity", help="user or team there (default: your own)")
    one.add_argument("--offline", action="store_true",
                     help="write RUN/wandb/offline-run-*, which `wandb sync` sends later")
    two = targets.add_parser("mlflow", parents=[shared], help="MLflow")
    two.add_argument("--uri", default=os.environ.get("MLFLOW_TRACKING_URI", "mlruns"),
                     help="tracking server, or a folder (default: MLFLOW_TRACKING_URI, else mlruns)")
    two.add_argument("--experiment", default="trireme", help="experiment there (default: trireme)")
    arguments = parser.parse_args()
    send = to_wandb if arguments.target == "wandb" else to_mlflow
    for folder in arguments.runs:
        run = Run(folder)
        sent = send(run, arguments)
        print(f"{folder}: {sent:,} steps sent" if sent else f"{folder}: nothing new")


if __name__ == "__main__":
    main()
