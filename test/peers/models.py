"""Tiny Hugging Face models with weights by formula, and tokens to train them on.

Everything here follows from names, shapes and seeds with numpy alone, so that numbers that another
program computed once from these models stand for the models themselves.
"""

import json
import pathlib
import zlib

import h5py
import numpy as np

SEED = 1          # of the order of samples (run.seed)
LENGTH = 24       # tokens of a window
BATCH = 4         # windows a step
STEPS = 8         # one epoch of them; its last window is short
TOKENS = {"train": STEPS * BATCH * LENGTH + 1 - 7, "valid": 4 * LENGTH + 1, "test": 2 * LENGTH + 1 - 5}
TYPES = 97        # of the token file; models have some more rows in their tables
VOCABULARY = 101
# Decay on matrices alone. Epsilon is large beside the rounding noise of gradients that are truly zero
# (GPT-2's key biases).
OPTIMIZER = {"learning_rate": 3e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-6, "weight_decay": 0.1, "clip_norm": 1.0}


def random_integers(name, count, below):
    """`count` integers in [0, below), a function of the name: PCG64's raw words, fixed in all versions of numpy."""
    words = np.random.PCG64(zlib.crc32(name.encode())).random_raw(count)
    return ((words >> np.uint64(32)) * np.uint64(below) >> np.uint64(32)).astype(np.int64)


def weight(name, shape):
    """A tensor in fp64, of multiples of a power of two: exact in bfloat16 and in fp16 too."""
    steps = random_integers(name, int(np.prod(shape)), 255).reshape(shape) - 127
    if len(shape) == 1:
        is_norm = not name.endswith("bias") and name.endswith(("norm.weight", "layernorm.weight", "ln_1.weight",
                                                               "ln_2.weight", "ln_f.weight"))
        return 1 + np.round(steps / 4) / 128 if is_norm else steps / 1024.0
    return steps / 512.0


def weights(shapes):
    return {name: weight(name, shape) for name, shape in shapes.items()}


def tokens(split):
    """Token ids of a split; low ones are more frequent, so that there is something to learn."""
    u = random_integers("tokens of " + split, TOKENS[split], 1 << 20) / (1 << 20)
    return (TYPES * u * u).astype(np.int64)


def philox(counter, key):
    """Philox4x32-10 as in doc/reference/numerics.md."""
    c, (k0, k1), mask = list(counter), key, 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & mask, (p0 >> 32) ^ c[3] ^ k1, p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c


def permute(seed, epoch, k, count):
    """Sample k of an epoch, as in doc/reference/numerics.md (purpose 2)."""
    half = 1
    while 4**half < count:
        half += 1
    while True:
        left, right = k >> half, k & (2**half - 1)
        for r in range(8):
            word = philox((right, r, epoch & 0xFFFFFFFF, epoch >> 32), (seed, 2))[0]
            left, right = right, left ^ (word & (2**half - 1))
        k = left << half | right
        if k < count:
            return k


def windows(split):
    """(inputs, targets) of each window in order; the last may be short."""
    ids = tokens(split)
    return [(ids[at:at + LENGTH][:len(ids) - 1 - at], ids[at + 1:at + LENGTH + 1])
            for at in range(0, len(ids) - 1, LENGTH)]


def batches():
    """The windows of each training step."""
    assert [permute(1, 0, k, 8) for k in range(8)] == [6, 1, 0, 7, 2, 5, 4, 3]
    train = windows("train")
    return [[train[permute(SEED, 0, step * BATCH + i, len(train))] for i in range(BATCH)] for step in range(STEPS)]


def word(i):
    """Text of a token."""
    return f"{chr(97 + i % 26)}{i}"


def write_tokens(path, splits=None):
    """The token file that Trireme reads (doc/reference/formats.md), of our splits or of others."""
    splits = splits or {split: tokens(split) for split in TOKENS}
    words = [word(i).encode() for i in range(TYPES)]
    with h5py.File(path, "w") as file:
        for split, ids in splits.items():
            file[f"{split}/tokens"] = np.asarray(ids, "<u2")
        file["vocabulary/bytes"] = np.frombuffer(b"".join(words), np.uint8)
        file["vocabulary/offsets"] = np.cumsum([0] + [len(word) for word in words]).astype("<u8")
        file.attrs["format"] = 1
        file.attrs["tokenizer"] = "word"
        file.attrs["eos"] = 0
        file.attrs["unk"] = -1
        file.attrs["source_sha256"] = "0" * 64


# Safetensors by hand: numpy has no bfloat16, and what is tested is bytes.
def encode(values, dtype):
    if dtype == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()


def decode(data, dtype, shape):
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64).reshape(shape)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).astype(np.float64).reshape(shape)


