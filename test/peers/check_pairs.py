"""check_pairs.py TRIREME MPIRUN: models that translate against numbers of torch.nn.Transformer (test/peers/goldens_pairs.json).

Gradients of a step, losses, gradient norms and weights of 8 steps in fp64 with label smoothing and padding, on
one rank and in another layout; losses of valid and test. Needs no torch. Code 77: skipped, saying why.
"""

import json
import pathlib
import sys

try:
    import h5py  # noqa: F401, of pairs.py
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

import check_goldens
import models
import pairs
import runs

EXACT = check_goldens.EXACT


def change_difference(golden, run):
    """Largest difference of a sketch of a trained weight's change, over the weight's norm."""
    after, worst = runs.final_weights(run), 0.0
    for name, expected in golden["changes"].items():
        before = models.weight(name, after[name].shape)
        found = models.sketch(name, before, after[name])
        worst = max(worst, *(abs(a - b) / np.linalg.norm(after[name]) for a, b in zip(expected, found)))
    return worst


def check(trireme, checks, folder, case):
    golden = check_goldens.goldens("pairs")[case]
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
        checks.within(f"{what}: weights", change_difference(golden, run), EXACT)
    losses = runs.evaluated(trireme, prepared.train("before", "schedule.steps=1", "optimizer.learning_rate=0"), folder)
    for split in ("valid", "test"):
        expected = golden[f"{split}_before"]
        checks.within(f"{case}: {split} loss of evaluate", runs.relative([expected], [losses[split]]), EXACT)


if __name__ == "__main__":
    check_goldens.run_cases(pairs.CASES, check, "models that translate")
