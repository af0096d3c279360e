#!/usr/bin/env python3
"""Draws the pictures of doc/course/ from runs: python3 vis/course.py FOLDER OUT, where FOLDER is the student's after the lessons
(course.in, data/harbour.h5, runs/...) and OUT a folder, made if it is not there. Draws each picture whose runs are there, and
names those that it leaves out. Needs matplotlib and h5py (jobscripts/workstation.sh makes build/venv with them).
Exit codes: 0 done; 1 nothing could be drawn; 2 wrong arguments; 4 a package is missing."""
import json
import pathlib
import re
import subprocess
import sys

try:
    import h5py
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError as error:
    print(f"course.py: {error}\n  The pictures need matplotlib and h5py: use build/venv/bin/python3 (jobscripts/workstation.sh makes "
          "it), apt-get install python3-matplotlib python3-h5py, or pip install matplotlib h5py.", file=sys.stderr)
    sys.exit(4)

from loss_curve import read_run  # noqa: E402

BLUE, RED, GREEN, GREY = "#1f4e79", "#c0504d", "#4f7f3f", "#666666"


def picture(width=6.4, height=3.0):
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def summary(folder, run):
    return json.loads((folder / "runs" / run / "summary.json").read_text(encoding="utf-8"))


def files(folder):
    """Lesson 1: names and bytes on disk of the windows, one file each or all in the token file."""
    token_file = folder / "data/harbour.h5"
    many = [path for path in (folder / "many").iterdir()]
    if not many:
        raise FileNotFoundError("many/")

    def blocks(paths):
        return sum(path.stat().st_blocks * 512 for path in paths) / 1e6

    figure, sides = plt.subplots(1, 2, figsize=(6.4, 2.2), layout="constrained")
    for axes, values, title in ((sides[0], (len(many), 1), "names (inodes)"),
                                (sides[1], (blocks(many), blocks([token_file])), "megabytes on disk")):
        bars = axes.barh(["a file\nfor each", "token\nfile"], values, color=[RED, BLUE])
        axes.bar_label(bars, labels=[f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if axes is sides[1] else f"{value}"
                                     for value in values], padding=3)
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_xticks([])
        axes.margins(x=0.2)
    return figure


def rates(folder):
    """Lesson 2: losses by learning rate, and the entropy rate."""
    figure, axes = picture()
    for run, colour, words in (("hot", RED, "0.3"), ("cold", GREY, "0.0003"), ("one", BLUE, "0.003")):
        steps, losses = read_run(folder / "runs" / run)["step"]
        axes.plot(steps, losses, color=colour, linewidth=1)
        axes.annotate(f"rate {words}", (steps[-1], losses[-1]), xytext=(5, 0), textcoords="offset points", color=colour, va="center")
    with h5py.File(folder / "data/harbour.h5") as tokens:
        floor = tokens.attrs["entropy_rate"]
    axes.axhline(floor, color=GREEN, linestyle="--", linewidth=1)
    axes.annotate(f"entropy rate {floor:.3f}", (0, floor), xytext=(2, 4), textcoords="offset points", color=GREEN)
    axes.set(xlabel="step", ylabel="loss, nats a token", ylim=(2.7, 7.4), xlim=(0, 365))
    return figure


def ring(folder):
    """Lesson 3: bytes of the gradients' sums by ranks, as the ledger counts them and by the formula."""
    found = []
    for ranks in (1, 2, 4, 8):
        try:
            run = summary(folder, f"ranks_{ranks}")
        except FileNotFoundError:
            continue
        sent = sum(t["bytes"] for t in run["traffic"] if t["group"] == "data" and t["transfer"] == "all-reduce")
        found.append((ranks, sent / run["step"] / 1e6, run["parameters"]))
    if len(found) < 2:
        raise FileNotFoundError("runs/ranks_1, ranks_2, ranks_4")
    figure, axes = picture(height=2.6)
    most = max(ranks for ranks, _, _ in found)
    axes.plot(range(1, most + 1), [8 * found[0][2] * (n - 1) / 1e6 for n in range(1, most + 1)], color=GREY, label="8 P (n - 1)")
    axes.plot([n for n, _, _ in found], [sent for _, sent, _ in found], "o", color=BLUE, label="sent, by the ledger")
    axes.set(xlabel="ranks n", ylabel="MB a step, all ranks", xticks=range(1, most + 1), ylim=(0, None))
    axes.legend(frameon=False)
    return figure


