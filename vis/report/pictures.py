"""Parts of a figure of the page, and its drawing at two widths: 12-pixel text stays 12 pixels on a small screen."""
import matplotlib

from . import svg

WIDE, NARROW = 960, 366  # pixels
BINS = {WIDE: 700, NARROW: 260}


def thin_bins(svg_width=0):
    return BINS[NARROW] if svg_width == NARROW else BINS[WIDE]


class Legend:
    """An entry of the legend: a CSS variable, a text, and solid, dashed, dotted, dashdot, diamond, area or outline."""

    def __init__(self, variable, text, mark):
        self.variable, self.text, self.mark = variable, text, mark


class Picture:
    """A figure with its words: `alt` says in text what it shows, `table` holds its numbers."""

    def __init__(self, name, title, alt, caption, legend, table, wide, narrow):
        self.name, self.title, self.alt, self.caption = name, title, alt, caption
        self.legend, self.table, self.wide, self.narrow = legend, table, wide, narrow


def render(name, draw, height, narrow_height=None):
    """The two SVGs of draw(figure, width)."""
    texts = []
    for width, size in ((WIDE, height), (NARROW, narrow_height or max(230, int(0.75 * height)))):
        with matplotlib.rc_context(svg.STYLE):
            figure = svg.new_figure(width, size)
            draw(figure, width)
            texts.append(svg.to_inline(figure, f"{name}-{'narrow' if width == NARROW else 'wide'}"))
    return texts
