"""watch.py TRIREME pipe|terminal: --watch in a pipe and its command line, or its view on a pseudo-terminal, read by a terminal
emulator; records as the program writes them. Code 77: skipped, saying why."""

import fcntl
import json
import os
import pathlib
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

TRIREME, WHERE = sys.argv[1:]
PATIENCE = 15  # seconds
os.environ["OMPI_MCA_pml"] = "nonexistent"  # a start of MPI would fail
if WHERE == "terminal":
    try:
        import pyte
    except ImportError as error:
        print(f"SKIPPED: {error}")
        sys.exit(77)


def step(number, loss=4.0, **more):
    record = {"kind": "step", "step": number, "epoch": number / 100, "tokens": number * 8, "loss": loss,
              "perplexity": 1.0, "learning_rate": 1e-3, "grad_norm": 0.5, "step_seconds": 0.5, "tokens_per_second": 1000.0,
              "flops_per_second": 1e9, "roof_fraction": 0.5, "seconds_compute": 0.4,
              "seconds_exposed_communication": 0.1, "seconds_bubble": 0.0, "seconds_data": 0.0, "seconds_checkpoint": 0.0,
              "bad_steps": 0}
    return line(record | more)


def line(record):
    return json.dumps(record, separators=(",", ":")) + "\n"


def event(name, at, text):
    return line({"kind": "event", "event": name, "step": at, "rank": 0, "host": "n1", "text": text})


DONE = line({"kind": "done", "step": 100, "loss": 4.0})


class Run:
    """A run folder."""

    def __init__(self, folder, steps=100):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()
        self.path = self.folder / "metrics.jsonl"
        (self.folder / "deck.in").write_text(f"[schedule]\nsteps = {steps}  # from x\n")

    def add(self, text):
        with open(self.path, "ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def replace(self, text):
        new = self.folder / "metrics.jsonl.tmp"
        new.write_text(text)
        new.rename(self.path)


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


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


def stopped(folder):
    """A run that was stopped, or whose ranks hung, ends the watch; one that went on afterwards does not."""
    run = Run(folder / "stopped")
    run.add(step(1) + event("stop", 1, "a signal"))
    pipe = Pipe(run.folder)
    check(pipe.process.wait(PATIENCE) == 0, "not ended after the stop")
    said = pipe.process.stderr.read().decode()
    check(said == f"trireme: {run.folder}: stopped at step 1 by a signal; go on with -r {run.folder}\n", said)
    hung = Run(folder / "hung")
    hung.add(step(1) + event("hang", 1234, "rank 1"))
    pipe = Pipe(hung.folder, run.folder)
    check(pipe.process.wait(PATIENCE) == 0, "not ended after the hang")
    said = pipe.process.stderr.read().decode()
    check(f"its ranks hung at step 1,234; go on with -r {hung.folder}" in said and said.count("\n") == 2, said)
    run.add(event("restart", 1, "start 2 at this step") + step(2))
    pipe = Pipe(run.folder)
    pipe.awaits("step 2")
    time.sleep(1)
    check(pipe.process.poll() is None, "ended although the run went on")
    run.add(DONE)
    pipe.ends()


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
    check(code == 2 and "empty: is not a run folder: neither deck.in nor metrics.jsonl is in it" in said, said)
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


def large_in_pipe(folder):
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


class Terminal:
    """The program on a terminal of its own."""

    def __init__(self, *runs, rows=24, columns=80, **environment):
        self.master, slave = pty.openpty()
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

        def own():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        variables = os.environ | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | environment
        for name in ("LINES", "COLUMNS"):
            variables.pop(name, None)
        self.process = subprocess.Popen([TRIREME, "--watch", *[run.name for run in runs]], cwd=runs[0].parent, stdin=slave, stdout=slave, stderr=slave,
                                        preexec_fn=own, env=variables)
        self.before = termios.tcgetattr(slave)
        self.slave = slave

    def read(self, seconds):
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return
        data = os.read(self.master, 1 << 16)
        self.raw += data
        self.stream.feed(data)

    def text(self):
        return "\n".join(row.rstrip() for row in self.screen.display)

    def awaits(self, *texts, without=()):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.read(0.1)
            shown = self.text()
            if all(text in shown for text in texts) and not any(text in shown for text in without):
                return shown
            if self.process.poll() is not None:
                break
        sys.exit(f"FAILED: not shown: {texts} without {without}; code {self.process.poll()}; the screen:\n{self.text()}")

    def resize(self, rows, columns):
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys):
        os.write(self.master, keys)

    def ends(self):
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        check(self.process.poll() == 0, f"code {self.process.poll()} at the end")
        self.read(0.1)
        after = termios.tcgetattr(self.slave)
        check(after[3] == self.before[3], "the terminal's modes are not given back")
        check(b"\x1b[?1049l" in self.raw, "the terminal's screen is not given back")


