"""check_goldens.py TRIREME MPIRUN: Trireme against numbers that transformers computed (test/peers/goldens_models.json).

Each model is written as a Hugging Face folder, with weights by formula, and imported. The weights must
be those of the folder; evaluation, greedy generation, and 8 steps of training in fp64, on one rank and in other
layouts, must give transformers' losses, tokens, gradient norms and weights; export must give the folder back,
byte by byte. Neither torch nor transformers is needed. Code 77: skipped, saying why.

check_goldens.py TRIREME MPIRUN pairs: models that translate against numbers of torch.nn.Transformer
(test/peers/goldens_pairs.json): gradients of a step, losses, gradient norms and weights of 8 steps in fp64 with label
smoothing and padding, on one rank and in another layout; losses of valid and test.
"""

import json
import pathlib
import shutil
import sys
import tempfile

try:
    import h5py  # noqa: F401, of models.py
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

import models
import pairs
import runs

# Both sides compute in fp64, with sums in other orders.
EXACT = 1e-12
# How each folder is stored: type, number of files, and whether config.json is in transformers 4's words.
STORED = {"gpt2": ("F32", 1, False), "llama": ("BF16", 2, False), "llama_gqa_tied": ("F16", 1, True),
          "llama_linear": ("F32", 3, True), "llama_yarn": ("BF16", 1, True), "llama_llama3": ("BF16", 2, True),
          "mistral": ("F32", 2, False), "qwen2": ("BF16", 1, False), "qwen3": ("F16", 2, True)}


class Checks:
    """Differences, each with its tolerance; the worst are shown."""

    def __init__(self):
        self.failed = 0

    def within(self, what, found, asked):
        if found <= asked:
            return
        self.failed += 1
        print(f"FAILED: {what}: {found:.2e}, asked {asked:.0e}")

    def equal(self, what, expected, found):
        if expected == found:
            return
        self.failed += 1
        print(f"FAILED: {what}: {str(found)[:300]}, expected {str(expected)[:300]}")


def change_difference(golden, changes, ours):
    """Largest difference of a trained weight's norm or of a sketch of its change, over its norm."""
    config, shapes = golden["config"], golden["shapes"]
    before, worst = models.in_our_names(config, models.weights(shapes)), 0.0
    for name, (norm, *change) in changes.items():
        found = [float(np.linalg.norm(ours[name])), *models.sketch(name, before[name], ours[name])]
        worst = max(worst, *(abs(a - b) / norm for a, b in zip([norm, *change], found)))
    return worst


def check_imported(checks, name, golden, run):
    """The checkpoint of step 0 holds the folder's weights."""
    expected = models.in_our_names(golden["config"], models.weights(golden["shapes"]))
    found = runs.final_weights(run)
    checks.equal(f"{name}: names of tensors", sorted(expected), sorted(found))
    for tensor in expected.keys() & found.keys():
        checks.equal(f"{name}: shape of {tensor}", expected[tensor].shape, found[tensor].shape)
        if expected[tensor].shape == found[tensor].shape:
            checks.within(f"{name}: {tensor}", np.abs(expected[tensor] - found[tensor]).max(), 0)


def check_training(checks, what, golden, expected, run):
    """expected: the golden's numbers of this training."""
    found = runs.trained(run)
    checks.within(f"{what}: losses of {models.STEPS} steps", runs.relative(expected["losses"], found["losses"]), EXACT)
    checks.within(f"{what}: gradient norms", runs.relative(expected["norms"], found["norms"]), EXACT)
    for key in ("valid_after", "test_after"):
        checks.within(f"{what}: {key}", runs.relative([expected[key]], [found[key]]), EXACT)
    checks.within(f"{what}: weights", change_difference(golden, expected["changes"], runs.final_weights(run)), EXACT)


def goldens(kind):
    return json.loads((pathlib.Path(__file__).parent / f"goldens_{kind}.json").read_text())


def check_export(checks, name, source, exported):
    """The same tensors, types, files and configuration."""
    checks.equal(f"{name}: exported tensors", True, models.read_folder_raw(source) == models.read_folder_raw(exported))
    for path in sorted(source.iterdir()):
        there = exported / path.name
        checks.equal(f"{name}: {path.name} is exported", True, there.is_file())
        if path.suffix == ".json" and there.is_file():
            checks.equal(f"{name}: {path.name}", json.loads(path.read_text()), json.loads(there.read_text()))


