"""Seen from far away a smooth network is a ReLU network without biases: its directions and jumps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.ffn.forms import Found
from unsoftmax.learners.ffn.learner import FFNLearner
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, Wrapper
from unsoftmax.results import Floor


class FromAfar(Wrapper):
    """Answers ``y(scale x) / scale``; ``order`` 2 divides twice."""

    def __init__(self, inner: Oracle, scale: float, order: int = 1) -> None:
        super().__init__(inner)
        self.scale, self.order = scale, order

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask far out."""
        return np.asarray(self.inner(self.scale * sequences) / self.scale**self.order)


def far_scale(width: int, max_norm: float | None, *, farthest: float = BENDS.farthest) -> float:
    """How far away to stand, a power of two.

    Raises:
        NotInFamilyError: tokens may not be long enough.
    """
    if max_norm is None:
        return farthest
    room = max_norm / (BENDS.room * np.sqrt(width))
    if room < BENDS.nearest:
        raise NotInFamilyError(
            f"max_norm={max_norm:.3g} is too short for smooth networks: they are told from tokens at least "
            f"{BENDS.nearest * BENDS.room * np.sqrt(width):.1e} long, where each neuron looks like a corner. Allow longer "
            "tokens, or learn the attention alone (family `attention-behind-network`).",
            evidence={"max_norm": max_norm},
        )
    return float(min(farthest, 2.0 ** np.floor(np.log2(room))))


def relu_limit(
    oracle: Oracle, *, floor: Floor, max_norm: float | None, max_neurons: int, rng: np.random.Generator
) -> tuple[Found, Questions, float]:
    """The ReLU network without biases that ``y(T x) / T`` tends to, the questions asked for it and ``T``."""
    scale = far_scale(oracle.width, max_norm)
    inner = None if max_norm is None else max_norm / scale
    questions = Questions(FromAfar(oracle, scale), floor=replace(floor, absolute=0.0), max_norm=inner)
    learner = FFNLearner(
        questions.floor,
        inner,
        max_neurons,
        caution=BENDS.caution,
        extra=BENDS.extra,
        through_origin=True,
        accept=BENDS.accept_limit,
    )
    return learner.find(questions, rng=rng), questions, scale
