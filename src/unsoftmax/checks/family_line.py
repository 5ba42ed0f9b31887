"""Diagnosis: one head behind any network without residual, on a short line of tokens (about 30 queries a line).

On the line ``origin + t axis`` the scores of one head are two numbers: with the last token at ``t`` each token scores ``s0 + s1 t``
per unit. The network is there a curve g(t), read from nine one-token answers; every sequence is answered as g at its weighted mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.checks.family_case import SAFETY, Case, DecidedError
from unsoftmax.checks.family_one_head import Outcome, steep_behind
from unsoftmax.checks.family_plane import Plane
from unsoftmax.models import Floats

ORDER = 8  # of the curve: 9 nodes, 5 of which come first
LENGTHS = (2, 3, 4, 6, 12, 40)
PAIRS = np.array([[0.7, -0.6], [-0.7, 0.6]])  # earlier and last token of the pairs that scores are read from
LOUD = 200.0  # floors between the ends of a line, at least: a score is then known to a few percent
UNEVEN = 12.0  # steepest over least steep part of a curve that can be inverted
BEND = 0.01  # of the rise: what the last two orders may hold before the line is cut
LARGEST = 6.0  # score difference that a pair shows well
CONFIRM = 45  # questions for a second line


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One-token answers on ``origin + t axis``, t in [-1, 1]: Chebyshev coefficients ``(9, outputs)``, unit vector of the rise."""

    origin: Floats
    axis: Floats
    coefficients: Floats
    rise: Floats

    def tokens(self, t: Floats) -> Floats:
        """Tokens ``(…, width)`` at ``t (…)``."""
        tokens: Floats = self.origin + t[..., None] * self.axis
        return tokens

    def height(self, t: Floats) -> Floats:
        """``g(t)`` along the rise."""
        return np.asarray(np.polynomial.chebyshev.chebval(t, self.coefficients @ self.rise))

    def slope(self, t: Floats) -> Floats:
        """Derivative of ``height``."""
        return np.asarray(np.polynomial.chebyshev.chebval(t, np.polynomial.chebyshev.chebder(self.coefficients @ self.rise)))

    def place(self, height: Floats) -> Floats:
        """Where the curve has that height: the inverse, to the spacing of a fine grid interpolated."""
        grid = np.linspace(-1.0, 1.0, 2001)
        return np.asarray(np.interp(height, self.height(grid), grid))


def behind_network(case: Case, kind: str, scale: float) -> Outcome:
    """Try lines until two follow the law of one head, or one where questions run out; one that breaks it decides."""
    case.begin("one head behind a network")
    kept, outcome = None, Outcome(None, "no line was found on which the head can be read")
    sizes = ((1.0, 0.5), (0.5, 0.5), (1.0, 0.2), (2.0, 0.2), (0.25, 0.5), (4.0, 0.1), (1.0, 0.1))
    if kind != "smooth":  # long origins keep scores of order one on lines so short that they meet no kink
        sizes = ((1.0, 0.3), (4.0, 0.1), (8.0, 0.05), (16.0, 0.03), (1.0, 0.1), (2.0, 0.1), (32.0, 0.02))
    for factor, reach in sizes:
        if kept is not None and case.left() < CONFIRM:
            break
        try:
            outcome = _one_line(case, case.cap(factor * scale, 4.0), reach)
        except DecidedError:
            if kept is None:
                raise
            break
        if outcome.passed is False:
            return outcome
        if outcome.passed:
            if kept is not None:
                break
            kept = outcome
    if kept is None:
        return outcome
    return steep_behind(case, kept) if case.coarse else kept


def _one_line(case: Case, scale: float, reach: float) -> Outcome:
    curve = _curve(case, scale * case.draw(), reach * scale * case.draw())
    if curve is None:
        return Outcome(None, "one-token answers are too flat or too uneven along a line")
    read = _scores(case, curve)
    return read if isinstance(read, Outcome) else _foretell(case, curve, read)


