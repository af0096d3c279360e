#!/usr/bin/env python3
"""Draws the hand-laid pictures of doc/ that no program measures: the life of a run under Slurm, what the commit of a checkpoint
does, and where the memory of a rank goes.

    python3 vis/figures.py            # -> doc/slurm_life.svg, doc/checkpoint_commit.svg, doc/gpu_memory.svg
    python3 vis/figures.py FOLDER     # into another folder

Needs the standard library alone. Each picture has a white ground, so that it can be read on a dark page too.
"""
import pathlib
import sys
from xml.sax.saxutils import escape

INK, GREY, RED = "#222222", "#5f6368", "#b3261e"
BLUE, GREEN, ORANGE, YELLOW, VIOLET, PALE = "#d6e3f2", "#d8ecdc", "#fbe3cb", "#fff7d6", "#e7dcf0", "#eef1f4"


class Picture:
    """An SVG under construction. All lengths are pixels, from the upper left corner."""

    def __init__(self, width, height, title):
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="DejaVu Sans, Verdana, Helvetica, sans-serif">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        ]

    def text(self, x, y, text, size=12.5, anchor="middle", fill=INK, bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self.lines.append(f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" fill="{fill}"{weight}>'
                          f"{escape(text)}</text>")

    def texts(self, x, y, lines, step=16, **how):
        """Lines of text, one below the other."""
        for i, line in enumerate(lines):
            self.text(x, y + i * step, line, **how)

    def box(self, x, y, width, height, fill, dashed=False, stroke=INK):
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.lines.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" stroke="{stroke}" '
                          f'stroke-width="1.1"{dash}/>')

    def line(self, x1, y1, x2, y2, stroke=INK, width=1.2, dashed=False):
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.lines.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" stroke-width="{width:g}"{dash}/>')

    def arrow(self, x1, y1, x2, y2, stroke=INK):
        """An arrow, horizontal or vertical."""
        self.line(x1, y1, x2, y2, stroke)
        dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
        left = (x2 - 7 * dx + 4 * dy, y2 - 7 * dy + 4 * dx)
        right = (x2 - 7 * dx - 4 * dy, y2 - 7 * dy - 4 * dx)
        points = " ".join(f"{x:g},{y:g}" for x, y in [(x2, y2), left, right])
        self.lines.append(f'<polygon points="{points}" fill="{stroke}"/>')

    def diamond(self, x, y, radius=6):
        points = " ".join(f"{a:g},{b:g}" for a, b in [(x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y)])
        self.lines.append(f'<polygon points="{points}" fill="{INK}"/>')

    def cross(self, x, y, radius=8):
        self.line(x - radius, y - radius, x + radius, y + radius, RED, 3)
        self.line(x - radius, y + radius, x + radius, y - radius, RED, 3)

    def write(self, path):
        path.write_text("\n".join([*self.lines, "</svg>"]) + "\n", encoding="utf-8")


def slurm_life():
    """Nodes downwards, time to the right: three sessions of one run, between them the time limit and a lost node."""
    picture = Picture(960, 372, "The life of a run under Slurm: submit, time limit, requeue, lost node, end")
    rows = [("n1", 92), ("n2", 132), ("n3 (spare)", 172)]
    height = 30
    for name, y in rows:
        picture.text(96, y + 20, name, anchor="end")
        picture.line(104, y + height + 5, 948, y + height + 5, "#d0d4d8", 1)

    def session(x, end, nodes, label, fill):
        for i, (_, y) in enumerate(rows):
            if i in nodes:
                picture.box(x, y, end - x, height, fill)
        picture.text((x + end) / 2, 112, label)

    picture.texts(126, 52, ["in the", "queue"], fill=GREY)
    picture.box(106, 92, 40, 110, "#ffffff", dashed=True, stroke=GREY)
    session(150, 420, (0, 1), "session 1: steps", BLUE)
    picture.box(150, 172, 270, height, "#ffffff", dashed=True)
    picture.text(285, 192, "waits", fill=GREY)
    picture.texts(470, 52, ["in the queue", "(2 minutes or more)"], fill=GREY)
    picture.box(424, 92, 92, 110, "#ffffff", dashed=True, stroke=GREY)
    session(520, 700, (0, 1), "session 2", GREEN)
    picture.box(520, 172, 180, height, "#ffffff", dashed=True)
    picture.text(610, 192, "waits", fill=GREY)
    session(740, 920, (0, 2), "session 3", ORANGE)
    picture.text(830, 192, "takes the place of n2")
    for x in (240, 330, 414, 600, 672, 800, 916):
        picture.diamond(x, 216)
    picture.cross(700, 147)
    picture.text(96, 220, "checkpoints", anchor="end")
    notes = [(126, ["sbatch"], 236), (352, ["USR1, 120 s before", "the limit: the step", "ends, a checkpoint,", "code 3"], 236),
             (470, ["scontrol", "requeue"], 236), (558, ["-r: newest", "checkpoint"], 236),
             (702, ["n2 is lost: Slurm", "ends the step; the", "script asks which", "nodes answer"], 236),
             (836, ["srun on n1 and n3,", "in seconds, without", "the queue; -r"], 236), (926, ["code 0"], 52)]
    for x, lines, y in notes:
        picture.texts(x, y + 16 if y > 100 else y, lines, size=12)
    picture.text(500, 24, "SPARES=1 sbatch --no-kill --nodes=3 train.sbatch deck.in runs/mine", bold=True, size=13)
    picture.texts(104, 336, [
        "Without a spare node, or if n1 is lost, the job goes through the queue as at the time limit. The steps since the last",
        "checkpoint are computed again, with the same bits. A death on well nodes without a new checkpoint ends the job."],
        anchor="start", size=12)
    return picture


