#!/usr/bin/env python3
"""Training steps of the models of trireme_gpu_benchmark in PyTorch: the peer of gpu.sh.

    python3 torch_step.py --preset gpt2_124m [--dtype bf16] [--device cuda] [--steps 20]

Forward, backward, clipping, AdamW (fused) in fp32 with bf16 by autocast, attention by
scaled_dot_product_attention. Models of up to 12 blocks are compiled whole, larger ones block by block,
which takes a minute less. Prints one line with tokens/s and peak memory. Needs torch.
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

# vocabulary, dim, heads, kv_heads, layers, ffn, length, sequences a step, sequences at once, kind,
# dropout of embedding and branches, dropout of attention weights
PRESETS = {
    "jsc": (33278, 128, 4, 4, 2, 2048, 32, 512, 512, "post", 0.1, 0.0),
    "gpt2_124m": (50257, 768, 12, 12, 12, 3072, 1024, 16, 16, "gpt2", 0.1, 0.0),
    "gpt2_124m_dropout": (50257, 768, 12, 12, 12, 3072, 1024, 16, 16, "gpt2", 0.1, 0.1),
    "gpt2_1558m": (50257, 1600, 25, 25, 48, 6400, 1024, 32, 8, "gpt2", 0.0, 0.0),
    "llama_8b16": (128256, 4096, 32, 8, 16, 14336, 4096, 8, 2, "llama", 0.0, 0.0),
}
ROPE_THETA = 500000.0


def rotate(x, table):
    """x [batch, heads, length, head_dim], table: cosines and sines [length, head_dim / 2]."""
    low, high = x.float().chunk(2, dim=-1)
    cosine, sine = table
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, dim, heads, kv_heads, ffn, kind, dropout, attention_dropout):
        super().__init__()
        self.heads, self.kv_heads, self.kind = heads, kv_heads, kind
        self.dropout, self.attention_dropout = dropout, attention_dropout
        norm = nn.RMSNorm if kind == "llama" else nn.LayerNorm
        bias, size = kind != "llama", dim // heads
        self.norm1, self.norm2 = norm(dim), norm(dim)
        self.qkv = nn.Linear(dim, (heads + 2 * kv_heads) * size, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)
        self.up = nn.Linear(dim, 2 * ffn if kind == "llama" else ffn, bias=bias)
        self.down = nn.Linear(ffn, dim, bias=bias)

    def attend(self, x, table):
        batch, length, dim = x.shape
        size = dim // self.heads
        widths = [self.heads * size, self.kv_heads * size, self.kv_heads * size]
        q, k, v = (y.view(batch, length, -1, size).transpose(1, 2) for y in self.qkv(x).split(widths, dim=2))
        if table is not None:
            q, k = rotate(q, table), rotate(k, table)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads,
                                           dropout_p=self.attention_dropout)
        return F.dropout(self.out(y.transpose(1, 2).reshape(batch, length, dim)), self.dropout)

    def feed(self, x):
        if self.kind == "llama":
            gate, value = self.up(x).chunk(2, dim=-1)
            hidden = F.silu(gate) * value
        elif self.kind == "post":
            hidden = F.relu(self.up(x))
        else:
            hidden = F.gelu(self.up(x), approximate="tanh")
        return F.dropout(self.down(hidden), self.dropout)

    def forward(self, x, table):
        if self.kind == "post":
            x = self.norm1(x + self.attend(x, table))
            return self.norm2(x + self.feed(x))
        x = x + self.attend(self.norm1(x), table)
        return x + self.feed(self.norm2(x))


class Model(nn.Module):
    def __init__(self, vocabulary, dim, heads, kv_heads, layers, ffn, length, kind, dropout, attention_dropout):
        super().__init__()
        self.kind, self.dropout = kind, dropout
        self.embedding = nn.Embedding(vocabulary, dim)
        self.position = nn.Embedding(length, dim) if kind != "llama" else None
        self.blocks = nn.ModuleList(
            Block(dim, heads, kv_heads, ffn, kind, dropout, attention_dropout) for _ in range(layers))
        self.norm = {"post": nn.Identity, "gpt2": nn.LayerNorm, "llama": nn.RMSNorm}[kind](dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        if kind == "gpt2":
            self.head.weight = self.embedding.weight
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
        if kind == "llama":
            size = dim // heads
            rates = ROPE_THETA ** (-torch.arange(0, size, 2).float() / size)
            angles = torch.outer(torch.arange(length).float(), rates)
            self.register_buffer("table", torch.stack((angles.cos(), angles.sin())))

    def forward(self, x, y):
        h = self.embedding(x)
        if self.position is not None:
            h = F.dropout(h + self.position.weight[: x.shape[1]], self.dropout)
        table = self.table if self.kind == "llama" else None
        for block in self.blocks:
            h = block(h, table)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--preset", choices=PRESETS, required=True)
    arguments.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    arguments.add_argument("--device", default="cuda")
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--whole", choices=["auto", "yes", "no"], default="auto", help="compile the model whole")
    options = arguments.parse_args()
    (vocabulary, dim, heads, kv_heads, layers, ffn, length, sequences, at_once, kind, dropout,
     attention_dropout) = PRESETS[options.preset]
    torch.manual_seed(1)
    with torch.device(options.device):
        model = Model(vocabulary, dim, heads, kv_heads, layers, ffn, length, kind, dropout, attention_dropout)
    whole = options.whole == "yes" or (options.whole == "auto" and layers <= 12)
    step_model = model
    if whole:
        step_model = torch.compile(model)
    else:
        for block in model.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    cuda = options.device.startswith("cuda")
    pieces = sequences // at_once
    times, losses = [], []
    for step in range(options.steps + 3):
        tokens = torch.randint(0, vocabulary, (sequences, length + 1), device=options.device)
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for piece in tokens.split(at_once):
            with torch.autocast(options.device.split(":")[0], torch.bfloat16, enabled=options.dtype == "bf16"):
                loss = step_model(piece[:, :-1], piece[:, 1:]) / pieces
            loss.backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(total.item())
        if step >= 3:
            times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    peak = torch.cuda.max_memory_allocated() / 2**20 if cuda else 0
    parameters = sum(p.numel() for p in model.parameters())
    print(f"torch {torch.__version__} {options.preset} compile{'' if whole else '_blocks'} {options.dtype} "
          f"params {parameters / 1e6:.2f}M tokens/step {sequences * length} step_s {seconds:.5f} "
          f"min {min(times):.5f} tokens/s {sequences * length / seconds:.0f} peak_MiB {peak:.0f} "
          f"loss {losses[0]:.3f}->{losses[-1]:.3f}")


if __name__ == "__main__":
    main()
