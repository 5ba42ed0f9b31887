"""One-token answers from near and from very far, each with the error to expect of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.fitting import fitted
from unsoftmax.models import Floats
from unsoftmax.results import Floor

PATTERN = 1e-7  # relative distance from a hyperplane within which an answer from very far is left out of a fit
FAR = 1e3  # pre-activations beyond which an answer is one from very far: there a neuron is a corner, and a corner has no derivative


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Points ``(n, width)``, their answers ``(n, outputs)``, and the sizes of the numbers inside the target."""

    points: Floats
    answers: Floats
    floor: Floor
    offset: float = 0.0
    slope: float = 0.0

    def weights(self, points: Floats) -> Floats:
        """One over the error to expect of each answer, ``(n,)``."""
        sizes = self.offset + self.slope * np.linalg.norm(points, axis=1)
        return np.asarray(1 / (self.floor.absolute + self.floor.relative * sizes))

    def clear(self, curves: Curves) -> Answers:
        """Those that do not sit at a corner of ``curves`` seen from very far; sized like it."""
        before = np.abs(curves.before(self.points))
        scale = np.linalg.norm(curves.normal, axis=1) * np.linalg.norm(self.points, axis=1, keepdims=True)
        kept = ~np.any((before < PATTERN * scale) & (scale * PATTERN > FAR), axis=1)
        offset, slope = curves.sizes()
        return replace(self, points=self.points[kept], answers=self.answers[kept], offset=offset, slope=slope)

    def fit(self, curves: Curves, *, linear: bool) -> tuple[Curves, float]:
        """All parameters fitted to all answers, and the misfit in expected errors; ``linear``: the linear part too."""
        own = self.clear(curves)
        weights = own.weights(own.points)
        return fitted(
            curves,
            lambda model: np.asarray(((own.answers - model(own.points)) * weights[:, None]).T.ravel()),
            lambda model: model.derivatives(own.points, weights, linear=linear),
            lambda model, step: model.moved_by(step, linear=linear),
        )