def _curve(case: Case, origin: Floats, axis: Floats) -> Curve | None:
    """Nine one-token answers on a line, which is cut around its steepest part until they rise evenly; 5, 10, … 24 queries."""
    nodes = np.cos(np.pi * np.arange(ORDER + 1) / ORDER)[::-1]
    for _ in range(4):
        y = case.ask((origin + nodes[::2, None] * axis)[:, None])
        steps = np.diff(y, axis=0) / np.diff(nodes[::2])[:, None]
        chord = y[-1] - y[0]
        size = float(np.linalg.norm(chord))
        rise = chord / max(size, 1e-300)
        even = size > LOUD * case.noise(y) and _even(steps @ rise)
        if even:
            more = case.ask((origin + nodes[1::2, None] * axis)[:, None])
            all_y = np.empty((ORDER + 1, y.shape[1]))
            all_y[::2], all_y[1::2] = y, more
            coefficients = np.asarray(np.linalg.solve(np.polynomial.chebyshev.chebvander(nodes, ORDER), all_y), dtype=np.float64)
            curve = Curve(origin, axis, coefficients, rise)
            tail = float(np.abs(coefficients[-2:]).sum(axis=0).max())
            if tail <= BEND * size + 4 * case.noise(all_y) and _even(curve.slope(np.linspace(-1.0, 1.0, 101))):
                return curve
        loud = int(np.linalg.norm(steps, axis=1).argmax())
        if float(np.abs(y - y[0]).max()) <= LOUD * case.noise(y):
            return None  # flat, or saturated
        origin, axis = origin + nodes[::2][loud : loud + 2].mean() * axis, axis / 3
    return None


def _even(slopes: Floats) -> bool:
    """Rising everywhere, and nowhere far steeper than elsewhere."""
    return bool(slopes.min() > 0 and slopes.max() <= UNEVEN * slopes.min())


def _scores(case: Case, curve: Curve) -> Plane | Outcome:
    """Two pairs give the two numbers of the scores: each is answered as some g(t), found with up to three more questions."""
    answers = case.ask(curve.tokens(PAIRS))
    level = case.noise(answers)
    earlier, last = PAIRS.T
    t = curve.place(answers @ curve.rise)
    here, off = t, np.full(len(t), np.inf)
    for _ in range(3):
        there = case.ask(curve.tokens(np.clip(t, -1, 1))[:, None])
        gap = (answers - there) @ curve.rise
        off = np.abs(answers - there).max(axis=1)
        here, left = np.clip(t, -1, 1), np.abs(gap)
        t = here + gap / curve.slope(here)
        if np.all(left <= 2 * level):
            break
    slope = curve.slope(here)
    doubt = (np.maximum(level, left) if np.any(left > 2 * level) else level) / slope
    share = (here - last) / (earlier - last)
    width = np.abs(earlier - last)
    beyond = float(np.maximum(-share, share - 1).max() * width[0] / (SAFETY * doubt.max()))
    beside = float((off / (SAFETY * level + 2 * left)).max())
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
    if float(np.abs(z * width).max()) > LARGEST or float(errors.max()) > 0.1:
        return Outcome(None, "scores are too large or answers too coarse on this line")
    lean = np.linalg.inv(np.column_stack([np.ones(2), last]))  # z = s0 + s1 last
    at_origin, at_end = (float(np.abs(row) @ errors) for row in (lean[0], lean[0] + lean[1]))
    return Plane(curve.origin, curve.axis[None], (lean @ z)[None], np.array([[at_origin, at_end]]))


def _foretell(case: Case, curve: Curve, line: Plane) -> Outcome:
    """Six sequences must be answered like the one token at the mean that the two numbers foretell (12 queries)."""
    draws = [case.rng.uniform(-1.0, 1.0, size=(n, 1)) for n in LENGTHS if n <= case.longest]
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
        return Outcome(None if case.coarse and worst < 3 else False, "answers differ from what one head foretells", line)
    if power < 20 or size < min(0.3, 30 / np.sqrt(power)):
        return Outcome(None, "too little power", line)
    return Outcome(True, "one head", line)
