#!/usr/bin/env python3
"""Runs lessons of the course, and compares what comes out with what the lesson says. The PATH begins with the program's folder and
this Python's, as the course's README says; ranks have one thread each unless OMP_NUM_THREADS says otherwise.
check.py BUILD [LESSON...]: numbers or names; none: all. LAUNCH=srun starts every program by `srun -n RANKS`, not mpirun.
Every lesson starts in a fresh folder with course.in and the token file of lesson 1. Blocks of a lesson:
  ```ini NAME           a file that the student writes
  ```sh                 commands, run one after the other as they stand
and after a block, in comments that the reader does not see, what must be true:
  <!-- see FILE PATH VALUE TOLERANCE -->    a number of a JSON file: losses.test, or traffic[group=data].bytes
  <!-- same FILE FILE PATH TOLERANCE -->    the same number in two JSON files
  <!-- says TEXT -->                        the block's output has this text
  <!-- fails CODE -->                       the block's last command must end with this code
Exit code 1 if anything differs."""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = re.compile(r"(?:mpirun -n (\d+) )?\btrireme (?=-[ir] )")
STEP = re.compile(r"^```(sh|ini \S+)\n(.*?)^```|<!-- (see|same|says|fails) (.*?) -->", re.M | re.S)


def number(folder, file, path):
    """The number at a path such as losses.test or traffic[group=data].bytes."""
    value = json.loads((folder / file).read_text(encoding="utf-8"))
    for part in path.split("."):
        name, _, choice = part.partition("[")
        value = value[name]
        if choice:
            key, wanted = choice.rstrip("]").split("=")
            value = next(each for each in value if str(each[key]) == wanted)
    return float(value)


def launched(command, launch):
    """The command with its programs started by `launch` -n RANKS; launch empty: as it stands."""
    return PROGRAM.sub(lambda found: f"{launch} -n {found[1] or 1} trireme ", command) if launch else command


class Lesson:
    def __init__(self, page, folder, environment):
        self.text = page.read_text(encoding="utf-8")
        self.name, self.folder, self.environment = page.name, folder, environment
        self.output, self.faults, self.checks = "", 0, 0

    def fault(self, at, what):
        self.faults += 1
        print(f"  {self.name}:{self.text.count(chr(10), 0, at) + 1}: {what}")

    def run(self, at, block, code):
        self.output = ""
        commands = [c for c in re.sub(r"\\\n\s*", "", block).split("\n") if c.strip() and not c.startswith("#")]
        for i, command in enumerate(commands):
            done = subprocess.run(["bash", "-c", launched(command, self.environment.get("LAUNCH"))], cwd=self.folder,
                                  env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, check=False)
            self.output += done.stdout
            wanted = code if i + 1 == len(commands) else 0
            if done.returncode != wanted:
                tail = "\n".join("    | " + line for line in done.stdout.strip().split("\n")[-15:])
                self.fault(at, f"code {done.returncode} instead of {wanted}: {command}\n{tail}")

    def compare(self, at, kind, words):
        self.checks += 1
        try:
            if kind == "says":
                if words not in self.output:
                    self.fault(at, f"the output does not say: {words}")
            elif kind == "see":
                file, path, value, tolerance = words.split()
                found = number(self.folder, file, path)
                if abs(found - float(value)) > float(tolerance):
                    self.fault(at, f"{path} of {file} is {found:.6g}, not {value} within {tolerance}")
            else:
                one, other, path, tolerance = words.split()
                a, b = number(self.folder, one, path), number(self.folder, other, path)
                if abs(a - b) > float(tolerance):
                    self.fault(at, f"{path} is {a!r} in {one} and {b!r} in {other}")
        except (OSError, KeyError, StopIteration, ValueError) as error:
            self.fault(at, f"{kind} {words}: {error!r}")

    def go(self):
        steps = list(STEP.finditer(self.text))
        for i, step in enumerate(steps):
            if step[1] == "sh":
                after = steps[i + 1] if i + 1 < len(steps) else None
                self.run(step.start(), step[2], int(after[4]) if after and after[3] == "fails" else 0)
            elif step[1]:
                (self.folder / step[1].split()[1]).write_text(step[2], encoding="utf-8")
            elif step[3] != "fails":
                self.compare(step.start(), step[3], step[4].strip())


def main():
    if importlib.util.find_spec("matplotlib") is None:
        print("skipped: this Python has no matplotlib, which the lessons' pictures need")
        return 77
    build, wanted = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    pages = sorted(HERE.glob("[0-9][0-9]_*.md"))
    if wanted:
        pages = [p for p in pages if any(w in (p.stem, p.stem[:2], str(int(p.stem[:2]))) for w in wanted)]
    if not pages:
        sys.exit(f"no lesson {' '.join(wanted)}")
    environment = {**os.environ, "PATH": f"{build}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
                   "TRIREME_SHARE": str(HERE.parent.parent), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
                   "OMPI_ALLOW_RUN_AS_ROOT": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                   "OMPI_MCA_mpi_yield_when_idle": "1"}
    faults = 0
    for page in pages:
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            shutil.copy(HERE / "course.in", folder)
            if not page.stem.startswith("01"):
                Lesson(HERE / "01_tokens.md", folder, environment).run(0, "mkdir data\n" + TOKENS, 0)
            lesson, start = Lesson(page, folder, environment), time.monotonic()
            lesson.go()
            print(f"{page.stem}: {lesson.checks} checks, {lesson.faults} faults, {time.monotonic() - start:.0f} s", flush=True)
            faults += lesson.faults
    return bool(faults)


TOKENS = "trireme -i course.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=200000"

if __name__ == "__main__":
    sys.exit(main())
