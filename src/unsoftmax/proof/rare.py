"""A few sequences of very many tokens: what strikes one token in a hundred thousand shows there, for hardly a query.

A token that is answered otherwise changes a long sequence little, but float64 shows little changes. Only targets in this process
are asked so, and only as far as their time allows: one that compares all tokens with each other takes the square of it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import numpy as np

from unsoftmax.errors import TargetError, tried
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, one_commit
from unsoftmax.proof.compare import Compared
from unsoftmax.proof.drawn import natural_ones
from unsoftmax.proof.fresh import Fresh
from unsoftmax.proof.settings import PROOF


def lengths(width: int) -> list[int]:
    """Tokens of each of these sequences, where the target takes them all in good time.

    >>> lengths(8)
    [1024, 4096, 16384, 65536, 262144]
    >>> lengths(64)
    [1024, 4096, 16384, 32768]
    """
    most = min(PROOF.very_long, PROOF.very_many // width)
    shorter = [PROOF.beyond * PROOF.step**n for n in range(8)]
    return [*(n for n in shorter if n < most), most] if most > PROOF.beyond else []


def very_long(
    oracle: Oracle, width: int, rng: np.random.Generator, *, natural: Floats | None, max_norm: float | None
) -> list[Fresh]:
    """Sequences of natural tokens with their raw answers, each longer than the one before; at most five queries.

    Where one more would take too long, were its time to grow with the square, the others are no longer than those of the check: how
    many are asked does not hang on a clock. The first that the target fails on is the end.
    """
    asked: list[Fresh] = []
    taken, last, slow = 0.0, PROOF.beyond, False
    with one_commit(oracle):
        for wanted in lengths(width):
            slow = slow or taken * (wanted / last) ** 2 > PROOF.patience
            length = PROOF.longest if slow else wanted
            sequence = natural_ones((1, length, width), rng, natural, max_norm, large=PROOF.by_bits)
            began = time.perf_counter()
            answers = tried(partial(oracle, sequence), TargetError)
            taken, last = time.perf_counter() - began, length
            if isinstance(answers, TargetError):
                break
            asked.append(Fresh(sequence, natural=True, told=answers))
    return asked


def with_them(seen: Compared, far: Compared) -> Compared:
    """Both comparisons as one."""
    return replace(
        seen,
        answers=np.concatenate([seen.answers, far.answers]),
        predicted=np.concatenate([seen.predicted, far.predicted]),
        batches=(*seen.batches, *far.batches),
    )
