"""Where on each of many paths the label changes: one question per path and round, all paths side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.models import Floats

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """What is known of each boundary beforehand: normal around 0 with ``sigma``, or uniform between ``low`` and ``high``."""

    count: int
    sigma: Floats | None = None
    low: Floats = field(default_factory=lambda: np.empty(0))
    high: Floats = field(default_factory=lambda: np.empty(0))

    def place(self, share: Floats, rows: NDArray[np.int_] | slice = slice(None)) -> Floats:
        """The place below which ``share`` of the prior lies."""
        if self.sigma is not None:
            found: Floats = self.sigma[rows] * ndtri(np.clip(share, 1e-300, 1 - 2.0**-53))
            return found
        low, high = self.low[rows], self.high[rows]
        return low + (high - low) * share

    def part(self, rows: NDArray[np.int_], low: Floats, high: Floats) -> Prior:
        """The prior of some paths, between these ends where it is uniform."""
        return Prior(len(rows), None if self.sigma is None else self.sigma[rows], low, high)

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
        self._guess = np.full(prior.count, np.nan)  # lower ends that nobody asked

    @property
    def width(self) -> Floats:
        """Width of each bracket."""
        return self.high - self.low

    @property
    def centre(self) -> Floats:
        """The best guess for each boundary."""
        middle: Floats = self.middle(np.arange(len(self.low)))
        return middle

    @property
    def spread(self) -> Floats:
        """Standard deviation of each boundary around its centre."""
        spread: Floats = self.width / np.sqrt(12.0)
        return spread

    @property
    def lost(self) -> Flags:
        """Brackets that go to an end of the prior, where no boundary is to be expected."""
        if self.prior.sigma is None:
            return np.zeros(len(self.low), dtype=bool)
        gone: Flags = (np.isinf(self.low) & (self.high < BOUNDARY.lowest)) | (np.isinf(self.high) & (self.low > BOUNDARY.highest))
        return gone

    def size(self) -> float:
        """The factor of the prior's standard deviations that makes these brackets most likely, to a sixteenth of an octave."""
        assert self.prior.sigma is not None
        factors = np.exp2(np.arange(-8, 8, 1 / 16))[:, None]
        low, high = np.abs(self.low), np.abs(self.high)
        low, high = np.where(self.low * self.high < 0, 0.0, np.minimum(low, high)), np.maximum(low, high)
        mass = ndtr(high / (factors * self.prior.sigma)) - ndtr(low / (factors * self.prior.sigma))
        return float(factors[np.argmax(np.log(mass + 1e-300).sum(axis=1)), 0])

    def mirror(self, rows: NDArray[np.int_]) -> None:
        """Of paths whose boundary lies below 0 the mirror images are asked from now on: there it lies above, but for a little."""
        assert self.prior.sigma is not None
        self.low[rows], self.high[rows] = -BOUNDARY.mirrored * self.prior.sigma[rows], np.inf
        self._guess[rows] = self.low[rows]

    def middle(self, rows: NDArray[np.int_]) -> Floats:
        """Where to ask next."""
        low, high = self.low[rows], self.high[rows]
        if self.prior.sigma is None:
            return low + (high - low) / 2
        sigma = self.prior.sigma[rows]
        share = (ndtr(low / sigma) + ndtr(high / sigma)) / 2
        with np.errstate(invalid="ignore"):
            straight = low + (high - low) / 2
        narrow = (high - low < BOUNDARY.linear * sigma) | (low > BOUNDARY.beyond * sigma) | (high < -BOUNDARY.beyond * sigma)
        middle: Floats = np.where(narrow, straight, self.prior.place(share, rows))
        # beyond where the prior ends brackets double
        middle = np.where(np.isinf(high) & (low > BOUNDARY.beyond * sigma), 2 * low, middle)
        return np.where(np.isinf(low) & (high < -BOUNDARY.beyond * sigma), 2 * high, middle)

    def cuts(self, rows: NDArray[np.int_], bits: int) -> list[Floats]:
        """The places that split each bracket in ``2**bits``, the middle first: asked together they give that many bits at once."""

        def split(low: Floats, high: Floats, bits: int) -> list[Floats]:
            part = Halving(self.prior.part(rows, low, high))
            part.low, part.high = low, high
            middle = part.middle(np.arange(len(rows)))
            return [middle, *(split(low, middle, bits - 1) + split(middle, high, bits - 1) if bits > 1 else [])]

        return split(self.low[rows], self.high[rows], bits)

    def learn(self, rows: NDArray[np.int_], at: Floats, above: Flags) -> None:
        """Take in the labels at ``at``: whether each boundary lies above. Of several boundaries the uppermost is kept."""
        np.maximum.at(self.low, rows[above], at[above])
        np.minimum.at(self.high, rows[~above], at[~above])
        crossed = self.low > self.high
        self.high[crossed] = self.prior.ends[1][crossed]
        if self.prior.sigma is not None:  # a lower end that nobody asked was none
            self.low[(self.low == self._guess) & (self.width < BOUNDARY.linear**2 * self.prior.sigma)] = -np.inf

    def part(self, rows: NDArray[np.int_]) -> Halving:
        """Some of these searches."""
        found = Halving(self.prior.part(rows, self.low[rows], self.high[rows]))
        found.low, found.high, found._guess = self.low[rows], self.high[rows], self._guess[rows]
        return found

    def restart(self, rows: NDArray[np.int_]) -> None:
        """Forget what was learned of some paths, which are other ones now."""
        low, high = self.prior.ends
        self.low[rows], self.high[rows], self._guess[rows] = low[rows], high[rows], np.nan
