"""Diagnosis: one head behind any network without residual, on a short line of tokens (about 30 queries a line).

On the line ``origin + t axis`` the scores of one head are two numbers: with the last token at ``t`` each token scores ``s0 + s1 t``
per unit. The network is there a curve g(t), read from nine one-token answers; every sequence is answered as g at its weighted mean.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.models.forward import softmax
from unsoftmax.recognition.case import Case, DecidedError, Shape, Verdict, asked_once
from unsoftmax.recognition.curve import Curve, curve_along
from unsoftmax.recognition.one_head import Outcome
from unsoftmax.recognition.plane import Plane
from unsoftmax.recognition.settings import TESTS

PAIRS = np.array([[0.7, -0.6], [-0.7, 0.6]])  # earlier and last token of the pairs that scores are read from
RAY = np.array([1.0, 2.0, 4.0])  # lengths of a far last token


@asked_once
def behind_network(case: Case, shape: Shape, scale: float) -> Outcome:
    """Try lines until two follow the law of one head, or one where questions run out; one that breaks it decides.

    One that breaks it by little leaves it open, whatever others say: those may show less.

    For coarse answers one line is enough if it also holds for large scores.
    """
    case.begin("one head behind a network")
    kept, outcome, missed = None, Outcome(None, "no line was found on which the head can be read"), False
    sizes = ((1.0, 0.5), (0.5, 0.5), (1.0, 0.2), (2.0, 0.2), (0.25, 0.5), (4.0, 0.1), (1.0, 0.1))
    if case.coarse:  # longer ones: bends and scores must be seen
        sizes = ((1.0, 1.0), (0.5, 1.0), (1.0, 0.4), (2.0, 0.4), (0.25, 1.0), (4.0, 0.2), (1.0, 0.2))
    if shape is not Shape.SMOOTH:  # long origins keep scores of order one on lines so short that they meet no kink
        sizes = ((1.0, 0.3), (4.0, 0.1), (8.0, 0.05), (16.0, 0.03), (1.0, 0.1), (2.0, 0.1), (32.0, 0.02))
    for factor, reach in sizes:
        if kept is not None and case.left() < TESTS.confirm:
            break
        found = case.tried(partial(_one_line, case, case.cap(factor * scale, 4.0), reach, scale))
        if isinstance(found, Verdict):
            if kept is None:
                raise DecidedError(found)
            break
        outcome = found
        if outcome.passed is False:
            return outcome
        missed = missed or outcome.faint
        if outcome.passed:
            if kept is not None or case.coarse:
                kept = outcome
                break
            kept = outcome
    if kept is not None and missed:
        return replace(kept, passed=None, why="on one of several lines answers differ a little from what one head foretells")
    return outcome if kept is None else kept


def _one_line(case: Case, size: float, reach: float, scale: float) -> Outcome:
    curve = curve_along(case, size * case.draw(), reach * size * case.draw())
    if curve is None:
        return Outcome(None, "one-token answers are too flat or too uneven along a line")
    read = _scores(case, curve)
    if isinstance(read, Outcome):
        return read
    outcome, sharpness = _foretell(case, curve, read)
    if not outcome.passed or not case.coarse or sharpness >= TESTS.sharp:
        return outcome
    if sharpness == 0.0:
        return replace(outcome, passed=None, why="answers are nearly off")
    further = _far_last(case, curve, scale)
    return replace(further, behind=further.behind or outcome.behind)


def _scores(case: Case, curve: Curve) -> Plane | Outcome:
    """Two pairs give the two numbers of the scores: each is answered as some g(t), found with up to three more questions."""
    answers = case.ask(curve.tokens(PAIRS))
    level = case.noise(answers)
    earlier, last = PAIRS.T
    here, left, off = _places(case, curve, answers)
    doubt = (np.maximum(level, left) if np.any(left > 2 * level) else level) / curve.slope(here)
    share = (here - last) / (earlier - last)
    width = np.abs(earlier - last)
    beyond = float(np.maximum(-share, share - 1).max() * width[0] / (TESTS.safety * doubt.max()))
    beside = float((off / (TESTS.safety * level + 2 * left)).max())
    if not case.record(
        "between the tokens",
        max(beyond, beside),
        1.0,
        beyond <= 1 and beside <= 1,
        "Pairs of tokens are " + ("" if max(beyond, beside) <= 1 else "not ") + "answered like a point between them.",
    ):
        return Outcome(False, "a pair of tokens is not answered like a point between them")
    if np.any(np.minimum(share, 1 - share) * width <= 10 * doubt):
        return Outcome(None, "scores are saturated on this line")
    z = np.log(share / (1 - share)) / (earlier - last)  # per unit of t
    errors = doubt / width**2 / (share * (1 - share))
    if float(np.abs(z * width).max()) > TESTS.line_largest or float(errors.max()) > 0.1:
        return Outcome(None, "scores are too large or answers too coarse on this line")
    lean = np.linalg.inv(np.column_stack([np.ones(2), last]))  # z = s0 + s1 last
    at_origin, at_end = (float(np.abs(row) @ errors) for row in (lean[0], lean[0] + lean[1]))
    return Plane(curve.origin, curve.axis[None], (lean @ z)[None], np.array([[at_origin, at_end]]))


def _places(case: Case, curve: Curve, answers: Floats) -> tuple[Floats, Floats, Floats]:
    """Where on the line one token is answered like that ``(n, outputs)``: t, what is left along the rise, and beside it."""
    level = case.noise(answers)
    t = curve.place(answers @ curve.rise)
    for _ in range(3):
        here = np.clip(t, -1, 1)
        miss = answers - case.ask(curve.tokens(here)[:, None])
        gap = miss @ curve.rise
        if np.all(np.abs(gap) <= 2 * level):
            break
        t = here + gap / curve.slope(here)
    return here, np.abs(gap), np.abs(miss).max(axis=1)


def _foretell(case: Case, curve: Curve, line: Plane) -> tuple[Outcome, float]:
    """Six sequences must be answered like the one token at the mean that the two numbers foretell (12 queries).

    Also how sharp the test was: power times the square of the score differences, by which a soft-cap bends scores.
    """
    draws = [case.rng.uniform(-1.0, 1.0, size=(n, 1)) for n in TESTS.line_lengths if n <= case.longest]
    centres = np.array([line.centre(t)[0] for t in draws])
    answers = np.vstack([case.ask(line.tokens(t)[None]) for t in draws])
    foretold = case.ask(curve.tokens(centres)[:, None])
    plain = np.array([float(t.mean()) for t in draws])
    effect = np.abs(answers @ curve.rise - curve.height(plain))
    doubts = np.array([float(line.uncertainty(t)[0]) for t in draws])
    steepest = np.abs(np.polynomial.chebyshev.chebval(centres, np.polynomial.chebyshev.chebder(curve.coefficients))).max(axis=0)
    room = 1 if case.coarse else 20  # exact answers leave it: what is not one head misses by a million
    tolerance = room * (12 * case.noise(answers, foretold) + 4 * doubts * steepest)
    worst = float((np.abs(answers - foretold).max(axis=1) / tolerance).max())
    power = float(np.median(effect / tolerance))
    size = float(np.median([np.abs((t - t[-1]) @ line.slope(t[-1])).max() for t in draws]))
    case.record("power", power, 20.0, power >= 20, "Effect of unequal weights over what answers may be off by.")
    case.record("score size", size, 0.0, True, "Score differences in the test.")
    passed = case.record(
        "foretold answers",
        worst,
        1.0,
        worst <= 1,
        f"{len(draws)} sequences " + ("are" if worst <= 1 else "are not") + " answered as one head foretells.",
    )
    if not passed:
        few = worst < 3 if case.coarse else worst <= TESTS.faint_bent
        why = "answers differ from what one head foretells"
        return Outcome(None if few else False, why, line, faint=few and not case.coarse), 0.0
    if not case.coarse and (power < 20 or size < min(0.3, 30 / np.sqrt(power))):
        return Outcome(None, "too little power", line), 0.0
    parts = [softmax((t - t[-1]) @ line.slope(t[-1])) for t in draws]
    mixed = np.array([float(part @ curve.height(t[:, 0])) for part, t in zip(parts, draws, strict=True)])
    behind = bool(np.any(np.abs(mixed - foretold @ curve.rise) > TESTS.behind * tolerance))
    return Outcome(True, "one head", line, behind), power * size**2 / _missed(worst) if worst <= TESTS.sure else 0.0


def _missed(worst: float) -> float:
    """Three times the largest deviation in units of the allowed one, at most one: the floor is a cautious guess."""
    return float(np.clip(3 * worst, 0.05, 1.0))


def _far_last(case: Case, curve: Curve, scale: float) -> Outcome:
    """The same law where the last token is far away and out of favour, so that scores are large but the network sees the line only.

    With a last token whose own weight is nil, tokens on the line weigh exp(sigma t): one number, affine in the last token along a
    ray. Soft-caps, norms and second heads show there even where answers are coarse. About 25 queries.
    """
    lasts, looked = 4.0 * scale * case.draw(3), 0
    for _ in range(5):
        lasts *= min(1.0, case.reach / (1.5 * RAY[2] * float(np.sqrt((lasts**2).mean(axis=1)).max())))
        silent = lasts[_silent(case, curve, lasts)]
        if not len(silent):
            looked += 1
            if looked == 3:  # a last token may always have weight, where scores of a token with itself are positive
                break
            lasts = 4.0 * 3.0**looked * scale * case.draw(3)
            continue
        outcome, steep = _ray(case, curve, silent[0], float(np.sqrt((silent[0] ** 2).mean())) / scale)
        if outcome.passed is not None or steep == math.inf:
            return outcome
        lasts = silent[:1] * float(np.clip(5.0 / max(steep, 1e-3), 1.5, 32.0))  # scores grow with the last token
    return Outcome(None, "large scores could not be tested")


def _silent(case: Case, curve: Curve, lasts: Floats) -> Floats:
    """Which last tokens have no weight of their own beside copies of the line's origin, at both ends of their ray.

    Then between the ends as well: own scores are quadratic along a ray. Two queries each.
    """
    at_origin = np.asarray(np.polynomial.chebyshev.chebval(0.0, curve.coefficients))
    few, ends = min(4, case.longest - 1), np.stack([lasts, RAY[2] * lasts], axis=1).reshape(2 * len(lasts), -1)
    answers = case.ask(np.array([np.vstack([np.tile(curve.origin, (few, 1)), last]) for last in ends]))
    off = np.abs(answers - at_origin).max(axis=1).reshape(len(lasts), 2).max(axis=1)
    return np.asarray(off <= 6 * case.noise(at_origin))


def _ray(case: Case, curve: Curve, last: Floats, longer: float) -> tuple[Outcome, float]:
    """Read sigma for three lengths of one last token, then foretell four sequences; also how far apart scores were."""
    apart = 0.6
    for _ in range(4):
        tokens = curve.tokens(np.array([apart, -apart]))
        answers = case.ask(np.array([np.vstack([tokens, f * last]) for f in RAY]))
        share = (curve.place(answers @ curve.rise) + apart) / (2 * apart)
        if np.all((share > 0.01) & (share < 0.99)):
            break
        apart /= 2  # too steep: tokens nearer to each other
    else:
        return Outcome(None, "scores are saturated on this line"), 3.0
    here, left, _ = _places(case, curve, answers)
    share = (here + apart) / (2 * apart)
    doubt = (4 * case.noise(answers) + left) / curve.slope(here) / (2 * apart)
    if np.any(np.minimum(share, 1 - share) <= 2 * doubt):
        return Outcome(None, "answers are too coarse"), 3.0
    sigma = np.log(share / (1 - share)) / (2 * apart)
    rounding = 4 * case.floor.relative * longer * RAY  # scores of long tokens are rounded in proportion to their size
    errors = (doubt / (share * (1 - share)) + rounding) / (2 * apart)
    bent = abs(sigma[1] - (2 * sigma[0] + sigma[2]) / 3) / (4 * float(errors.mean()))
    steep = float(np.abs(sigma).max()) * 3 * apart
    words = "Scores " + ("are" if bent <= 1 else "are not") + " affine in a far last token."
    if not case.record("far last token", bent, 1.0, bent <= 1, words):
        return Outcome(False, "scores bend when they are large"), steep
    if steep < TESTS.steep:
        return Outcome(None, "scores are too small"), steep
    which = np.array([0, 2, 2, 0])
    draws = [case.rng.uniform(-1.5 * apart, 1.5 * apart, size=n) for n in (2, 3, 5, 12)]
    for t, k in zip(draws, which, strict=True):
        t[0] = 1.5 * apart * np.sign(sigma[k])  # a token in favour: the last one's weight stays nil
    parts = [softmax(sigma[k] * t) for t, k in zip(draws, which, strict=True)]
    centres = np.array([float(part @ t) for part, t in zip(parts, draws, strict=True)])
    spread = np.array([float(part @ (t - c) ** 2) for part, t, c in zip(parts, draws, centres, strict=True)])
    answers = np.vstack([case.ask(np.vstack([curve.tokens(t), RAY[k] * last])[None]) for t, k in zip(draws, which, strict=True)])
    foretold = case.ask(curve.tokens(centres)[:, None])
    slope = np.abs(curve.slope(centres))
    tolerance = 12 * case.noise(answers, foretold) + slope * (4 * spread * errors[which] + 4 * rounding[which] * np.sqrt(spread))
    worst = float((np.abs(answers - foretold).max(axis=1) / tolerance).max())
    effect = np.abs(answers @ curve.rise - curve.height(np.array([t.mean() for t in draws])))
    power = float(np.median(effect / tolerance))
    words = f"Scores {steep:.2g} apart " + ("follow" if worst <= 1 else "do not follow") + " the same law."
    if not case.record("large scores", worst, 1.0, worst <= 1, words):
        return Outcome(None if worst < 3 else False, "scores bend when they are large"), steep
    missed = max(bent, worst)
    sharpness = power * steep**2 / _missed(missed)
    enough = sharpness >= TESTS.sharper and missed <= TESTS.sure
    case.record(
        "sharpness", sharpness, TESTS.sharp, enough, "Effect of the weights, times squared scores, over what answers were off by."
    )
    mixed = np.array([float(part @ curve.height(t)) for part, t in zip(parts, draws, strict=True)])
    behind = bool(np.any(np.abs(mixed - foretold @ curve.rise) > TESTS.behind * tolerance))
    return Outcome(
        True if enough else None, "one head" if enough else "too little power", behind=behind
    ), steep if missed <= TESTS.sure else math.inf