def check(trireme, checks, folder, name):
    golden = goldens("models")[name]
    dtype, shards, older = STORED[name]
    source, run, deck = folder / "source", folder / "run", folder / "deck.in"
    models.write_folder(source, golden, dtype, shards, older)
    runs.write_deck(deck, folder.parent / "tokens.h5")
    trireme("-i", deck, "job.task=import", f"hf.path={source}", f"job.output={run}")
    check_imported(checks, name, golden, run)

    losses = runs.evaluated(trireme, run, folder)
    for split in ("valid", "test"):
        expected = golden[f"{split}_before"]
        checks.within(f"{name}: {split} loss of evaluate", runs.relative([expected], [losses[split]]), EXACT)

    for ranks, grid in ((1, []), (4, ["grid.pipeline=2", "grid.tensor=2"])):
        found = runs.greedy(trireme, run, models.windows("valid")[0][0][:6], len(golden["greedy"]), folder, *grid, ranks=ranks)
        checks.equal(f"{name} on {ranks}: greedy tokens", golden["greedy"], found)

    window, logits = models.windows("valid")[0], golden["last_logits"]
    found = runs.last_log_probabilities(trireme, run, window, folder)
    checks.within(f"{name}: logits after a window", max(abs(a - logits[0] - b) for a, b in zip(logits, found)), EXACT)

    trireme("-r", run, "job.task=export", f"hf.path={folder / 'exported'}")
    check_export(checks, name, source, folder / "exported")

    for optimizer, expected in (("adamw", golden), ("muon", golden.get("muon"))):
        for ranks, grid in ((1, []), (8, runs.CUBE)):
            if expected is None:
                continue
            copy = folder / f"{optimizer}_{ranks}"
            shutil.copytree(run, copy, symlinks=True)
            trireme("-r", copy, f"optimizer.kind={optimizer}", *grid, ranks=ranks)
            check_training(checks, f"{name} by {optimizer} on {ranks} rank{'s' * (ranks > 1)}", golden, expected, copy)


def run_cases(cases, check_case, summary):
    """check_case(trireme, checks, folder, case) for each, with a folder beside the others; `summary`
    ends the output. Leaves the program."""
    trireme, checks = runs.Trireme(sys.argv[1], sys.argv[2]), Checks()
    with tempfile.TemporaryDirectory() as scratch:
        for case in cases:
            try:
                check_case(trireme, checks, pathlib.Path(scratch) / case, case)
            except runs.Failure as failure:
                checks.failed += 1
                print(f"FAILED: {case}: {failure}")
    print(f"{len(cases)} {summary}: {checks.failed} differences")
    sys.exit(1 if checks.failed else 0)


def check_in_folder(trireme, checks, folder, name):
    tokens = folder.parent / "tokens.h5"
    if not tokens.exists():
        models.write_tokens(tokens)
    folder.mkdir()
    check(trireme, checks, folder, name)


def pairs_change_difference(golden, run):
    """Largest difference of a sketch of a trained weight's change, over the weight's norm."""
    after, worst = runs.final_weights(run), 0.0
    for name, expected in golden["changes"].items():
        before = models.weight(name, after[name].shape)
        found = models.sketch(name, before, after[name])
        worst = max(worst, *(abs(a - b) / np.linalg.norm(after[name]) for a, b in zip(expected, found)))
    return worst


def check_pairs(trireme, checks, folder, case):
    golden = goldens("pairs")[case]
    prepared = pairs.Prepared(trireme, case, folder)
    checks.equal(f"{case}: parameters", sorted(golden["changes"]), sorted(prepared.shapes))
    sizes = {name: int(np.prod(shape)) for name, shape in prepared.shapes.items()}
    for ranks, grid in ((1, []), (8, runs.CUBE)):
        what = f"{case} on {ranks} rank{'s' * (ranks > 1)}"
        found = pairs.sketches(prepared.gradients(*grid, ranks=ranks))
        checks.within(f"{what}: gradients", pairs.sketch_difference(golden["gradients"], found, sizes), EXACT)
        run = prepared.train(f"run_{ranks}", *grid, ranks=ranks)
        found = runs.trained(run)
        checks.within(f"{what}: losses of {pairs.STEPS} steps", runs.relative(golden["losses"], found["losses"]), EXACT)
        checks.within(f"{what}: gradient norms", runs.relative(golden["norms"], found["norms"]), EXACT)
        for key in ("valid_after", "test_after"):
            checks.within(f"{what}: {key}", runs.relative([golden[key]], [found[key]]), EXACT)
        checks.within(f"{what}: weights", pairs_change_difference(golden, run), EXACT)
    losses = runs.evaluated(trireme, prepared.train("before", "schedule.steps=1", "optimizer.learning_rate=0"), folder)
    for split in ("valid", "test"):
        expected = golden[f"{split}_before"]
        checks.within(f"{case}: {split} loss of evaluate", runs.relative([expected], [losses[split]]), EXACT)


if __name__ == "__main__":
    if sys.argv[3:] == ["pairs"]:
        run_cases(pairs.CASES, check_pairs, "models that translate")
    run_cases(STORED, check_in_folder, "models of test/peers/goldens_models.json")
