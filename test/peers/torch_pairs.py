"""torch_pairs.py FILE: goldens of models that translate, computed by torch.nn.Transformer in fp64.

Losses, gradients, and weights after 8 steps of AdamW with label smoothing and padding, from the weights of models.py.
"""

import datetime
import math
import pathlib
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import models
import pairs
import record
import runs

IGNORED = -100  # targets in the padding


def gelu(x):
    return functional.gelu(x, approximate="tanh")


def sinusoids(length, dim):
    """Vaswani et al. 2017, section 3.5."""
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


class Translator(nn.Module):
    def __init__(self, case):
        super().__init__()
        keys = pairs.CASES[case]
        pre = keys["norm_position"] == "pre"
        shape = {"d_model": pairs.DIM, "nhead": pairs.HEADS, "dim_feedforward": pairs.FFN, "dropout": 0.0,
                 "activation": gelu if keys["activation"] == "gelu" else functional.relu, "batch_first": True,
                 "norm_first": pre}
        # nn.Transformer on its own adds norms after both stacks, which the paper's has not.
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**shape), pairs.ENCODER_LAYERS,
                                        nn.LayerNorm(pairs.DIM) if pre else None, enable_nested_tensor=False)
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**shape), pairs.LAYERS,
                                        nn.LayerNorm(pairs.DIM) if pre else None)
        self.transformer = nn.Transformer(pairs.DIM, pairs.HEADS, batch_first=True, custom_encoder=encoder,
                                          custom_decoder=decoder)
        self.scale = math.sqrt(pairs.DIM) if keys["scale_embedding"] == "yes" else 1.0
        self.target = nn.Embedding(pairs.types(case, "target"), pairs.DIM)
        self.source = self.target if pairs.shared(case) else nn.Embedding(pairs.types(case, "source"), pairs.DIM)
        self.head = nn.Linear(pairs.DIM, pairs.types(case, "target"), bias=False)
        if keys["tie_embeddings"] == "yes":
            self.head.weight = self.target.weight
        self.learned = keys["position"] == "learned"
        if self.learned:
            self.positions, self.source_positions = (nn.Embedding(pairs.LENGTH, pairs.DIM) for _ in range(2))

    def embed(self, table, positions, ids):
        length = ids.shape[1]
        return self.scale * table(ids) + (positions.weight[:length] if self.learned else sinusoids(length, pairs.DIM))

    def forward(self, sources, source_padding, inputs):
        later = torch.ones(inputs.shape[1], inputs.shape[1], dtype=torch.bool).triu(1)
        stream = self.transformer(
            self.embed(self.source, self.source_positions if self.learned else None, sources),
            self.embed(self.target, self.positions if self.learned else None, inputs),
            tgt_mask=later, src_key_padding_mask=source_padding, memory_key_padding_mask=source_padding)
        return self.head(stream)


def padded(texts, value):
    longest = max(map(len, texts))
    return torch.tensor(np.array([np.append(text, [value] * (longest - len(text))) for text in texts])).long()


def loss_of(model, batch, label_smoothing):
    """Mean over the targets of all pairs."""
    sources = padded([source for source, _ in batch], 0)
    source_padding = padded([np.zeros(len(source)) for source, _ in batch], 1).bool()
    inputs = padded([np.append(pairs.EOS, target[:-1]) for _, target in batch], 0)
    targets = padded([target for _, target in batch], IGNORED)
    logits = model(sources, source_padding, inputs)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED,
                                    label_smoothing=label_smoothing)


def own_names(case, model):
    """Trireme's name of each parameter: (torch's parameter, rows of it, whether it is transposed)."""
    own = dict(model.named_parameters())
    names = {}

    def take(ours, theirs, rows=slice(None), transposed=False):
        names[ours] = (own[theirs], rows, transposed)

    def take_both(ours, theirs, rows=slice(None), transposed=False):
        take(f"{ours}.weight", f"{theirs}.weight", rows, transposed)
        take(f"{ours}.bias", f"{theirs}.bias", rows)

    def attention(ours, theirs):
        for i, part in enumerate(("query", "key", "value")):
            rows = slice(i * pairs.DIM, (i + 1) * pairs.DIM)
            for kind in ("weight", "bias"):
                take(f"{ours}.{part}.{kind}", f"{theirs}.in_proj_{kind}", rows)
        take_both(f"{ours}.output", f"{theirs}.out_proj", transposed=True)

    for block in range(pairs.ENCODER_LAYERS + pairs.LAYERS):
        encodes = block < pairs.ENCODER_LAYERS
        at = f"transformer.encoder.layers.{block}" if encodes else (
            f"transformer.decoder.layers.{block - pairs.ENCODER_LAYERS}")
        ours = f"blocks.{block}"
        attention(f"{ours}.attention", f"{at}.self_attn")
        take_both(f"{ours}.attention.norm", f"{at}.norm1")
        if not encodes:
            attention(f"{ours}.cross", f"{at}.multihead_attn")
            take_both(f"{ours}.cross.norm", f"{at}.norm2")
        take_both(f"{ours}.ffn.norm", f"{at}.norm{2 if encodes else 3}")
        take_both(f"{ours}.ffn.up", f"{at}.linear1")
        take_both(f"{ours}.ffn.down", f"{at}.linear2", transposed=True)
    if pairs.CASES[case]["norm_position"] == "pre":
        take_both("encoder.norm", "transformer.encoder.norm")
        take_both("norm", "transformer.decoder.norm")
    take("embedding.token.weight", "target.weight")
    if not pairs.shared(case):
        take("embedding.source.weight", "source.weight")
    if pairs.CASES[case]["position"] == "learned":
        take("embedding.position.weight", "positions.weight")
        take("embedding.source_position.weight", "source_positions.weight")
    if pairs.CASES[case]["tie_embeddings"] == "no":
        take("head.weight", "head.weight")
    covered = sum(parameter[rows].numel() for parameter, rows, _ in names.values())
    assert covered == sum(parameter.numel() for parameter in own.values()), "a parameter has no name"
    return names


