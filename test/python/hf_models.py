"""Model folders of Hugging Face with random weights, written by Python's safetensors, and read back; plain forward passes of
the families in fp64, written from their papers: a loss to compare with.

Exit code 77 of those who import it: skipped, because numpy or safetensors cannot be imported.
"""

import json
import pathlib
import sys

try:
    import numpy
    import safetensors
except ImportError as missing:
    print(f"SKIPPED: {missing}; {sys.executable} -m pip install numpy safetensors")
    sys.exit(77)

NAMES = {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "I32": "int32"}

GPT2 = {
    "_name_or_path": "gpt2",
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 64,
    "n_embd": 24,
    "n_head": 4,
    "n_inner": None,
    "n_layer": 2,
    "n_positions": 64,
    "resid_pdrop": 0.1,
    "summary_type": "cls_index",
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 300,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "max_position_embeddings": 128,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.45.0",
    "use_cache": True,
    "vocab_size": 300,
}
LLAMA3_ROPE = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 16,
    "rope_type": "llama3",
}
YARN_ROPE = {"factor": 4.0, "original_max_position_embeddings": 32, "type": "yarn"}


def llama(**changes):
    return {**LLAMA, **changes}


def qwen(kind, **changes):
    config = llama(model_type=kind, use_sliding_window=False, sliding_window=None, max_window_layers=2)
    for key in ("mlp_bias", "pretraining_tp") + (("attention_bias",) if kind == "qwen2" else ()):
        del config[key]
    return {**config, "architectures": [kind.capitalize() + "ForCausalLM"], **changes}


# Every family, and of Llama every kind of rotary positions.
CONFIGS = {
    "gpt2": GPT2,
    "gpt2_untied": {**GPT2, "tie_word_embeddings": False, "n_inner": 60},
    "llama": LLAMA,
    "llama_tied": llama(tie_word_embeddings=True, head_dim=12, num_key_value_heads=4),
    "llama3": llama(rope_scaling=LLAMA3_ROPE, rope_theta=500000.0),
    "llama_linear": llama(rope_scaling={"type": "linear", "factor": 2.0}),
    "llama_yarn": llama(rope_parameters={**YARN_ROPE, "rope_theta": 10000.0}, rope_scaling=None),
    "mistral": llama(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=None),
    "qwen2": qwen("qwen2", tie_word_embeddings=True),
    "qwen3": qwen("qwen3", head_dim=16, layer_types=["full_attention"] * 2),
}


def shapes(config):
    """Name to shape of every tensor, in the order of the model; without a tied head."""
    found = {}
    if config["model_type"] == "gpt2":
        dim, inner = config["n_embd"], config["n_inner"] or 4 * config["n_embd"]
        found["transformer.wte.weight"] = (config["vocab_size"], dim)
        found["transformer.wpe.weight"] = (config["n_positions"], dim)
        for layer in range(config["n_layer"]):
            block = f"transformer.h.{layer}."
            for name, shape in (
                ("ln_1", (dim,)),
                ("attn.c_attn", (dim, 3 * dim)),
                ("attn.c_proj", (dim, dim)),
                ("ln_2", (dim,)),
                ("mlp.c_fc", (dim, inner)),
                ("mlp.c_proj", (inner, dim)),
            ):
                found[block + name + ".weight"] = shape
                found[block + name + ".bias"] = shape[-1:]
        found["transformer.ln_f.weight"] = found["transformer.ln_f.bias"] = (dim,)
    else:
        dim, inner = config["hidden_size"], config["intermediate_size"]
        width = config.get("head_dim") or dim // config["num_attention_heads"]
        queries, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
        found["model.embed_tokens.weight"] = (config["vocab_size"], dim)
        for layer in range(config["num_hidden_layers"]):
            block = f"model.layers.{layer}."
            found[block + "input_layernorm.weight"] = (dim,)
            for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
                found[f"{block}self_attn.{name}.weight"] = (rows, dim)
                if config["model_type"] == "qwen2":
                    found[f"{block}self_attn.{name}.bias"] = (rows,)
            if config["model_type"] == "qwen3":
                found[block + "self_attn.q_norm.weight"] = (width,)
                found[block + "self_attn.k_norm.weight"] = (width,)
            found[block + "self_attn.o_proj.weight"] = (dim, queries)
            found[block + "post_attention_layernorm.weight"] = (dim,)
            found[block + "mlp.gate_proj.weight"] = (inner, dim)
            found[block + "mlp.up_proj.weight"] = (inner, dim)
            found[block + "mlp.down_proj.weight"] = (dim, inner)
        found["model.norm.weight"] = (dim,)
    if not config.get("tie_word_embeddings", config["model_type"] == "gpt2"):
        found["lm_head.weight"] = (config["vocab_size"], dim)
    return found


