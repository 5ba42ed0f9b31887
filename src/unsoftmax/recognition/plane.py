"""Scores of one head on a random plane: six numbers, and sequences whose answers they foretell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.models.forward import softmax


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """The tokens ``origin + coordinates @ axes``, and the scores of one head among them.

    Attributes:
        origin: ``(width,)``.
        axes: ``(2, width)``; ``(1, width)`` where the width is one.
        scores: ``(axes, 1 + axes)``; ``x + u @ axes`` scores ``u @ scores @ [1, p]`` more than the last token x at coordinates p.
        errors: of the differences that were measured at the origin and one axis further, ``(axes, 1 + axes)``.
        values: one-token answers at the origin and at the end of each axis, ``(1 + axes, outputs)``, where they were asked.
    """

    origin: Floats
    axes: Floats
    scores: Floats
    errors: Floats
    values: Floats | None = None

    @property
    def unit(self) -> float:
        """Root mean square entry of an axis."""
        return float(np.sqrt((self.axes**2).mean()))

    @property
    def across(self) -> float:
        """How many axes reach from its origin across that of all tokens, and across natural ones, to where signs are others."""
        return 2 * (1.0 + float(np.sqrt((self.origin**2).mean()))) / self.unit

    @classmethod
    def measured(cls, origin: Floats, axes: Floats, z: Floats, errors: Floats, values: Floats) -> Plane:
        """From score differences ``z[j, i]`` of axis j, at the origin (i = 0) and at the end of axis i - 1."""
        scores = z.copy()
        scores[:, 1:] -= z[:, :1]
        return cls(origin, axes, scores, errors, values)

    def tokens(self, coordinates: Floats) -> Floats:
        """Tokens ``(…, width)`` at ``coordinates (…, axes)``."""
        tokens: Floats = self.origin + coordinates @ self.axes
        return tokens

    def slope(self, last: Floats) -> Floats:
        """Score difference per unit of each axis where the last token has coordinates ``last``."""
        slope: Floats = self.scores @ np.r_[1.0, last]
        return slope

    def centre(self, coordinates: Floats) -> Floats:
        """Coordinates of the weighted mean of tokens ``(length, axes)``, the last of which asks."""
        last = coordinates[-1]
        centre: Floats = softmax((coordinates - last) @ self.slope(last)) @ coordinates
        return centre

    def centres(self, coordinates: Floats, *, causal: bool) -> tuple[Floats, Floats]:
        """For each token that asks: the centre of all it sees ``(length, axes)``, and the largest difference of their scores."""
        slopes = self.scores[:, 0] + coordinates @ self.scores[:, 1:].T
        scores = slopes @ coordinates.T
        seen = np.tri(len(scores), dtype=bool) if causal else np.ones_like(scores, dtype=bool)
        steep = np.where(seen, np.abs(scores - np.diag(scores)[:, None]), 0.0).max(axis=1)
        return softmax(np.where(seen, scores, -np.inf)) @ coordinates, steep

    def uncertainty(self, coordinates: Floats) -> Floats:
        """How far the errors of the scores move the centre of the last token, per axis."""
        return self._moved(lambda plane: plane.centre(coordinates))

    def uncertainties(self, coordinates: Floats, *, causal: bool) -> Floats:
        """The same of the centres of all tokens ``(length, axes)``."""
        return self._moved(lambda plane: plane.centres(coordinates, causal=causal)[0])

    def _moved(self, told: Callable[[Plane], Floats]) -> Floats:
        here = told(self)
        moved = np.zeros_like(here)  # squares: the errors are independent
        for j in range(len(self.axes)):
            for i in range(self.errors.shape[1]):
                shift = np.zeros_like(self.scores)
                shift[j, i] = self.errors[j, i]
                if i == 0:
                    shift[j, 1:] -= self.errors[j, 0]
                moved += (told(Plane(self.origin, self.axes, self.scores + shift, self.errors)) - here) ** 2
        return np.asarray(np.sqrt(moved))


def random_coordinates(rng: np.random.Generator, axes: int, length: int) -> Floats:
    """Coordinates of one sequence, about one unit wide, the last token nearer to the origin."""
    coordinates = rng.uniform(-1.5, 1.5, size=(length, axes))
    coordinates[-1] = rng.uniform(-1.0, 1.0, size=axes)
    return coordinates
