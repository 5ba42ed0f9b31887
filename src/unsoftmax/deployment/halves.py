"""Weights behind answers in half precision: rounding hides one percent in single answers, not in the mean of twins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.deployment.coherence import SURE, coherence, paired
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
        sizes: of the tokens, of which the one is taken where a change of scores moves answers most, against their own
            size: rounding is relative, and large scores select one token whatever they are.
        small: a relative change that is small, yet well resolved by float64.
    """

    pairs: int = 480
    lengths: tuple[int, ...] = (2, 3, 4, 6)
    step: float = 0.02
    draws: int = 16
    factors: float = 0.65
    steps: float = 1.0
    sure: float = 5.0
    sizes: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125)
    small: float = 1e-5


HALVES = Halves()


@dataclass(frozen=True, slots=True)
class Beyond:
    """How many times deviations exceed what rounding explains, and the changes that would have shown.

    Attributes:
        excess: above 1 the weights differ.
        shown: the smallest relative change that would have shown: by block, where every weight of it is off by an amount of its
            own, and of all scores as a whole (``"scores"``); None: none below 1. Blocks that no answer depends on are left out.
    """

    excess: float
    shown: dict[str, float | None]


def beyond_half(oracle: Oracle, model: Model, unit: float, rng: np.random.Generator, max_norm: float | None = None) -> Beyond:
    """Whether deviations exceed what rounding explains, and which changes would have.

    Price: 960 sequences in four calls. ``unit`` is the relative error of one rounding, at most. Twins share what other weights do;
    what rounded weights do to both alike is measured on the model and allowed. A common scaling of scores is looked for by itself.
    """
    last = LastPosition(oracle)
    scaled, rounded = _changed(model, HALVES.small, None), [_changed(model, unit, rng) for _ in range(HALVES.draws)]
    alone = {name: [_changed(model, HALVES.small, rng, name) for _ in range(HALVES.draws)] for name in model.blocks}
    deviations, levels, slopes, moved = [], [], [], np.zeros(HALVES.draws)
    single = dict.fromkeys(alone, np.zeros(HALVES.draws))
    for length in HALVES.lengths:
        both = _twins(model, scaled, length, rng, max_norm)
        predicted = _rows(model.answer(both))
        size = float(np.std(predicted)) or 1.0
        deviations.append(_rows(last(both)) - predicted)
        levels.append(np.full(len(both), size))
        slopes.append((_rows(scaled.answer(both)) - predicted) / HALVES.small)

        def energies(others: list[Model], both: Floats = both, predicted: Floats = predicted, size: float = size) -> Floats:
            return np.asarray([np.mean((_rows(other.answer(both)) - predicted) ** 2) / size**2 for other in others])

        moved += energies(rounded)
        single = {name: single[name] + energies(others) for name, others in alone.items()}
    pairs = paired(deviations, levels)
    rough = max(float(np.mean(pairs.rough)), np.finfo(float).tiny)
    count = len(HALVES.lengths)
    found = coherence(pairs, np.ones((1, len(pairs.product))), HALVES.factors * float(moved.max()) / count / rough)
    needed = float(found.allowed[0] + SURE * found.error[0]) * rough * count
    # a block of few numbers may be off in a direction that shows little: the least of the draws
    shown = {name: HALVES.small * float(np.sqrt(needed / energy.min())) for name, energy in single.items() if energy.min() > 0.0}
    whole, scaling = _scaled(np.concatenate(deviations), np.concatenate(slopes), unit)
    shown |= {"scores": scaling} if scaling is not None else {}
    return Beyond(max(float(found.excess.max()), whole), {name: size if size < 1.0 else None for name, size in shown.items()})


def _twins(model: Model, scaled: Model, length: int, rng: np.random.Generator, max_norm: float | None) -> Floats:
    """Sequences with their twins, of the size at which a change of scores shows most."""
    tokens = rng.normal(size=(HALVES.pairs // len(HALVES.lengths), length, model.width))

    def shows(size: float) -> float:
        answers = _rows(model.answer(size * tokens))
        return float(np.linalg.norm(_rows(scaled.answer(size * tokens)) - answers) / (np.linalg.norm(answers) or 1.0))

    tokens *= max(HALVES.sizes, key=shows)  # the first of equal ones, where there are no scores
    if max_norm is not None:
        tokens *= np.minimum(1.0, 0.9 * max_norm / np.linalg.norm(tokens, axis=2, keepdims=True))
    both = np.empty((2 * len(tokens), *tokens.shape[1:]))
    both[0::2], both[1::2] = tokens, tokens + HALVES.step * np.abs(tokens) * rng.normal(size=tokens.shape)
    return on_grid(both)


def _scaled(deviations: Floats, slope: Floats, unit: float) -> tuple[float, float | None]:
    """By how much scores are scaled as a whole, over what rounded matrices and chance explain; and the scaling that would show."""
    total = float(np.sum(slope**2))
    if total == 0.0:
        return 0.0, None
    found = float(np.sum(deviations * slope)) / total
    rest = np.sum((deviations - found * slope) * slope, axis=1)  # of a row: its numbers err together
    bound = HALVES.steps * unit * 3**0.5 + HALVES.sure * float(np.sqrt(np.sum(rest**2))) / total
    return abs(found) / bound, bound


def _changed(model: Model, relative: float, rng: np.random.Generator | None, only: str | None = None) -> Model:
    """The model with every weight, or those of one block, off by an amount of its own; without ``rng``, scores scaled alike."""
    build: Any = type(model)

    def factor(name: str, block: Floats) -> Any:
        if rng is None:
            return 1.0 + relative * name.endswith("W")
        return 1.0 + relative * rng.normal(size=np.shape(block)) * (only in (None, name))

    return build.from_blocks({name: block * factor(name, block) for name, block in model.blocks.items()}, model.settings)  # type: ignore[no-any-return]


def _rows(answers: Floats) -> Floats:
    return np.asarray(answers, dtype=np.float64).reshape(len(answers), -1)