def memory(folder):
    """Lesson 4: what a rank's plan holds by kind of sharding."""
    model = "grid.ranks=8 model.layers=24 model.dim=2048 model.heads=16 model.ffn=8192 data.batch=64".split()
    kinds = {"none": "none", "optimizer": "optimizer\n(ZeRO-1)", "gradients": "gradients\n(ZeRO-2)", "parameters": "parameters\n(ZeRO-3)"}
    shown = {"parameters": BLUE, "gradients": "#5b9bd5", "moments": GREEN, "activations": RED}
    units = {"GiB": 1, "MiB": 1 / 1024}
    figure, axes = picture(height=2.8)
    for place, kind in enumerate(kinds):
        said = subprocess.run(["trireme", "-i", "course.in", "-v", *model, f"grid.sharding={kind}"], cwd=folder, check=True,
                              capture_output=True, text=True).stdout
        line = next(text for text in said.split("\n") if text.startswith("memory"))
        terms = {name: float(size) * units[unit] for name, size, unit in re.findall(r"([a-zA-Z ]+?) ([\d.]+) (GiB|MiB)", line.split(": ")[1])}
        left = 0.0
        terms = {name.removeprefix(" ").strip(): size for name, size in terms.items()}
        rest = sum(size for name, size in terms.items() if name not in shown and name != "=")
        for name, colour in [*shown.items(), ("buffers", GREY)]:
            size = rest if name == "buffers" else terms[name]
            axes.barh(place, size, left=left, color=colour, label=name if place == 0 else None)
            left += size
        axes.annotate(f"{left:.1f}", (left, place), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set(yticks=range(len(kinds)), yticklabels=kinds.values(), xlabel="GiB of a rank", xlim=(0, 23))
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="lower right")
    return figure


def translation(folder):
    """Lesson 10: losses against smoothed targets, and of the valid split."""
    run = read_run(folder / "runs/numerals")
    figure, axes = picture(height=2.8)
    for kind, colour, words in (("step", BLUE, "training, smoothed targets"), ("valid", RED, "valid split, right words")):
        steps, losses = run[kind]
        axes.plot(steps, losses, color=colour, linewidth=1, marker="o" if kind == "valid" else None, label=words)
    axes.axhline(0.788, color=GREEN, linestyle="--", linewidth=1, label="floor of smoothed targets, 0.788")
    axes.set(xlabel="step", ylabel="loss, nats a token", ylim=(0, 4.8))
    axes.legend(frameon=False)
    return figure


PICTURES = {"01_files": files, "02_rates": rates, "03_bytes": ring, "04_memory": memory, "10_losses": translation}
# Time lines that vis/gantt.py draws from a run's trace.
GANTT = {"06_1f1b": "1f1b"}


def main():
    if len(sys.argv) != 3 or not pathlib.Path(sys.argv[1]).is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "course", "font.size": 9, "axes.edgecolor": GREY})
    drawn = 0
    for name, draw in PICTURES.items():
        try:
            figure = draw(folder)
        except (FileNotFoundError, KeyError) as missing:
            print(f"{name}: left out, {missing} is not there")
            continue
        figure.savefig(out / f"{name}.svg", metadata={"Date": None}, facecolor="white")
        plt.close(figure)
        drawn += 1
        print(f"{out / name}.svg")
    for name, run in GANTT.items():
        if (folder / "runs" / run / "trace.json.gz").exists():
            subprocess.run([sys.executable, str(pathlib.Path(__file__).with_name("gantt.py")), str(folder / "runs" / run), "-o",
                            str(out / f"{name}.svg")], check=True)
            drawn += 1
        else:
            print(f"{name}: left out, runs/{run}/trace.json.gz is not there")
    if (folder / "study/scaling.csv").exists():
        subprocess.run([sys.executable, str(pathlib.Path(__file__).with_name("scaling.py")), str(folder / "study"), "-o",
                        str(out / "09_study.svg")], check=True)
        drawn += 1
    else:
        print("09_study: left out, study/ is not there")
    return drawn == 0


if __name__ == "__main__":
    sys.exit(main())
