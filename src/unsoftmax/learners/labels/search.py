"""Where on each of many paths the label changes: one question per path and round, all paths side by side."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from unsoftmax.models import Floats

Flags = NDArray[np.bool_]
LINEAR = 0.25  # brackets narrower than this share of the prior's standard deviation are halved in the middle
LOST = 2.0**-7  # prior mass left on one side of a bracket that still has no other end
DEEPEST = 1e-300


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """What is known of a path's boundary beforehand: normal around 0 with ``sigma``, or uniform between ``low`` and ``high``."""

    count: int
    sigma: float | None = None
    low: Floats = field(default_factory=lambda: np.empty(0))
    high: Floats = field(default_factory=lambda: np.empty(0))

    def place(self, share: Floats, rows: NDArray[np.int_] | slice = slice(None)) -> Floats:
        """The place below which ``share`` of the prior lies."""
        if self.sigma is not None:
            found: Floats = self.sigma * ndtri(np.clip(share, DEEPEST, 1 - 2.0**-53))
            return found
        low, high = self.low[rows], self.high[rows]
        return low + (high - low) * share

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """Where each bracket starts."""
        if self.sigma is not None:
            return np.full(self.count, -np.inf), np.full(self.count, np.inf)
        return self.low.astype(float), self.high.astype(float)


class Halving:
    """Brackets that every label halves; labels are right.

    The first cuts follow the prior, so that each splits what is likely in two; later ones the middle.
    """

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.low, self.high = prior.ends

    @property
    def width(self) -> Floats:
        """Width of each bracket; labels that contradict each other may have made it negative."""
        return self.high - self.low

    @property
    def centre(self) -> Floats:
        """The best guess for each boundary."""
        middle: Floats = self.middle(np.arange(len(self.low)))
        return middle

    @property
    def spread(self) -> Floats:
        """Standard deviation of each boundary around its centre."""
        return self.width / np.sqrt(12.0)

    @property
    def lost(self) -> Flags:
        """Brackets that go to an end of the prior, where no boundary is to be expected."""
        sigma = self.prior.sigma
        if sigma is None:
            return np.zeros(len(self.low), dtype=bool)
        below, above = np.isinf(self.low), np.isinf(self.high)
        gone: Flags = (below & (ndtr(self.high / sigma) < LOST)) | (above & (ndtr(-self.low / sigma) < LOST))
        return gone

    def middle(self, rows: NDArray[np.int_]) -> Floats:
        """Where to ask next."""
        low, high = self.low[rows], self.high[rows]
        sigma = self.prior.sigma
        if sigma is None:
            return low + (high - low) / 2
        share = (ndtr(low / sigma) + ndtr(high / sigma)) / 2
        with np.errstate(invalid="ignore"):
            straight = low + (high - low) / 2
        narrow = high - low < LINEAR * sigma
        middle: Floats = np.where(narrow, straight, self.prior.place(share))
        return middle

    def halves(self, rows: NDArray[np.int_], middle: Floats) -> list[Floats]:
        """The middles of what lies below and above ``middle``: asked together with it they give two bits at once."""
        found = []
        for low, high in ((self.low[rows], middle), (middle, self.high[rows])):
            part = Halving(Prior(len(rows), self.prior.sigma, low, high))
            part.low, part.high = low, high
            found.append(part.middle(np.arange(len(rows))))
        return found

    def learn(self, rows: NDArray[np.int_], at: Floats, above: Flags) -> None:
        """Take in the labels at ``at``: whether each boundary lies above."""
        np.maximum.at(self.low, rows[above], at[above])
        np.minimum.at(self.high, rows[~above], at[~above])

    def part(self, rows: NDArray[np.int_]) -> Halving:
        """Some of these searches."""
        found = Halving(replace(self.prior, count=len(rows), low=self.low[rows], high=self.high[rows]))
        found.low, found.high = self.low[rows], self.high[rows]
        return found

    def restart(self, rows: NDArray[np.int_]) -> None:
        """Forget what was learned of some paths, which are other ones now."""
        low, high = self.prior.ends
        self.low[rows], self.high[rows] = low[rows], high[rows]


