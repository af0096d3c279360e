"""matplotlib's SVG for a page: colours become CSS variables, identifiers unique, numbers short, text real text."""
import io
import re

import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure  # noqa: E402

# Colours that stand for CSS variables until the picture is text.
INK, SOFT, GRID, PAPER = "#010101", "#010102", "#010103", "#010104"
SERIES = [f"#0102{number:02x}" for number in range(8)]
PARTS = [f"#0103{number:02x}" for number in range(17)]
VARIABLES = {INK: "--ink", SOFT: "--soft", GRID: "--grid", PAPER: "--paper",
             **{colour: f"--series-{number}" for number, colour in enumerate(SERIES)},
             **{colour: f"--part-{number}" for number, colour in enumerate(PARTS)}}

STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "trireme", "text.parse_math": False, "font.family": "DejaVu Sans",
    "font.size": 12, "axes.labelsize": 12, "xtick.labelsize": 11.5, "ytick.labelsize": 11.5,
    "axes.edgecolor": SOFT, "axes.labelcolor": INK, "text.color": INK, "xtick.color": SOFT, "ytick.color": SOFT,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": GRID, "grid.linewidth": 0.8, "axes.axisbelow": True,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "path.simplify": False,
    "axes.formatter.useoffset": False, "xtick.major.pad": 7,
}
# Settings that this matplotlib knows: text.parse_math is there from 3.6 on.
STYLE = {name: value for name, value in STYLE.items() if name in matplotlib.rcParams}
POINTS_AN_INCH = 72


def plain(text):
    """Text of others for a figure: a dollar is no formula."""
    return text if "text.parse_math" in STYLE else text.replace("$", r"\$")


def new_figure(width, height):
    """A figure of so many pixels; to be made and saved within matplotlib.rc_context(STYLE)."""
    return Figure(figsize=(width / POINTS_AN_INCH, height / POINTS_AN_INCH), dpi=POINTS_AN_INCH, layout="constrained")


def _shorten_path(found):
    data = re.sub(r"-?\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}".rstrip("0").rstrip("."), found[2])
    return found[1] + re.sub(r"\s+", " ", data).strip() + '"'


def to_inline(figure, name):
    """The figure as an <svg> element for a page, its identifiers starting with `name`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = text.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
    text = re.sub(r"(\s(?:id)=\")", rf"\g<1>{name}-", text)
    text = re.sub(r'((?:xlink:)?href="#)', rf"\g<1>{name}-", text)
    text = text.replace("url(#", f"url(#{name}-")
    text = re.sub(r'(\sd=")([^"]*)"', _shorten_path, text)
    text = re.sub(r"#010[1-3][0-9a-f]{2}", lambda c: f"var({VARIABLES[c[0]]})" if c[0] in VARIABLES else c[0], text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    # Groups that matplotlib wraps around each element.
    text = re.sub(rf'<g id="{name}-(?:patch|line2d|text|matplotlib)[^"]*">', "<g>", text)
    return re.sub(r"\n\s*", "\n", text)
