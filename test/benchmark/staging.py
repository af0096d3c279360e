#!/usr/bin/env python3
"""data.staging = node against a plain copy: staging.py TRIREME DECK FOLDER [MPIRUN]

DECK: input/wikitext2_jsc.in or one like it; FOLDER: room for 4 GB, as /dev/shm. Writes a token file of 4 GB once, by h5py.
Prints bytes per second of `cp FILE /dev/shm` and of the staging as the program reports it, in turn, caches dropped before
each (as root), then with the file in the system's cache; with MPIRUN on one, two and four ranks. Nothing else may run beside it.
"""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

from stream import drop_caches, token_file

LAUNCH = pathlib.Path(__file__).parents[1] / "mpirun.sh"
PAIRS = 3


def copied(path):
    """Bytes per second of a plain copy."""
    copy = pathlib.Path("/dev/shm/trireme_benchmark_copy")
    start = time.time()
    subprocess.run(["cp", path, copy], check=True)
    seconds = time.time() - start
    copy.unlink()
    return path.stat().st_size / seconds


def staged(command, deck, path):
    """Bytes per second of the staging."""
    done = subprocess.run([*command, "-i", deck, "-v", f"data.file={path}", "data.staging=node", "data.staging_path=/dev/shm",
                           "monitor.validate_every_steps=0"], capture_output=True, text=True, check=False)
    line = re.search(r"^ *staged .* in ([0-9.]+) s: ", done.stdout, re.MULTILINE)
    if done.returncode != 0 or line is None:
        sys.exit(done.stdout + done.stderr)
    return path.stat().st_size / float(line[1])


def main():
    trireme, deck, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    commands = {"1 rank": [trireme]}
    for ranks in (2, 4) if len(sys.argv) > 4 else ():
        commands[f"{ranks} ranks"] = ["bash", str(LAUNCH), sys.argv[4], "-n", str(ranks), trireme]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "4gb.h5"
    token_file(path, 4)
    for cached in (False, True):
        for name, command in commands.items():
            copies, stagings = [], []
            for _ in range(PAIRS):
                if not cached:
                    drop_caches()
                copies.append(copied(path))
                if not cached:
                    drop_caches()
                stagings.append(staged(command, deck, path))
            print(f"{'in the cache' if cached else 'from the disk'}, {name}: cp {statistics.median(copies) / 1e9:.2f} GB/s, "
                  f"staged {statistics.median(stagings) / 1e9:.2f} GB/s", flush=True)


main()
