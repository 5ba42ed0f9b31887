"""What labels cost, and what they must cost at least: one bit each."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.labels.settings import BOUNDARY


def bits(relative: float) -> float:
    """Bits that tell a normal number to within ``relative`` of its standard deviation (rms error): entropy less that of the error.

    >>> round(bits(1e-12), 1)
    39.9
    """
    return float(-np.log2(relative))


def capacity(flip: float) -> float:
    """Bits that one label carries, if ``flip`` of them are wrong.

    >>> capacity(0.0), round(capacity(0.05), 2)
    (1.0, 0.71)
    """
    return 1.0 if flip <= 0 else float(1 + flip * np.log2(flip) + (1 - flip) * np.log2(1 - flip))


def parameters(width: int, rank: int) -> int:
    """What is free: W of this rank, c, and v over the threshold."""
    return rank * (2 * width - rank) + 2 * width


def bound(width: int, rank: int, relative: float, flip: float = 0.0) -> float:
    """Labels without which no scheme tells all parameters, normal numbers beforehand, to ``relative`` of their size."""
    return parameters(width, rank) * bits(relative) / capacity(flip)


def bill(width: int, rank: int | None, accuracy: float) -> tuple[tuple[str, tuple[int, int], tuple[int, int]], ...]:
    """Labels and tokens by phase, each from least to most."""
    lines = width + max(4, width // 2)
    values = lines * 11 + 10 * width, lines * 18 + 26 * width
    low_rank = rank if rank is not None and rank < width else width
    products = low_rank * (2 * width - low_rank) + width
    each = bits(accuracy) + BOUNDARY.overhead
    scores = int((products + 0.9 * width) * (each - 3)), int((products + 1.2 * width) * (each + 6) + 400)
    phases = (
        ("first labels", (BOUNDARY.first, BOUNDARY.first + BOUNDARY.flips)),
        ("values", values),
        ("scale", (64, 160 + 24 * width)),
        ("scores", scores),
        ("boundary check", (24, 96)),
    )
    return tuple((name, (low, high), (low, 7 * high if name == "boundary check" else 2 * high)) for name, (low, high) in phases)
