"""What a target rounds inside, although it answers in float64."""

from __future__ import annotations

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.precision.settings import READING


def rounds_inside(oracle: Oracle, token: Floats) -> str:
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
    return "its tokens to whole steps (int8 activations)" if (gone == little).all() else "its tokens or their values to fp8 or to fine steps"
