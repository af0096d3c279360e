"""The program under test, run on one rank or several, and a deck for it."""

import os
import pathlib
import subprocess

LAUNCH = pathlib.Path(__file__).parents[1] / "mpirun.sh"

DECK = """[data]
file = none.h5
sequence_length = 16
batch = 4
[schedule]
steps = 4
"""


def run(command, expected=0):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    text = done.stdout + done.stderr
    assert done.returncode == expected, f"{command}: exit code {done.returncode}\n{text}"
    return text


class Program:
    def __init__(self, trireme, mpirun):
        os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1")
        self.trireme = trireme
        self.mpirun = ["bash", str(LAUNCH), mpirun, "-n"]

    def __call__(self, ranks, *arguments, expected=0):
        launch = [] if ranks == 1 else self.mpirun + [str(ranks)]
        return run(launch + [self.trireme, *arguments], expected)
