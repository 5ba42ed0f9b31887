"""Error bars by rehearsal: the learner runs again, with the same questions, on its own model, answered as coarsely as the target.

What comes out differs from the model by errors of the same size as those that the model has itself, whatever amplified them on the
way: values that tell tokens apart badly, a basis of a low rank, a bias. The target is asked nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
from scipy.special import ndtri, stdtrit

from unsoftmax.errors import RefusalError, tried
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Bounds, Learned
from unsoftmax.watching import watched_by

TIMES = 6  # rehearsals
QUARTER = 0.25  # of the precision that answers are promised: the standard deviation of their errors
LEAST = 2.0**-53  # of each number that answers tell directly: it is not known better than it is written


class Stage:
    """A model of attention in the place of the target, with answers as coarse as the target's."""

    def __init__(self, model: Attention, *, ndim: int, causal: bool, relative: float, rng: np.random.Generator) -> None:
        self.width = model.width
        self.model, self.ndim, self.causal = model, ndim, causal
        self.relative, self.rng = relative, rng

    def __call__(self, sequences: Floats, /) -> Floats:
        """Answer in the target's layout."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.ndim == 3:
                answers = self.model(sequences, "all", causal=self.causal)
                answers = answers.reshape(*sequences.shape[:2], -1)
            else:
                answers = self.model(sequences)
                answers = answers.reshape(len(sequences), *((-1,) if self.ndim == 2 else ()))
            return np.asarray(answers * (1.0 + self.relative * self.rng.normal(size=answers.shape)))


def rehearsed(
    learned: Learned, run: Callable[[Oracle, np.random.Generator], Learned], *, ndim: int, relative: float, state: Any
) -> Learned:
    """The same with 95% bars from a few rehearsals; as it was where one comes to another result.

    Args:
        learned: what was learned; its model is the truth of the rehearsals.
        run: the learner, on an oracle, with the randomness that draws its questions.
        ndim: axes of the target's answers.
        relative: precision of the target's answers.
        state: of the randomness that drew the questions, before they were drawn.
    """
    model = cast(Attention, learned.model)
    noise = np.random.default_rng(0)  # fixed: bars must not change from call to call
    truth = _blocks(model)
    models: list[Attention] = []
    for _ in range(TIMES):
        questions = np.random.default_rng()
        questions.bit_generator.state = state
        causal = learned.causal
        stage = Stage(model, ndim=ndim, causal=causal, relative=QUARTER * relative, rng=noise)
        found = _run(run, stage, questions)
        if found is None:
            return learned
        models.append(cast(Attention, found.model))
    told = [_blocks(again) for again in models]
    bars = {name: _bars(np.stack([blocks[name] for blocks in told]) - truth[name], truth[name], name) for name in "WVc"}
    bounds = Bounds(kind="estimated", **bars, b=_bars_of_one_answer(truth["b"], QUARTER * relative))
    return replace(learned, bounds=bounds, rehearsals=tuple(models), answers_off=QUARTER * relative)


def _run(run: Callable[[Oracle, np.random.Generator], Learned], stage: Oracle, rng: np.random.Generator) -> Learned | None:
    """One rehearsal; None where the learner does not read its own model again, so that rehearsals give no bars."""
    try:
        with watched_by():
            found = tried(lambda: run(stage, rng), RefusalError)
    except (ArithmeticError, np.linalg.LinAlgError):
        return None
    return None if isinstance(found, RefusalError) else found


def _blocks(model: Attention) -> dict[str, Floats]:
    """The parameters by their letters; biases that are not there are zero."""
    assert model.V is not None
    return {"W": model.W, "V": model.V, "c": model.c, "b": np.asarray(model.b)}


def _bars(errors: Floats, block: Floats, name: str) -> Floats:
    """Half-widths from the errors ``(TIMES, …)`` of few draws: mean squares of each number and of its row and column, evenly mixed.

    Scores: Student's factor of these draws, for errors that one direction brings rise and fall together. Those of c do so in part:
    how many are independent is told by how alike the draws are.
    Values: all errors are draws of one law. Answers to one token err by a share of their own size where they are cast at the end,
    and of all sizes where they are sums; rehearsals cannot tell which, so that half of each counts. Where V is turned after it was
    read, all its numbers are sums, and rehearsals tell that.
    """
    squares, values = np.mean(errors**2, axis=0), name == "V"
    mean = float(np.mean(squares))
    if min(squares.shape[-2:]) == 1:
        even = np.full(squares.shape, mean)
    else:
        even = squares.mean(axis=-1, keepdims=True) * (squares.mean(axis=-2, keepdims=True) / max(mean, np.finfo(float).tiny))
    other = np.mean(even) * block**2 / np.mean(block**2) if values and block.any() else even if values else squares
    share = (_following(squares, block) if values else 1.0) / 2
    draws = TIMES * block.size if values else _draws(_independent(errors)) if name == "c" else TIMES
    reach = float(stdtrit(draws, 0.975))
    return np.asarray(reach * np.sqrt((1 - share) * even + share * other) + (LEAST * np.abs(block) if values else 0.0))


def _bars_of_one_answer(block: Floats, off: float) -> Floats:
    """Half-widths of what one answer tells, a constant: numbers err by a share of their own size, or all alike, half of each."""
    squares = block**2
    return np.asarray(float(ndtri(0.975)) * off * np.sqrt((squares + np.mean(squares)) / 2) + LEAST * np.abs(block))


def _following(squares: Floats, block: Floats) -> float:
    """How far errors follow the sizes of the numbers, by those of the smaller half: 1 of shares of each, 0 of all alike."""
    sizes = block**2
    small = sizes <= np.median(sizes)
    apart = np.mean(sizes) - np.mean(sizes[small])
    if not apart or not squares.any():
        return 1.0
    smaller = np.mean(squares) - np.mean(squares[small])
    return float(np.clip(smaller / np.mean(squares) / (apart / np.mean(sizes)), 0.0, 1.0))


def _independent(errors: Floats) -> float:
    """How many errors of a block are independent, from ``TIMES`` draws of all of them: as many as if so many were of equal size.

    Two draws of k equal ones, at random angles, have a mean squared cosine of 1/k.
    """
    flat = errors.reshape(len(errors), -1)
    products, pairs = flat @ flat.T, np.triu_indices(len(errors), 1)
    sizes = np.diag(products)
    alike = float(np.sum(products[pairs] ** 2))
    return float(np.sum(np.outer(sizes, sizes)[pairs])) / alike if alike else 1.0


def _draws(independent: float) -> float:
    """Degrees of freedom of half a number's own mean square and half that of all, where so many errors are independent.

    The relative variances are ``2 / TIMES`` and ``2 / TIMES / k``, and the latter is what both have in common.
    """
    return 4 * TIMES / (1 + 3 / independent)
