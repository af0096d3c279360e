"""Import and export stream: a model of 200 MB takes the memory that the task states, its buffers and one
tensor, beside what the program takes for a tiny model.

usage: hf_memory.py TRIREME MPIRUN
Exit code 77: skipped, because numpy or safetensors cannot be imported.
"""

import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

import hf_models
import hf_run

MIB = 1 << 20
ALLOWANCE = 24 * MIB  # checksums, the lists of tensors, the allocator's slack
MARGIN = 24 * MIB  # between the peak that a task states and its own


def stated():
    """Peak memory of a rank as the last command stated it."""
    said = pathlib.Path("said").read_text(encoding="utf-8")
    return int(re.search(r"memory  per rank: program .* = [^(]*\(([0-9,]+) bytes\)", said).group(1).replace(",", ""))


def peak(command):
    """Peak resident memory of a command, in a process of its own that starts nothing else."""
    pid = os.fork()
    if pid == 0:
        done = subprocess.run(command, capture_output=True, text=True)
        pathlib.Path("said").write_text(done.stdout + done.stderr, encoding="utf-8")
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        pathlib.Path("peak").write_text(str(largest), encoding="utf-8")
        os._exit(0 if done.returncode == 0 else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0, pathlib.Path("said").read_text(encoding="utf-8")
    return int(pathlib.Path("peak").read_text(encoding="utf-8"))


def main():
    trireme = sys.argv[1]
    program = hf_run.Program(*sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="trireme_hf_") as scratch:
        os.chdir(scratch)
        pathlib.Path("deck.in").write_text(hf_run.DECK, encoding="utf-8")
        large = hf_models.llama(hidden_size=768, intermediate_size=2048, num_hidden_layers=6, vocab_size=8000)
        tensor = 768 * 2048 * 4  # the largest one that is stored transposed
        peaks = {}
        for name, config in (("tiny", hf_models.LLAMA), ("large", large)):
            hf_models.make(f"{name}.hf", config)
            tasks = {
                "import": ["-i", "deck.in", "job.task=import", f"hf.path={name}.hf", f"job.output={name}"],
                "export": ["-r", name, "job.task=export", f"hf.path={name}.out"],
            }
            for task, arguments in tasks.items():
                peaks[name, task] = peak([trireme, *arguments])
                plan = stated()
                print(f"{task} of {name}: {plan / MIB:.0f} MiB stated, {peaks[name, task] / MIB:.0f} MiB taken")
                assert abs(peaks[name, task] - plan) <= MARGIN, f"{task} of {name}: more than {MARGIN} bytes apart"
        # Stated before any weights are read, and of each of several ranks.
        peak([trireme, *tasks["export"][:-1], "hf.path=none.out", "-v"])
        assert abs(stated() - plan) <= MARGIN / 4, "-v states another peak"
        several = peak([*program.mpirun, "2", trireme, "-r", "large", "job.task=export", "hf.path=two.out"])
        assert several <= stated() + MARGIN, f"two ranks: {several} bytes, {stated()} stated"
        size = sum(path.stat().st_size for path in pathlib.Path("large.hf").glob("*.safetensors"))
        # Two slots of the writer, and of each of its threads a piece as it was read, as it is written, and one kept.
        threads = len(os.sched_getaffinity(0))
        bounds = {"import": 68 * MIB + threads * 8 * MIB, "export": threads * 12 * MIB}
        for task, bound in bounds.items():
            more = peaks["large", task] - peaks["tiny", task]
            print(f"{task} of {size / MIB:.0f} MiB: {more / MIB:.0f} MiB more than of a tiny model")
            allowed = bound + tensor + ALLOWANCE
            assert more <= allowed < size, f"{task}: {more / MIB:.0f} MiB, allowed {allowed / MIB:.0f} of {size / MIB:.0f}"


main()
