#!/usr/bin/env python3
"""Speed of tokenizers: tokenizer.py BUILD DATA FOLDER [--parts bpe sentencepiece ranks]

BUILD: a build with -DTRIREME_BENCHMARKS=ON; DATA: a folder with wikitext-2/train.txt and tokenizers/gpt2; FOLDER: for
texts and models. bpe: GPT-2's vocabulary, Trireme against `tokenizers`' encode_batch on one thread, in the same
process' alternation; sentencepiece: the wrapper against its library; ranks: job.task = tokenize on two ranks against one,
whole processes. Prints the median ratio, with the smallest and the largest, and MB/s. Nothing else may run beside it.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

LAUNCH = pathlib.Path(__file__).parents[1] / "mpirun.sh"
ROUNDS = 15


class Program:
    """The benchmark program with its texts read, waiting for passes."""

    def __init__(self, path, texts, *options):
        self.process = subprocess.Popen([str(path), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdin.write(json.dumps(texts) + "\n")

    def seconds(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, self.ids = self.process.stdout.readline().split()
        return float(seconds)


def report(what, ours, theirs, megabytes):
    ratios = sorted(b / a for a, b in zip(ours, theirs, strict=True))
    print(f"{what}: {statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f}) of {len(ratios)} pairs, "
          f"{megabytes / statistics.median(ours):.1f} MB/s against {megabytes / statistics.median(theirs):.1f}", flush=True)


def alternate(ours, theirs, rounds=ROUNDS):
    """Seconds of both, one after the other, in changing order; a first pair is dropped."""
    ours(), theirs()
    pairs = [(ours(), theirs()) if i % 2 == 0 else tuple(reversed((theirs(), ours()))) for i in range(rounds)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def bpe(program, data, lines, megabytes):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    from tokenizers import ByteLevelBPETokenizer
    folder = data / "tokenizers/gpt2"
    theirs = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    ours = Program(program, lines, str(folder))

    def batch():
        start = time.perf_counter()
        batch.ids = sum(len(each.ids) for each in theirs.encode_batch(lines))
        return time.perf_counter() - start

    report("BPE, GPT-2", *alternate(ours.seconds, batch), megabytes)
    assert int(ours.ids) == batch.ids, (ours.ids, batch.ids)


def sentencepiece(program, folder, lines, megabytes):
    import sentencepiece as library
    for kind in ("unigram", "bpe"):
        prefix = folder / f"{kind}_8000"
        if not prefix.with_suffix(".model").exists():
            library.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=str(prefix), vocab_size=8000,
                                               model_type=kind, minloglevel=2)
        model = str(prefix) + ".model"
        ours, theirs = Program(program, lines, model), Program(program, lines, model, "library")
        report(f"SentencePiece, {kind}", *alternate(ours.seconds, theirs.seconds), megabytes)
        assert ours.ids == theirs.ids


def ranks(build, data, folder, text, copies):
    source = folder / "texts.txt"
    with open(source, "w", encoding="utf-8") as file:
        for _ in range(copies):
            file.write(text)
    megabytes = source.stat().st_size / 1e6
    (folder / "deck.in").write_text("# Keys are on the command line.\n")

    def run(count):
        command = ["bash", str(LAUNCH), "mpirun", "-n", str(count), str(build / "trireme"), "-i", str(folder / "deck.in"),
                   "job.task=tokenize", "tokenize.kind=bpe", f"tokenize.tokenizer={data}/tokenizers/gpt2",
                   f"tokenize.train={source}", "tokenize.document=line", f"data.file={folder}/out.h5",
                   "tokenize.overwrite=yes"]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        return time.perf_counter() - start

    report(f"two ranks against one, {megabytes:.0f} MB", *alternate(lambda: run(2), lambda: run(1), 9), megabytes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--parts", nargs="+", default=["bpe", "sentencepiece", "ranks"])
    parser.add_argument("--copies", type=int, default=120, help="of WikiText-2, for the ranks")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    text = (options.data / "wikitext-2/train.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines(keepends=True) if line.strip()]
    megabytes = sum(len(line.encode()) for line in lines) / 1e6
    program = options.build / "trireme_tokenizer_benchmark"
    if "bpe" in options.parts:
        bpe(program, options.data, lines, megabytes)
    if "sentencepiece" in options.parts:
        sentencepiece(program, options.folder, lines, megabytes)
    if "ranks" in options.parts:
        ranks(options.build, options.data, options.folder, text, options.copies)


main()
