#!/usr/bin/env python3
"""Registers, stack and static shared memory of all kernels against their bounds: kernel_resources.py LIBRARY [CUOBJDUMP]

LIBRARY: an object, archive or program with device code. test/kernel_bounds.txt has a line for each kernel: its name without
templates, and the most registers of a thread, bytes of its stack (spilled registers lie there) and bytes of static shared
memory that any instance may have on any architecture. A kernel without a line fails, and so does a line without a
kernel. Exit code 77: no cuobjdump.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

BOUNDS = pathlib.Path(__file__).with_name("kernel_bounds.txt")
USAGE = re.compile(r"Function (\S+):\n\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)")


def find_cuobjdump():
    """The toolkit's, or that of the package nvidia-cuda-cuobjdump of this interpreter."""
    for place in (shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump"):
        if place and pathlib.Path(place).exists():
            return place
    packages = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    return next((str(path) for path in sorted(packages.glob("*/bin/cuobjdump"))), None)


def read_bounds():
    lines = (line.partition("#")[0].split() for line in BOUNDS.read_text(encoding="utf-8").splitlines())
    return {name: tuple(map(int, numbers)) for name, *numbers in filter(None, lines)}


def plain_names(mangled):
    """Name without scopes, templates and arguments of each function."""
    text = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
    return [re.search(r"(\w+)(?:<.*)?\(", re.sub(r"\(anonymous namespace\)|_GLOBAL__N_\w*", "", line).removeprefix("void "))[1]
            for line in text.splitlines()]


def usage(cuobjdump, library):
    """Largest registers, stack and shared bytes of each kernel, and the architectures."""
    text = subprocess.run([cuobjdump, "-res-usage", library], capture_output=True, text=True, check=True).stdout
    found = USAGE.findall(text)
    most = {}
    for name, (_, *numbers) in zip(plain_names([each[0] for each in found]), found, strict=True):
        most[name] = tuple(map(max, most.get(name, (0, 0, 0)), map(int, numbers)))
    return most, sorted(set(re.findall(r"^arch = (sm_\w+)", text, re.M)))


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    cuobjdump = sys.argv[2] if len(sys.argv) > 2 else find_cuobjdump()
    if cuobjdump is None:
        print("skipped: no cuobjdump (python3 -m pip install nvidia-cuda-cuobjdump)")
        sys.exit(77)
    most, architectures = usage(cuobjdump, sys.argv[1])
    bounds, wrong = read_bounds(), []
    for name, numbers in sorted(most.items()):
        if name not in bounds:
            wrong.append(f"{name}: no line in {BOUNDS.name}: {' '.join(map(str, numbers))}")
            continue
        for what, number, bound in zip(("registers", "bytes of stack", "bytes of shared memory"), numbers, bounds[name],
                                       strict=True):
            if number > bound:
                wrong.append(f"{name}: {number} {what}, at most {bound} are allowed")
    wrong += [f"{name}: a line in {BOUNDS.name}, and no such kernel" for name in sorted(set(bounds) - set(most))]
    print(f"{len(most)} kernels on {' '.join(architectures)}: " + ("within their bounds" if not wrong else "\n  ".join(["", *wrong])))
    sys.exit(bool(wrong))


main()