def follow(folder):
    run = Run(folder / "a")
    terminal = Terminal(run.folder)
    terminal.awaits("a: no records yet", "q ends")
    run.add("".join(step(i, 5 - i / 100) for i in range(1, 51)))
    shown = terminal.awaits("running, step 50 of 100 (50%)", "4.5000", "1,000 tokens/s", "left 0:25")
    check("█" in shown and "▁" in shown, "no bars")
    # A torn line, then the rest of it.
    text = step(51, 4.25)
    run.add(text[:40])
    time.sleep(1)
    terminal.awaits("step 50 of 100")
    run.add(text[40:])
    terminal.awaits("step 51 of 100", without=["unreadable"])
    run.add(line({"kind": "valid", "step": 51, "loss": 4.75, "step_seconds": 1}))
    run.add(line({"kind": "interval", "step": 51, "loss_min": 4.1, "loss_max": 4.9, "memory_bytes": 1 << 20,
                  "memory_rank": 3, "memory_host": "node17", "joules": 12345.0, "joules_per_token": 0.5,
                  "watts_per_node": 512.0, "gpu_utilisation": 0.97, "gpu_memory_bytes": 3 << 30}))
    run.add("rubbish\n")
    terminal.awaits("1 unreadable line", "4.7500 at step 51, best 4.7500", "lately 4.1000 to 4.9000",
                    "1.0 MiB per rank at most (rank 3 on node17), 3.0 GiB of the fullest GPU",
                    "512 W per node, 0.5 J per token, 12.3 kJ, GPUs 97%")
    # The run is resumed: records after step 30 are cut.
    run.replace("".join(step(i, 5 - i / 100) for i in range(1, 31)) + event("restart", 30, "start 2"))
    terminal.awaits("step 30 of 100", "step 30: restart, start 2", without=["valid", "unreadable"])
    run.path.rename(run.folder / "away")
    terminal.awaits("metrics.jsonl is gone", "step 30 of 100")
    (run.folder / "away").rename(run.path)
    terminal.awaits("running, step 30 of 100")
    os.truncate(run.path, 0)
    terminal.awaits("no records yet")
    run.add(step(100) + DONE)
    terminal.awaits("a: done, step 100 of 100 (100%)")
    terminal.press(b"q")
    terminal.ends()


def sizes(folder):
    runs = [Run(folder / f"s{i}") for i in range(5)]
    for run in runs:
        run.add("".join(step(i) for i in range(1, 21)) + event("checkpoint", 20, "x" * 500))
    terminal = Terminal(*[run.folder for run in runs], rows=30, columns=100)
    terminal.awaits(*[f"s{i}: running" for i in range(5)], "tokens/s")
    for rows, columns in ((10, 40), (3, 120), (1, 1), (2, 10), (50, 200), (24, 80)):
        terminal.resize(rows, columns)
        time.sleep(0.7)
        terminal.read(0.3)
    terminal.awaits(*[f"s{i}: running" for i in range(5)], "q ends")
    terminal.resize(4, 80)
    terminal.awaits("1 to 3 of 5", without=["s4: "])
    terminal.press(b"j")
    terminal.press(b"\x1bOB")  # arrow down
    terminal.awaits("3 to 5 of 5", "s4: ", without=["s0: "])
    terminal.press(b"k")
    terminal.awaits("2 to 4 of 5")
    terminal.press(b"\x03")  # Ctrl-C
    terminal.ends()


