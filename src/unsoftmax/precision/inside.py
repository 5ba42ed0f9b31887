"""What a target rounds inside, although it answers in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from unsoftmax.linalg import INSIDE
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.precision.settings import READING


def rounds_inside(oracle: Callable[[Floats], Floats], token: Floats) -> str:
    """What is rounded inside, where small moves of some entries of a token change the answer and tiny ones leave every bit of it.

    The largest entry stays: steps may follow its size. Entries far smaller than it vanish in whole steps (int8), and not in fp8.
    Empty where nothing is; ``4 READING.moved + 1`` queries at most.
    """
    largest = int(np.argmax(np.abs(token)))
    some = [i for i in range(len(token)) if i != largest][: READING.moved]
    if not some or not token[largest]:
        return ""
    moves = np.eye(len(token))[some]
    size = abs(float(token[largest]))
    without = token * (1 - moves)
    faint = without + 2.0**-9 * size * moves
    batch = np.concatenate([token[None], token + 2.0**-40 * size * moves, token - 0.2 * token * moves, without, faint])
    answers = oracle(batch[:, None]).reshape(len(batch), -1)
    base, tiny, small, gone, little = np.split(answers, np.cumsum([1, *[len(some)] * 3]))
    if not (tiny == base).all() or (small == base).all():
        return ""
    return (
        "its tokens to whole steps (int8 activations)"
        if (gone == little).all()
        else "its tokens or their values to fp8 or to fine steps"
    )


def values_in_steps(oracle: Oracle, rng: np.random.Generator, max_norm: float | None) -> str:
    """What is rounded, in words, where almost straight one-token answers run otherwise over tiny steps than over a large one.

    Whole steps that follow the largest number of a token (int8) leave no answer as it is, but take most of its slope, the same at
    every tiny step; errors that follow no rule do not grow with the step. Empty where nothing is rounded; 24 queries.
    """
    tokens, moves = rng.normal(size=(2, READING.slopes, oracle.width))
    steps = np.array([0.0, READING.tinier, READING.tiny, 0.5])
    X = tokens + steps[:, None, None] * moves
    if max_norm is not None:
        X *= min(1.0, INSIDE * max_norm / float(np.linalg.norm(X, axis=-1).max()))
    answers = oracle(X.reshape(-1, 1, oracle.width)).reshape(*X.shape[:2], -1)
    tinier, tiny, far = (answers[1:] - answers[0]) / steps[1:, None, None]
    size = np.linalg.norm(far, axis=1)
    same = np.linalg.norm(tinier - tiny, axis=1) <= READING.same_slope * size
    other = np.linalg.norm(tiny - far, axis=1) > READING.other_slope * size
    in_steps = int((same & other).sum()) >= READING.slopes_off
    return (
        "its tokens, or the keys and values of its cache, to whole steps that follow the largest of them (int8)" if in_steps else ""
    )
