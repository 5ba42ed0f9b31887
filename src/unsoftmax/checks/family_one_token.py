"""Diagnosis: what one token alone does (affine, piecewise linear or smooth), and at which scale scores matter."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from unsoftmax.checks.family_case import SAFETY, Case, outside
from unsoftmax.models import Floats

PLACES = 8  # where curvature is looked at


def one_token(case: Case) -> str:
    """Tell "affine", "piecewise" or "smooth" from one-token answers: 16 queries if affine, else about 4 + 24."""
    case.begin("one token")
    for scale in (1.0, 0.25, 4.0, 32.0):
        size = case.cap(scale, 4.5)
        a, b, c = size * case.draw(3)
        answers = case.attempt(np.stack([a, b, c, a + b - c])[:, None])
        if answers is None:  # overflow: stay below from now on
            case.reach = min(case.reach, scale)
            break
        bend = float(np.abs(answers[0] + answers[1] - answers[2] - answers[3]).max())
        share = bend / case.tolerance(answers)
        passed = share <= 1
        case.record(
            "one token affine", share, 1.0, passed, f"One-token answers at scale {size:g} {'are' if passed else 'are not'} affine."
        )
        if not passed:
            return _bends(case, size, bend)
    return "affine"


def _bends(case: Case, scale: float, bend: float) -> str:
    """Second differences at random places, at a step where a smooth target bends visibly and a kink is rarely met."""
    smallest = 2.0**-12 if case.floor.relative < 2.0**-40 and not case.floor.absolute else 2.0**-8
    for _ in range(3):
        places, steps = scale * case.draw(2, PLACES)
        level = case.noise(case.ask(places[:1, None]))
        # a smooth target with this bend over one unit bends by bend * h^2 over a step h: ask for 300 floors
        h = float(np.clip(math.sqrt(300 * level / bend), smallest, 0.5))
        points = np.stack([places - h * steps, places, places + h * steps], axis=1)
        answers = case.ask(points.reshape(-1, 1, case.width)).reshape(PLACES, 3, -1)
        second = np.abs(answers[:, 0] + answers[:, 2] - 2 * answers[:, 1]).max(axis=1)
        slope = np.abs(answers[:, 2] - answers[:, 0]).max(axis=1)
        level = case.noise(answers)
        straight = int((second <= 10 * level).sum())
        if straight >= PLACES // 2:
            flat = int((slope[second <= 10 * level] <= 10 * level).sum())
            case.record("straight pieces", straight, PLACES // 2, True, f"One-token answers are straight at {straight} of {PLACES} places.")
            if flat >= straight and PLACES * h > 0.01:
                raise outside("piecewise constant", "One-token answers are constant between jumps; no network with ReLU does that.")
            return "piecewise"
        if straight <= 1 and not np.any(second > 100 * (bend * h * h + 10 * level)):
            case.record("straight pieces", straight, PLACES // 2, False, f"One-token answers bend at {PLACES - straight} of {PLACES} places.")
            return "smooth"
        smallest /= 8  # kinks lie denser than the step
        bend *= 8
    case.record("straight pieces", straight, PLACES // 2, False, f"One-token answers are straight at {straight} of {PLACES} places only.")
    return "smooth"


def continuous(case: Case, scale: float) -> bool:
    """Halve an interval around a kink ten times: a continuous target deviates less each time (14 queries)."""
    a, b = case.cap(scale, 1.5) * case.draw(2)
    ends = case.ask(np.stack([a, b, (a + b) / 2])[:, None])
    first = float(np.abs(ends[0] + ends[1] - 2 * ends[2]).max())
    low, high = ends[0], ends[1]
    middle, value = (a + b) / 2, ends[2]
    for _ in range(6):
        left, right = (a + middle) / 2, (middle + b) / 2
        at_left, at_right = case.ask(np.stack([left, right])[:, None])
        if np.abs(low + value - 2 * at_left).max() >= np.abs(value + high - 2 * at_right).max():
            b, high, middle, value = middle, value, left, at_left
        else:
            a, low, middle, value = middle, value, right, at_right
    last = float(np.abs(low + high - 2 * value).max())
    passed = last <= 0.3 * max(first, 10 * case.noise(ends))
    return case.record("continuous", last / max(first, 1e-300), 0.3, passed, "Kinks are continuous." if passed else "The answer jumps at a kink.")


def grows(case: Case, factor: float = 1.0) -> bool:
    """Whether one-token answers go on growing along a ray, as ReLU networks do and norms do not (4 queries)."""
    x = case.cap(1.0, 1.5) * case.draw()
    far = case.cap(256.0, 1.5) / 256
    y = case.ask(np.stack([x, -x, 128 * far * x, 256 * far * x])[:, None])
    growth, swing = float(np.abs(y[3] - y[2]).max()), float(np.abs(y[0] - y[1]).max())
    passed = growth >= factor * swing * min(1.0, 64 * far)
    return case.record("growth along a ray", growth / max(swing, 1e-300), factor, passed, "One-token answers " + ("go on growing." if passed else "stop growing."))


@dataclass(frozen=True, slots=True)
class Pilot:
    """Where scores are of order one: tokens of root mean square ``scale`` have score differences near ``strength``.

    Attributes:
        scale: root mean square entry of a token.
        strength: response to unequal weights, about half the score difference.
        listens: earlier tokens change the answer at all.
        flat: no score at any scale tried: the plain mean.
        hard: saturated at every scale tried.
    """

    scale: float
    strength: float
    listens: bool = True
    flat: bool = False
    hard: bool = False


def pilot(case: Case) -> Pilot:
    """Find the scale at which ``[x+u, x-u, x]`` differs from ``[x]`` by about half of what ``[x+u, x+u, x]`` does.

    With equal weights the three tokens average to x whatever network stands behind and whether or not there is a residual, so
    that the response measures the scores alone: it is half the score difference while that is small, and tends to one. 8 queries a step.
    """
    case.begin("scale")
    pairs = case.draw(2, 2)
    scale, seen = case.cap(case.width**-0.25, 4.0), {}
    for _ in range(6):
        answers = case.attempt(np.concatenate([_triple(scale * x, scale * u) for x, u in pairs]))
        if answers is None:
            case.reach = min(case.reach, 2 * scale)
            scale /= 4
            continue
        x, mixed, up, down = answers.reshape(2, 4, -1).transpose(1, 0, 2)
        loud = np.abs(up - x).max(axis=-1) + np.abs(down - x).max(axis=-1)
        if float(loud.max()) <= case.tolerance(answers):
            return Pilot(scale, 0.0, listens=False) if scale >= 0.1 or len(seen) > 1 else _louder(case, pairs)
        odd = np.abs(mixed - x).max(axis=-1)
        # what cannot be told from zero counts as zero, but as much as the floor allows
        strength = float(np.mean(np.minimum(1.0, odd / np.maximum(loud, 1e-300))))
        seen[scale] = strength
        if 0.15 <= strength <= 0.5:
            break
        factor = 0.35 if strength > 0.5 else min(8.0, math.sqrt(0.32 / max(strength, 0.005)))
        following = case.cap(scale * factor, 4.0)
        if any(abs(following / s - 1) < 0.05 for s in seen):
            break
        scale = following
    best = min(seen, key=lambda s: abs(math.log(max(seen[s], 1e-9) / 0.3)))
    strength = seen[best]
    flat = strength < 0.005 and max(seen) > 4 * case.width**-0.25
    hard = min(seen.values()) > 0.7
    case.record("scale", strength, 0.3, not hard, f"Scores are of order one for tokens with entries of about {best:.2g}.")
    return Pilot(best, strength, flat=flat, hard=hard)


def _triple(x: Floats, u: Floats) -> Floats:
    return np.stack([[x, x, x], [x + u, x - u, x], [x + u, x + u, x], [x - u, x - u, x]])


def _louder(case: Case, pairs: Floats) -> Pilot:
    scale = case.cap(1.0, 4.0)
    answers = case.ask(np.concatenate([_triple(scale * x, scale * u) for x, u in pairs]))
    x, _, up, down = answers.reshape(2, 4, -1).transpose(1, 0, 2)
    loud = float((np.abs(up - x) + np.abs(down - x)).max())
    return Pilot(scale, 0.3, listens=loud > SAFETY * case.noise(answers))
