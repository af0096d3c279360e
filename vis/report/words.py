"""Numbers as a reader expects them: thousands, suffixes, bytes, clocks, shares."""
import math

DASH = "–"  # nothing is known


def known(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def whole(value):
    return f"{round(value):,}" if known(value) else DASH


def short(value, digits=3):
    """1.23 k, 45.6 M, 0.0012."""
    if not known(value):
        return DASH
    if value < 0:
        return "−" + short(-value, digits)
    if value == 0:
        return "0"
    for size, suffix in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * size:
            return f"{value / size:.{digits}g}{suffix}" if value < 999.5 * size else f"{value / size:.0f}{suffix}"
    return f"{value:.{digits}g}"


def with_unit(value, unit):
    """1.2 MJ, 350 W."""
    text = short(value)
    return text + unit if " " in text else f"{text} {unit}"


def printable(text):
    """Text of a path: bytes that are no UTF-8 become question marks."""
    return str(text).encode(errors="replace").decode()


def tick(value):
    """A tick's label: as short as its digits allow."""
    if value == 0:
        return "0"
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def loss(value):
    return f"{value:.4f}" if known(value) else DASH


def perplexity(value):
    """exp(loss), with as many digits as matter."""
    if not known(value):
        return DASH
    if value > 700:
        return "overflow"
    return power(math.exp(value))


def power(value):
    """A perplexity itself."""
    if not known(value):
        return DASH
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}" if value < 1e9 else f"{value:.2e}"


def share(value):
    if not known(value):
        return DASH
    return f"{100 * value:.1f}%"


def size(value):
    if not known(value):
        return DASH
    for name, unit in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= 0.9995 * unit:
            return f"{value / unit:.{0 if abs(value) >= 99.95 * unit else 1}f} {name}"
    return f"{value:.0f} B"


def seconds(value):
    """A duration: 0.123 s, 12.3 s, 2:35, 1:02:03, 3 d 04:05."""
    if not known(value):
        return DASH
    if value < 99.95:
        return f"{value:.3g} s"
    total = round(value)
    days, hours, minutes = total // 86400, total // 3600 % 24, total // 60 % 60
    if days:
        return f"{days} d {hours:02}:{minutes:02} h"
    if total >= 3600:
        return f"{hours}:{minutes:02}:{total % 60:02} h"
    return f"{minutes}:{total % 60:02} min"


def plural(count, noun, ending="s"):
    return f"{count:,} {noun}{'' if count == 1 else ending}"


class Table:
    """A table: headers, rows of texts; the first column is text, those in `text` too, others are numbers."""

    def __init__(self, headers, rows, text=(), caption=""):
        self.headers, self.rows, self.text, self.caption = headers, rows, set(text) | {0}, caption
