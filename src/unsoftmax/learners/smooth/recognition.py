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
EVEN = 0.1  # how far from four times the bend at twice the distance may be; a smooth one is within a thousandth or so
NARROW = 2.0**-15  # the same from afar, where a corner in between would look like a bend: one time in a thousand for 64 neurons
STRAIGHT = 1e-12  # second difference from afar, relative to the answers there, that is straight; gates leave NARROW^2 = 1e-9
GROWS = 1e-6  # share of the slope near by that must be left from afar
DEAF = 1e-9  # change of the answer by an earlier token, relative to the answers, that is none


def second_difference(oracle: Oracle, point: Floats, step: Floats) -> tuple[float, float, Floats]:
    """The second difference at ``point (width,)`` along ``step``, the answers' size, and the middle one; 3 queries."""
    left, middle, right = LastPosition(oracle)(np.stack([point - step, point, point + step])[:, None]).reshape(3, -1)
    return float(np.linalg.norm(left + right - 2 * middle)), float(np.linalg.norm(middle) + np.linalg.norm(right)), middle


def bends_smoothly(oracle: Oracle, *, rng: np.random.Generator) -> Fact:
    """Whether one-token answers bend at two places, by 8 queries; a ReLU network does at its corners alone, after 3.

    At twice the distance a smooth bend is four times as large; noise and corners are not.
    """
    number, even = np.inf, False
    for place in range(PLACES):
        point, direction = rng.normal(size=(2, oracle.width))
        bent, size, middle = second_difference(oracle, point, STEP * direction)
        number = min(number, bent / max(size, 1e-300))
        if number <= BENT:
            break
        if place == 0:
            ends = LastPosition(oracle)(np.stack([point - 2 * STEP * direction, point + 2 * STEP * direction])[:, None])
            even = abs(float(np.linalg.norm(ends.reshape(2, -1).sum(axis=0) - 2 * middle)) / (4 * bent) - 1) <= EVEN
            if not even:
                break
    passed = number > BENT and even
    return Fact(
        "bends smoothly",
        number,
        BENT,
        passed,
        "One-token answers bend at every place: a smooth network."
        if passed
        else "One-token answers are straight nearly everywhere, or bend unevenly: no smooth network.",
    )


def straight_from_afar(oracle: Oracle, *, rng: np.random.Generator) -> Fact:
    """Whether the target, seen from very far, grows in proportion and does not bend; 3 queries, and 3 on the other side where no
    neuron is active on the first."""
    point, direction = rng.normal(size=(2, oracle.width)) * FARTHEST
    try:
        bent, size, _ = second_difference(oracle, point, NARROW * direction)
        if size <= GROWS * FARTHEST:
            bent, size, _ = second_difference(oracle, -point, NARROW * direction)
    except TargetError as error:  # exponentials that overflow, say: such a target is asked near by, by others
        return Fact("straight from afar", np.inf, STRAIGHT, False, f"Very long tokens are not answered ({error}).")
    number = bent / max(size, 1e-300)
    grows = size > GROWS * FARTHEST
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


def quadratic_from_afar(oracle: Oracle, *, rng: np.random.Generator) -> Fact:
    """Whether the target, seen from very far, grows with the square of the distance, to rounding; 4 queries, two on each side: all
    gates may be shut on one of them."""
    point = rng.normal(size=(1, oracle.width)) * FARTHEST
    try:
        near, far = LastPosition(oracle)(np.concatenate([point, -point, 2 * point, -2 * point])[:, None]).reshape(2, -1)
    except TargetError as error:
        return Fact("quadratic from afar", np.inf, STRAIGHT, False, f"Very long tokens are not answered ({error}).")
    number = float(np.linalg.norm(far - 4 * near)) / max(float(np.linalg.norm(far)), 1e-300)
    return Fact(
        "quadratic from afar",
        number,
        STRAIGHT,
        number <= STRAIGHT,
        "Seen from very far the target grows with the square of the distance, as gated networks (SwiGLU, GeGLU) do."
        if number <= STRAIGHT
        else "Seen from very far the target does not grow with the square of the distance: no gated network.",
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
