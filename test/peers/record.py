"""record.py FILE: goldens of the models that Trireme imports, computed by transformers.

Each model is built by transformers from its config, given the weights of models.py, evaluated, and
trained for 8 steps of AdamW in fp64. transformers computes norms, softmax, rotary tables and losses
in fp32, whatever the model's type; here each of its requests for fp32 is answered with fp64, so that
the numbers are good to rounding in fp64. What that changes is recorded too (`fp32_inside`).
"""

import datetime
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

import models

SHAPE = {"vocab_size": models.VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
         "bos_token_id": 1, "eos_token_id": 2}


def llama(**more):
    return transformers.LlamaConfig(**{**SHAPE, **more})


def rope(kind, **more):
    return {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **more}


def configs():
    """Each family, and what its members differ in."""
    return {
        "gpt2": transformers.GPT2Config(vocab_size=models.VOCABULARY, n_embd=32, n_head=4, n_layer=2, n_positions=64,
                                        bos_token_id=0, eos_token_id=0, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0),
        "llama": llama(num_key_value_heads=4),
        "llama_gqa_tied": llama(tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
        "llama_linear": llama(rope_parameters=rope("linear")),
        "llama_yarn": llama(rope_parameters=rope("yarn", original_max_position_embeddings=32)),
        "llama_llama3": llama(rope_parameters=rope("llama3", original_max_position_embeddings=32, low_freq_factor=1.0,
                                                   high_freq_factor=4.0)),
        "mistral": transformers.MistralConfig(**SHAPE, sliding_window=None),
        "qwen2": transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True),
        "qwen3": transformers.Qwen3Config(**SHAPE, head_dim=16),
    }


# Those that are trained by Muon, too: their attention and feed-forward matrices are tensors of their own, as Trireme's.
MUON = ("llama", "mistral")


class InDouble(TorchFunctionMode):
    """Answers each request for fp32 or bf16 with fp64."""

    def __torch_function__(self, function, types, arguments=(), named=None):
        def wider(value):
            return torch.float64 if value is torch.float32 or value is torch.bfloat16 else value

        if function is torch.Tensor.float:
            return arguments[0].double()
        return function(*map(wider, arguments), **{key: wider(value) for key, value in (named or {}).items()})


def build(config, values=None, dtype=torch.float64):
    """The model of a config with our weights, or with other ones, and its shapes in the files."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype).eval()
    tied = set(model.all_tied_weights_keys)
    own = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    shapes = {name: list(tensor.shape) for name, tensor in own.items()}
    with torch.no_grad():
        for name, value in (values or models.weights(shapes)).items():
            own[name].copy_(torch.from_numpy(np.array(value)))
    return model, shapes


def token_losses(model, window):
    inputs, targets = (torch.from_numpy(ids)[None] for ids in window)
    logits = model(inputs, use_cache=False).logits[0].double()
    return torch.nn.functional.cross_entropy(logits, targets[0], reduction="none")


def mean_loss(model, windows):
    """One sum over one count."""
    return sum(token_losses(model, window).sum() for window in windows) / sum(len(window[1]) for window in windows)


def train(model, step_losses, muon=False):
    """Losses and gradient norms of all steps, each a function that computes its loss; the model is changed. muon:
    torch.optim.Muon updates the matrices of the blocks, AdamW the rest."""
    own = {name: p for name, p in model.named_parameters()}
    hidden = {name for name, p in own.items() if muon and p.ndim > 1 and ".layers." in name}
    rates = models.OPTIMIZER
    groups = [{"params": [p for name, p in own.items() if (p.ndim > 1) == matrices and name not in hidden],
               "weight_decay": rates["weight_decay"] if matrices else 0} for matrices in (True, False)]
    optimizers = [torch.optim.AdamW(groups, lr=rates["learning_rate"], betas=(rates["beta1"], rates["beta2"]),
                                    eps=rates["epsilon"])]
    if muon:
        optimizers.append(torch.optim.Muon([own[name] for name in sorted(hidden)], lr=rates["learning_rate"], momentum=0.95,
                                           weight_decay=rates["weight_decay"], adjust_lr_fn="match_rms_adamw"))
    losses, norms = [], []
    for step_loss in step_losses:
        model.zero_grad()
        loss = step_loss()
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double()**2).sum() for p in own.values())).item()
        for p in own.values():
            p.grad *= min(1.0, rates["clip_norm"] / norm)
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    return losses, norms


def evaluate(model, split):
    with torch.no_grad():
        return mean_loss(model, models.windows(split)).item()


def greedy(model, prompt, count):
    """Greedy tokens, and the smallest lead of a chosen token over the next."""
    ids, lead = list(prompt), np.inf
    with torch.no_grad():
        for _ in range(count):
            best = torch.topk(model(torch.tensor([ids]), use_cache=False).logits[0, -1, :models.TYPES], 2)
            ids.append(int(best.indices[0]))
            lead = min(lead, float(best.values[0] - best.values[1]))
    return ids[len(prompt):], lead


def measure(config):
    model, shapes = build(config)
    window = models.windows("valid")[0]
    with torch.no_grad():
        found = {"shapes": shapes, "valid_before": evaluate(model, "valid"), "test_before": evaluate(model, "test"),
                 "token_losses": token_losses(model, window).tolist(),
                 "last_logits": model(torch.from_numpy(window[0])[None], use_cache=False).logits[0, -1].tolist()}
    found["greedy"], found["greedy_lead"] = greedy(model, window[0][:6], 12)
    found["losses"], found["norms"] = train(
        model, [lambda batch=batch: mean_loss(model, batch) for batch in models.batches()])
    found["valid_after"], found["test_after"] = evaluate(model, "valid"), evaluate(model, "test")
    found["final"] = values_of(model, shapes)
    return found


def values_of(model, shapes):
    state = model.state_dict()
    return {name: state[name].double().numpy().copy() for name in shapes}


def measure_muon(config):
    """The part of `measure` that depends on the optimizer."""
    model, shapes = build(config)
    losses, norms = train(model, [lambda batch=batch: mean_loss(model, batch) for batch in models.batches()], muon=True)
    return {"losses": losses, "norms": norms, "valid_after": evaluate(model, "valid"), "test_after": evaluate(model, "test"),
            "final": values_of(model, shapes)}


def difference(a, b):
    """Largest relative difference of two lists of numbers."""
    a, b = np.array(a), np.array(b)
    return float(np.max(np.abs(a - b) / np.maximum(np.abs(a), 1e-300)))


def change_of(name, final, other):
    """Difference of two final tensors over the norm of the first."""
    return float(np.linalg.norm(final[name] - other[name]) / np.linalg.norm(final[name]))


def sketches(shapes, config, final):
    """In Trireme's names: norm of each trained weight, and a sketch of its change."""
    before, after = (models.in_our_names(config, tensors) for tensors in (models.weights(shapes), final))
    return {name: [float(np.linalg.norm(after[name])), *models.sketch(name, before[name], after[name])] for name in after}


