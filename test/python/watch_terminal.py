"""watch_terminal.py TRIREME: the view of --watch on a pseudo-terminal, read by a terminal emulator.
Code 77: skipped, saying why."""

import fcntl
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

try:
    import pyte
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

from watch_records import DONE, Run, check, event, line, step

TRIREME = sys.argv[1]
PATIENCE = 15  # seconds
os.environ["OMPI_MCA_pml"] = "nonexistent"  # a start of MPI would fail


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
                    "1.0 MiB a rank at most (rank 3 on node17), 3.0 GiB of the fullest GPU",
                    "512 W a node, 0.5 J a token, 12.3 kJ, GPUs 97%")
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


def large(folder):
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


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part in (follow, sizes, hostile, goes, large):
            (folder / part.__name__).mkdir()
            part(folder / part.__name__)
            print(f"{part.__name__}: passed")


main()
