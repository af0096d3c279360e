"""Model folders that cannot be imported, and models that cannot be exported: one message that names
the fault, exit code 2, nothing written.

usage: hf_refusals.py TRIREME MPIRUN
Exit code 77: skipped, because numpy or safetensors cannot be imported.
"""

import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile

import hf_models
import hf_run

LLAMA = hf_models.CONFIGS["llama"]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 2200119864\n"
PAGE = "<!doctype html>\n<html><head><title>model</title></head></html>\n"


def change(path, changes, remove=()):
    path = pathlib.Path(path)
    value = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    for key in remove:
        del value[key]
    path.write_text(json.dumps(value), encoding="utf-8")


def configs():
    """Changes of config.json, and the text that the message must have."""
    yield {"model_type": "bert"}, 'model_type = "bert": only gpt2, llama, mistral, qwen2 and qwen3'
    yield {"hidden_act": "gelu"}, 'hidden_act = "gelu": only "silu"'
    yield {"attention_bias": True}, "attention_bias = true: only false"
    yield {"mlp_bias": True}, "mlp_bias = true: only false"
    yield {"pretraining_tp": 2}, "pretraining_tp = 2"
    yield {"sliding_window": 64}, "sliding_window = 64: only null"
    yield {"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window = true"
    yield {"quantization_config": {"bits": 4}}, "quantization_config = an object: quantised weights"
    yield {"auto_map": {"AutoModel": "x.Y"}}, "auto_map = an object: the model's code"
    yield {"num_local_experts": 8}, "num_local_experts = 8: mixtures of experts"
    yield {"layer_types": ["full_attention", "sliding_attention"]}, 'only "full_attention" is computed'
    yield {"layer_types": ["full_attention"]}, "a list of 2 types expected, one a layer"
    yield {"layer_types": "full_attention"}, "a list of 2 types expected, one a layer"
    yield ({"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
           "full_attention = an object: angles per type of layer are not computed")
    yield ({"rope_scaling": {"rope_type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "linear", "factor": 4}},
           "rope_parameters = an object: rope_scaling says something else")
    yield {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 'rope_type = "dynamic": only default'
    yield {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor = missing"
    yield {"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "rope_factor"
    yield {"rope_scaling": {**hf_models.YARN_ROPE, "truncate": False}}, "truncate = false"
    yield {"rope_scaling": {**hf_models.YARN_ROPE, "mscale": 1.0}}, "mscale = 1.0: only null"
    yield {"rope_scaling": {"rope_type": "linear", "factor": 2, "odd": 1}}, "rope_scaling: odd = 1: not known"
    yield {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"
    yield {"num_attention_heads": 5}, "num_attention_heads = 5: does not divide hidden_size = 32"
    yield {"hidden_size": "32"}, "hidden_size: an integer"
    yield {"vocab_size": -1}, "vocab_size"
    yield {"hidden_size": 64}, "tensor model.embed_tokens.weight: shape [300, 64] expected, [300, 32] found"
    yield {"num_hidden_layers": 3}, "tensor model.layers.2.input_layernorm.weight: [32] expected, nothing found"
    yield {"num_hidden_layers": 1}, "tensor model.layers.1.input_layernorm.weight: nothing expected"
    yield {"tie_word_embeddings": True}, "differs from model.embed_tokens.weight, but the configuration ties"


def poison(folder, name, bits):
    """Overwrites the last element of an fp32 tensor."""
    for path in pathlib.Path(folder).glob("*.safetensors"):
        raw = bytearray(path.read_bytes())
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + length])
        if name in header:
            end = 8 + length + header[name]["data_offsets"][1]
            raw[end - 4 : end] = bits
            path.write_bytes(raw)


def overlap(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    header["model.norm.weight"]["data_offsets"] = [0, 128]
    text = json.dumps(header).encode().ljust(length)
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def set_place(folder, name, file):
    path = pathlib.Path(folder, "model.safetensors.index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    if file is None:
        del index["weight_map"][name]
    else:
        index["weight_map"][name] = file
    path.write_text(json.dumps(index), encoding="utf-8")


def folders():
    """How a folder of three shards is damaged, and what the message must say."""
    nan, infinite = struct.pack("<f", float("nan")), struct.pack("<f", float("inf"))
    norm, down = "model.norm.weight", "model.layers.1.mlp.down_proj.weight"
    shards = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    yield lambda f: poison(f, norm, nan), f"tensor {norm}: element 31 of norm.weight is infinite or no number"
    yield lambda f: poison(f, down, infinite), f"tensor {down}: element "
    yield lambda f: (f / shards[1]).unlink(), f"{shards[1]}: is missing, but model.safetensors.index.json"
    yield lambda f: overlap(f / shards[2]), "(it overlaps another tensor)"
    yield lambda f: (f / shards[0]).write_bytes(b"short"), "safetensors file has at least 8 bytes"
    yield lambda f: (f / shards[0]).write_bytes((f / shards[0]).read_bytes()[:-4]), "within the file's"
    yield lambda f: set_place(f, norm, shards[0]), f"{norm} in {shards[0]} expected, but {shards[2]} holds it"
    yield lambda f: set_place(f, norm, None), f"weight_map lacks {norm}"
    yield lambda f: set_place(f, "odd", shards[0]), f"odd in {shards[0]} expected, but it is not there"
    yield lambda f: set_place(f, norm, "../x.safetensors"), "the name of a safetensors file in the same folder"
    yield lambda f: (f / "model.safetensors.index.json").unlink(), "but model.safetensors.index.json is missing"
    yield lambda f: [path.unlink() for path in f.glob("*model*")], "holds neither model.safetensors nor"
    for name in ("config.json", "model.safetensors.index.json", shards[0]):
        yield lambda f, name=name: (f / name).write_text(POINTER), f"{name}: is a pointer of Git LFS, not the file"
        yield lambda f, name=name: (f / name).write_text(PAGE), f"{name}: is a web page, not the file"
    yield lambda f: (f / shards[0]).write_bytes(b"PK\3\4" + bytes(99)), "is a zip archive, as PyTorch's"
    for lost in ("*", "*.safetensors*"):
        yield lambda f, lost=lost: only(f, lost, "model-q4.gguf"), "holds a model in GGUF, llama.cpp's format (model-q4.gguf)"
    for lost in ("config.json", "*.safetensors*"):
        yield lambda f, lost=lost: only(f, lost, "adapter_config.json"), "is an adapter (LoRA or the like: adapter_config.json)"
    yield lambda f: only(f, "*model*", "weights.safetensors"), "holds weights.safetensors, which is not the name"
    yield lambda f: (shutil.rmtree(f), f.write_bytes(b"GGUF" + bytes(9))), "is a model in GGUF, llama.cpp's format"
    yield lambda f: (shutil.rmtree(f), f.write_bytes(b"GG")), "is a file"
    yield lambda f: (f / "config.json").unlink(), "has no config.json"
    yield lambda f: (f / "config.json").write_text('{"a": 1'), "config.json: "
    yield lambda f: shutil.rmtree(f), "no such folder"


def only(folder, lost, found):
    for path in folder.glob(lost):
        path.unlink()
    (folder / found).write_bytes(b"\x80\x02")


class Refusals:
    def __init__(self, program):
        self.program, self.count = program, 0

    def __call__(self, wanted, *arguments, ranks=1):
        """Refused with a message that is printed once, and nothing new in the folder."""
        before = sorted(pathlib.Path(".").iterdir())
        text = self.program(ranks, *arguments, expected=2)
        assert text.count(wanted) == 1, f"{arguments}: the message lacks {wanted}:\n{text}"
        assert text.count("trireme: error:") == 1, text
        assert sorted(pathlib.Path(".").iterdir()) == before, f"{wanted}: something was written"
        self.count += 1


def imports(refuse):
    task = ["-i", "deck.in", "job.task=import", "job.output=run"]
    for i, (changes, wanted) in enumerate(configs()):
        folder = f"config_{i}"
        hf_models.make(folder, LLAMA)
        change(f"{folder}/config.json", changes)
        refuse(wanted, *task, f"hf.path={folder}")
    for i, (damage, wanted) in enumerate([*folders(), (lambda f: only(f, "model*", "pytorch_model.bin"), "are pickled or another library's (pytorch_model.bin)")]):
        folder = pathlib.Path(f"folder_{i}")
        hf_models.make(folder, LLAMA, shards=3)
        damage(folder)
        refuse(wanted, *task, f"hf.path={folder}", ranks=3 if i < 4 else 1)
    hf_models.make("gpt2", hf_models.GPT2)
    for changes, wanted in (
        ({"activation_function": "relu"}, 'activation_function = "relu": only "gelu_new"'),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = true"),
        ({"scale_attn_weights": False}, "scale_attn_weights = false"),
        ({"embd_pdrop": 0.2}, "embd_pdrop = 0.2: resid_pdrop is 0.1"),
        ({"add_cross_attention": True}, "add_cross_attention = true: there is no encoder"),
    ):
        pathlib.Path("gpt2/config.json").write_text(json.dumps({**hf_models.GPT2, **changes}), encoding="utf-8")
        refuse(wanted, *task, "hf.path=gpt2")
    hf_models.make("mistral", hf_models.CONFIGS["mistral"])
    change("mistral/config.json", {}, ["sliding_window"])
    refuse("sliding_window is missing and counts as 4096: only null", *task, "hf.path=mistral")
    hf_models.make("ints", LLAMA, extra={"model.norm.weight": ("I32", (32,), bytes(128))})
    refuse("tensor model.norm.weight: F32, F64, BF16 or F16 expected, I32 found", *task, "hf.path=ints")
    hf_models.make("good", LLAMA)
    refuse("hf.path", *task)
    refuse("model.dim = 64, but the folder's model has model.dim = 32", *task, "hf.path=good", "model.dim=64")
    refuse("preset jsc: model.norm = layernorm, but", *task, "hf.path=good", "model.preset=jsc")
    refuse("-r has no meaning for job.task = import", "-r", "good", *task, "hf.path=good")
    refuse("checkpoint.start_from", *task, "hf.path=good", "checkpoint.start_from=good")
    refuse(": is there already", *task[:-1], "job.output=good", "hf.path=good")


def exports(program, refuse):
    program(1, "-i", "deck.in", "job.task=import", "hf.path=good", "job.output=run")
    refuse("no folder to write is named", "-r", "run", "job.task=export")
    refuse(": is there already", "-r", "run", "job.task=export", "hf.path=good")
    refuse("a trained model is needed", "-i", "deck.in", "job.task=export", "hf.path=new")
    change("run/hf/config.json", {"rms_norm_eps": 0.5})
    refuse("says model.norm_epsilon = 0.5, but the checkpoint has", "-r", "run", "job.task=export", "hf.path=new")
    change("run/hf/config.json", LLAMA)
    weights = pathlib.Path("run/checkpoints/step_00000000/model.safetensors")
    raw = bytearray(weights.read_bytes())
    raw[-5] ^= 1
    weights.write_bytes(raw)
    refuse("model.safetensors: ", "-r", "run", "job.task=export", "hf.path=new", ranks=2)


def main():
    program = hf_run.Program(*sys.argv[1:])
    refuse = Refusals(program)
    with tempfile.TemporaryDirectory(prefix="trireme_hf_") as scratch:
        os.chdir(scratch)
        pathlib.Path("deck.in").write_text(hf_run.DECK, encoding="utf-8")
        imports(refuse)
        exports(program, refuse)
    print(f"{refuse.count} refusals: one message each, nothing written")


main()
