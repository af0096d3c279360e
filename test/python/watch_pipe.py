"""watch_pipe.py TRIREME: --watch in a pipe and its command line."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from watch_records import DONE, Run, check, event, line, step

TRIREME = sys.argv[1]
PATIENCE = 15  # seconds
os.environ["OMPI_MCA_pml"] = "nonexistent"  # a start of MPI would fail


class Pipe:
    def __init__(self, *runs):
        self.process = subprocess.Popen([TRIREME, "--watch", *map(str, runs)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.text = ""

    def awaits(self, text):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.text += (self.process.stdout.read() or b"").decode()
            if text in self.text:
                return
            time.sleep(0.05)
        sys.exit(f"FAILED: not said: {text}; said:\n{self.text}")

    def ends(self, code=0):
        check(self.process.wait(PATIENCE) == code, f"code {self.process.returncode} instead of {code}")
        self.text += (self.process.stdout.read() or b"").decode()
        errors = self.process.stderr.read().decode()
        check(errors == "", f"errors: {errors}")
        return self.text.splitlines()


def one(folder):
    run = Run(folder / "a")
    pipe = Pipe(run.folder)
    run.add(step(1, 4.5) + step(2, 4.25)[:30])
    pipe.awaits("loss 4.5000")
    run.add(step(2, 4.25)[30:] + event("bad step", 2, "\x1b[2Jtext\nmore") + "rubbish\n")
    pipe.awaits("unreadable")
    # The run goes on from step 1; then it is done.
    run.replace(step(1, 4.5) + step(2, 4.0))
    pipe.awaits("loss 4.0000")
    run.path.unlink()
    time.sleep(1)
    run.add(step(1, 4.5) + step(2, 4.0) + line({"kind": "valid", "step": 2, "epoch": 0.02, "loss": 5.0}) + DONE)
    lines = pipe.ends()
    wanted = ["step 1  epoch 0.01  loss 4.5000", "step 2  epoch 0.02  loss 4.2500", "event 2  bad step  �[2Jtext more  on n1",
              "unreadable: a line of 7 bytes", "step 2  epoch 0.02  loss 4.0000", "valid 2  epoch 0.02  loss 5.0000",
              "done 100  loss 4.0000"]
    check(len(lines) == len(wanted) and all(a.startswith(b) for a, b in zip(lines, wanted)), "\n".join(lines))
    # A done run: its records, then the end.
    check(len(Pipe(run.folder).ends()) == 4, "records of a done run")
    check(len(Pipe(run.path).ends()) == 4, "records of a file")


def several(folder):
    runs = [Run(folder / name) for name in ("a", "b")]
    pipe = Pipe(*[str(run.folder) + "/" for run in runs])
    runs[0].add(step(1) + DONE)
    runs[1].add(step(7))
    pipe.awaits(f"{runs[0].folder}  done 100")
    pipe.awaits(f"{runs[1].folder}  step 7")
    check(pipe.process.poll() is None, "ended before all were done")
    pipe.process.send_signal(signal.SIGINT)
    pipe.ends()


def quiet(folder):
    """A run that was killed: said once, then waited for."""
    run = Run(folder / "killed")
    run.add(step(1))
    os.utime(run.path, (time.time() - 7200,) * 2)
    pipe = Pipe(run.folder)
    pipe.awaits("step 1")
    time.sleep(1.5)
    run.add(step(2) + DONE)
    check(pipe.process.wait(PATIENCE) == 0, "not ended after the run's end")
    said = pipe.process.stderr.read().decode()
    check(said.count(f"trireme: {run.folder}: no record for 2:00:0") == 1 and said.count("\n") == 1, said)


def refused(folder):
    def run(*words):
        result = subprocess.run([TRIREME, *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                                timeout=PATIENCE)
        return result.returncode, result.stdout + result.stderr

    # One rank tells of a bad command line, as for all tasks: MPI starts.
    del os.environ["OMPI_MCA_pml"]
    code, said = run("--watch")
    check(code == 2 and "--watch stands alone" in said, said)
    code, said = run("-v", "--watch", str(folder))
    check(code == 2 and "--watch stands alone" in said, said)
    os.environ["OMPI_MCA_pml"] = "nonexistent"
    code, said = run("--watch", str(folder / "nowhere"))
    check(code == 2 and "nowhere: no such run folder" in said and said.count("error") == 1, said)
    code, said = run("--watch", "/dev/null")
    check(code == 2 and "neither a folder nor a file" in said, said)
    (folder / "empty").mkdir()
    code, said = run("--watch", str(folder / "empty"))
    check(code == 2 and "empty: is no run folder: neither deck.in nor metrics.jsonl is in it" in said, said)
    other = Run(folder / "other")
    code, said = run("--watch", str(other.folder / "deck.in"))
    check(code == 2 and "deck.in: holds no records of a run" in said, said)
    code, said = run("--help")
    check(code == 0 and "--watch RUN..." in said, said)
    full = Run(folder / "full")
    full.add(step(1) + DONE)
    with open("/dev/full", "w", encoding="ascii") as sink:
        result = subprocess.run([TRIREME, "--watch", str(full.folder)], stdout=sink, stderr=subprocess.PIPE, text=True, check=False,
                                stdin=subprocess.DEVNULL, timeout=PATIENCE)
    check(result.returncode == 1 and "standard output cannot be written" in result.stderr, result.stderr)


def large(folder):
    run = Run(folder / "l")
    with open(run.path, "w", encoding="utf-8") as file:
        for begin in range(1, 1_000_001, 1000):
            file.write("".join(step(i) for i in range(begin, begin + 1000)))
        file.write(DONE)
    start = time.monotonic()
    with open(folder / "out", "wb") as out:
        subprocess.run([TRIREME, "--watch", str(run.folder)], stdout=out, stdin=subprocess.DEVNULL, check=True)
    seconds = time.monotonic() - start
    with open(folder / "out", "rb") as out:
        count = sum(1 for _ in out)
    print(f"1,000,000 records in a pipe: {seconds:.1f} s")
    check(count == 1_000_001, f"{count} lines")
    check(seconds < 60, "too slow")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part in (one, several, quiet, refused, large):
            (folder / part.__name__).mkdir()
            part(folder / part.__name__)
            print(f"{part.__name__}: passed")


main()
