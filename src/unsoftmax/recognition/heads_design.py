"""Sequences along one line of last tokens, and how much of a step each head takes there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """Sequences of copies of ``x + steps u``, last token ``x = x0 + t e``: steps and copies ``(rows, kinds)``, t ``(rows,)``."""

    steps: Floats
    copies: Floats
    t: Floats

    def shares(self, height: Floats, pace: Floats) -> tuple[Floats, Floats, Floats]:
        """Mean step ``(…, rows)`` of heads whose score per step is ``height + pace t``, and its derivatives in both."""
        q = height[..., None] + pace[..., None] * self.t
        # the few kinds come first: sums over a short last axis take ten times as long
        steps, copies = (part.T.copy().reshape(-1, *(1,) * (q.ndim - 1), len(self.t)) for part in (self.steps, self.copies))
        exponent = q * steps
        exponent -= exponent.max(axis=0)
        weight = copies * np.exp(exponent)
        weight /= weight.sum(axis=0)
        mean = (weight * steps).sum(axis=0)
        slope = (weight * steps**2).sum(axis=0) - mean**2
        return mean, slope, slope * self.t

    def beside(self, height: Floats, pace: Floats) -> Floats:
        """Shares of heads almost alike: those of each head and their derivatives up to the third in both numbers.

        ``(rows, 10 heads)``, each column of length one. What several heads close to one answer lies within them, but for the fourth
        power of how far they are apart.
        """
        columns = []
        for q in (height[:, None] + pace[:, None] * self.t)[..., None]:
            exponent = q * self.steps
            weight = self.copies * np.exp(exponent - exponent.max(axis=1, keepdims=True))
            weight /= weight.sum(axis=1, keepdims=True)
            mean = (weight * self.steps).sum(axis=1)
            second, third, fourth = ((weight * (self.steps - mean[:, None]) ** k).sum(axis=1) for k in (2, 3, 4))
            for order, cumulant in enumerate((mean, second, third, fourth - 3 * second**2)):
                columns += [cumulant * self.t**power for power in range(order + 1)]
        told: Floats = np.array(columns).T
        told /= np.maximum(np.linalg.norm(told, axis=0), 1e-300)
        return told

    def rows(self, chosen: slice) -> Design:
        """A part of the design."""
        return Design(self.steps[chosen], self.copies[chosen], self.t[chosen])


def peaks(values: Floats) -> Floats:
    """Where a map is larger than at its eight neighbours, highest first."""
    a, b = values.shape
    padded = np.pad(values, 1, constant_values=-np.inf)
    around = np.max([padded[1 + i : a + 1 + i, 1 + j : b + 1 + j] for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j], axis=0)
    spots = np.argwhere(values >= around)
    return np.asarray(spots[np.argsort(-values[spots[:, 0], spots[:, 1]], kind="stable")])
