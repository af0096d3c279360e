"""Tiny models that translate, with weights by formula, and pairs of texts to train them on.

As in models.py everything follows from names, shapes and seeds with numpy alone. Parameters have
Trireme's names and shapes.
"""

import ctypes
import json
import pathlib

import h5py
import numpy as np

import models
import runs

SEED = 1
BATCH = 4          # pairs of a step
TRAIN_PAIRS = 16   # 4 steps per epoch
STEPS = 8
EOS = 0
LENGTH = 16        # longest text that the models take
LABEL_SMOOTHING = 0.1
DIM, HEADS, FFN, ENCODER_LAYERS, LAYERS = 32, 4, 48, 2, 2
# What the models differ in: keys of [model], and rows of the tables of tokens.
CASES = {
    "pairs_post": {"norm_position": "post", "activation": "relu", "position": "sinusoidal", "scale_embedding": "yes",
                   "shared_vocabulary": "yes", "tie_embeddings": "yes"},
    "pairs_pre": {"norm_position": "pre", "activation": "gelu", "position": "learned", "scale_embedding": "no",
                  "shared_vocabulary": "no", "tie_embeddings": "no"},
}
SOURCE_TYPES, TARGET_TYPES = 29, 37  # of two vocabularies; a shared one has the larger


def shared(case):
    return CASES[case]["shared_vocabulary"] == "yes"


def types(case, side):
    return SOURCE_TYPES if side == "source" and not shared(case) else TARGET_TYPES


def lengths(rank):
    """Tokens of source and target of the pair that is the rank-th by length, eos included. No two pairs have equal
    lengths, and a longer target has no shorter source: each batch is of BATCH pairs that follow each other."""
    return 2 + (2 * rank) // 3, 2 + (3 * rank + 1) // 4


def texts(case, split):
    """(source, target) of each pair, eos included. In training the k-th pair is not the k-th by length."""
    count = TRAIN_PAIRS if split == "train" else 5
    pairs = []
    for k in range(count):
        rank = (7 * k + 3) % TRAIN_PAIRS if split == "train" else 3 * k
        pair = []
        for side, length in zip(("source", "target"), lengths(rank)):
            ids = 1 + models.random_integers(f"{side} {k} of {split}", length - 1, types(case, side) - 1)
            pair.append(np.append(ids, EOS))
        pairs.append(tuple(pair))
    return pairs


