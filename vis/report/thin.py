"""Curves of any length at the width of a screen: of each bin of steps its extremes, in their order, and its mean."""
import numpy


class Curve:
    """x, y: the line to draw; mean_x, mean_y: the mean of each bin, None where every point is drawn."""

    def __init__(self, x, y, mean_x=None, mean_y=None):
        self.x, self.y, self.mean_x, self.mean_y = x, y, mean_x, mean_y


def bin_starts(x, bins):
    """Indices at which the bins of equal width in x begin that hold a point; x ascends."""
    edges = numpy.linspace(x[0], x[-1], bins + 1)[:-1]
    return numpy.unique(numpy.searchsorted(x, edges, side="left"))


def bin_means(x, y, starts, weights=None):
    """Mean of y in each bin over its finite values; NaN in a bin without one."""
    finite = numpy.isfinite(y)
    weight = finite.astype(float) if weights is None else numpy.where(finite, weights, 0.0)
    count = numpy.add.reduceat(weight, starts)
    total = numpy.add.reduceat(numpy.where(finite, y, 0.0) * weight, starts)
    with numpy.errstate(invalid="ignore", divide="ignore"):
        return numpy.where(count > 0, total / count, numpy.nan)


def thin(x, y, bins):
    """A Curve of at most 2 bins + 2 points; smallest and largest value of every bin are kept, at their own x."""
    if len(x) <= 2 * bins:
        return Curve(x, y)
    starts = bin_starts(x, bins)
    ends = numpy.append(starts[1:], len(x))
    finite = numpy.isfinite(y)
    low = numpy.where(finite, y, numpy.inf)
    high = numpy.where(finite, y, -numpy.inf)
    picked = []
    for start, end in zip(starts, ends):
        if not finite[start:end].any():
            picked.append(start)  # stays a gap
            continue
        picked.append(start + int(numpy.argmin(low[start:end])))
        picked.append(start + int(numpy.argmax(high[start:end])))
    picked = numpy.unique(numpy.array([0, *picked, len(x) - 1]))
    centre = (x[starts] + x[ends - 1]) / 2
    return Curve(x[picked], y[picked], centre, bin_means(x, y, starts))
