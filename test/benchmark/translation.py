#!/usr/bin/env python3
"""Training of input/translation.in, in turn with the same model in PyTorch, and one table at the end:

    translation.py TRIREME [--file data/numerals.h5] [--rounds 3] [--steps 200] [--threads 2] [--dtype fp32|bf16] [--modes "eager compile"]

Ours runs as one process of so many threads and as so many ranks of one thread, the peer as one process: norms before the sub-layers,
shared and tied table, sinusoids, label smoothing, clipping, fused AdamW; batches by length under the deck's limits, without dropout, of
random order. Whole batches of one length, nearly all, have no mask, which suits the peer. Speed is the median over the steps, but for the
first fifty, in which shapes are compiled, of a step's target tokens without padding over its time; memory is the peak resident set of all
ranks together. The peer's rate has no warm-up, so that losses differ. Programs alternate, so that a noisy machine is as noisy for all; the table has medians over the rounds.
Needs a Python with torch and h5py, and a file of job.task=tokenize tokenize.kind=numerals.
"""
import argparse
import json
import math
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).parents[2]
DIM, HEADS, LAYERS, FFN = 128, 4, 2, 512  # of the deck
MOST_TOKENS, MOST_PAIRS = 2048, 512
SMOOTHING, RATE = 0.1, 1e-3
WARMUP = 50  # steps that are not timed


def peer(options):
    """Trains in this process; prints {"tokens_per_second", "peak_bytes", "loss"}."""
    import h5py
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self, causal):
            super().__init__()
            self.causal = causal
            self.query, self.memory, self.output = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)

        def forward(self, x, memory, mask):
            split = lambda y: y.view(y.shape[0], y.shape[1], HEADS, DIM // HEADS).transpose(1, 2)
            key, value = self.memory(memory).chunk(2, dim=2)
            found = functional.scaled_dot_product_attention(split(self.query(x)), split(key), split(value), attn_mask=mask,
                                                            is_causal=self.causal)
            return self.output(found.transpose(1, 2).reshape(x.shape))

    class Block(nn.Module):
        def __init__(self, decodes):
            super().__init__()
            self.attention, self.cross = Attention(decodes), Attention(False) if decodes else None
            self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3 if decodes else 2))
            self.up, self.down = nn.Linear(DIM, FFN), nn.Linear(FFN, DIM)

        def forward(self, x, memory, mask):
            y = self.norms[0](x)
            x = x + self.attention(y, y, None if self.cross else mask)
            if self.cross:
                x = x + self.cross(self.norms[1](x), memory, mask)
            return x + self.down(functional.relu(self.up(self.norms[-1](x))))

    class Translator(nn.Module):
        def __init__(self, types, longest):
            super().__init__()
            self.table = nn.Embedding(types, DIM)
            self.encoder = nn.ModuleList(Block(False) for _ in range(LAYERS))
            self.decoder = nn.ModuleList(Block(True) for _ in range(LAYERS))
            self.encoder_norm, self.norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
            angles = torch.arange(longest)[:, None] / 10000 ** (torch.arange(0, DIM, 2) / DIM)
            self.register_buffer("sinusoids", torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1))
            for weights in self.parameters():
                if weights.dim() > 1:
                    nn.init.xavier_uniform_(weights)

        def embed(self, ids):
            return math.sqrt(DIM) * self.table(ids) + self.sinusoids[:ids.shape[1]]

        def forward(self, source, mask, inputs, targets):
            memory = self.embed(source)
            for block in self.encoder:
                memory = block(memory, None, mask)
            memory, x = self.encoder_norm(memory), self.embed(inputs)
            for block in self.decoder:
                x = block(x, memory, mask)
            logits = self.norm(x) @ self.table.weight.T
            return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100,
                                            label_smoothing=SMOOTHING)

    with h5py.File(options.file) as file:
        types = len(file["vocabulary/offsets"]) - 1
        texts = {}
        for side in ("source", "target"):
            ids = file[f"train/{side}"][:].astype(np.int64)
            texts[side] = np.split(ids, file[f"train/{side}_offsets"][:][1:].astype(np.int64))
    eos = int(texts["target"][0][-1])
    lengths = [(len(s), len(t)) for s, t in zip(texts["source"], texts["target"])]
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i][0], lengths[i][1] if lengths[i][0] % 2 else -lengths[i][1]))
    batches, batch, widest = [], [], [0, 0]
    for pair in order:
        wider = [max(a, b) for a, b in zip(widest, lengths[pair])]
        if batch and (max(wider) * (len(batch) + 1) > MOST_TOKENS or len(batch) == MOST_PAIRS):
            batches.append(batch)
            batch, wider = [], list(lengths[pair])
        batch.append(pair)
        widest = wider
    batches.append(batch)
    random.Random(1).shuffle(batches)

    def padded(side, pairs, value, shift=False):
        rows = [texts[side][i] for i in pairs]
        block = np.full((len(rows), max(map(len, rows))), value)
        for row, text in zip(block, rows):
            row[:len(text)] = np.append(eos, text[:-1]) if shift else text
        return torch.from_numpy(block)

    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    model = Translator(types, max(map(max, lengths)))
    step_model = torch.compile(model, dynamic=True) if options.peer == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), fused=True)
    speeds, loss = [], 0
    for step in range(WARMUP + options.steps):
        pairs = batches[step % len(batches)]
        begin = time.perf_counter()
        source, targets = padded("source", pairs, 0), padded("target", pairs, -100)
        widths = torch.tensor([lengths[i][0] for i in pairs])
        mask = None
        if (widths < source.shape[1]).any():
            mask = (torch.arange(source.shape[1]) < widths[:, None])[:, None, None]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bf16"):
            result = step_model(source, mask, padded("target", pairs, 0, shift=True), targets)
        result.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss = result.item()
        if step >= WARMUP:
            speeds.append(sum(lengths[i][1] for i in pairs) / (time.perf_counter() - begin))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"tokens_per_second": statistics.median(speeds), "peak_bytes": peak, "loss": loss}))


