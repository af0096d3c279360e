"""Records of runs as the program writes them, for the tests of --watch."""

import json
import pathlib
import sys


def step(number, loss=4.0, **more):
    record = {"kind": "step", "step": number, "epoch": number / 100, "tokens": number * 8, "loss": loss,
              "perplexity": 1.0, "learning_rate": 1e-3, "grad_norm": 0.5, "step_seconds": 0.5, "tokens_per_second": 1000.0,
              "flops_per_second": 1e9, "roof_fraction": 0.5, "seconds_compute": 0.4,
              "seconds_exposed_communication": 0.1, "seconds_bubble": 0.0, "seconds_data": 0.0, "seconds_checkpoint": 0.0,
              "bad_steps": 0}
    return line(record | more)


def line(record):
    return json.dumps(record, separators=(",", ":")) + "\n"


def event(name, at, text):
    return line({"kind": "event", "event": name, "step": at, "rank": 0, "host": "n1", "text": text})


DONE = line({"kind": "done", "step": 100, "loss": 4.0})


class Run:
    """A run folder."""

    def __init__(self, folder, steps=100):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()
        self.path = self.folder / "metrics.jsonl"
        (self.folder / "deck.in").write_text(f"[schedule]\nsteps = {steps}  # from x\n")

    def add(self, text):
        with open(self.path, "ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def replace(self, text):
        new = self.folder / "metrics.jsonl.tmp"
        new.write_text(text)
        new.rename(self.path)


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")
