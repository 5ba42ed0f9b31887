"""Does a target bend smoothly near by and look like corners from afar? The first questions about smooth networks."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import TargetError, tried
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.linalg import INSIDE
from unsoftmax.models import Floats
from unsoftmax.oracles.base import LastPosition, Oracle
from unsoftmax.results import Fact


def second_difference(oracle: Oracle, point: Floats, step: Floats) -> tuple[float, float, Floats]:
    """The second difference at ``point (width,)`` along ``step``, the answers' size, and the middle one; 3 queries."""
    left, middle, right = LastPosition(oracle)(np.stack([point - step, point, point + step])[:, None]).reshape(3, -1)
    return float(np.linalg.norm(left + right - 2 * middle)), float(np.linalg.norm(middle) + np.linalg.norm(right)), middle


def _place(oracle: Oracle, rng: np.random.Generator, max_norm: float | None) -> Floats:
    """A point and a direction ``(2, width)`` of unit variance, shorter where steps of one direction would be too long."""
    place: Floats = rng.normal(size=(2, oracle.width))
    longest = float(np.linalg.norm(place, axis=1).sum())
    return place if max_norm is None else place * min(1.0, INSIDE * max_norm / longest)


def bends_smoothly(oracle: Oracle, *, rng: np.random.Generator, relative: float = 2.0**-50, max_norm: float | None = None) -> Fact:
    """Whether one-token answers bend at two places, by 8 queries; a ReLU network does at its corners alone, after 3.

    At twice the distance a smooth bend is four times as large; noise and corners are not. ``relative`` is the precision of the
    answers; coarse ones are looked at in another way.
    """
    if relative > RELU.rough:
        return _bends_smoothly_roughly(oracle, rng, relative, max_norm)
    number, even = np.inf, False
    for place in range(BENDS.places):
        point, direction = _place(oracle, rng, max_norm)
        bent, size, middle = second_difference(oracle, point, BENDS.step * direction)
        number = min(number, bent / max(size, 1e-300))
        if number <= BENDS.bent_near:
            break
        if place == 0:
            even = _even(oracle, point, 2 * BENDS.step * direction, middle, bent)
            if not even:
                break
    return _smooth(number, BENDS.bent_near, number > BENDS.bent_near and even)


def _bends_smoothly_roughly(oracle: Oracle, rng: np.random.Generator, relative: float, max_norm: float | None) -> Fact:
    """The same by coarse answers, 5 queries a place: at two of four places they must bend, and four times as much twice as far.

    Steps of the fourth root of the precision make bends a thousand times as large as it. That is where corners are met, too, and
    those of a large ReLU network add up to a bend; rarely to one that grows so, and hardly ever twice.
    """
    found: list[float] = []
    for _ in range(BENDS.rough_places):
        point, direction = _place(oracle, rng, max_norm)
        step = relative**0.25 * direction
        bent, size, middle = second_difference(oracle, point, step)
        if bent > 4 * relative * size and _even(oracle, point, 2 * step, middle, bent):
            found.append(bent / max(size, 1e-300))
        if len(found) == BENDS.places:
            break
    return _smooth(min(found, default=0.0), 4 * relative, len(found) == BENDS.places)


def _even(oracle: Oracle, point: Floats, step: Floats, middle: Floats, bent: float) -> bool:
    """Whether the second difference with ``step`` is four times ``bent``; 2 queries."""
    ends = LastPosition(oracle)(np.stack([point - step, point + step])[:, None])
    return abs(float(np.linalg.norm(ends.reshape(2, -1).sum(axis=0) - 2 * middle)) / (4 * bent) - 1) <= BENDS.even


def _smooth(number: float, threshold: float, passed: bool) -> Fact:
    return Fact(
        "bends smoothly",
        number,
        threshold,
        passed,
        "One-token answers bend at every place: a smooth network."
        if passed
        else "One-token answers are straight nearly everywhere, or bend unevenly: no smooth network.",
    )