def in_double(measured, config, key):
    """What `measured` finds in fp64; under `key` how much it differs with the lower precisions inside the libraries."""
    raw = measured(config)
    with InDouble():
        found = measured(config)
    final = found.pop("final")
    found[key] = {"losses": difference(found["losses"], raw["losses"]),
                  "norms": difference(found["norms"], raw["norms"]),
                  "weights": max(change_of(n, final, raw["final"]) for n in final)}
    found["changes"] = sketches({n: list(values.shape) for n, values in final.items()}, config.to_dict(), final)
    return found


def golden(name, config):
    torch.set_default_dtype(torch.float64)
    found = in_double(measure, config, "fp32_inside")
    if name in MUON:
        found["muon"] = in_double(measure_muon, config, "bf16_inside")
    torch.set_default_dtype(torch.float32)
    model, _ = build(config, dtype=torch.float32)
    config_json, generation_json = written(model)
    return {
        "what": f"{name}: weights of test/peers/models.py, evaluated and trained by transformers in fp64",
        "made_by": {"transformers": transformers.__version__, "torch": torch.__version__,
                    "date": datetime.date.today().isoformat()},
        "config": config_json, "generation_config": generation_json,
        **found}


def written(model):
    """config.json and generation_config.json as save_pretrained writes them."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return [json.loads((pathlib.Path(folder) / name).read_text()) for name in ("config.json", "generation_config.json")]


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    goldens = {}
    for name, config in configs().items():
        goldens[name] = found = golden(name, config)
        print(f"{name:16} loss {found['losses'][0]:.4f} to {found['losses'][-1]:.4f}, |grad| {found['norms'][0]:.2f}, "
              f"greedy lead {found['greedy_lead']:.1e}, fp32 inside changes losses by {found['fp32_inside']['losses']:.1e}, "
              f"norms {found['fp32_inside']['norms']:.1e}, weights {found['fp32_inside']['weights']:.1e}")
    write(sys.argv[1], goldens)


def write(path, goldens):
    """JSON with a line for each key of each golden."""
    def lines(of):
        return "{\n" + ",\n".join(f"{json.dumps(key)}: {value}" for key, value in of.items()) + "\n}"
    pathlib.Path(path).write_text(lines({
        name: lines({key: json.dumps(value) for key, value in golden.items()}) for name, golden in sorted(goldens.items())}) + "\n")


if __name__ == "__main__":
    main()
