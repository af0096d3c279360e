"""Models trained here, exported for others and imported again: configuration, tokenizer, weights; rows
without a token; token files of another tokenizer.

usage: hf_own_models.py TRIREME MPIRUN
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

LENGTH = 24
ROWS = 330  # of the embedding; the tokenizer has fewer types
DECK = f"""[data]
file = bpe.h5
sequence_length = {LENGTH}
batch = 4
[schedule]
steps = 3
[run]
precision = fp64
[model]
vocabulary = {ROWS}
dim = 24
heads = 4
layers = 2
ffn = 40
max_positions = 64
[monitor]
every_steps = 1
sample_tokens = 0
"""
LLAMA = [
    "model.norm=rmsnorm",
    "model.activation=swiglu",
    "model.position=rope",
    "model.bias=no",
    "model.kv_heads=2",
]
MODELS = {
    "gpt2": [],
    "llama": LLAMA + ["model.rope_scaling=linear", "model.rope_factor=2", "model.head_dim=8",
              "model.tie_embeddings=no"],
    "qwen2": LLAMA + ["model.qkv_bias=yes", "model.tie_embeddings=yes"],
    "qwen3": LLAMA + ["model.qk_norm=yes", "model.rope_scaling=yarn", "model.rope_factor=2",
                      "model.rope_original_positions=12"],
}  # fmt: skip


def make_tokenizer(folder):
    """Byte-level BPE of 256 bytes, three merges and the end of a text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    merges = [("t", "h"), ("th", "e"), ("a", "n")]
    words = letters + ["".join(pair) for pair in merges] + ["<|endoftext|>"]
    pathlib.Path(folder).mkdir()
    vocabulary = json.dumps({word: i for i, word in enumerate(words)}, ensure_ascii=False)
    pathlib.Path(folder, "vocab.json").write_text(vocabulary, encoding="utf-8")
    text = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges)
    pathlib.Path(folder, "merges.txt").write_text(text, encoding="utf-8")
    return len(words)


def make_tokens(program):
    for split in ("train", "valid", "test"):
        text = "the man and the other hand\nthen a van ran\n" * (40 if split == "train" else 6)
        pathlib.Path(f"{split}.txt").write_text(text, encoding="utf-8")
    texts = [f"tokenize.{split}={split}.txt" for split in ("train", "valid", "test")]
    task = ["-i", "deck.in", "job.task=tokenize", *texts]
    program(1, *task, "tokenize.kind=bpe", "tokenize.tokenizer=tokenizer")
    program(1, *task, "tokenize.kind=byte", "data.file=byte.h5")


def losses(text):
    found = dict(re.findall(r"^(valid|test) +loss ([0-9.]+) nats", text, re.MULTILINE))
    assert len(found) == 2, text
    return {split: float(loss) for split, loss in found.items()}


def step_losses(run):
    lines = pathlib.Path(run, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record["loss"] for record in map(json.loads, lines) if record["kind"] == "step"]


def check_model(program, name, keys):
    given = ["-i", "deck.in", *keys]
    program(1, *given, f"job.output={name}")
    program(4, *given, f"job.output={name}_parts", "grid.data=2", "grid.tensor=2")
    whole, parts = step_losses(name), step_losses(f"{name}_parts")
    assert len(whole) == len(parts) > 0 and max(abs(a / b - 1) for a, b in zip(whole, parts)) < 1e-11, (whole, parts)
    own = losses(program(1, "-r", name, "job.task=evaluate"))

    # The exported model has the same loss, by arithmetic that knows nothing of this program.
    program(2, "-r", name, "job.task=export", f"hf.path={name}.hf", "hf.dtype=fp32")
    config = json.loads(pathlib.Path(f"{name}.hf/config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == name and config["vocab_size"] == ROWS, config
    weights = hf_models.weights_of(f"{name}.hf")
    assert set(weights) == set(hf_models.shapes({**config, "n_inner": config.get("n_inner")})), weights.keys()
    with h5py.File("bpe.h5") as file:
        for split, loss in own.items():
            tokens = file[f"/{split}/tokens"][:].astype("int64")
            wanted = hf_models.loss(config, weights, tokens, LENGTH)
            assert abs(loss - wanted) < 3e-6, f"{name}: {split} {loss}, but {wanted} expected"
    for file in ("vocab.json", "merges.txt"):
        assert pathlib.Path(f"{name}.hf", file).read_bytes() == pathlib.Path("tokenizer", file).read_bytes()
    assert config["eos_token_id"] == TYPES - 1
    assert json.loads(pathlib.Path(f"{name}.hf/tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"

    # Cut into files and imported again: the same weights, and the same loss with its own tokens alone.
    program(3, "-r", name, "job.task=export", f"hf.path={name}.cut", "hf.dtype=fp32", "hf.shard_bytes=20000")
    assert len(list(pathlib.Path(f"{name}.cut").glob("model-*-of-*.safetensors"))) > 2
    program(2, "-i", "again.in", "job.task=import", f"hf.path={name}.cut", f"job.output={name}_again")
    again = losses(program(1, "-r", f"{name}_again", "job.task=evaluate"))
    assert all(abs(again[split] - own[split]) < 3e-6 for split in own), (again, own)
    text = program(1, "-r", f"{name}_again", "job.task=evaluate", "data.file=byte.h5", expected=2)
    assert text.count("not by the imported model's own") == 1, text
    text = program(1, "-r", f"{name}_again", "job.task=evaluate", "data.file=nowhere.h5", expected=2)
    assert f"tokenize.kind=bpe tokenize.tokenizer={name}_again/hf" in text, text


def main():
    global TYPES
    program = hf_run.Program(*sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="trireme_hf_") as scratch:
        os.chdir(scratch)
        pathlib.Path("deck.in").write_text(DECK, encoding="utf-8")
        sections = DECK.split("[model]")
        pathlib.Path("again.in").write_text(sections[0] + "[monitor]" + DECK.split("[monitor]")[1], encoding="utf-8")
        TYPES = make_tokenizer("tokenizer")
        make_tokens(program)
        for name, keys in MODELS.items():
            check_model(program, name, keys)
        # Nearly every row is as likely as any other one: those without a token are never drawn.
        program(1, "-r", "llama", "job.task=generate", "generate.tokens=200", "generate.temperature=1000")
        text = program(1, "-i", "deck.in", "model.vocabulary=200", "job.output=few", expected=2)
        assert f"model.vocabulary = 200: the token file has {TYPES} types" in text, text
        post = ["model.norm_position=post", "job.output=post"]
        program(1, "-i", "deck.in", *post)
        text = program(1, "-r", "post", "job.task=export", "hf.path=post.hf", expected=2)
        assert "model.norm_position = post: no decoder model of transformers computes this" in text, text
        assert not pathlib.Path("post.hf").exists()
    print("models of every family, trained here: exported and imported again")


main()
