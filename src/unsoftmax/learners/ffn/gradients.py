"""Derivatives inside the linear pieces of a function, one question per direction and a check per piece."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats

Indices = NDArray[np.intp]
Group = tuple[int, Indices]  # a cell, and some of its directions
Combination = tuple[Floats, Floats]  # amounts of directions, and what the answer has beyond that of their slopes


class CrowdedCellError(Exception):
    """A cell that bends in every direction at every step tried: the bends along the line are not what was thought."""


class CellSlopes:
    """Slopes along ``directions`` at ``bases``, from one-sided differences.

    One random combination of the directions is asked as well; where it disagrees, some step (or the check itself) left the linear
    piece. A second combination tells which step it was, and the right slope; where more than one went wrong, groups of directions
    are halved until each culprit is repeated with a shorter step.

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
        unknown: list[Group] = []
        bad = self._unmended(everything)
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

    def _unmended(self, cells: list[Group]) -> list[Group]:
        """Cells that more than one step left, or a check; where it was one step, its slope is set right."""
        first = self._combined(cells)
        wrong = [at for at, (_, off) in enumerate(first) if np.linalg.norm(off) > self._limit(cells[at])]
        second = self._combined([cells[at] for at in wrong])
        pairs = zip(wrong, second, strict=True)
        return [cells[at] for at, again in pairs if not self._one_explains(cells[at], first[at], again)]

    def _one_explains(self, group: Group, first: Combination, second: Combination) -> bool:
        """Whether one wrong slope explains two combinations, and no other one does; if so it is set right."""
        cell, directions = group
        (once, off), (twice, off_again) = first, second
        wanted = off / once[:, None]
        misfit = np.linalg.norm(twice[:, None] * wanted - off_again, axis=1) / (1 + np.abs(twice / once))
        best = int(np.argmin(misfit))
        others = np.delete(misfit, best)
        limit = self._limit(group)
        if misfit[best] > limit or others.min(initial=np.inf) < RELU.loud * limit:
            return False
        self.slopes[cell, directions[best]] += wanted[best]
        return True

    def _limit(self, group: Group) -> float:
        return float(3 * RELU.trust * self.noise[group[0]])

    def _measure(self, singles: list[tuple[int, int]]) -> None:
        if not singles:
            return
        k, i = np.array(singles).T
        lengths = self.steps[k, i]
        answers = self.ask(self.bases[k] + lengths[:, None] * self.directions[i], k)
        self.slopes[k, i] = (answers - self.values[k]) / lengths[:, None]

    def _check(self, groups: list[Group]) -> list[bool]:
        """Whether a random combination of each group's steps answers as its slopes predict."""
        told = zip(groups, self._combined(groups), strict=True)
        return [bool(np.linalg.norm(off) <= self._limit(group)) for group, (_, off) in told]

    def _combined(self, groups: list[Group]) -> list[Combination]:
        """A random combination of each group's steps, and what its answer has beyond that of the slopes ``(outputs,)``."""
        if not groups:
            return []
        points, predicted, amounts = [], [], []
        for k, group in groups:
            # uneven amounts: with equal ones a group that crossed one bend altogether can agree by its signs alone
            shares = self.rng.choice([-1.0, 1.0], size=len(group)) * self.rng.uniform(0.5, 1.5, size=len(group))
            amounts.append(shares * self.steps[k, group] / np.sqrt(len(group)))
            if len(group) == 1:  # half the same step: the other side of the base says nothing about this one
                amounts[-1] = self.steps[k, group] / 2
            points.append(self.bases[k] + amounts[-1] @ self.directions[group])
            predicted.append(self.values[k] + amounts[-1] @ self.slopes[k, group])
        answers = self.ask(np.array(points), np.array([k for k, _ in groups]))
        return list(zip(amounts, answers - np.array(predicted), strict=True))
