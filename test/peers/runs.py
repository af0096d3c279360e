"""Trireme run as its users run it: import, train, evaluate, export, each with its numbers."""

import json
import os
import pathlib
import shutil
import subprocess

import models

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
LAUNCH = pathlib.Path(__file__).parents[1] / "mpirun.sh"
CUBE = ["grid.data=2", "grid.tensor=2", "grid.pipeline=2"]  # on 8 ranks


class Failure(Exception):
    """A program that ended otherwise than it should."""


class Trireme:
    def __init__(self, program, mpirun="mpirun"):
        self.program, self.mpirun = program, mpirun

    def __call__(self, *words, ranks=1):
        """Runs to a good end; returns what was printed."""
        launch = [] if ranks == 1 else ["bash", str(LAUNCH), self.mpirun, "-n", str(ranks)]
        command = [*launch, str(self.program), *map(str, words)]
        ended = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, stdin=subprocess.DEVNULL, timeout=280)
        if ended.returncode != 0:
            raise Failure(f"exit code {ended.returncode} from: {' '.join(command)}\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")
        return ended.stdout


def section(name, keys):
    return f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())


def write_deck(path, tokens, precision="fp64"):
    """Training as record.py trains: the rates, windows and order of the goldens. No [model]: import brings it."""
    pathlib.Path(path).write_text(
        "# A model of test/peers/models.py.\n"
        + section("run", {"precision": precision, "seed": models.SEED})
        + section("data", {"file": tokens, "sequence_length": models.LENGTH, "stride": models.LENGTH, "batch": models.BATCH})
        + section("optimizer", models.OPTIMIZER)
        + section("schedule", {"steps": models.STEPS, "decay": "constant"})
        + section("checkpoint", {"every_steps": 0})
        + section("monitor", {"every_steps": 1, "sample_tokens": 0}))


def records(run):
    return [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]


def trained(run):
    """Facts of a training that record.py records."""
    found = records(run)
    steps = [record for record in found if record["kind"] == "step"]
    last = {record["kind"]: record["loss"] for record in found if record["kind"] in ("valid", "test")}
    return {"losses": [record["loss"] for record in steps], "norms": [record["grad_norm"] for record in steps],
            "valid_after": last["valid"], "test_after": last["test"]}


def final_weights(run):
    return models.read_values(pathlib.Path(run) / "checkpoints/latest/model.safetensors")


def evaluated(trireme, run, scratch, ranks=1):
    """Losses of valid and test."""
    results = pathlib.Path(scratch) / "results.json"
    trireme("-r", run, "job.task=evaluate", f"evaluate.results={results}", "evaluate.overwrite=yes", ranks=ranks)
    return {found["split"]: found["loss"] for found in json.loads(results.read_text())["sets"]}


def last_log_probabilities(trireme, run, window, scratch, ranks=1):
    """log p of each type of the token file after the inputs of `window`, in the run's precision: differences of the
    losses of windows that differ in their last target, each a validation set. The first type is set to 0."""
    folder = pathlib.Path(scratch) / "last_targets"
    folder.mkdir()
    inputs = window[0]
    for last in range(models.TYPES):
        models.write_tokens(folder / f"{last}.h5", {"train": inputs, "valid": [*inputs, last], "test": inputs})
    copy = folder / "run"
    shutil.copytree(run, copy, symlinks=True)
    trireme("-r", copy, "data.validation=" + ",".join(f"t{last}:{folder}/{last}.h5" for last in range(models.TYPES)),
            "schedule.steps=1", "optimizer.learning_rate=0", ranks=ranks)
    losses = {record["set"]: record["loss"] for record in records(copy) if record["kind"].startswith("valid")}
    found = [-losses[f"t{last}"] * len(inputs) for last in range(models.TYPES)]
    shutil.rmtree(folder)
    return [value - found[0] for value in found]


def greedy(trireme, run, prompt, count, scratch, *words, ranks=1):
    """Ids that follow the ids of a prompt."""
    prompts, texts = (pathlib.Path(scratch) / name for name in ("prompts.jsonl", "texts.jsonl"))
    prompts.write_text(json.dumps({"prompt": " ".join(models.word(i) for i in prompt)}) + "\n")
    trireme("-r", run, "job.task=generate", f"generate.file={prompts}", f"generate.output={texts}", "generate.temperature=0",
            f"generate.tokens={count}", "generate.start_with_eos=no", *words, ranks=ranks)
    found = json.loads(texts.read_text())["tokens"]
    texts.unlink()
    return found


def relative(expected, found):
    """Largest relative difference of two lists of numbers; infinite if their lengths differ."""
    if len(expected) != len(found):
        return float("inf")
    return max(abs(a - b) / abs(a) for a, b in zip(expected, found))


class Table:
    """The table of test/peers.sh: family, what, largest difference, asked."""

    def __init__(self):
        self.failed = 0
        print(f"{'family':<16} {'what':<58} {'difference':>12} {'asked':>8}")

    def within(self, family, what, found, asked):
        """A number that may be at most `asked`; 0 asks for equality."""
        good = found <= asked  # not for NaN
        self.failed += not good
        print(f"{family:<16} {what:<58} {found:>12.1e} {'equal' if asked == 0 else f'{asked:.0e}':>8}{'' if good else '  FAILED'}",
              flush=True)

    def equal(self, family, what, expected, found):
        if expected != found:
            print(f"  {str(expected)[:500]}\n  {str(found)[:500]}")
        self.within(family, what, 0.0 if expected == found else float("inf"), 0)

    def failure(self, family, what, why):
        self.failed += 1
        print(f"{family:<16} {what:<58} {'':>12} {'':>8}  FAILED\n{why}", flush=True)
