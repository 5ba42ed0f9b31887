"""How far scalar answers of heads may be off by small errors of the parameters: to first order, without drawing any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from unsoftmax.linalg import alike, on_host
from unsoftmax.models import Floats
from unsoftmax.models.attention import Attention
from unsoftmax.models.forward import OnDevice, Padded, softmax
from unsoftmax.proof.compare import Compared
from unsoftmax.results import Bounds


@dataclass(frozen=True, slots=True, eq=False)
class Variances:
    """Of independent errors of W ``(heads, width, width)``, V and c ``(heads, width)`` and b; one number where all are alike."""

    W: Floats | float
    V: Floats | float = 0.0
    c: Floats | float = 0.0
    b: Floats | float = 0.0

    @classmethod
    def within(cls, bounds: Bounds, like: Floats | None) -> Variances:
        """Of errors within 95% bars."""

        def variance(bars: Floats | None) -> Floats | float:
            if bars is None:
                return 0.0
            return float(bars.flat[0] / 2) ** 2 if one_number(bars) else alike(bars / 2, like) ** 2

        return cls(*(variance(bars) for bars in (bounds.W, bounds.V, bounds.c, bounds.b)))

    @classmethod
    def of_scores(cls, model: Attention, relative: float, like: Floats | None) -> Variances:
        """Of scores off by this share of themselves."""
        layer = model.on_device(np.empty(0) if like is None else like)
        return cls(W=(relative * layer.scores.together) ** 2, c=(relative * layer.c) ** 2 if model.has_c else 0.0)


def one_number(bars: Floats) -> bool:
    """Whether an array is one number, seen many times."""
    return bool(bars.size) and not any(bars.strides)


def first_order(seen: Compared, model: Attention, like: Floats | None, *spreads: Variances) -> Floats:
    """Variances ``(spreads, rows)`` of all that was compared at the last position; one pass, on the device of ``like``."""
    layer = model.on_device(np.empty(0) if like is None else like)

    def forward(groups: Sequence[Padded]) -> list[Floats]:
        return [_variances(layer, spreads, sequences, absent) for sequences, absent in groups]

    return on_host(seen.together(like).told(forward)).T


def _variances(layer: OnDevice, spreads: tuple[Variances, ...], X: Floats, absent: NDArray[np.bool_] | None) -> Floats:
    """``(batch, spreads)``: an error of a score moves the answer by that token's weight times its value's distance from it."""
    assert layer.values is not None
    xp, last = array_namespace(X), X[:, -1]
    none = 0.0 * last[:, 0]
    totals = [none + spread.b for spread in spreads]
    for head, c in enumerate(layer.c):
        scores = X @ (layer.scores.turned(last, head) + c)[:, :, None]
        if absent is not None:
            scores[absent.swapaxes(1, 2)] = -np.inf
        weights = softmax(scores[:, :, 0])
        values = layer.values.after(X, head)[:, :, 0]
        pulls = weights * (values - xp.sum(weights * values, axis=1, keepdims=True))
        squares = (xp.stack([pulls, weights], axis=1) @ X) ** 2
        moved, mean = squares[:, 0], squares[:, 1]
        for i, spread in enumerate(spreads):
            by_W = _row(moved, spread.W, head, last**2) + _row(moved, spread.c, head)
            totals[i] = totals[i] + (by_W + _row(mean, spread.V, head))
    stacked: Floats = xp.stack(totals, axis=1)
    return stacked


def _row(squares: Floats, variance: Floats | float, head: int, last: Floats | None = None) -> Floats | float:
    """``sum_a squares_a variance_a``, or ``sum_ab squares_a variance_ab last_b``, for each row."""
    xp = array_namespace(squares)
    if isinstance(variance, float):
        if variance == 0.0:
            return 0.0
        all_alike: Floats = variance * xp.sum(squares, axis=1)
        return all_alike if last is None else all_alike * xp.sum(last, axis=1)
    if last is None:
        alone: Floats = squares @ variance[head]
        return alone
    summed: Floats = xp.sum(squares * (last @ variance[head].T), axis=1)
    return summed
