"""Asking through a known network: which point it was shown, from its answer."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Floats
from unsoftmax.oracles.base import LastPosition, Oracle, Wrapper


class Steep(Protocol):
    """A network with derivatives in its points."""

    def __call__(self, points: Floats) -> Floats:
        """Values ``(n, outputs)``."""

    def gradients(self, points: Floats) -> Floats:
        """Derivatives ``(n, outputs, width)``."""

    def sizes(self, points: Floats) -> Floats:
        """Size of the numbers added up, ``(n,)``."""


class Through(Wrapper):
    """Answers with the point ``(n, width)`` that the network behind was shown, instead of with what the network makes of it.

    From at least as many outputs as the width. Each answer is inverted by damped Gauss–Newton from the tokens, their mean and
    random combinations of them, until one start explains it to rounding. After ``most`` questions none is asked any more.
    """

    def __init__(self, inner: Oracle, network: Steep, most: int, rng: np.random.Generator) -> None:
        super().__init__(LastPosition(inner))
        self.network, self.most, self.rng = network, most, rng

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask and invert.

        Raises:
            NotInFamilyError: an answer that no start explains, or too many questions.
        """
        X = np.asarray(sequences, dtype=np.float64)
        self.most -= len(X)
        if self.most < 0:
            raise NotInFamilyError("What stands in front of the network takes more questions than plain heads do.")
        answers = self.inner(X).reshape(len(X), -1)
        shown, todo = np.zeros((len(X), self.width)), np.arange(len(X))
        for attempt in range(BENDS.inversions):
            points, explained = inverted(self.network, answers[todo], self._start(X[todo], attempt))
            shown[todo[explained]] = points[explained]
            todo = todo[~explained]
            if not len(todo):
                return shown
        raise NotInFamilyError(
            f"{len(todo)} of {len(X)} answers are not those of the network learned from one token to any point found by "
            f"{BENDS.inversions} searches: what stands in front of it cannot be asked through it."
        )

    def _start(self, X: Floats, attempt: int) -> Floats:
        """Where to begin: ``(n, width)``."""
        count, tokens, width = X.shape
        if attempt < min(tokens, 4):
            return X[:, -1 - attempt]
        if attempt == min(tokens, 4):
            return np.asarray(X.mean(axis=1))
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        mixed = np.einsum("nt,ntw->nw", self.rng.normal(size=(count, tokens)) / np.sqrt(tokens), X)
        return np.asarray(mixed + 0.5 * longest[:, None] * self.rng.normal(size=(count, width)))


def loss(network: Steep, width: int, lengths: tuple[float, ...], rng: np.random.Generator) -> float:
    """Largest relative error of points of such lengths that are found again from what the network makes of them; no question.

    Infinite where another point gives the same values, or none was found.
    """
    worst = 0.0
    for length in lengths:
        truth = rng.normal(size=(BENDS.inversion_points, width)) * (length / np.sqrt(width))
        values, found = network(truth), np.zeros(len(truth), dtype=np.bool_)
        for _ in range(BENDS.inversions):
            points, explained = inverted(network, values, rng.normal(size=truth.shape) * (length / np.sqrt(width)))
            off = np.linalg.norm(points - truth, axis=1) / np.linalg.norm(truth, axis=1)
            worst, found = max(worst, float(off[explained].max(initial=0.0))), found | explained
            if worst > BENDS.through_most or found.all():
                break
        if worst > BENDS.through_most or not found.all():
            return np.inf
    return worst


def inverted(network: Steep, answers: Floats, points: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Points ``(n, width)`` at which the network gives ``answers (n, outputs)``, from starts, and which of them do to rounding."""
    points = points.copy()
    gaps = answers - network(points)
    sizes, damping = np.linalg.norm(gaps, axis=1), np.zeros(len(points))
    for _ in range(BENDS.inversion_rounds):
        slopes = network.gradients(points)
        ridge = (BENDS.inversion_ridge + damping) * np.einsum("now,now->n", slopes, slopes)
        square = np.einsum("nov,now->nvw", slopes, slopes) + np.maximum(ridge, 1e-300)[:, None, None] * np.eye(points.shape[1])
        trial = points + np.linalg.solve(square, np.einsum("now,no->nw", slopes, gaps)[..., None])[..., 0]
        after = answers - network(trial)
        size = np.linalg.norm(after, axis=1)
        better = size < sizes
        points[better], gaps[better], sizes[better] = trial[better], after[better], size[better]
        damping = np.where(better, np.where(damping > 1e-8, damping / 5, 0.0), np.maximum(5 * damping, 1e-4))
    explained = sizes <= BENDS.inversion * network.sizes(points) * np.sqrt(answers.shape[1])
    return points, explained
