"""Derivatives inside the linear pieces of a function, one question per direction and a check per piece."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats

Indices = NDArray[np.intp]


class CrowdedCellError(Exception):
    """A cell that bends in every direction at every step tried: the bends along the line are not what was thought."""


class CellSlopes:
    """Slopes along ``directions`` at ``bases``, from one-sided differences.

    One random combination of the directions is asked as well; where it disagrees, some step (or the check itself) left the linear
    piece, and groups of directions are halved until the culprit is repeated with a shorter step.

    Args:
        ask: points ``(n, width)`` to answers ``(n, outputs)``; ``cells (n,)`` tells in which cell each point is meant to lie.
        bases: points ``(cells, width)`` inside the pieces, ``values (cells, outputs)`` there.
        lengths: step length ``(cells,)``.
        directions: orthonormal rows ``(directions, width)``.
        noise: error to expect of an answer in each cell ``(cells,)``.
        partial: leave the slopes of a cell whose steps were shortened twice in vain as not a number; coarse answers show nothing of
            much shorter steps, and the other cells may be of use without it.
    """

    def __init__(
        self,
        ask: Callable[[Floats, Floats], Floats],
        bases: Floats,
        values: Floats,
        lengths: Floats,
        directions: Floats,
        noise: Floats,
        rng: np.random.Generator,
        *,
        partial: bool = False,
    ) -> None:
        self.ask, self.bases, self.values, self.directions, self.noise, self.rng = ask, bases, values, directions, noise, rng
        self.least, self.partial = 0.9 * RELU.shrink**-2 * lengths, partial
        self.steps = np.repeat(lengths[:, None], len(directions), axis=1)
        self.slopes = np.zeros((len(bases), len(directions), values.shape[1]))

    def run(self) -> Floats:
        """Slopes ``(cells, directions, outputs)``."""
        cells, count = self.steps.shape
        if count == 0:
            return self.slopes
        everything = [(k, np.arange(count)) for k in range(cells)]
        singles = [(k, i) for k in range(cells) for i in range(count)]
        self._measure(singles)
        unknown: list[tuple[int, Indices]] = everything
        bad: list[tuple[int, Indices]] = []
        for _ in range(RELU.tries):
            failed = [group for group, right in zip(unknown, self._check(unknown), strict=True) if not right]
            bad += failed
            if not bad:
                return self.slopes
            again = [(k, int(group[0])) for k, group in bad if len(group) == 1]
            for k, i in again:
                self.steps[k, i] /= RELU.shrink
            self._measure(again)
            unknown = [(k, np.array([i])) for k, i in again]
            halves = [(k, group[: len(group) // 2], group[len(group) // 2 :]) for k, group in bad if len(group) > 1]
            bad = []
            for (k, first, second), right in zip(halves, self._check([(k, first) for k, first, _ in halves]), strict=True):
                if right:
                    bad.append((k, second))
                else:
                    bad.append((k, first))
                    unknown.append((k, second))
            if self.partial:
                hopeless = {k for k, _ in [*bad, *unknown] if self.steps[k].min() < self.least[k]}
                self.slopes[list(hopeless)] = np.nan
                bad = [(k, group) for k, group in bad if k not in hopeless]
                unknown = [(k, group) for k, group in unknown if k not in hopeless]
            elif self.steps.min() < RELU.shrink**-6 * self.steps.max(axis=1).min():
                break
        raise CrowdedCellError(f"{len(bad)} groups of steps still disagree with their check: a cell is narrower than thought.")

    def _measure(self, singles: list[tuple[int, int]]) -> None:
        if not singles:
            return
        k, i = np.array(singles).T
        lengths = self.steps[k, i]
        answers = self.ask(self.bases[k] + lengths[:, None] * self.directions[i], k)
        self.slopes[k, i] = (answers - self.values[k]) / lengths[:, None]

    def _check(self, groups: list[tuple[int, Indices]]) -> list[bool]:
        """Whether a random combination of each group's steps answers as its slopes predict."""
        if not groups:
            return []
        points, predicted, cells = [], [], []
        for k, group in groups:
            # uneven amounts: with equal ones a group that crossed one bend altogether can agree by its signs alone
            shares = self.rng.choice([-1.0, 1.0], size=len(group)) * self.rng.uniform(0.5, 1.5, size=len(group))
            amounts = shares * self.steps[k, group] / np.sqrt(len(group))
            if len(group) == 1:  # half the same step: the other side of the base says nothing about this one
                amounts = self.steps[k, group] / 2
            points.append(self.bases[k] + amounts @ self.directions[group])
            predicted.append(self.values[k] + amounts @ self.slopes[k, group])
            cells.append(k)
        where = np.array(cells)
        deviation = np.linalg.norm(self.ask(np.array(points), where) - np.array(predicted), axis=1)
        return [bool(right) for right in deviation <= 3 * RELU.trust * self.noise[where]]
