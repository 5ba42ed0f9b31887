"""The held-out check of a noisy head: all deviations judged together, on loud sequences where noise hides ordinary ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import fdtri

from unsoftmax.checks.held_out import LENGTHS, _token_sizes
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import LastPosition, Oracle
from unsoftmax.probes.loud import loud_sequences
from unsoftmax.results import Bounds, Check

SHARE = 0.02  # of the learning queries that a check may add; never fewer than the least
LEAST = 256
FALSE_ALARM = 1e-6
DRAWS = 8  # of the parameters within their error bars, to see how far the predictions are in doubt
DOUBTS = 3.0  # the error bars are estimates too, and errors of the parameters move many predictions at once
SLOPE_ERROR = 0.25  # standard error of the slope of answers against predictions, beyond which the check proves nothing
SLOPE_RESOLUTION = 0.1  # W itself is known to a tenth
SINGLE_OUTLIER = 7.0


@dataclass(frozen=True, slots=True)
class NoisyCheck:
    """What fresh answers say about a model when each carries much noise.

    Attributes:
        check: the largest deviation, noise included, as in every check.
        excess: sum of squared standardised deviations over the largest that noise explains; above 1 the model is wrong.
        slope: of the answers against the predictions; 1 if the model is right, 0 if it has nothing to do with the target.
        slope_error: its standard error.
    """

    check: Check
    excess: float
    slope: float
    slope_error: float

    @property
    def conclusive(self) -> bool:
        """Whether a model that has nothing to do with the target would have been seen."""
        return self.slope_error <= SLOPE_ERROR

    @property
    def agrees(self) -> bool:
        """Whether noise and the stated error bars explain the deviations."""
        return self.excess <= 1.0 and abs(self.slope - 1.0) <= 4 * self.slope_error + SLOPE_RESOLUTION


def loud_batches(model: Attention, rng: np.random.Generator, *, count: int, max_norm: float | None) -> list[Floats]:
    """About ``count`` loud sequences of many lengths."""
    assert model.V is not None
    norm = max_norm if max_norm is not None else float(_token_sizes(model).max()) * np.sqrt(model.width)
    direction = np.linalg.svd(model.V[0].reshape(model.width, -1))[0][:, 0]
    each = max(1, count // len(LENGTHS))
    return [loud_sequences(direction, rng, count=each, length=length, norm=norm) for length in LENGTHS]


def noisy_held_out(
    oracle: Oracle,
    model: Attention,
    bounds: Bounds | None,
    batches: list[Floats],
    noise: float,
    rng: np.random.Generator,
    *,
    freedom: int = 10**9,
) -> NoisyCheck:
    """Ask every batch and compare with the predictions, in units of the noise and of the doubt that the error bars leave.

    The noise itself is known from ``freedom`` answers.
    """
    last = LastPosition(oracle)
    asked = [last(batch).reshape(len(batch), -1) for batch in batches]
    told = [model(batch).reshape(len(batch), -1) for batch in batches]
    answers, predictions = np.concatenate(asked), np.concatenate(told)
    left = answers - predictions
    variance = noise**2 + DOUBTS * _doubt(model, bounds, batches, rng)
    signal = predictions - predictions.mean(axis=0)
    weight = float(np.sum(signal**2 / variance))
    standardised = left / np.sqrt(variance)
    excess = float(np.mean(standardised**2)) / float(fdtri(left.size, freedom, 1 - FALSE_ALARM))
    outlier = float(np.abs(standardised).max()) / (SINGLE_OUTLIER * (1 + 3 / np.sqrt(freedom)))
    spread = float(np.sqrt(np.mean(np.var(answers, axis=0))))
    worst = float(np.abs(left).max())
    check = Check(
        sequences=len(answers),
        max_abs_error=worst,
        relative_error=worst / spread if spread > 0 else 0.0,
        by_length={batch.shape[1]: float(np.abs(a - t).max()) for batch, a, t in zip(batches, asked, told, strict=True)},
    )
    if weight == 0.0:
        return NoisyCheck(check, max(excess, outlier), 0.0, np.inf)
    slope = 1.0 + float(np.sum(signal * left / variance)) / weight
    return NoisyCheck(check, max(excess, outlier), slope, float(1 / np.sqrt(weight)))


def _doubt(model: Attention, bounds: Bounds | None, batches: list[Floats], rng: np.random.Generator) -> Floats:
    """Variance of the predictions over parameters drawn within their 95% bars."""
    centre = np.concatenate([model(batch).reshape(len(batch), -1) for batch in batches])
    if bounds is None or bounds.W is None or bounds.V is None or model.V is None:
        return np.zeros_like(centre)
    total = np.zeros_like(centre)
    for _ in range(DRAWS):
        drawn = Attention(
            model.W + bounds.W / 2 * rng.normal(size=model.W.shape),
            model.V + bounds.V / 2 * rng.normal(size=bounds.V.shape),
            model.c if bounds.c is None else model.c + bounds.c / 2 * rng.normal(size=model.c.shape),
            model.b if bounds.b is None else model.b + bounds.b / 2 * rng.normal(size=np.shape(model.b)),
        )
        total += (np.concatenate([drawn(batch).reshape(len(batch), -1) for batch in batches]) - centre) ** 2
    return total / DRAWS