def weights(config, seed=1):
    """Random values in fp64; norms around 1."""
    random = numpy.random.default_rng(seed)
    made = {}
    for name, shape in shapes(config).items():
        values = random.standard_normal(shape) * (0.3 if len(shape) == 1 else 0.15)
        norm = len(shape) == 1 and name.endswith("weight")
        made[name] = values + 1 if norm else values
    return made


def encode(values, dtype):
    """Bytes of an array in a dtype of safetensors."""
    if dtype != "BF16":
        return values.astype(NAMES[dtype]).tobytes()
    bits = values.astype("float32").view("uint32").astype("uint64")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("uint16").tobytes()


def decode(data, dtype, shape):
    """fp64 values of the bytes."""
    if dtype == "BF16":
        values = (numpy.frombuffer(data, "uint16").astype("uint32") << 16).view("float32")
    else:
        values = numpy.frombuffer(data, NAMES[dtype])
    return values.astype("float64").reshape(shape)


def save(path, tensors):
    """tensors: name to (dtype, shape, bytes)."""
    listed, kept = {}, []
    for name, (dtype, shape, data) in tensors.items():
        if hasattr(safetensors, "TensorSpec"):  # since version 0.8
            kept.append(numpy.frombuffer(data, "uint8"))
            listed[name] = safetensors.TensorSpec(
                dtype=NAMES[dtype], shape=list(shape), data_ptr=kept[-1].ctypes.data, data_len=len(data)
            )
        else:
            listed[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data": data}
    safetensors.serialize_file(listed, str(path), {"format": "pt"})


def load(folder):
    """Name to (dtype, shape, bytes) of all files, and the files' contents by name."""
    tensors, files = {}, {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        raw = files[path.name] = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        for name, entry in json.loads(raw[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + length + at for at in entry["data_offsets"])
            tensors[name] = (entry["dtype"], tuple(entry["shape"]), raw[begin:end])
    return tensors, files


def make(folder, config, dtype="F32", shards=1, prefix=True, extra=None, seed=1):
    """Writes a folder. prefix: GPT-2's "transformer."; extra: more tensors, (dtype, shape, bytes)."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    tensors = {}
    for name, values in weights(config, seed).items():
        name = name if prefix else name.removeprefix("transformer.")
        tensors[name] = (dtype, values.shape, encode(values, dtype))
    tensors.update(extra or {})
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}\n', encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 64}\n', encoding="utf-8")
    if shards == 1:
        save(folder / "model.safetensors", tensors)
        return
    names = list(tensors)
    place = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i * len(names) // shards : (i + 1) * len(names) // shards]
        save(folder / file, {name: tensors[name] for name in part})
        place.update({name: file for name in part})
    index = {
        "metadata": {"total_size": sum(len(data) for _, _, data in tensors.values())},
        "weight_map": place,
    }
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def softmax(x):
    x = numpy.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def layer_norm(x, w, name, epsilon):
    x = x - x.mean(-1, keepdims=True)
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * w[name + ".weight"] + w[name + ".bias"]


def rms_norm(x, weight, epsilon):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def attend(q, k, v):
    """[heads, length, width] each: causal attention."""
    length = q.shape[1]
    scores = q @ k.swapaxes(1, 2) / numpy.sqrt(q.shape[-1])
    scores += numpy.triu(numpy.full((length, length), -numpy.inf), 1)
    return softmax(scores) @ v


def split(x, heads):
    return x.reshape(x.shape[0], heads, -1).swapaxes(0, 1)


def merge(x):
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def gpt2_forward(config, w, ids):
    w = {name.removeprefix("transformer."): values for name, values in w.items()}
    epsilon, heads = config["layer_norm_epsilon"], config["n_head"]
    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]

    def conv(x, name):  # the weight lies as [inputs, outputs]
        return x @ w[name + ".weight"] + w[name + ".bias"]

    for layer in range(config["n_layer"]):
        block = f"h.{layer}."
        q, k, v = numpy.split(conv(layer_norm(x, w, block + "ln_1", epsilon), block + "attn.c_attn"), 3, -1)
        x = x + conv(merge(attend(*(split(part, heads) for part in (q, k, v)))), block + "attn.c_proj")
        h = conv(layer_norm(x, w, block + "ln_2", epsilon), block + "mlp.c_fc")
        h = 0.5 * h * (1 + numpy.tanh(numpy.sqrt(2 / numpy.pi) * (h + 0.044715 * h**3)))
        x = x + conv(h, block + "mlp.c_proj")
    x = layer_norm(x, w, "ln_f", epsilon)
    return x @ w.get("lm_head.weight", w["wte.weight"]).T


def frequencies(config, width):
    """Angles per position of each pair, and the factor of cosines and sines."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    plain = theta ** (-numpy.arange(0, width, 2) / width)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "linear":
        return plain / rope["factor"], 1
    if kind == "llama3":
        wavelength = 2 * numpy.pi / plain
        original, low, high = (
            rope[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        smooth = numpy.clip((original / wavelength - low) / (high - low), 0, 1)
        return (1 - smooth) * plain / rope["factor"] + smooth * plain, 1
    if kind == "yarn":  # Peng et al. 2023, section 3.2 and equation 22
        original = rope["original_max_position_embeddings"]

        def pair(turns):
            return width * numpy.log(original / (turns * 2 * numpy.pi)) / (2 * numpy.log(theta))

        low = max(numpy.floor(pair(rope.get("beta_fast", 32))), 0)
        high = min(numpy.ceil(pair(rope.get("beta_slow", 1))), width - 1)
        ramp = numpy.clip((numpy.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
        factor = rope.get("attention_factor") or 0.1 * numpy.log(rope["factor"]) + 1
        return plain / rope["factor"] * ramp + plain * (1 - ramp), factor
    return plain, 1


def rotate(x, angles, factor):
    """Pairs (i, i + width / 2)."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    cos, sin = numpy.cos(angles) * factor, numpy.sin(angles) * factor
    return numpy.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def llama_forward(config, w, ids):
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    epsilon = config["rms_norm_eps"]
    speed, factor = frequencies(config, width)
    angles = numpy.arange(len(ids))[:, None] * speed
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        h = rms_norm(x, w[block + "input_layernorm.weight"], epsilon)

        def project(name, count):
            name = f"{block}self_attn.{name}_proj"
            return split(h @ w[name + ".weight"].T + w.get(name + ".bias", 0), count)

        q, k, v = project("q", heads), project("k", kv_heads), project("v", kv_heads)
        if block + "self_attn.q_norm.weight" in w:
            q = rms_norm(q, w[block + "self_attn.q_norm.weight"], epsilon)
            k = rms_norm(k, w[block + "self_attn.k_norm.weight"], epsilon)
        q, k = rotate(q, angles, factor), rotate(k, angles, factor)
        k, v = (numpy.repeat(part, heads // kv_heads, 0) for part in (k, v))
        x = x + merge(attend(q, k, v)) @ w[block + "self_attn.o_proj.weight"].T
        h = rms_norm(x, w[block + "post_attention_layernorm.weight"], epsilon)
        gate = h @ w[block + "mlp.gate_proj.weight"].T
        h = gate / (1 + numpy.exp(-gate)) * (h @ w[block + "mlp.up_proj.weight"].T)
        x = x + h @ w[block + "mlp.down_proj.weight"].T
    x = rms_norm(x, w["model.norm.weight"], epsilon)
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def logits(config, weights, ids):
    """[length, vocabulary] of a sequence of ids."""
    return (gpt2_forward if config["model_type"] == "gpt2" else llama_forward)(config, weights, numpy.asarray(ids))


def loss(config, weights, tokens, length):
    """Nats per target, in windows of `length` that follow each other."""
    total, count = 0.0, 0
    for begin in range(0, len(tokens) - 1, length):
        inputs = tokens[begin : begin + length]
        targets = tokens[begin + 1 : begin + length + 1]
        probabilities = softmax(logits(config, weights, inputs[: len(targets)]))
        total -= numpy.log(probabilities[numpy.arange(len(targets)), targets]).sum()
        count += len(targets)
    return total / count


def weights_of(folder):
    """fp64 values of a folder's tensors."""
    return {name: decode(data, dtype, shape) for name, (dtype, shape, data) in load(folder)[0].items()}