def checkpoint_commit():
    """The parts of a commit from left to right; below each, what the disk holds and from where -r goes on after a kill."""
    columns = [
        ("1  copy", ["checkpoint.async:", "a copy in memory,", "then steps go on"], ["step_100"], "step_100", BLUE),
        ("2  prepare", ["leftovers removed,", "step_200.tmp made,", "space reserved"], ["step_100", "step_200.tmp, empty"], "step_100",
         BLUE),
        ("3  write, verify", ["tensors written,", "flushed, read back,", "hashes compared"], ["step_100", "step_200.tmp, part"],
         "step_100", BLUE),
        ("4  seal", ["run.json and", "checksums.json", "written and flushed"], ["step_100", "step_200.tmp, whole"], "step_100", BLUE),
        ("5  rename", ["step_200.tmp gets", "the name step_200,", "folder flushed"], ["step_100", "step_200"], "step_200", GREEN),
        ("6  tidy up", ["latest, best moved;", "older ones renamed", "to .tmp, removed"], ["step_100, step_200,", "no older (keep = 2)"],
         "step_200", GREEN),
    ]
    width, left = 148, 104
    picture = Picture(left + 6 * width + 8, 300, "What the commit of a checkpoint does, and what a kill at each point leaves")
    for label, y in (("what happens", 88), ("on the disk", 174), ("after a kill", 236)):
        picture.text(left - 10, y, label, anchor="end", size=12, fill=GREY)
    picture.text(left - 10, 252, "-r goes on from", anchor="end", size=12, fill=GREY)
    for i, (name, what, disk, resume, fill) in enumerate(columns):
        x = left + i * width
        middle = x + width / 2 - 4
        picture.text(middle, 28, name, bold=True, size=13)
        picture.box(x, 42, width - 8, 78, fill)
        picture.texts(middle, 68, what, size=12)
        if i:
            picture.arrow(x - 8, 81, x, 81)
        picture.box(x, 138, width - 8, 56, "#ffffff", dashed=True)
        picture.texts(middle, 161, disk, size=12, step=18)
        picture.text(middle, 244, resume, size=13, bold=True)
    x = left + 4 * width - 4
    picture.line(x, 12, x, 262, RED, 1.6, dashed=True)
    picture.text(x, 286, "the rename commits: before it the older checkpoint counts, after it the new one", size=12, fill=RED)
    return picture


def gpu_memory():
    """Bars of the plan's terms, in GiB, by sharding; printed by
         trireme -i input/llama3_8b.in -v grid.ranks=8 run.device=cuda model.recompute=full grid.sharding=...
    and, for the last part of each bar, by the same with model.recompute=none."""
    terms = [("parameters", BLUE), ("gradients", GREEN), ("moments", ORANGE), ("in transit", VIOLET), ("activations", YELLOW),
             ("vocabulary tile, libraries", PALE)]
    bars = [("none", "", [45, 30, 60, 0, 4.3, 1.4], 140), ("optimizer", "ZeRO-1", [19, 30, 7.5, 0, 4.3, 1.4], 62),
            ("gradients", "ZeRO-2", [19, 3.7, 7.5, 5.5, 4.3, 1.4], 41), ("parameters", "ZeRO-3", [5.6, 3.7, 7.5, 8.3, 4.3, 1.4], 31)]
    kept, scale, left, top = 31, 4.5, 118, 78  # GiB of activations that recomputation saves; pixels per GiB
    picture = Picture(960, 322, "Planned memory of a GPU: Llama 3 8B on 8 ranks, by grid.sharding")
    picture.text(left, 24, "Llama 3 8B, bf16, 8 data ranks, windows of 8,192 tokens: GiB on each GPU", bold=True, size=13, anchor="start")
    x = left
    for name, fill in [*terms, ("if nothing is recomputed", "#ffffff")]:
        picture.box(x, 38, 13, 13, fill, dashed=fill == "#ffffff")
        picture.text(x + 18, 49, name, size=12, anchor="start")
        x += 46 + 5.3 * len(name)
    for capacity, label in ((80, "card of 80 GiB"), (140, "H200, 140 GiB")):
        x = left + capacity * scale
        picture.line(x, top - 12, x, top + 200, RED, 1.6, dashed=True)
        picture.text(x, top + 216, label, size=12, fill=RED)
    for i, (name, zero, values, total) in enumerate(bars):
        y = top + i * 50
        picture.text(left - 10, y + (14 if zero else 22), name, anchor="end")
        if zero:
            picture.text(left - 10, y + 30, zero, anchor="end", size=12, fill=GREY)
        x = left
        for (_, fill), value in zip(terms, values):
            if value:
                picture.box(x, y, value * scale, 34, fill)
                if value * scale > 22:
                    picture.text(x + value * scale / 2, y + 22, f"{value:g}", size=12)
            x += value * scale
        picture.box(x, y, kept * scale, 34, "#ffffff", dashed=True)
        picture.text(x + kept * scale / 2, y + 22, f"{total} + {kept}", size=13, bold=True)
    picture.text(left, 316, "parameters: fp32 masters and a bf16 copy; in transit: gathered parameters, gradients under way; "
                 "tokens lie in the host's memory", size=12, anchor="start", fill=GREY)
    return picture


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent / "doc"
    for draw in (slurm_life, checkpoint_commit, gpu_memory):
        draw().write(folder / f"{draw.__name__}.svg")


if __name__ == "__main__":
    main()
