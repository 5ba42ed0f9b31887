"""Weights behind answers in half precision: rounding hides a change of one percent in single answers, not in the mean of twins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.deployment.coherence import coherence, paired
from unsoftmax.deployment.probes import on_grid
from unsoftmax.models import Floats, Model
from unsoftmax.oracles.base import LastPosition, Oracle


@dataclass(frozen=True, slots=True)
class Halves:
    """How weights behind answers in half precision are compared.

    Attributes:
        pairs: sequences, each with a twin.
        lengths: tokens of each, in turn.
        step: a twin's distance, relative; above the step of bfloat16, so that both are other numbers to the target.
        draws: of rounded weights, of which the largest counts.
        factors: times its energy, and twice that is allowed: a target's matrices are factors of ours, each rounded, by 0.7 of the
            largest error on the average (measured: 0.52 at most in 48 layers of width 4 to 32).
        steps: roundings, all one way, by which rounded matrices may scale scores as a whole.
        sure: standard errors beyond that.
    """

    pairs: int = 480
    lengths: tuple[int, ...] = (2, 3, 4, 6)
    step: float = 0.02
    draws: int = 16
    factors: float = 0.65
    steps: float = 1.0
    sure: float = 5.0


HALVES = Halves()


def beyond_half(oracle: Oracle, model: Model, unit: float, rng: np.random.Generator, max_norm: float | None = None) -> float:
    """How many times deviations that rounding has no reason for exceed what it explains; above 1 the weights differ.

    Price: 960 sequences in four calls. ``unit`` is the relative error of one rounding, at most. Twins share what other weights do;
    what rounded weights do to both alike is measured on the model and allowed. A common scaling of scores is looked for by itself.
    """
    last = LastPosition(oracle)
    scaled, rounded = _changed(model, 1e-5, None), [_changed(model, unit, rng) for _ in range(HALVES.draws)]
    deviations, levels, slopes, moved = [], [], [], np.zeros(HALVES.draws)
    for length in HALVES.lengths:
        both = _twins(model.width, length, rng, max_norm)
        predicted = _rows(model.answer(both))
        size = float(np.std(predicted)) or 1.0
        deviations.append(_rows(last(both)) - predicted)
        levels.append(np.full(len(both), size))
        slopes.append((_rows(scaled.answer(both)) - predicted) / 1e-5)
        moved += [float(np.mean((_rows(other.answer(both)) - predicted) ** 2)) / size**2 for other in rounded]
    pairs = paired(deviations, levels)
    share = HALVES.factors * float(moved.max()) / len(HALVES.lengths) / max(float(np.mean(pairs.rough)), np.finfo(float).tiny)
    together = float(coherence(pairs, np.ones((1, len(pairs.product))), share).excess.max())
    return max(together, _scaled(np.concatenate(deviations), np.concatenate(slopes), unit))


def _twins(width: int, length: int, rng: np.random.Generator, max_norm: float | None) -> Floats:
    tokens = rng.normal(size=(HALVES.pairs // len(HALVES.lengths), length, width))
    if max_norm is not None:
        tokens *= np.minimum(1.0, 0.9 * max_norm / np.linalg.norm(tokens, axis=2, keepdims=True))
    both = np.empty((2 * len(tokens), length, width))
    both[0::2], both[1::2] = tokens, tokens * (1.0 + HALVES.step * rng.normal(size=tokens.shape))
    return on_grid(both)


def _scaled(deviations: Floats, slope: Floats, unit: float) -> float:
    """By how much scores are scaled as a whole, over what rounded matrices and chance explain."""
    total = float(np.sum(slope**2))
    if total == 0.0:
        return 0.0
    products = np.sum(deviations * slope, axis=1)  # of a row: its numbers err together
    chance = float(np.sqrt(np.sum(products**2)))
    step = HALVES.steps * unit * 3**0.5
    return float(abs(np.sum(products)) / (HALVES.sure * chance + step * total))


def _changed(model: Model, relative: float, rng: np.random.Generator | None) -> Model:
    """The model with every weight off by a rounding of its own; without ``rng``, with all scores scaled alike."""
    build: Any = type(model)
    blocks = {
        name: block * (1.0 + relative * (rng.normal(size=np.shape(block)) if rng is not None else name.endswith("W")))
        for name, block in model.blocks.items()
    }
    return build.from_blocks(blocks, model.settings)  # type: ignore[no-any-return]


def _rows(answers: Floats) -> Floats:
    return np.asarray(answers, dtype=np.float64).reshape(len(answers), -1)
