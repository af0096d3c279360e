"""Imports and exports random models of every family and compares files, byte by byte.

usage: hf_round_trip.py TRIREME MPIRUN
Exit code 77: skipped, because numpy or safetensors cannot be imported.
"""

import json
import os
import pathlib
import sys
import tempfile

import hf_models
import hf_run

def same_files(source, target, skip=()):
    names = {path.name for path in pathlib.Path(source).iterdir()} - set(skip)
    found = {path.name for path in pathlib.Path(target).iterdir()}
    assert names == found, f"{source}: {names ^ found}"
    for name in names:
        a, b = (pathlib.Path(folder, name).read_bytes() for folder in (source, target))
        assert a == b, f"{target}/{name}: other bytes"


def main():
    program = hf_run.Program(*sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="trireme_hf_") as scratch:
        os.chdir(scratch)
        pathlib.Path("deck.in").write_text(hf_run.DECK, encoding="utf-8")
        cases = [(name, "F32", 1) for name in hf_models.CONFIGS]
        cases += [("llama", dtype, 3) for dtype in ("BF16", "F16", "F64")]
        cases += [("gpt2", "BF16", 2), ("qwen2", "BF16", 1), ("qwen3", "F16", 2)]
        for name, dtype, shards in cases:
            for ranks in (1, 4) if shards > 1 or name in ("gpt2", "llama") else (1,):
                case = f"{name}_{dtype}_{shards}_{ranks}"
                hf_models.make(f"{case}.hf", hf_models.CONFIGS[name], dtype, shards)
                # The layout of the deck is that of the training, not of the import.
                grid = ["grid.data=2", "grid.tensor=2"] if ranks == 4 else []
                program(ranks, "-i", "deck.in", "job.task=import", f"hf.path={case}.hf", f"job.output={case}", *grid)
                program(ranks, "-r", case, "job.task=export", f"hf.path={case}.out")
                same_files(f"{case}.hf", f"{case}.out")
        other_types(program)
        bare_names_and_buffers(program)
        said_otherwise(program)
    print("round trips of every family: the same bytes")


def other_types(program):
    """hf.dtype changes the type and says so in the configuration."""
    hf_models.make("types.hf", hf_models.CONFIGS["llama_tied"], "F32")
    program(1, "-i", "deck.in", "job.task=import", "hf.path=types.hf", "job.output=types")
    wanted = hf_models.weights(hf_models.CONFIGS["llama_tied"])
    for storage, dtype in (("bf16", "BF16"), ("fp16", "F16"), ("fp32", "F32")):
        program(1, "-r", "types", "job.task=export", f"hf.path=types.{storage}", f"hf.dtype={storage}")
        tensors, _ = hf_models.load(f"types.{storage}")
        for name, values in wanted.items():
            rounded = hf_models.encode(values.astype("float32"), dtype)
            assert tensors[name] == (dtype, values.shape, rounded), (storage, name)
        config = json.loads(pathlib.Path(f"types.{storage}/config.json").read_text(encoding="utf-8"))
        assert config == {**hf_models.CONFIGS["llama_tied"], "torch_dtype": hf_models.NAMES[dtype]}, config


def bare_names_and_buffers(program):
    """GPT-2 as first published: without the prefix, with masks; a tied head that is there all the same."""
    config = hf_models.CONFIGS["gpt2"]
    mask = ("F32", (1, 1, 64, 64), bytes(64 * 64 * 4))
    table = hf_models.encode(hf_models.weights(config)["transformer.wte.weight"], "F32")
    extra = {"h.0.attn.bias": mask, "h.1.attn.bias": mask, "h.1.attn.masked_bias": ("F32", (), bytes(4))}
    extra["lm_head.weight"] = ("F32", (300, 24), table)
    hf_models.make("bare.hf", config, "F32", prefix=False, extra=extra)
    program(2, "-i", "deck.in", "job.task=import", "hf.path=bare.hf", "job.output=bare")
    program(2, "-r", "bare", "job.task=export", "hf.path=bare.out")
    before, after = hf_models.load("bare.hf")[0], hf_models.load("bare.out")[0]
    for name in list(before):
        if name.endswith((".attn.bias", ".attn.masked_bias")):
            del before[name]
    assert before == after, before.keys() ^ after.keys()


def said_otherwise(program):
    """Folders that say the same as others in another way are imported as those are."""
    linear = {"rope_type": "linear", "factor": 2.0}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    for name, config, changes in (
        ("qwen2", {**hf_models.CONFIGS["qwen2"], **heads}, {"num_key_value_heads": None}),
        ("qwen3", {**hf_models.CONFIGS["qwen3"], **heads}, {"num_key_value_heads": None}),
        ("both", hf_models.CONFIGS["llama_linear"],
         {"rope_parameters": {**linear, "rope_theta": 10000.0}, "rope_scaling": linear}),
    ):  # fmt: skip
        hf_models.make(f"{name}.said", config)
        program(1, "-i", "deck.in", "job.task=import", f"hf.path={name}.said", f"job.output={name}_said")
        text = json.dumps({**config, **changes}, indent=2, sort_keys=True) + "\n"
        pathlib.Path(f"{name}.said/config.json").write_text(text, encoding="utf-8")
        program(1, "-i", "deck.in", "job.task=import", f"hf.path={name}.said", f"job.output={name}_otherwise")
        decks = [pathlib.Path(f"{name}_{how}/deck.in").read_text(encoding="utf-8") for how in ("said", "otherwise")]
        assert decks[0].replace(f"{name}_said", "") == decks[1].replace(f"{name}_otherwise", ""), decks
    # A file without metadata that says so; a tied head in another type.
    config = hf_models.CONFIGS["llama_tied"]
    table = hf_models.weights(config)["model.embed_tokens.weight"]
    for dtype, other in (("BF16", "F32"), ("F32", "BF16"), ("F64", "F16")):
        values = hf_models.decode(hf_models.encode(table, dtype), dtype, table.shape)
        head = (other, table.shape, hf_models.encode(values, other))
        folder = f"{dtype}_{other}"
        hf_models.make(folder, config, dtype, extra={"lm_head.weight": head})
        path = pathlib.Path(folder, "model.safetensors")
        raw = path.read_bytes()
        end = 8 + int.from_bytes(raw[:8], "little")
        header = json.dumps({**json.loads(raw[8:end]), "__metadata__": None}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + raw[end:])
        program(2, "-i", "deck.in", "job.task=import", f"hf.path={folder}", f"job.output={folder}.run")
    # A tokenizer with more tokens than the model has rows for.
    tokenizer = {"model": {"type": "BPE", "vocab": {chr(256 + i): i for i in range(400)}, "merges": []},
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}  # fmt: skip
    pathlib.Path("both.said/tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    said = program(1, "-i", "deck.in", "job.task=import", "hf.path=both.said", "job.output=small")
    assert "its tokenizer has 400 tokens, the model 300" in said, said


main()
