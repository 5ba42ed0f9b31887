"""Lengths of the last token from which a limit is extrapolated."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True)
class Nodes:
    """Where along the scale of the last token the limit is extrapolated from: ``t = j / length``, ``j = 1 .. count``.

    The error is the larger of ``2^count * length`` roundings and ``length^-count``.
    """

    count: int
    length: float

    @property
    def weights(self) -> Floats:
        """Of the values at the nodes in that of the polynomial through them at zero."""
        return np.array([(-1.0) ** (j + 1) * comb(self.count, j) for j in range(1, self.count + 1)])
