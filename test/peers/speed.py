"""speed.py TRIREME: tokens a second of greedy generation, batch 1, of Trireme and of transformers with its
cache: the shape of GPT-2 124M, fp32, random weights, SPEED_THREADS threads (2). Each side's time is that of
the tokens between a short and a long answer, so that start, reading and prompt do not count; the best of three."""

import os
import pathlib
import sys
import tempfile
import time

import h5py
import numpy as np
import torch
import transformers


import runs

THREADS = int(os.environ.get("SPEED_THREADS", "2"))
SHORT, LONG = 16, 144
REPEATS = 3
ASKED = 3.0  # times transformers


def write_tokens(path, types):
    """A token file of so many words."""
    words = [f"w{i}".encode() for i in range(types)]
    with h5py.File(path, "w") as file:
        for split in ("train", "valid", "test"):
            file[f"{split}/tokens"] = np.arange(2000, dtype="<u2")
        file["vocabulary/bytes"] = np.frombuffer(b"".join(words), np.uint8)
        file["vocabulary/offsets"] = np.cumsum([0] + [len(word) for word in words]).astype("<u8")
        for name, value in {"format": 1, "tokenizer": "word", "eos": 0, "unk": -1, "source_sha256": "0" * 64}.items():
            file.attrs[name] = value


def rate(answer):
    """Tokens a second of `answer(count)`, by two lengths."""
    def least(count):
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            answer(count)
            times.append(time.perf_counter() - begin)
        return min(times)

    return (LONG - SHORT) / (least(LONG) - least(SHORT))


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(THREADS)
    runs.ENVIRONMENT["OMP_NUM_THREADS"] = str(THREADS)
    trireme = runs.Trireme(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        config = transformers.GPT2Config()
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        model.save_pretrained(scratch / "gpt2")
        write_tokens(scratch / "tokens.h5", config.vocab_size)
        (scratch / "deck.in").write_text(runs.section("data", {"file": scratch / "tokens.h5", "sequence_length": 512, "batch": 1}))
        trireme("-i", scratch / "deck.in", "job.task=import", f"hf.path={scratch / 'gpt2'}", f"job.output={scratch / 'run'}")
        ids = torch.tensor([[0, 1, 2, 3]])

        def theirs(count):
            with torch.no_grad():
                model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)

        def ours(count):
            trireme("-r", scratch / "run", "job.task=generate", "generate.prompt=w1 w2 w3", "generate.temperature=0",
                    f"generate.tokens={count}")

        measured = {"transformers": rate(theirs), "Trireme": rate(ours)}
    for name, found in measured.items():
        print(f"{name:<14} {found:8.1f} tokens/s, batch 1, {THREADS} threads")
    ratio = measured["Trireme"] / measured["transformers"]
    print(f"{ratio:.2f} times transformers with its cache, asked {ASKED:.0f}")
    sys.exit(0 if ratio >= ASKED else 1)


if __name__ == "__main__":
    main()
