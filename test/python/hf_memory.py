"""Import and export stream: the largest process of a model of 200 MB holds its buffers and one
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

import hf_folder
import hf_run

MIB = 1 << 20
ALLOWANCE = 24 * MIB  # checksums, the lists of tensors, the allocator's slack


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
    hf_run.Program(*sys.argv[1:])  # sets the environment
    with tempfile.TemporaryDirectory(prefix="trireme_hf_") as scratch:
        os.chdir(scratch)
        pathlib.Path("deck.in").write_text(hf_run.DECK, encoding="utf-8")
        large = hf_folder.llama(hidden_size=768, intermediate_size=2048, num_hidden_layers=6, vocab_size=8000)
        tensor = 768 * 2048 * 4  # the largest one that is stored transposed
        peaks = {}
        for name, config in (("tiny", hf_folder.LLAMA), ("large", large)):
            hf_folder.make(f"{name}.hf", config)
            task = [trireme, "-i", "deck.in", "job.task=import", f"hf.path={name}.hf", f"job.output={name}"]
            peaks[name, "import"] = peak(task)
            said = pathlib.Path("said").read_text(encoding="utf-8")
            peaks[name, "export"] = peak([trireme, "-r", name, "job.task=export", f"hf.path={name}.out"])
        size = sum(path.stat().st_size for path in pathlib.Path("large.hf").glob("*.safetensors"))
        buffers = int(re.search(r"a rank: buffers ([0-9]+) MiB \+ one tensor", said).group(1)) * MIB
        bounds = {"import": buffers + tensor + ALLOWANCE, "export": 2 * 8 * MIB + tensor + ALLOWANCE}
        for task, bound in bounds.items():
            more = peaks["large", task] - peaks["tiny", task]
            print(f"{task} of {size / MIB:.0f} MiB: {more / MIB:.0f} MiB more than of a tiny model")
            assert more <= bound < size / 2, f"{task}: {more / MIB:.0f} MiB, allowed {bound / MIB:.0f} of {size / MIB:.0f}"


main()
