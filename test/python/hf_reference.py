"""Plain forward passes of the families in fp64, written from their papers: a loss to compare with."""

import numpy

import hf_folder


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


def gpt2(config, w, ids):
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


def llama(config, w, ids):
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
    return (gpt2 if config["model_type"] == "gpt2" else llama)(config, weights, numpy.asarray(ids))


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
    return {name: hf_folder.decode(data, dtype, shape) for name, (dtype, shape, data) in hf_folder.load(folder)[0].items()}