def straight_from_afar(oracle: Oracle, *, rng: np.random.Generator, relative: float = 2.0**-50) -> Fact:
    """Whether the target, seen from very far, grows in proportion and does not bend; 3 queries, and 3 on the other side where no
    neuron is active on the first.

    Answers of a coarse ``relative`` precision are compared farther apart, where a corner may lie between them: up to three times.
    """
    narrow, allowed = max(BENDS.narrow, float(np.sqrt(64 * relative))), max(BENDS.straight_afar, 16 * relative)

    def differences() -> tuple[float, float]:
        for _ in range(3 if relative > RELU.rough else 1):
            point, direction = rng.normal(size=(2, oracle.width)) * BENDS.farthest
            bent, size, _ = second_difference(oracle, point, narrow * direction)
            if size <= BENDS.grows * BENDS.farthest:
                bent, size, _ = second_difference(oracle, -point, narrow * direction)
            if bent <= allowed * size:
                break
        return bent, size

    found = tried(differences, TargetError)
    if isinstance(found, TargetError):  # exponentials that overflow, say: such a target is asked near by, by others
        return Fact("straight from afar", np.inf, allowed, False, f"Very long tokens are not answered ({found}).")
    bent, size = found
    number = bent / max(size, 1e-300)
    grows = size > BENDS.grows * BENDS.farthest
    return Fact(
        "straight from afar",
        number if grows else np.inf,
        allowed,
        grows and number <= allowed,
        "Seen from very far the target is made of straight pieces, as networks of GELU, SiLU or softplus are."
        if grows and number <= allowed
        else "Seen from very far the target does not grow in proportion (tanh, sigmoid, a norm in front), or still bends (gates)."
        if grows
        else "Seen from very far the target does not grow: bounded neurons (tanh, sigmoid) or a norm in front.",
    )


def quadratic_from_afar(oracle: Oracle, *, rng: np.random.Generator) -> Fact:
    """Whether the target, seen from very far, grows with the square of the distance, to rounding; 4 queries, two on each side: all
    gates may be shut on one of them."""
    point = rng.normal(size=(1, oracle.width)) * BENDS.farthest
    answers = tried(lambda: LastPosition(oracle)(np.concatenate([point, -point, 2 * point, -2 * point])[:, None]), TargetError)
    if isinstance(answers, TargetError):
        return Fact("quadratic from afar", np.inf, BENDS.straight_afar, False, f"Very long tokens are not answered ({answers}).")
    near, far = answers.reshape(2, -1)
    size = float(np.linalg.norm(far))
    # saturated neurons whose sum is nothing are nothing at twice the distance too
    number = float(np.linalg.norm(far - 4 * near)) / size if size > BENDS.grows * BENDS.farthest else np.inf
    return Fact(
        "quadratic from afar",
        number,
        BENDS.straight_afar,
        number <= BENDS.straight_afar,
        "Seen from very far the target grows with the square of the distance, as gated networks (SwiGLU, GeGLU) do."
        if number <= BENDS.straight_afar
        else "Seen from very far the target does not grow with the square of the distance: no gated network.",
    )


def hears_earlier_tokens(oracle: Oracle, pair: Floats, second: Floats, *, relative: float = 2.0**-50) -> Fact:
    """Whether the first token of ``pair (2, width)`` changes the answer to the ``second``, beyond its precision; 1 query."""
    deaf = max(BENDS.deaf, 4 * relative)
    both = LastPosition(oracle)(pair[None]).reshape(-1)
    number = float(np.abs(both - second.reshape(-1)).max() / max(float(np.abs(second).max()), 1e-300))
    return Fact(
        "hears earlier tokens",
        number,
        deaf,
        number > deaf,
        "Earlier tokens change the answer: attention." if number > deaf else "Earlier tokens do not change the answer.",
    )