def write_safetensors(path, tensors, dtype):
    header, data = {"__metadata__": {"format": "pt"}}, []
    at = 0
    for name in sorted(tensors):
        data.append(encode(tensors[name], dtype))
        header[name] = {"dtype": dtype, "shape": list(tensors[name].shape), "data_offsets": [at, at + len(data[-1])]}
        at += len(data[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def read_raw(path):
    """name: (dtype, shape, bytes) of a safetensors file."""
    content = pathlib.Path(path).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"],
                   content[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def read_folder_raw(folder):
    """The same of all safetensors files of a folder."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        found.update(read_raw(path))
    return found


def read_values(path):
    return {name: decode(data, dtype, shape) for name, (dtype, shape, data) in read_raw(path).items()}


TORCH_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def as_older_config(config):
    """A config of transformers 5 in the words of version 4: rope_theta and rope_scaling, torch_dtype."""
    old = dict(config)
    old["torch_dtype"] = old.pop("dtype")
    old["transformers_version"] = "4.51.3"
    rope = dict(old.pop("rope_parameters", None) or {})
    if rope:
        old["rope_theta"] = rope.pop("rope_theta")
        old["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return old


def write_folder(folder, golden, dtype="F32", shards=1, older=False):
    """A Hugging Face folder of the golden's model, as transformers' save_pretrained lays it out."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    config = dict(golden["config"], dtype=TORCH_NAMES[dtype])
    config = as_older_config(config) if older else config
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(golden["generation_config"], indent=2) + "\n")
    tensors = weights(golden["shapes"])
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
        return
    names = sorted(tensors)
    index = {"metadata": {"total_size": sum(len(encode(t, dtype)) for t in tensors.values())}, "weight_map": {}}
    if not older:
        index["metadata"]["total_parameters"] = sum(tensor.size for tensor in tensors.values())
    for i in range(shards):
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i * len(names) // shards:(i + 1) * len(names) // shards]
        write_safetensors(folder / name, {n: tensors[n] for n in part}, dtype)
        index["weight_map"].update({n: name for n in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


# Names of Trireme's tensors, each with the part of a Hugging Face tensor that it is. Matrices that tensor
# ranks slice by rows of their input are kept as [input, output], the others as [output, input].
PARTS = {
    "attention.norm.weight": "input_layernorm.weight", "ffn.norm.weight": "post_attention_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight", "attention.query.bias": "self_attn.q_proj.bias",
    "attention.key.weight": "self_attn.k_proj.weight", "attention.key.bias": "self_attn.k_proj.bias",
    "attention.value.weight": "self_attn.v_proj.weight", "attention.value.bias": "self_attn.v_proj.bias",
    "attention.query_norm.weight": "self_attn.q_norm.weight", "attention.key_norm.weight": "self_attn.k_norm.weight",
    "attention.output.weight": "self_attn.o_proj.weight", "attention.output.bias": "self_attn.o_proj.bias",
    "ffn.gate.weight": "mlp.gate_proj.weight", "ffn.up.weight": "mlp.up_proj.weight",
    "ffn.down.weight": "mlp.down_proj.weight",
}
GPT2_PARTS = {
    "attention.norm": "ln_1", "ffn.norm": "ln_2", "attention.output": "attn.c_proj", "ffn.up": "mlp.c_fc",
    "ffn.down": "mlp.c_proj",
}
TRANSPOSED = ("attention.output.weight", "ffn.down.weight")


def gpt2_block(tensors, n):
    source, block = f"transformer.h.{n}.", {}
    for ours, theirs in GPT2_PARTS.items():
        for kind in ("weight", "bias"):
            value = tensors[f"{source}{theirs}.{kind}"]  # matrices are [input, output]
            block[f"{ours}.{kind}"] = value.T if f"{ours}.{kind}" == "ffn.up.weight" else value
    for kind in ("weight", "bias"):
        for part, value in zip(("query", "key", "value"), np.split(tensors[f"{source}attn.c_attn.{kind}"], 3, axis=-1)):
            block[f"attention.{part}.{kind}"] = value.T
    return block


def llama_block(tensors, n):
    found = {ours: tensors.get(f"model.layers.{n}.{theirs}") for ours, theirs in PARTS.items()}
    return {ours: value.T if ours in TRANSPOSED else value for ours, value in found.items() if value is not None}


def in_our_names(config, tensors):
    """A Hugging Face model's tensors as Trireme keeps them."""
    if config["model_type"] == "gpt2":
        whole = {"embedding.token.weight": "transformer.wte.weight", "embedding.position.weight": "transformer.wpe.weight",
                 "norm.weight": "transformer.ln_f.weight", "norm.bias": "transformer.ln_f.bias"}
        layers, block = config["n_layer"], gpt2_block
    else:
        whole = {"embedding.token.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
        if not config["tie_word_embeddings"]:
            whole["head.weight"] = "lm_head.weight"
        layers, block = config["num_hidden_layers"], llama_block
    ours = {name: tensors[source] for name, source in whole.items()}
    for n in range(layers):
        ours.update({f"blocks.{n}.{name}": value for name, value in block(tensors, n).items()})
    return ours


def sketch(name, before, after):
    """Three numbers of a tensor's change that notice any error in it: its norm, and its products with two fixed
    random tensors of unit norm."""
    change = (after - before).ravel()
    found = [float(np.linalg.norm(change))]
    for which in ("first", "second"):
        direction = random_integers(f"{which} sketch of {name}", change.size, 2001) - 1000.0
        found.append(float(change @ direction / np.linalg.norm(direction)))
    return found
