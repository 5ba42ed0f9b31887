"""One-token answers from near and from very far, each with the error to expect of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from unsoftmax.learners.smooth.fitting import fitted
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Floats
from unsoftmax.results import Floor

Network = TypeVar("Network", bound="Neurons")


class Neurons(Protocol):
    """A network of neurons that bend at hyperplanes; ``free`` says, in its own way, which of its parameters a fit moves."""

    @property
    def normal(self) -> Floats:
        """Rows ``(neurons, width)`` of the hyperplanes."""

    def before(self, points: Floats) -> Floats:
        """Pre-activations ``(n, neurons)``."""

    def __call__(self, points: Floats) -> Floats:
        """Values ``(n, outputs)``."""

    def sizes(self, points: Floats) -> Floats:
        """Size of the numbers that such a target adds up, ``(n,)``."""

    def derivatives(self, points: Floats, weights: Floats, free: Any) -> Floats:
        """Derivatives of the weighted answers in the free parameters, ``(outputs * n, free)``."""

    def moved_by(self, step: Floats, free: Any) -> Any:
        """The network with its free parameters changed."""


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Points ``(n, width)`` and their answers ``(n, outputs)``, as coarse as ``floor`` says."""

    points: Floats
    answers: Floats
    floor: Floor

    def weights(self, network: Neurons, points: Floats) -> Floats:
        """One over the error to expect of each answer of such a network, ``(n,)``."""
        return np.asarray(1 / (self.floor.absolute + self.floor.relative * network.sizes(points)))

    def clear(self, network: Neurons) -> Answers:
        """Those that do not sit at a corner of the network seen from very far."""
        before = np.abs(network.before(self.points))
        scale = np.linalg.norm(network.normal, axis=1) * np.linalg.norm(self.points, axis=1, keepdims=True)
        pattern = max(BENDS.pattern, float(np.sqrt(self.floor.relative)))  # coarse answers tell directions less well
        kept = ~np.any((before < pattern * scale) & (scale * pattern > BENDS.far), axis=1)
        return replace(self, points=self.points[kept], answers=self.answers[kept])

    def fit(self, network: Network, free: Any) -> tuple[Network, float]:
        """The free parameters fitted to all answers, and the misfit in expected errors."""
        own = self.clear(network)
        weights = own.weights(network, own.points)
        return fitted(
            network,
            lambda model: np.asarray(((own.answers - model(own.points)) * weights[:, None]).T.ravel()),
            lambda model: model.derivatives(own.points, weights, free),
            lambda model, step: model.moved_by(step, free),
        )
