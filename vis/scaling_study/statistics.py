"""Intervals of confidence of 95%, as src/tasks/scaling/rows.cpp computes them."""
import math

CONFIDENCE = 0.95
PIECES, BISECTIONS = 1000, 60


def _angles(degrees, end):
    """Integral of cos^(degrees - 1) from 0 to `end` (Simpson): Student's t with t = sqrt(degrees) tan(angle)."""
    step = end / PIECES
    total = 1 + math.cos(end) ** (degrees - 1)
    total += sum((4 if i % 2 else 2) * math.cos(i * step) ** (degrees - 1) for i in range(1, PIECES))
    return total * step / 3


def student_quantile(degrees):
    """Quantile 0.975 of Student's t distribution."""
    half = math.sqrt(math.pi) / 2 * math.exp(math.lgamma(degrees / 2) - math.lgamma((degrees + 1) / 2))
    low, high = 0.0, math.pi / 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _angles(degrees, middle) < CONFIDENCE * half:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def mean(values):
    return sum(values) / len(values)


def _variance(values):
    centre = mean(values)
    return sum((value - centre) ** 2 for value in values) / (len(values) - 1)


def paired_factor(numerators, denominators):
    """exp(t s / sqrt(n)) of the logarithms of ratios measured in pairs; None for fewer than two pairs."""
    logarithms = [math.log(a / b) for a, b in zip(numerators, denominators)]
    if len(logarithms) < 2:
        return None
    count = len(logarithms)
    return math.exp(student_quantile(count - 1) * math.sqrt(_variance(logarithms) / count))


def separate_factor(numerators, denominators):
    """The same of samples that have nothing in common (Welch 1947); None if either has fewer than two values."""
    if len(numerators) < 2 or len(denominators) < 2:
        return None
    parts = [(_variance([math.log(value) for value in sample]) / len(sample), len(sample) - 1)
             for sample in (numerators, denominators)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return 1.0
    degrees = total ** 2 / sum(part ** 2 / count for part, count in parts)
    return math.exp(student_quantile(degrees) * math.sqrt(total))
