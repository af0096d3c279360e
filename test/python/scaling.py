"""vis/scaling.py draws studies of the real program, one or several merged, with the program's own numbers, and refuses
studies that cannot be compared. Exit code 77 without matplotlib.

    python3 test/python/scaling.py TRIREME MPIRUN vis/scaling.py
"""
import csv
import importlib.util
import os
import pathlib
import sys
import tempfile
import xml.etree.ElementTree

if importlib.util.find_spec("matplotlib") is None:
    print("skipped: no matplotlib")
    sys.exit(77)

from hf_run import Program, run  # noqa: E402

TRIREME, MPIRUN, SCALING = sys.argv[1:4]
program = Program(TRIREME, MPIRUN)
sys.path.insert(0, str(pathlib.Path(SCALING).parent))
from scaling_study import statistics, studies  # noqa: E402

DECK = """# Steps of milliseconds.
[job]
task = scaling
[data]
file = harbour.h5
sequence_length = 16
stride = 16
batch = 8
[model]
dim = 32
heads = 2
layers = 2
ffn = 64
max_positions = 16
[scaling]
kind = strong,weak
base_ranks = 1
steps = 4
repeats = 3
"""


def study(folder, ranks, *keys):
    program(ranks, "-i", "deck.in", f"job.output={folder}", *keys)


def draw(*arguments, expected=0):
    return run([sys.executable, SCALING, *arguments], expected)


def near(a, b, most=1e-5):
    return abs(a - b) <= most * abs(b)


def rewrite(folder, place, changes):
    """A copy of the study with cells of one row changed."""
    path = pathlib.Path(folder, "scaling.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rows[place].update(changes)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def check_statistics():
    for degrees, quantile in ((1, 12.706), (2, 4.303), (4, 2.776), (30, 2.042)):
        assert abs(statistics.student_quantile(degrees) - quantile) < 5e-4, degrees
    assert statistics.paired_factor([1.0], [2.0]) is None
    # Welch: two samples of equal spread and number have twice as many degrees of freedom.
    sample = [1.0, 1.1, 1.2]
    assert near(statistics.separate_factor(sample, sample),
                pow(2.718281828459045, statistics.student_quantile(4) * (2 * statistics._variance(
                    [0.0, 0.09531018, 0.18232156]) / 3) ** 0.5)), "Welch"


def check_numbers(folder):
    """The program's own speed-ups, intervals and causes."""
    for point in studies.read([folder]):
        for name in ("speedup", "efficiency"):
            assert near(getattr(point, name), point.number(name)), (name, point.row)
            for mine, suffix in zip(getattr(point, name + "_interval"), ("_low", "_high")):
                assert near(mine, point.number(name + suffix)), (name, suffix, mine, point.row)
        for cause in studies.CAUSES:
            assert abs(point.lost[cause] - point.number("lost_" + cause)) < 1e-5, (cause, point.row)
        assert (point.serial is None) == (point.row["karp_flatt"] == ""), point.row
        if point.serial is not None:
            assert near(point.serial, point.number("karp_flatt"), 1e-4), point.row
            for mine, suffix in zip(point.serial_interval, ("_low", "_high")):
                assert near(mine, point.number("karp_flatt" + suffix), 1e-3), (suffix, mine, point.row)


def check_pictures():
    assert draw("study").strip() == "study/scaling.pdf"
    assert pathlib.Path("study/scaling.pdf").read_bytes().startswith(b"%PDF")
    draw("study", "-o", "one.svg", "--latex", "table.tex")
    texts = {node.text for node in xml.etree.ElementTree.parse("one.svg").iter() if node.tag.endswith("text")}
    for text in ("strong scaling, over 1 rank", "weak scaling, over 1 rank", "efficiency (%)", "useful work", "ideal"):
        assert text in texts, (text, texts)
    assert "predicted" not in texts, "nothing was predicted"
    table = pathlib.Path("table.tex").read_text(encoding="utf-8")
    assert table.count("\\\\") >= 7 and table.count("strong &") == 3 and "\\toprule" in table, table
    rewrite("study", 0, {"predicted_step_seconds": "0.01"})
    rewrite("study", 1, {"predicted_step_seconds": "0.006"})
    draw("study", "-o", "two.svg")
    assert ">predicted<" in pathlib.Path("two.svg").read_text(encoding="utf-8")


def check_merging():
    study("ranks_1", 1)
    study("ranks_2", 2, "scaling.ranks=2")
    merged = studies.read(["ranks_2", "ranks_1"])
    assert [(point.kind, point.ranks) for point in merged] == [("strong", 1), ("strong", 2), ("weak", 1), ("weak", 2)]
    strong = merged[1]
    assert strong.base is merged[0] and near(strong.speedup, strong.base.seconds / strong.seconds)
    assert strong.speedup_interval[0] < strong.speedup < strong.speedup_interval[1]
    assert near(sum(strong.lost.values()), 1 - strong.efficiency, 1e-3)
    draw("ranks_1", "ranks_2", "-o", "merged.png")
    assert pathlib.Path("merged.png").read_bytes().startswith(b"\x89PNG")

    assert "1 ranks, strong, are in ranks_1 and in study" in draw("ranks_1", "study", expected=2)
    study("wide", 2, "scaling.ranks=2", "model.ffn=96")
    assert "model.ffn differs: 64 in ranks_1, 96 in wide" in draw("ranks_1", "wide", expected=2)
    study("smallest", 2, "scaling.ranks=2", "scaling.base_ranks=0", "scaling.kind=weak")
    assert "Give all studies one scaling.base_ranks" in draw("ranks_1", "smallest", expected=2)
    rewrite("ranks_2", 0, {"loss": "5.5"})
    assert "They computed different things" in draw("ranks_1", "ranks_2", expected=2)
    assert "no_study/scaling.csv: No such file" in draw("no_study", expected=2)
    pathlib.Path("ranks_2/scaling.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    assert "not a table of job.task = scaling" in draw("ranks_2", expected=2)


with tempfile.TemporaryDirectory() as scratch:
    os.chdir(scratch)
    pathlib.Path("deck.in").write_text(DECK, encoding="utf-8")
    program(1, "-i", "deck.in", "job.task=tokenize", "tokenize.kind=harbour", "tokenize.harbour_tokens=8000")
    check_statistics()
    study("study", 3)
    check_numbers("study")
    check_pictures()
    check_merging()
