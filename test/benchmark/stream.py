#!/usr/bin/env python3
"""data.staging = stream against shared_memory: stream.py TRIREME DECK FOLDER

DECK: input/wikitext2_jsc.in or one like it; FOLDER: room for 13 GB. Writes token files of 1, 4 and 8 GB once, by h5py.
Prints: the ratio of steps' speeds on the 4 GB file, caches dropped before each run (as root), pairs in alternation; peak
memory with the 1 GB and the 8 GB file; seconds from the start to the first step, and calls that open files. Nothing else
may run beside it.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

STEPS, DROPPED, PAIRS = 18, 8, 5  # the first ten seconds after idle are slow on shared machines
WORDS = 33278


def token_file(path, gigabytes):
    import h5py
    import numpy as np
    if path.exists():
        return
    count = gigabytes * 10**9 // 2
    piece = np.random.default_rng(1).integers(0, WORDS, 1 << 24, dtype=np.uint16)
    with h5py.File(path.with_suffix(".part"), "w") as file:
        for name, value in {"format": 1, "tokenizer": "word", "eos": 0, "unk": 1, "source_sha256": "0" * 64}.items():
            file.attrs[name] = value
        words = [b"<eos>", b"<unk>"] + [b"w%d" % i for i in range(2, WORDS)]
        file["vocabulary/bytes"] = np.frombuffer(b"".join(words), dtype=np.uint8)
        file["vocabulary/offsets"] = np.cumsum([0] + [len(word) for word in words]).astype(np.uint64)
        for split, length in (("train", count), ("valid", 2000), ("test", 2000)):
            tokens = file.create_dataset(f"{split}/tokens", length, np.uint16)
            for begin in range(0, length, piece.size):
                tokens[begin:begin + piece.size] = piece[:length - begin]
    path.with_suffix(".part").rename(path)


def drop_caches():
    subprocess.run(["sync"], check=True)
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def train(options, path, staging, *prefix, steps=STEPS):
    """Records of the steps, seconds from the start to the first step's end, peak bytes."""
    run = options.folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = [*prefix, str(options.trireme), "-i", str(options.deck), f"data.file={path}", f"data.staging={staging}",
               f"job.output={run}", f"schedule.stop_at={steps}", "monitor.every_steps=1", "monitor.validate_every_steps=0",
               "run.threads=2", "checkpoint.every_steps=0"]
    start = time.time()
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(result.stdout + result.stderr)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "step"]
    return steps, time.time() - start, max(record.get("memory_bytes", 0) for record in records)


def speed(steps):
    return 1 / statistics.median(record["step_seconds"] for record in steps[DROPPED:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trireme", type=pathlib.Path)
    parser.add_argument("deck", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    files = {size: options.folder / f"{size}gb.h5" for size in (1, 4, 8)}
    for size, path in files.items():
        token_file(path, size)
    # Start and opens: a run of a single step, less that step.
    trace = options.folder / "opens"
    if shutil.which("strace"):
        train(options, files[4], "stream", "strace", "-f", "-e", "trace=open,openat", "-o", str(trace), steps=1)
        opens = trace.read_text().splitlines()
        print(f"opens: {len(opens)} in all, {sum('4gb.h5' in line for line in opens)} of the token file", flush=True)
    starts = {staging: [] for staging in ("stream", "shared_memory")}
    memory = {}
    for size in (1, 8):
        memory[size] = train(options, files[size], "stream", steps=3)[2]
    print(f"peak memory streamed: {memory[1] >> 20} MiB (1 GB), {memory[8] >> 20} MiB (8 GB), "
          f"{100 * (memory[8] / memory[1] - 1):+.2f}%", flush=True)
    ratios, waits = [], []
    for pair in range(PAIRS):
        speeds = {}
        for staging in ("stream", "shared_memory") if pair % 2 == 0 else ("shared_memory", "stream"):
            drop_caches()
            steps, seconds, _ = train(options, files[4], staging)
            speeds[staging] = speed(steps)
            starts[staging].append(seconds - sum(record["step_seconds"] for record in steps))
            if staging == "stream":
                waits.append(statistics.median(record["seconds_data"] for record in steps[DROPPED:]))
        ratios.append(speeds["stream"] / speeds["shared_memory"])
        print(f"  pair {pair + 1}: {ratios[-1]:.3f} ({1 / speeds['stream']:.3f} s a step streamed)", flush=True)
    print(f"stream against shared_memory: {statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f}) of {PAIRS} "
          f"pairs; seconds_data {1e3 * statistics.median(waits):.1f} ms a step", flush=True)
    for staging, seconds in starts.items():
        print(f"whole run less its steps, {staging}: {statistics.median(seconds):.2f} s", flush=True)


if __name__ == "__main__":
    main()
