"""Diagnosis: what one token alone does (affine, piecewise linear or smooth), and at which scale scores matter."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.recognition.case import Case, DecidedError, Shape, Verdict, asked_once, inconclusive, outside
from unsoftmax.recognition.settings import TESTS

ONE_TOKEN = "one token affine"
JUMPS = (
    "One-token answers are constant between jumps; no network with ReLU does that, but a target that rounds its tokens (int8 "
    "activations, an fp8 cache)."
)


def one_token(case: Case, scale: float) -> tuple[Shape, float]:
    """How one-token answers run, and at which scale that showed.

    Scales around ``scale``, where scores are of order one, and fixed ones are tried: 20 queries if affine, else about 34.
    """
    case.begin("one token")
    tried: list[float] = []
    for wanted in (scale, 1.0, 4 * scale, 32.0, scale / 4):
        size = case.cap(wanted, 4.5)
        if any(abs(size / t - 1) < 0.5 for t in tried):
            continue
        tried.append(size)
        a, b, c = size * case.draw(3)
        answers = case.attempt(np.stack([a, b, c, a + b - c])[:, None])
        if answers is None:  # overflow: stay below from now on
            case.reach = min(case.reach, size)
            continue
        bend = float(np.abs(answers[0] + answers[1] - answers[2] - answers[3]).max())
        share = bend / case.tolerance(answers)
        passed = share <= 1
        case.record(
            ONE_TOKEN,
            share,
            1.0,
            passed,
            f"One-token answers at scale {size:.2g} {'are' if passed else 'are not'} affine.",
        )
        if not passed:
            case.bent = np.stack([a, b, c, a + b - c]), answers
            case.bend = bend / max(float(np.ptp(answers, axis=0).max()), 1e-300)
            return _bends(case, size, bend), size
    return Shape.AFFINE, 1.0


def clearly_bends(case: Case, blur: float) -> bool | None:
    """Whether one-token answers bend by far more than ``blur``, to which a law was tested; None where by little more.

    One that they bend by less than that says nothing about their bends; by little more, only where these showed.
    """
    clear = case.coarse or case.bend >= TESTS.clear * blur
    words = "show in" if case.coarse or case.bend >= blur else "are too faint for"
    case.record(
        "bends against the law",
        case.bend,
        blur,
        clear or case.bend >= blur,
        f"Bends of one-token answers {words} the law of a head.",
    )
    return True if clear else None if case.bend >= blur else False


def _bends(case: Case, scale: float, bend: float, again: bool = True) -> Shape:
    """Second differences over h and h/2 at random places: 1/4 of each other where smooth, anything where a kink is met.

    The step is where a smooth target with this bend shows 100 floors, so that "straight" means something.
    """
    finest = 2.0**-12 if not case.coarse else 2.0**-8
    straight, smooth, kinked = 0, 0, 0
    for _ in range(2):
        places, steps = scale * case.draw(2, TESTS.places)
        h = float(np.clip(math.sqrt(100 * case.noise(*case.recent) / bend), finest, 0.5))
        points = np.stack([places + f * h * steps for f in (-1.0, -0.5, 0.0, 0.5, 1.0)], axis=1)
        answers = case.ask(points.reshape(-1, 1, case.width)).reshape(TESTS.places, 5, -1)
        level = case.noise(answers)
        wide = answers[:, 0] + answers[:, 4] - 2 * answers[:, 2]
        narrow = answers[:, 1] + answers[:, 3] - 2 * answers[:, 2]
        size = np.abs(wide).max(axis=1)
        best = np.abs(wide).argmax(axis=1)
        ratio = narrow[np.arange(TESTS.places), best] / np.where(size > 0, wide[np.arange(TESTS.places), best], 1.0)
        visible = size > 15 * level
        even = visible & (ratio > 0.15) & (ratio < 0.35)
        straight += int((size <= 4 * level).sum())
        smooth += int(even.sum())
        kinked += int((visible & ~even).sum())
        total = straight + smooth + kinked
        if total >= TESTS.places - 2 and smooth >= 0.6 * total:
            case.record(
                "bends evenly", smooth, 0.6 * total, False, f"One-token answers bend smoothly at {smooth} of {total} places."
            )
            return Shape.SMOOTH
        if total >= TESTS.places - 2 and smooth <= 0.2 * total:
            slope = np.abs(answers[:, 4] - answers[:, 0]).max(axis=1)
            if np.all(slope[size <= 4 * level] <= 4 * level) and straight > 0:
                if again:  # a saturated network looks like this as well: shorter tokens tell
                    return _bends(case, scale / 8, bend / 64, again=False)
                _refuse_asleep(case, scale)
                raise DecidedError(outside("piecewise constant", JUMPS))
            case.record(
                "bends evenly",
                smooth,
                0.6 * total,
                True,
                f"One-token answers are straight at {straight} of {total} places, with kinks at {kinked}.",
            )
            return Shape.PIECEWISE
    case.record(
        "bends evenly",
        smooth,
        0.6 * total,
        False,
        f"One-token answers bend smoothly at {smooth} of {total} places: neither smooth nor straight.",
    )
    return Shape.UNCLEAR


def _refuse_asleep(case: Case, scale: float) -> None:
    """Leave open what is flat near by, but straight and steep far away: neurons of a network may sleep here (6 queries).

    Raises:
        DecidedError: it is.
    """
    x, u = case.cap(TESTS.awake * scale, 1.5 + 2 * TESTS.aside) * case.draw(2)
    ends = np.array([x, -x])
    y = case.ask(np.concatenate([ends, ends + TESTS.aside * u, ends + 2 * TESTS.aside * u])[:, None]).reshape(3, 2, -1)
    steps, level = np.diff(y, axis=0), case.noise(y)
    steep = np.abs(steps).min(axis=0).max(axis=-1) > 15 * level
    bent = np.abs(steps[1] - steps[0]).max(axis=-1) > 0.1 * np.abs(steps[0]).max(axis=-1)
    if (steep & ~bent).any():
        words = "One-token answers are flat near by and steep far away: a network may sleep here, or tokens are rounded coarsely."
        raise DecidedError(inconclusive("kinks", words))


def sharp(case: Case, scale: float) -> bool:
    """Halve an interval around the strongest bend up to ten times: a kink stays in one half, a smooth bend in both (13 to 32).

    A jump does not shrink with the interval.
    """
    for longer in (1, 2, 4, 8):
        a, b = case.cap(longer * scale, 1.5) * case.draw(2)
        low, high, value = case.ask(np.stack([a, b, (a + b) / 2])[:, None])
        first = float(np.abs(low + high - 2 * value).max())
        level = case.noise(low, high, value)
        if first > 100 * level:
            break  # this line meets a bend
    middle, lone = (a + b) / 2, []
    for _ in range(10):
        left, right = (a + middle) / 2, (middle + b) / 2
        at_left, at_right = case.ask(np.stack([left, right])[:, None])
        bends = float(np.abs(low + value - 2 * at_left).max()), float(np.abs(value + high - 2 * at_right).max())
        if max(bends) > 30 * level:
            lone.append(min(bends) <= max(4 * level, 0.05 * max(bends)))
        if bends[0] >= bends[1]:
            b, high, middle, value = middle, value, left, at_left
        else:
            a, low, middle, value = middle, value, right, at_right
        if len(lone) >= 5 and all(lone[-3:]) and max(bends) < 0.1 * first:
            break
    last = float(np.abs(low + high - 2 * value).max())
    jump = last > 0.3 * max(first, 10 * level)
    kink = sum(lone[-3:]) >= 2
    case.record(
        "sharp kink",
        float(sum(lone[-3:])),
        2.0,
        kink and not jump,
        "The answer jumps." if jump else f"Bends are {'kinks' if kink else 'not sharp'}.",
    )
    return kink and not jump


def kinks(case: Case, scale: float) -> bool:
    """Whether bends are kinks; a second look where many kinks lay close together."""
    return sharp(case, scale) or (case.left() >= 40 and sharp(case, scale))


def kinks_if_affordable(case: Case, shape: Shape, scale: float) -> bool:
    """The same where the head is proven and only the name of the network is open: the first look decides if questions run out."""
    found = case.tried(lambda: kinks(case, scale))
    if not isinstance(found, Verdict):
        return found
    if shape is not Shape.PIECEWISE:
        raise DecidedError(found)
    return True


def grows(case: Case, scale: float) -> bool:
    """Whether one-token answers go on growing along a ray or its opposite, as ReLU networks do and norms do not (4 queries)."""
    scale = case.cap(scale, 1.5)
    x = scale * case.draw()
    far = case.cap(256.0 * scale, 1.5) / (256 * scale)
    y = case.ask(np.stack([x, -x, 128 * far * x, 256 * far * x, -128 * far * x, -256 * far * x])[:, None])
    growth, swing = float(np.abs(y[[3, 5]] - y[[2, 4]]).max()), float(np.abs(y[0] - y[1]).max())
    passed = growth >= swing * min(1.0, 64 * far)
    return case.record(
        "growth along a ray",
        growth / max(swing, 1e-300),
        1.0,
        passed,
        "One-token answers " + ("go on growing." if passed else "stop growing."),
    )


def ignores_length(case: Case, scale: float) -> bool:
    """Whether an earlier token counts the same at thrice and at an eighth of its length, though its opposite does not.

    Then a norm stands before the attention; one behind it would not hide the change of the weights. 4 queries, or 28: more looks
    before this is said, as a saturated network can hide a change.
    """
    for looks in (1, 2, 4):
        p, q, x = case.cap(max(scale, 0.25), 4.5) * case.draw(3, looks)  # the small constant of a norm must not show
        y = case.ask(np.concatenate([np.stack([f * p, q, x], axis=1) for f in (1, 3, 1 / 8, -1)])).reshape(4, looks, -1)
        swing = float(np.abs(y[0] - y[3]).max())
        still = float(np.abs(y[1:3] - y[0]).max()) / max(swing, 1e-300)
        changed = still > 0.02 or swing <= case.tolerance(y)
        case.record(
            "length of a token",
            still,
            0.02,
            changed,
            "Making an earlier token longer " + ("changes" if changed else "hardly changes") + " the answer.",
        )
        if changed:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Pilot:
    """Where scores are of order one: tokens of root mean square ``scale`` have score differences near ``strength``.

    Attributes:
        scale: root mean square entry of a token.
        strength: response to unequal weights, about half the score difference.
        listens: earlier tokens change the answer at all.
        flat: no score at any scale tried: the plain mean.
        hard: saturated at every scale tried.
        cancels: answers to copies of one token do not vary, so that no single head answers.
    """

    scale: float
    strength: float
    listens: bool = True
    flat: bool = False
    hard: bool = False
    cancels: bool = False


@asked_once
def pilot(case: Case) -> Pilot:
    """Find the scale at which ``[x+u, x-u, x]`` differs from ``[x]`` by about half of what ``[x+u, x+u, x]`` does.

    With equal weights the three tokens average to x whatever network stands behind and whether or not there is a residual, so that
    the response measures the scores alone: half the score difference while that is small, one in the end. 12 queries, then 8.
    """
    case.begin("scale")
    pairs = case.draw(3, 2)
    scale, seen = case.cap(case.width**-0.25, 4.0), {}
    for step in range(7):
        response = _respond(case, pairs if step == 0 else pairs[:2], scale)
        if response is None:  # overflow
            case.reach = min(case.reach, 2 * scale)
            scale /= 16
            continue
        odd, loud, level, moved = response
        if loud <= level:
            return _listen(case, pairs, scale)
        if moved <= level:  # values cancel over the heads: both responses are of the scores, whose size their ratio does not tell
            case.cancelled = loud
            return Pilot(scale, 0.3, cancels=True)
        strength = min(1.0, odd / loud)
        seen[scale] = strength if odd > level else 0.0
        if 0.2 <= strength <= 0.6:
            break
        following = case.cap(scale * _factor(strength, odd > level), 4.0)
        if any(abs(following / s - 1) < 0.05 for s in seen):
            break
        scale = following
    if not seen:
        raise DecidedError(inconclusive("overflow", "The target fails on sequences of three tokens, however short the tokens are."))
    best = min(seen, key=lambda s: abs(math.log(max(seen[s], 1e-9) / 0.4)))
    strength = seen[best]
    flat = strength == 0.0 and max(seen) >= case.cap(4 * case.width**-0.25, 4.0)
    hard = min(seen.values()) > 0.7
    case.record("scale", strength, 0.4, not hard, f"Scores are of order one for tokens with entries of about {best:.2g}.")
    return Pilot(best, strength, flat=flat, hard=hard)


def _respond(case: Case, pairs: Floats, scale: float) -> tuple[float, float, float, float] | None:
    """Response to unequal weights, to earlier tokens at all, what the floor explains, and how far answers to copies differ.

    The first two are summed, as values may cancel.
    """
    answers = case.attempt(
        np.concatenate([[[x, x, x], [x + u, x - u, x], [x + u, x + u, x], [x - u, x - u, x]] for x, u in scale * pairs])
    )
    if answers is None:
        return None
    x, mixed, up, down = answers.reshape(len(pairs), 4, -1).transpose(1, 0, 2)
    odd, loud = np.abs(mixed - x).max(axis=-1).sum(), (np.abs(up - x).max(axis=-1) + np.abs(down - x).max(axis=-1)).sum()
    return float(odd), float(loud), case.tolerance(answers), float(np.ptp(x, axis=0).max())


def _factor(strength: float, heard: bool) -> float:
    """Next scale over the present one: scores grow with its square where no bias dominates."""
    if strength > 0.6:
        return 0.1 if strength > 0.9 else 0.35
    return min(1e3, math.sqrt(0.4 / strength)) if heard else 8.0


def _listen(case: Case, pairs: Floats, scale: float) -> Pilot:
    """Earlier tokens were not heard at ``scale``; try shorter and longer ones before saying that they are never heard."""
    for factor in (1 / 16, 4.0):
        size = case.cap(factor * scale, 4.0)
        response = _respond(case, pairs, size)
        if response is not None and response[1] > response[2]:
            return Pilot(size, 0.3)
    if case.tolerance(*case.recent) > TESTS.deaf * max(float(np.abs(answers).max()) for answers in case.recent):
        raise DecidedError(inconclusive("power", "Answers are too coarse to tell whether earlier tokens change them."))
    case.record("earlier tokens", 0.0, 1.0, False, "Earlier tokens do not change the answer.")
    return Pilot(scale, 0.0, listens=False)
