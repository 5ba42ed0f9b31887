"""A network of squared ReLU neurons while it is being learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.models import Floats

Mask = NDArray[np.bool_]


class Squares(Curves):
    """Squared ReLU neurons; of each row the largest number stands still in a fit, for its scale does not show."""

    def sizes(self, points: Floats) -> Floats:
        """Size of the numbers that such a target adds up at ``points``, ``(n,)``."""
        lengths = np.linalg.norm(points, axis=1)[:, None] / np.sqrt(points.shape[1])
        inner = lengths * np.linalg.norm(self.normal, axis=1) + np.abs(self.shift)
        rest = lengths[:, 0] * np.linalg.norm(self.linear) + np.abs(self.constant).max(initial=0.0)
        return np.asarray(inner**2 @ np.linalg.norm(self.out, axis=1) + rest)

    def free(self, linear: bool) -> Mask:
        """Which of all parameters a fit moves."""
        normal = np.ones(self.normal.shape, dtype=bool)
        normal[np.arange(self.neurons), np.argmax(np.abs(self.normal), axis=1)] = False
        rest = self.shift.size + self.out.size + self.constant.size
        return np.concatenate([normal.ravel(), np.ones(rest, dtype=bool), np.full(self.linear.size, linear)])

    def derivatives(self, points: Floats, weights: Floats, free: Mask) -> Floats:  # type: ignore[override]
        """Derivatives of the weighted answers in the free parameters, ``(outputs * n, free)``."""
        return np.asarray(Curves.derivatives(self, points, weights, True)[:, free])

    def moved_by(self, step: Floats, free: Mask) -> Squares:  # type: ignore[override]
        """The function with its free parameters changed."""
        whole = np.zeros(len(free))
        whole[free] = step
        moved = Curves.moved_by(self, whole, True)
        assert isinstance(moved, Squares)
        return moved

    def of_unit_rows(self) -> Squares:
        """The same function, each row of length one."""
        lengths = np.linalg.norm(self.normal, axis=1)
        return replace(
            self, out=self.out * lengths[:, None] ** 2, normal=self.normal / lengths[:, None], shift=self.shift / lengths
        )
