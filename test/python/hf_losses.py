"""Losses of imported models of every family against plain forward passes in fp64, before and after
training in another layout.

usage: hf_losses.py TRIREME MPIRUN
Exit code 77: skipped, because numpy, safetensors or h5py cannot be imported.
"""

import json
import os
import pathlib
import re
import sys
import tempfile

import hf_models
import hf_run

try:
    import h5py
except ImportError as missing:
    print(f"SKIPPED: {missing}; {sys.executable} -m pip install h5py")
    sys.exit(77)

# Loss against fp64 arithmetic of numpy, in nats: six digits are printed.
TOLERANCE = {"fp64": 1e-6, "fp32": 3e-6}
LENGTH = 40  # beyond the original positions of the scaled rotations


def tokens(split):
    with h5py.File("text.h5") as file:
        return file[f"/{split}/tokens"][:].astype("int64")


def losses(text):
    found = dict(re.findall(r"^(valid|test) +loss ([0-9.]+) nats", text, re.MULTILINE))
    return {split: float(loss) for split, loss in found.items()}


def check(case, text, folder, precision):
    config = json.loads(pathlib.Path(folder, "config.json").read_text(encoding="utf-8"))
    weights = hf_models.weights_of(folder)
    for split, loss in losses(text).items():
        wanted = hf_models.loss(config, weights, tokens(split), LENGTH)
        assert abs(loss - wanted) <= TOLERANCE[precision], f"{case}: {split} {loss}, but {wanted} expected"
    assert len(losses(text)) == 2, text


def main():
    program = hf_run.Program(*sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="trireme_hf_") as scratch:
        os.chdir(scratch)
        deck = hf_run.DECK.replace("none.h5", "text.h5").replace("length = 16", f"length = {LENGTH}")
        pathlib.Path("deck.in").write_text(deck, encoding="utf-8")
        random = hf_models.numpy.random.default_rng(3)
        for split, size in (("train", 2000), ("valid", 150), ("test", 130)):
            letters = random.integers(97, 123, size).astype("uint8").tobytes()
            pathlib.Path(f"{split}.txt").write_bytes(letters)
        files = [f"tokenize.{split}={split}.txt" for split in ("train", "valid", "test")]
        program(1, "-i", "deck.in", "job.task=tokenize", "tokenize.kind=byte", *files)
        for name, config in hf_models.CONFIGS.items():
            for precision, dtype in (("fp64", "F64"), ("fp32", "BF16")):
                case = f"{name}_{precision}"
                hf_models.make(f"{case}.hf", config, dtype)
                given = ["-i", "deck.in", f"run.precision={precision}", f"job.output={case}"]
                program(1, *given, "job.task=import", f"hf.path={case}.hf")
                text = program(1, "-r", case, "job.task=evaluate")
                check(case, text, f"{case}.hf", precision)
        for name in ("gpt2", "llama3", "qwen2", "qwen3"):
            go_on(program, f"{name}_fp64")
    print("losses of every family: those of numpy in fp64")


def names(path):
    """Of a file's tensors, in the order of its header."""
    raw = path.read_bytes()
    return list(json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]))


def go_on(program, case):
    """Trains on four ranks; the export gives numpy the loss that the run ends with."""
    training = ["model.dropout=0", "model.attention_dropout=0", "monitor.sample_tokens=0"]
    program(4, "-r", case, "grid.data=2", "grid.tensor=2", *training)
    text = program(1, "-r", case, "job.task=evaluate", "grid.data=0", "grid.tensor=1")
    program(2, "-r", case, "job.task=export", f"hf.path={case}.out", "hf.dtype=fp32")
    check(case, text, f"{case}.out", "fp32")
    # A branch is exported as its origin is.
    branch = ["schedule.steps=5", f"job.output={case}_branch", "grid.data=0", "grid.tensor=1"]
    program(1, "-r", case, *branch)
    program(1, "-r", f"{case}_branch", "job.task=export", f"hf.path={case}_branch.out")
    before, after = (pathlib.Path(f"{case}{part}").joinpath("config.json").read_bytes() for part in (".hf", "_branch.out"))
    assert before == after
    # Tensors lie in the order of the model's parameters, whoever wrote them.
    first, last = (pathlib.Path(case, f"checkpoints/step_0000000{step}/model.safetensors") for step in (0, 4))
    assert names(first) == names(last), f"{case}: another order of tensors"
    # Moments begin at zero: a run that starts from the weights alone takes the same steps.
    records = [json.loads(line) for line in pathlib.Path(case, "metrics.jsonl").read_text().splitlines()]
    steps = [record["loss"] for record in records if record["kind"] == "step"]
    start = f"checkpoint.start_from={case}/checkpoints/step_00000000"
    program(1, "-i", "deck.in", "run.precision=fp64", start, f"job.output={case}_again", *training)
    again = pathlib.Path(f"{case}_again", "metrics.jsonl").read_text().splitlines()
    others = [record["loss"] for record in map(json.loads, again) if record["kind"] == "step"]
    assert len(steps) == len(others) > 0, (steps, others)
    assert max(abs(a / b - 1) for a, b in zip(steps, others)) < 1e-11, (steps, others)


main()