def ours(options, ranks, folder):
    """The same numbers of a run of the deck."""
    subprocess.run(
        ["bash", str(SOURCE / "test/mpirun.sh"), "mpirun", "-n", str(ranks), options.trireme, "-i", str(SOURCE / "input/translation.in"),
         f"data.file={options.file}", f"job.output={folder}", f"schedule.stop_at={WARMUP + options.steps}",
         f"run.threads={options.threads // ranks}", "monitor.report=no", "monitor.validate_every_steps=0", "checkpoint.every_steps=100000",
         f"run.precision={options.dtype}"],
        check=True, stdout=subprocess.DEVNULL)
    steps = [r for r in map(json.loads, open(folder / "metrics.jsonl", encoding="utf-8")) if r["kind"] == "step"]
    timed = steps[WARMUP:]
    summary = json.loads((folder / "summary.json").read_text())
    return {"tokens_per_second": statistics.median(record["tokens_per_second"] for record in timed),
            "peak_bytes": sum(rank["used_bytes"] for rank in summary["memory"]["ranks"]), "loss": timed[-1]["loss"]}


def theirs(mode):
    done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--peer", mode], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trireme")
    parser.add_argument("--file", default=str(SOURCE / "data/numerals.h5"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--modes", default="eager compile")
    parser.add_argument("--peer", choices=["compile", "eager"], help="the other side, by itself")
    options = parser.parse_args()
    if options.peer:
        return peer(options)
    one, many = f"ours, 1 rank of {options.threads} threads", f"ours, {options.threads} ranks of 1 thread"
    others = {f"PyTorch, {mode}": mode for mode in options.modes.split()}
    found = {name: [] for name in (one, many, *others)}
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(options.rounds):
            for name, results in found.items():
                folder = pathlib.Path(scratch) / f"{turn}-{name == one}"
                results.append(theirs(others[name]) if name in others else ours(options, 1 if name == one else options.threads, folder))
                print(f"round {turn + 1}  {name:26} {results[-1]['tokens_per_second']:10,.0f} tokens/s "
                      f"{results[-1]['peak_bytes'] / 2**20:7,.0f} MiB  loss {results[-1]['loss']:.3f}", flush=True)
    middle = lambda name, key: statistics.median(result[key] for result in found[name])
    print(f"\n{options.dtype}; medians of {options.rounds} rounds of {options.steps} steps; load average {os.getloadavg()[0]:.1f}")
    for name in found:
        print(f"{name:26} {middle(name, 'tokens_per_second'):10,.0f} tokens/s {middle(name, 'peak_bytes') / 2**20:9,.0f} MiB", end="")
        for other in others if name not in others else ():
            print(f"   {middle(name, 'tokens_per_second') / middle(other, 'tokens_per_second'):.2f} x and "
                  f"{middle(name, 'peak_bytes') / middle(other, 'peak_bytes'):.2f} of {other}", end="")
        print()
    return None


if __name__ == "__main__":
    main()
