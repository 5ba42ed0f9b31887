"""How many queries a wanted accuracy takes, before anything is asked and again after a pilot."""

from __future__ import annotations

import math

import numpy as np

from unsoftmax.learners.noisy.design import frames, recentred, tilted_keys
from unsoftmax.learners.noisy.fit import Head, normal_equations
from unsoftmax.learners.noisy.probes import Probes
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.models import Floats


def queries_for(accuracy: float, *, noise: float, max_norm: float, width: int, value_norm: float | None = None) -> int:
    """Queries for an rms error ``accuracy`` per entry of W at this noise and token length.

    A balanced question tells a score to ``noise / (max_norm |v| / sqrt 2)``, and an entry of W is one of ``2 width^2`` directions
    in it; hence ``rms = overhead * 2 width noise / (max_norm^3 |v| sqrt(queries))``. Rounding to a step is noise of ``0.29 step``.

    Args:
        accuracy: rms error wanted per entry of W.
        noise: standard deviation of an answer's error.
        max_norm: longest token allowed.
        width: length of a token vector.
        value_norm: norm of v; by default that of standard normal values, ``sqrt(width)``.

    >>> queries_for(1e-5, noise=1e-3, max_norm=3.0, width=16)
    1976
    """
    if not (accuracy > 0 and noise >= 0 and max_norm > 0 and width >= 1):
        raise ValueError(f"accuracy={accuracy}, noise={noise}, max_norm={max_norm}, width={width}: all must be positive.")
    size = math.sqrt(width) if value_norm is None else value_norm
    root = NOISY.overhead * 2 * width / size * noise / accuracy / max_norm / max_norm / max_norm  # one by one: products may vanish
    wanted = math.ceil(min(root, math.sqrt(NOISY.most_queries)) ** 2)
    return min(NOISY.most_queries, max(NOISY.fewest_per_parameter * (width**2 + width) + 4, wanted))


def ideal_error(queries: int, *, noise: float, max_norm: float, width: int, value_norm: float) -> float:
    """The rms error of W that ``queries`` balanced questions would leave if none were spent on anything else."""
    return 2 * width * noise / (max_norm**3 * value_norm * math.sqrt(queries))


class Forecast:
    """The error that more questions would leave, from a fitted pilot; asks nothing."""

    def __init__(self, head: Head, probes: Probes, noise: float, norm: float, copies: int, rng: np.random.Generator) -> None:
        self.width = head.width
        self.noise = noise
        self.asked = len(probes)
        self.now, _ = normal_equations(head, probes, np.ones(self.asked))
        # the inverse of a sampled matrix is too large by count / (count - parameters): many samples, and the rest corrected
        count = (30 if head.width <= 16 else 8) * head.width**2 + 8 * len(self.now)
        keys, last = tilted_keys(rng, count, head.v, norm), frames(rng, count, head.width, norm)
        length, plus = recentred(head, keys, last, copies)
        sample = Probes(keys, plus, copies - plus, last * length[:, None], np.zeros(count))
        matrix, _ = normal_equations(head, sample, np.ones(count))
        self.per_query: Floats = matrix / count * (1 - len(matrix) / count)

    def error(self, queries: int) -> float:
        """Expected rms error of W after ``queries`` in all, those asked already included."""
        matrix = self.now + max(0, queries - self.asked) * self.per_query
        entries = self.width**2
        variance = np.diag(np.linalg.inv(matrix + 1e-14 * np.trace(matrix) / len(matrix) * np.eye(len(matrix))))[:entries]
        return self.noise * math.sqrt(float(np.mean(np.abs(variance))))

    def queries(self, accuracy: float) -> int:
        """Fewest queries in all that reach ``accuracy``."""
        low, high = self.asked, self.asked
        while self.error(high) > accuracy and high < NOISY.most_queries:
            low, high = high, 2 * high
        while high - low > max(1, low // 200):
            middle = (low + high) // 2
            low, high = (middle, high) if self.error(middle) > accuracy else (low, middle)
        return high


def shares(total: int, width: int) -> tuple[int, int, int]:
    """One-token questions, pilot, recentred ones."""
    values = max(total // 7, width + 2)
    pilot = min(total // 3, int(NOISY.plan_pilot * (width**2 + width)))
    return values, pilot, total - values - pilot
