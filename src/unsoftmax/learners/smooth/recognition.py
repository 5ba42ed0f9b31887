"""Does a target bend smoothly near by and look like corners from afar? The first questions about smooth networks."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import TargetError
from unsoftmax.learners.smooth.limit import FARTHEST
from unsoftmax.models import Floats
from unsoftmax.oracles.base import LastPosition, Oracle
from unsoftmax.results import Fact

STEP = 2.0**-10  # share of a token by which it is moved both ways; a ReLU network of 100 neurons bends there one time in thirty
BENT = 1e-10  # second difference, relative to the answers: 1e-16 / 1e-10 of rounding below, a millionth of a bend above
PLACES = 2  # at which it must bend: one corner by accident is one in thirty, two are one in a thousand
STRAIGHT = 1e-9  # second difference from afar, relative to the answers there, that is straight
GROWS = 1e-6  # share of the slope near by that must be left from afar
DEAF = 1e-9  # change of the answer by an earlier token, relative to the answers, that is none


def second_difference(oracle: Oracle, points: Floats, step: Floats) -> tuple[Floats, Floats]:
    """Second differences ``(n,)`` at ``points (n, width)`` along ``step (n, width)`` and the answers' size; 3 queries each."""
    asked = np.concatenate([points - step, points, points + step])[:, None]
    left, middle, right = LastPosition(oracle)(asked).reshape(3, len(points), -1)
    return np.linalg.norm(left + right - 2 * middle, axis=1), np.linalg.norm(middle, axis=1) + np.linalg.norm(right, axis=1)


def bends_smoothly(oracle: Oracle, *, rng: np.random.Generator) -> Fact:
    """Whether one-token answers bend everywhere, by ``3 * PLACES`` queries; a ReLU network does at its corners alone, after 3."""
    number = np.inf
    for _ in range(PLACES):
        point = rng.normal(size=(1, oracle.width))
        direction = rng.normal(size=point.shape)
        bent, size = second_difference(oracle, point, STEP * direction)
        number = min(number, float(bent[0] / max(float(size[0]), 1e-300)))
        if number <= BENT:
            break
    return Fact(
        "bends smoothly",
        number,
        BENT,
        number > BENT,
        "One-token answers bend at every place: a smooth network."
        if number > BENT
        else "One-token answers are straight nearly everywhere: no smooth network.",
    )


def straight_from_afar(oracle: Oracle, *, rng: np.random.Generator) -> Fact:
    """Whether the target, seen from very far, grows in proportion and does not bend; 3 queries."""
    point = rng.normal(size=(1, oracle.width)) * FARTHEST
    direction = rng.normal(size=point.shape) * FARTHEST
    try:
        bent, size = second_difference(oracle, point, STEP * direction)
    except TargetError as error:  # exponentials that overflow, say: such a target is asked near by, by others
        return Fact("straight from afar", np.inf, STRAIGHT, False, f"Very long tokens are not answered ({error}).")
    number = float(bent[0] / max(float(size[0]), 1e-300))
    grows = bool(size[0] > GROWS * FARTHEST)
    return Fact(
        "straight from afar",
        number if grows else np.inf,
        STRAIGHT,
        grows and number <= STRAIGHT,
        "Seen from very far the target is made of straight pieces, as networks of GELU, SiLU or softplus are."
        if grows and number <= STRAIGHT
        else "Seen from very far the target does not grow in proportion (tanh, sigmoid, a norm in front), or still bends (gates)."
        if grows
        else "Seen from very far the target does not grow: bounded neurons (tanh, sigmoid) or a norm in front.",
    )


def hears_earlier_tokens(oracle: Oracle, pair: Floats, second: Floats) -> Fact:
    """Whether the first token of ``pair (2, width)`` changes the answer to the ``second``; 1 query."""
    both = LastPosition(oracle)(pair[None]).reshape(-1)
    number = float(np.abs(both - second.reshape(-1)).max() / max(float(np.abs(second).max()), 1e-300))
    return Fact(
        "hears earlier tokens",
        number,
        DEAF,
        number > DEAF,
        "Earlier tokens change the answer: attention." if number > DEAF else "Earlier tokens do not change the answer.",
    )