class Doubting:
    """The posterior of each boundary, where a label is wrong with probability ``flip``; asks at its median.

    Held exactly: a constant density, relative to the prior, between the places that were asked.
    """

    def __init__(self, prior: Prior, flip: float) -> None:
        self.prior = prior
        self.flip = flip
        self._edges = np.tile([0.0, 1.0], (prior.count, 1))  # in shares of the prior
        self._mass = np.ones((prior.count, 1))

    def _quantile(self, share: float, rows: NDArray[np.int_] | slice = slice(None)) -> Floats:
        edges, mass = self._edges[rows], self._mass[rows]
        total = np.cumsum(mass, axis=1)
        cell = np.minimum((total < share).sum(axis=1), mass.shape[1] - 1)[:, None]
        inside = np.take_along_axis(mass, cell, 1)
        before = np.take_along_axis(total, cell, 1) - inside
        start, end = np.take_along_axis(edges, cell, 1), np.take_along_axis(edges, cell + 1, 1)
        found: Floats = (start + (end - start) * np.clip((share - before) / np.maximum(inside, DEEPEST), 0.0, 1.0))[:, 0]
        return found

    @property
    def centre(self) -> Floats:
        """The posterior's median."""
        return self.prior.place(self._quantile(0.5))

    @property
    def spread(self) -> Floats:
        """A standard deviation, from the middle 95% of the posterior, which has long tails."""
        return (self.prior.place(self._quantile(0.975)) - self.prior.place(self._quantile(0.025))) / 3.92

    @property
    def width(self) -> Floats:
        """As wide as a bracket of the same standard deviation."""
        return self.spread * np.sqrt(12.0)

    @property
    def lost(self) -> Flags:
        """Posteriors that go to an end of the prior, where no boundary is to be expected."""
        low, high = self._quantile(0.95), self._quantile(0.05)
        gone: Flags = (low < LOST) | (high > 1 - LOST)
        return gone

    def middle(self, rows: NDArray[np.int_]) -> Floats:
        """Where to ask next: the median."""
        return self.prior.place(self._quantile(0.5, rows), rows)

    def learn(self, rows: NDArray[np.int_], at: Floats, above: Flags) -> None:
        """Split each posterior's median cell, and weigh its sides by the label."""
        share = self._quantile(0.5, rows)  # where `middle` asked
        edges, mass = self._edges, self._mass
        count, cells = mass.shape
        wider, heavier = np.empty((count, cells + 2)), np.empty((count, cells + 1))
        wider[:, :-1], wider[:, -1] = edges, 1.0  # untouched rows get an empty cell at the end
        heavier[:, :-1], heavier[:, -1] = mass, 0.0
        place = (edges[rows, 1:-1] <= share[:, None]).sum(axis=1)  # the cell that is split
        index = np.arange(cells + 2)[None, :]
        taken = np.take_along_axis(edges[rows], np.clip(index - (index > place[:, None]), 0, cells), 1)
        wider[rows] = np.where(index == place[:, None] + 1, share[:, None], taken)
        index = index[:, :-1]
        old = np.take_along_axis(mass[rows], np.clip(index - (index > place[:, None]), 0, cells - 1), 1)
        start, end = (np.take_along_axis(edges[rows], place[:, None] + k, 1) for k in (0, 1))
        part = np.clip((share[:, None] - start) / np.maximum(end - start, DEEPEST), 0.0, 1.0)
        old = np.where(index == place[:, None], old * part, np.where(index == place[:, None] + 1, old * (1 - part), old))
        right = (index > place[:, None]) == above[:, None]
        weighed = old * np.where(right, 1 - self.flip, self.flip)
        heavier[rows] = weighed / weighed.sum(axis=1, keepdims=True)
        self._edges, self._mass = wider, heavier

    def part(self, rows: NDArray[np.int_]) -> Doubting:
        """Some of these searches."""
        low, high = self.prior.ends
        found = Doubting(replace(self.prior, count=len(rows), low=low[rows], high=high[rows]), self.flip)
        found._edges, found._mass = self._edges[rows], self._mass[rows]
        return found

    def restart(self, rows: NDArray[np.int_]) -> None:
        """Forget what was learned of some paths, which are other ones now."""
        self._edges[rows], self._mass[rows] = 1.0, 0.0
        self._edges[rows, 0], self._mass[rows, 0] = 0.0, 1.0


Search = Halving | Doubting


def searching(prior: Prior, flip: float) -> Search:
    """The search for labels that are wrong with probability ``flip``."""
    return Doubting(prior, flip) if flip else Halving(prior)