def hostile(folder):
    run = Run(folder / "h")
    run.add(step(1) + event("\x1b]0;taken\x07", 1, "\x1b[31mEVIL\x1b[2J \x9b2J und größer 東京 end"))
    run.add(line({"kind": "valid_other", "set": "\x1b[5m", "step": 1, "loss": 3.0}))
    terminal = Terminal(run.folder, columns=100)
    terminal.awaits("�]0;taken�, �[31mEVIL�[2J �2J und größer")
    # The emulator gives a character of two columns an empty neighbour.
    check("東京 end" in terminal.text().replace("東 ", "東").replace("京  ", "京 "), "wide characters")
    for bad in (b"\x1b]0;", b"\x1b[31m", b"\x1b[5m", b"\x9b2J"):
        check(bad not in terminal.raw.replace("京".encode(), b""), f"{bad} reached the terminal")
    check(terminal.screen.title == "", "the title was set")
    terminal.process.send_signal(signal.SIGTERM)
    terminal.ends()
    # Without Unicode.
    plain = Terminal(run.folder, LC_ALL="C")
    plain.awaits("step 1: ?]0;taken?")
    check(all(byte < 128 for byte in plain.raw), "bytes beyond ASCII in the C locale")
    plain.press(b"q")
    plain.ends()


def goes(folder):
    """The terminal itself goes away, or is of an unknown kind."""
    run = Run(folder / "g")
    run.add(step(1))
    terminal = Terminal(run.folder)
    terminal.awaits("g: running")
    os.close(terminal.slave)
    os.close(terminal.master)
    check(terminal.process.wait(PATIENCE) == 0, "code after the terminal went away")
    unknown = Terminal(run.folder, TERM="no-such-terminal")
    unknown.awaits("step 1  epoch 0.01  loss 4.0000")
    unknown.press(b"\x03")
    check(unknown.process.wait(PATIENCE) == 0, "code on an unknown terminal")


def large_on_terminal(folder):
    """A million records: how long until the last one is shown, and keys meanwhile."""
    run = Run(folder / "l", steps=2_000_000)
    with open(run.path, "w", encoding="utf-8") as file:
        for begin in range(1, 1_000_001, 1000):
            file.write("".join(step(i, 9 - i / 200_000) for i in range(begin, begin + 1000)))
    start = time.monotonic()
    terminal = Terminal(run.folder)
    terminal.awaits("running, step 1,000,000 of 2,000,000 (50%)", "4.0000")
    seconds = time.monotonic() - start
    used = os.sysconf("SC_CLK_TCK")
    with open(f"/proc/{terminal.process.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    with open(f"/proc/{terminal.process.pid}/status", encoding="ascii") as status:
        peak = next(int(row.split()[1]) for row in status if row.startswith("VmHWM"))
    print(f"1,000,000 records, {run.path.stat().st_size / 1e6:.0f} MB: shown after {seconds:.2f} s, "
          f"{(int(fields[11]) + int(fields[12])) / used:.2f} s of processor, {peak / 1024:.0f} MiB")
    check(seconds < 10, "too slow")
    check(peak < 200 * 1024, "too much memory")
    before = (int(fields[11]) + int(fields[12])) / used
    terminal.read(0.1)
    time.sleep(3)
    with open(f"/proc/{terminal.process.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    idle = (int(fields[11]) + int(fields[12])) / used - before
    check(idle < 0.5, f"{idle} s of processor in 3 s without news")
    terminal.press(b"q")
    terminal.ends()


PARTS = {"pipe": (one, several, quiet, stopped, refused, large_in_pipe), "terminal": (follow, sizes, hostile, goes, large_on_terminal)}


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part in PARTS[WHERE]:
            (folder / part.__name__).mkdir()
            part(folder / part.__name__)
            print(f"{part.__name__}: passed")


main()