def batches(case):
    """Pairs of each training step (doc/reference/translation.md, batches by length)."""
    by_length = sorted(texts(case, "train"), key=lambda pair: (len(pair[1]), len(pair[0])))
    seed = models.philox((0, 0, 0, 0), (SEED, 11))[0]
    each = TRAIN_PAIRS // BATCH
    order = [models.permute(seed, step // each, step % each, each) for step in range(STEPS)]
    return [by_length[at * BATCH:(at + 1) * BATCH] for at in order]


def write_pairs(path, case):
    """The file of pairs that Trireme reads (doc/reference/formats.md)."""
    sides = ("source", "target")
    with h5py.File(path, "w") as file:
        for split in ("train", "valid", "test"):
            for place, side in enumerate(sides):
                ids = [pair[place] for pair in texts(case, split)]
                file[f"{split}/{side}"] = np.concatenate(ids).astype("<u2")
                file[f"{split}/{side}_offsets"] = np.cumsum([0] + [len(text) for text in ids[:-1]]).astype("<u8")
        for prefix, side in (("", "target"),) if shared(case) else (("", "target"), ("source_", "source")):
            words = [models.word(i).encode() for i in range(types(case, side))]
            file[f"{prefix}vocabulary/bytes"] = np.frombuffer(b"".join(words), np.uint8)
            file[f"{prefix}vocabulary/offsets"] = np.cumsum([0] + [len(word) for word in words]).astype("<u8")
            file.attrs.update({f"{prefix}tokenizer": "word", f"{prefix}eos": EOS, f"{prefix}unk": -1})
        file.attrs.update({"format": 1, "contents": "pairs", "source_sha256": "0" * 64})


def write_deck(path, file, case):
    """Training as torch_pairs.py trains."""
    model = {"kind": "encoder_decoder", "dim": DIM, "heads": HEADS, "ffn": FFN, "encoder_layers": ENCODER_LAYERS,
             "layers": LAYERS, "max_positions": LENGTH, "init_deviation": 0.1, **CASES[case]}
    pathlib.Path(path).write_text(
        "# A model of test/peers/pairs.py.\n"
        + runs.section("run", {"precision": "fp64", "seed": SEED})
        + runs.section("data", {"file": file, "sequence_length": LENGTH, "batch": BATCH, "batch_tokens": 0})
        + runs.section("model", model)
        + runs.section("optimizer", {**models.OPTIMIZER, "label_smoothing": LABEL_SMOOTHING})
        + runs.section("schedule", {"steps": STEPS, "decay": "constant"})
        + runs.section("checkpoint", {"every_steps": 0})
        + runs.section("monitor", {"every_steps": 1}))


def put_weights(checkpoint):
    """Gives all parameters of a checkpoint their values by formula, and its sums of them; returns the shapes."""
    hash_of = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    hash_of.restype, hash_of.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t)
    path, sums_path = checkpoint / "model.safetensors", checkpoint / "checksums.json"
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    shapes = {}
    for name, entry in json.loads(content[8:begin]).items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        shapes[name] = entry["shape"]
        content[begin + first:begin + end] = models.encode(models.weight(name, entry["shape"]), entry["dtype"])
    path.write_bytes(content)
    sums = json.loads(sums_path.read_text())
    for segment in sums["files"]["model.safetensors"]["segments"]:
        part = bytes(content[segment[0]:segment[0] + segment[1]])
        segment[2] = f"{hash_of(part, len(part)):016x}"
    sums_path.write_text(json.dumps(sums))
    return shapes


class Prepared:
    """A case in a folder of its own: file of pairs, deck, and a checkpoint with the weights of all runs."""

    def __init__(self, trireme, case, folder):
        self.trireme, self.folder, self.deck = trireme, folder, folder / "deck.in"
        folder.mkdir()
        write_pairs(folder / "pairs.h5", case)
        write_deck(self.deck, folder / "pairs.h5", case)
        start = folder / "start"
        trireme("-i", self.deck, "schedule.steps=1", f"job.output={start}")
        self.start = (start / "checkpoints/latest").resolve()
        self.shapes = put_weights(self.start)

    def train(self, name, *keys, ranks=1):
        """A run that begins with the weights; its folder."""
        run = self.folder / name
        self.trireme("-i", self.deck, f"checkpoint.start_from={self.start}", f"job.output={run}", *keys, ranks=ranks)
        return run

    def gradients(self, *keys, ranks=1):
        """Of the first step: what plain descent by the whole gradient takes from the weights."""
        run = self.train(f"gradients_{ranks}", "schedule.steps=1", "optimizer.kind=sgd", "optimizer.learning_rate=1",
                         "optimizer.weight_decay=0", "optimizer.clip_norm=0", *keys, ranks=ranks)
        after = runs.final_weights(run)
        return {name: models.weight(name, shape) - after[name] for name, shape in self.shapes.items()}


def sketches(tensors):
    """Three numbers of each tensor (models.sketch)."""
    return {name: models.sketch(name, np.zeros_like(tensor), tensor) for name, tensor in tensors.items()}


def sketch_difference(expected, found, sizes):
    """Largest difference of two sketches of equal names, each over the larger of the tensor's norm and what it would
    be if all tensors had equal elements (rule 4)."""
    mean_square = sum(numbers[0]**2 for numbers in expected.values()) / sum(sizes.values())
    worst = 0.0
    for name, numbers in expected.items():
        scale = max(numbers[0], np.sqrt(mean_square * sizes[name]))
        worst = max(worst, *(abs(a - b) / scale for a, b in zip(numbers, found[name])))
    return worst