def parts(names, of):
    """Numbers of each parameter in Trireme's shapes; of(parameter): its values or its gradient."""
    found = {}
    for name, (parameter, rows, transposed) in names.items():
        part = of(parameter)[rows].detach().numpy().copy()
        found[name] = part.T.copy() if transposed else part
    return found


def build(case):
    """The model with the weights of pairs.py, and its parameters by name."""
    model = Translator(case)
    names = own_names(case, model)
    with torch.no_grad():
        for name, (parameter, rows, transposed) in names.items():
            part = parameter[rows]
            value = torch.from_numpy(np.array(models.weight(name, list(part.T.shape if transposed else part.shape))))
            part.copy_(value.T if transposed else value)
    return model, names


def measure(case):
    """All numbers of a case; tensors whole."""
    torch.set_default_dtype(torch.float64)
    model, names = build(case)
    before = parts(names, lambda parameter: parameter)
    found = {}

    def evaluate(when):
        with torch.no_grad():
            for split in ("valid", "test"):
                found[f"{split}_{when}"] = loss_of(model, pairs.texts(case, split), 0).item()

    evaluate("before")
    loss_of(model, pairs.batches(case)[0], pairs.LABEL_SMOOTHING).backward()
    gradients = parts(names, lambda parameter: parameter.grad)
    found["losses"], found["norms"] = record.train(
        model, [lambda batch=batch: loss_of(model, batch, pairs.LABEL_SMOOTHING) for batch in pairs.batches(case)])
    evaluate("after")
    after = parts(names, lambda parameter: parameter)
    torch.set_default_dtype(torch.float32)
    return found, gradients, {name: after[name] - before[name] for name in after}


def golden(case):
    """What check_goldens.py reads."""
    found, gradients, changes = measure(case)
    return {"what": f"{case}: weights of test/peers/models.py, evaluated and trained by torch.nn.Transformer in fp64",
            "made_by": {"torch": torch.__version__, "date": datetime.date.today().isoformat()}, **found,
            "gradients": pairs.sketches(gradients), "changes": pairs.sketches(changes)}


def compare(trireme, table, scratch, case):
    """Both programs side by side, on one rank and in a 2x2x2 layout: lines of the table of test/peers.sh."""
    exact = 1e-12
    theirs, gradients, changes = measure(case)
    prepared = pairs.Prepared(trireme, case, scratch / case)
    sizes = {name: tensor.size for name, tensor in gradients.items()}

    def worst(expected, found):
        """Largest norm of a difference, as in rule 4."""
        total = math.sqrt(sum(float((tensor**2).sum()) for tensor in expected.values()) / sum(sizes.values()))
        return max(float(np.linalg.norm(tensor - found[name])) / max(float(np.linalg.norm(tensor)), total * math.sqrt(sizes[name]))
                   for name, tensor in expected.items())

    for ranks, grid in ((1, []), (8, runs.CUBE)):
        where = "1 rank" if ranks == 1 else "2x2x2"
        table.within(case, f"{where}: gradients of a step", worst(gradients, prepared.gradients(*grid, ranks=ranks)), exact)
        run = prepared.train(f"run_{ranks}", *grid, ranks=ranks)
        found, weights = runs.trained(run), runs.final_weights(run)
        table.within(case, f"{where}: losses of 8 steps", runs.relative(theirs["losses"], found["losses"]), exact)
        table.within(case, f"{where}: gradient norms", runs.relative(theirs["norms"], found["norms"]), exact)
        for key in ("valid_after", "test_after"):
            table.within(case, f"{where}: {key}", runs.relative([theirs[key]], [found[key]]), exact)
        final = {name: models.weight(name, change.shape) + change for name, change in changes.items()}
        table.within(case, f"{where}: weights", worst(final, weights), exact)


def main():
    torch.set_num_threads(1)
    goldens = {}
    for case in pairs.CASES:
        goldens[case] = found = golden(case)
        print(f"{case:16} loss {found['losses'][0]:.4f} to {found['losses'][-1]:.4f}, |grad| {found['norms'][0]:.2f}")
    record.write(sys.argv[1], goldens)


if __name__ == "__main__":
    main()
