"""parity.py TRIREME MPIRUN: Trireme against transformers, on every family that it imports.

Models with transformers' own random weights, saved by it in each type and cut, go in and out; models
with the weights of models.py are trained by both. Prints a table and ends with 1 if a line of it failed.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

import check_goldens
import models
import pairs
import record
import runs
import torch_pairs
import users

EXACT = 1e-12   # both in fp64
ROUNDED = 1e-5  # one side computes in fp32, or in part
LOGITS = 1e-4   # fp32
# As transformers stores models: type, largest file, config.json in transformers 4's words.
STORAGES = (("F32", None, False), ("F32", "40KB", True), ("BF16", None, True), ("BF16", "20KB", False),
            ("F16", None, False), ("F16", "20KB", True))


def logits(model, split="test"):
    with torch.no_grad():
        return [model(torch.from_numpy(inputs)[None], use_cache=False).logits[0].float().numpy()
                for inputs, _ in models.windows(split)]


def largest(first, second):
    return max(float(np.abs(a - b).max()) for a, b in zip(first, second))


def load(folder):
    """A folder as any user of transformers reads it, in fp32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def save(config, folder, dtype, largest_file, older):
    """Random weights of transformers', larger than its initial ones, so that all parts of the model count."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
            else:
                parameter.normal_(0, 0.15)
    model.to(getattr(torch, models.TORCH_NAMES[dtype]))
    model.save_pretrained(folder, **({"max_shard_size": largest_file} if largest_file else {}))
    if older:
        path = folder / "config.json"
        path.write_text(json.dumps(models.as_older_config(json.loads(path.read_text())), indent=2))


def round_trip(trireme, table, name, config, scratch):
    """In every storage: bytes, types, shapes and config come back; loss and logits agree."""
    deck = scratch / "fp32.in"
    runs.write_deck(deck, scratch / "tokens.h5", "fp32")
    for dtype, largest_file, older in STORAGES:
        kind = f"{dtype}, {'single' if not largest_file else 'sharded'}, config of transformers {4 if older else 5}"
        folder = scratch / f"{name}_{dtype}_{largest_file}"
        source, run, exported = folder / "source", folder / "run", folder / "exported"
        save(config, source, dtype, largest_file, older)
        trireme("-i", deck, "job.task=import", f"hf.path={source}", f"job.output={run}")
        losses = runs.evaluated(trireme, run, folder)
        before = load(source)
        window = models.windows("valid")[0]
        with torch.no_grad():
            theirs = before(torch.from_numpy(window[0])[None], use_cache=False).logits[0, -1].tolist()
        found = runs.last_log_probabilities(trireme, run, window, folder)
        table.within(name, f"{kind}: logits of Trireme", max(abs(a - theirs[0] - b) for a, b in zip(theirs, found)), LOGITS)
        trireme("-r", run, "job.task=export", f"hf.path={exported}")
        checks = check_goldens.Checks()
        check_goldens.check_export(checks, name, source, exported)
        table.within(name, f"{kind}: tensors, types, config", checks.failed, 0)
        table.within(name, f"{kind}: logits of the export", largest(logits(before), logits(load(exported))), LOGITS)
        expected = [record.evaluate(before, split) for split in ("valid", "test")]
        table.within(name, f"{kind}: loss of the imported model", runs.relative(expected, [losses["valid"], losses["test"]]),
                     ROUNDED)


def training(trireme, table, name, config, scratch):
    """8 steps of both from the same weights; on one rank and in a 2x2x2 layout."""
    torch.set_default_dtype(torch.float64)
    raw = record.measure(config)
    with record.InDouble():
        exact = record.measure(config)
    torch.set_default_dtype(torch.float32)
    golden = {"config": config.to_dict(), "shapes": exact["shapes"]}
    golden["config"]["dtype"] = "float32"
    folder = scratch / f"{name}_training"
    source, run, deck = folder / "source", folder / "run", scratch / "fp64.in"
    model, _ = record.build(config, dtype=torch.float32)
    model.save_pretrained(source)
    runs.write_deck(deck, scratch / "tokens.h5")
    trireme("-i", deck, "job.task=import", f"hf.path={source}", f"job.output={run}")
    for ranks, grid in ((1, []), (8, runs.CUBE)):
        copy = folder / f"run_{ranks}"
        shutil.copytree(run, copy, symlinks=True)
        trireme("-r", copy, *grid, ranks=ranks)
        found, weights = runs.trained(copy), runs.final_weights(copy)
        where = "1 rank" if ranks == 1 else "2x2x2"
        for what, theirs, asked in (("all in fp64", exact, EXACT), ("transformers as it is", raw, ROUNDED)):
            table.within(name, f"{where}, {what}: losses of 8 steps", runs.relative(theirs["losses"], found["losses"]), asked)
            table.within(name, f"{where}, {what}: gradient norms", runs.relative(theirs["norms"], found["norms"]), asked)
            final = models.in_our_names(golden["config"], theirs["final"])
            table.within(name, f"{where}, {what}: weights",
                         max(float(np.linalg.norm(final[n] - weights[n]) / np.linalg.norm(final[n])) for n in final), asked)
    exported = folder / "exported"
    trireme("-r", folder / "run_8", "job.task=export", f"hf.path={exported}", ranks=8)
    table.within(name, "trained in 2x2x2, exported: loss by transformers",
                 runs.relative([record.evaluate(load(exported), "valid")], [runs.trained(folder / "run_8")["valid_after"]]),
                 ROUNDED)
    recorded = check_goldens.goldens("models")[name]
    table.within(name, "goldens: losses, norms, logits as recorded",
                 max(runs.relative(recorded[key], exact[key]) for key in ("losses", "norms", "last_logits", "token_losses")),
                 EXACT)


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    trireme, table = runs.Trireme(sys.argv[1], sys.argv[2]), runs.Table()
    chosen = sys.argv[3:] or [*record.configs(), *pairs.CASES, users.MARIAN, users.USER_PATH]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        models.write_tokens(scratch / "tokens.h5")
        for name, config in record.configs().items():
            for part in (round_trip, training) if name in chosen else ():
                try:
                    part(trireme, table, name, config, scratch)
                except runs.Failure as failure:
                    table.failure(name, part.__name__, failure)
        for case in pairs.CASES:
            try:
                if case in chosen:
                    torch_pairs.compare(trireme, table, scratch, case)
            except runs.Failure as failure:
                table.failure(case, "", failure)
        for name, part in ((users.MARIAN, users.as_marian), (users.USER_PATH, users.walk)):
            try:
                if name in chosen:
                    part(trireme, table, scratch)
            except runs.Failure as failure:
                table.failure(name, "", failure)
    print(f"{table.failed} failed")
    sys.exit(1 if table.failed else 0)


if __name__ == "__main__":
    main()
