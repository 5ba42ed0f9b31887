"""The held-out check of a noisy head: all deviations judged together, on loud sequences where noise hides ordinary ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy.special import fdtri, ndtr

from unsoftmax.models import Attention, Floats, Model
from unsoftmax.oracles.base import LastPosition, Oracle
from unsoftmax.probes.loud import loud_sequences
from unsoftmax.proof.compare import Compared, compared, predicted_as
from unsoftmax.proof.fresh import Fresh
from unsoftmax.proof.settings import PROOF
from unsoftmax.results import Bounds, Learned


@dataclass(frozen=True, slots=True)
class NoisyCheck:
    """What fresh answers say about a model when each carries much noise.

    Attributes:
        seen: answers and predictions.
        excess: sum of squared standardised deviations over the largest that noise explains; above 1 the model is wrong.
        slope: of the answers against the predictions; 1 if the model is right, 0 if it has nothing to do with the target.
        slope_error: its standard error.
        missed: rms deviation beyond the noise, over the spread of the answers of its kind, sized or natural, whichever is more;
            error bars that explain as much as answers vary leave the model open.
    """

    seen: Compared
    excess: float
    slope: float
    slope_error: float
    missed: float

    @property
    def conclusive(self) -> bool:
        """Whether a model that has nothing to do with the target would have been seen."""
        return self.slope_error <= PROOF.slope_error

    @property
    def agrees(self) -> bool:
        """Whether noise and the stated error bars explain the deviations."""
        return self.excess <= 1.0 and abs(self.slope - 1.0) <= 4 * self.slope_error + PROOF.slope_resolution


def loud_batches(model: Model, rng: np.random.Generator, *, count: int, max_norm: float | None) -> list[Fresh]:
    """About ``count`` loud sequences of many lengths."""
    layer = cast(Attention, model)
    assert layer.V is not None
    norm = max_norm if max_norm is not None else float(layer.token_sizes.max()) * np.sqrt(layer.width)
    direction = np.linalg.svd(layer.V[0].reshape(layer.width, -1))[0][:, 0]
    lengths = sorted({2, 64, *rng.choice(np.arange(3, 64), size=PROOF.lengths - 2, replace=False).tolist()})
    each = max(1, count // len(lengths))
    return [Fresh(loud_sequences(direction, rng, count=each, length=length, norm=norm)) for length in lengths]


def noisy_held_out(
    oracle: Oracle, learned: Learned, batches: list[Fresh], rng: np.random.Generator, *, noise: float, freedom: int
) -> NoisyCheck:
    """Ask every batch and compare with the predictions, in units of the noise and of the doubt that the error bars leave.

    The noise itself is known from ``freedom`` answers.
    """
    seen = compared(LastPosition(oracle), learned.model, batches)
    left = seen.answers - seen.predicted
    variance = noise**2 + PROOF.doubts * doubt(learned.model, learned.bounds, rng, lambda model: predicted_as(seen, model))
    signal = seen.predicted - seen.predicted.mean(axis=0)
    weight = float(np.sum(signal**2 / variance))
    standardised = left / np.sqrt(variance)
    of_kind = [rows for rows in (seen.natural, ~seen.natural) if rows.any()]  # neither may hide the other's
    kinds = [standardised[rows] for rows in of_kind]
    excess = max(float(np.mean(kind**2) / fdtri(kind.size, freedom, 1 - PROOF.false_alarm)) for kind in kinds)
    outlier = float(np.abs(standardised).max()) / (PROOF.single_outlier * (1 + 3 / np.sqrt(freedom)))
    beyond = np.maximum(left**2 - noise**2 * PROOF.single_outlier**2, 0.0).mean(axis=1)
    missed = max(float(np.sqrt(np.mean(beyond[rows])) / seen.spreads[rows].max()) for rows in of_kind)
    if weight == 0.0:
        return NoisyCheck(seen, max(excess, outlier), 0.0, np.inf, missed)
    slope = 1.0 + float(np.sum(signal * left / variance)) / weight
    return NoisyCheck(seen, max(excess, outlier), slope, float(1 / np.sqrt(weight)), missed)


def alike_by_chance(noise: float, freedom: int, step: float, count: int) -> float:
    """How likely ``count`` questions are all answered as before, though noise within a rounding ``step`` explains a misfit.

    The misfit ``noise`` (rms, of ``freedom`` answers, read as low as these allow) is that of rounding and of noise before it. Two
    such answers fall on one step with probability ``1 - |difference| / step``, where that is positive.

    >>> round(alike_by_chance(0.67, 1000, 1.0, 1), 2), alike_by_chance(0.28, 1000, 1.0, 32)
    (0.45, 1.0)
    """
    low = noise / step * max(0.0, 1 - 3 / float(np.sqrt(2 * freedom)))
    apart = float(np.sqrt(2 * max(low**2 - 1 / 12, 0.0)))
    if not apart:
        return 1.0
    same = 2 * ndtr(1 / apart) - 1 - 2 * apart * (1 - np.exp(-0.5 / apart**2)) / np.sqrt(2 * np.pi)
    return float(same**count)


def answered_as_before(oracle: Oracle, seen: Compared, count: int) -> bool | None:
    """Whether ``count`` of the fresh questions, asked again, get the very same answers; None where there are fewer."""
    start = 0
    for batch in seen.batches:
        some = batch.sequences[: count - start]
        again = LastPosition(oracle)(some)
        if not np.array_equal(again.reshape(len(some), -1), seen.answers[start : start + len(some)]):
            return False
        start += len(batch.sequences)
        if start >= count:
            return True
    return None


def doubt(model: Model, bounds: Bounds | None, rng: np.random.Generator, predict: Callable[[Model], Floats]) -> Floats:
    """Variance of the predictions over parameters drawn within their 95% bars."""
    centre = predict(model)
    total = np.zeros_like(centre)
    for _ in range(PROOF.draws):
        drawn = model.within(bounds, rng)
        if drawn is not None:
            total += (predict(drawn) - centre) ** 2
    return total / PROOF.draws
