"""Diagnosis: one head with any network behind it and no residual, ``f(X) = f([sum_i a_i x_i])`` exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from unsoftmax.checks.family_case import SAFETY, Case, DecidedError
from unsoftmax.checks.family_plane import Plane, random_coordinates
from unsoftmax.models import Floats

LENGTHS = (2, 2, 3, 3, 4, 6, 12, 40)
FEWER_LENGTHS = (2, 3, 4, 6, 12, 40)  # behind a network each costs three questions
STEEP_POWER = 0.001  # of a chord: how sharp the test of scores of 6 must be


@dataclass(frozen=True, slots=True)
class Outcome:
    """``passed`` is None where the test had too little power to say; ``plane`` where scores were measured."""

    passed: bool | None
    why: str
    plane: Plane | None = None


def one_head(case: Case, kind: str, scale: float, *, flat: bool = False) -> Outcome:
    """Measure the six numbers of the scores on a random plane, then foretell eight sequences: 30 queries if affine, else 70."""
    case.begin("one head")
    if flat:
        return _plain_mean(case, scale)
    reaches = (1.0, 0.3, 0.1) if kind == "affine" else ((0.7, 0.35, 0.2) if case.coarse else (0.5, 0.15, 0.05))
    outcome = Outcome(None, "no plane was found on which the head can be read")
    larger = 1.0
    for reach in reaches:
        try:
            plane = _read_plane(case, kind, case.cap(scale * larger, 4.0), reach if larger == 1.0 else reaches[0])
        except DecidedError:
            if outcome.passed is None:
                raise
            return outcome
        if isinstance(plane, Outcome):
            outcome = plane
            if plane.passed is False and kind == "affine":
                return outcome
            continue
        outcome = _foretell(case, kind, plane)
        if outcome.passed:
            if kind == "affine":
                return _steep(case, outcome)
            return _steep_behind(case, outcome) if case.coarse else outcome
        if outcome.passed is False and kind == "affine":
            return outcome
        if outcome.passed is None and kind == "affine":
            larger *= 2.0  # the law holds, but scores were too small to tell it from others
    return outcome


def _plain_mean(case: Case, scale: float) -> Outcome:
    axes = min(2, case.width)
    plane = Plane(
        case.cap(scale, 6.0) * case.draw(),
        case.cap(scale, 6.0) * case.draw(axes),
        np.zeros((axes, 1 + axes)),
        np.zeros((axes, 1 + axes)),
    )
    return _foretell(case, "any", plane, strong=True)


def _read_plane(case: Case, kind: str, scale: float, reach: float) -> Plane | Outcome:
    axes = min(2, case.width)
    origin = scale * case.draw()
    candidates = reach * scale * case.draw(4 if kind == "affine" else 6)
    values = case.ask(np.vstack([origin, origin + candidates])[:, None])
    change = np.abs(values[1:] - values[0]).max(axis=1)
    loudest = np.argsort(-change, kind="stable")[:axes]
    chosen = candidates[loudest]
    bases = np.vstack([origin, origin + chosen])
    pairs = np.array([[[base + axis, base] for base in bases] for axis in chosen])  # (axes, bases, 2, width)
    answers = case.ask(pairs.reshape(-1, 2, case.width)).reshape(axes, 1 + axes, -1)
    if kind == "affine":
        single = values
        start = np.broadcast_to(np.vstack([values[:1], values[1:][loudest]]), answers.shape)
        end = start + (start[0, 1:] - start[0, 0])[:, None]
    else:
        ends = np.unique((bases[:, None] + chosen).reshape(-1, case.width), axis=0)
        single = np.vstack([values, case.ask(ends[:, None])])
        known = np.vstack([origin, origin + candidates, ends])
        table = {token.tobytes(): value for token, value in zip(known, single, strict=True)}
        start = np.array([[table[p[1].tobytes()] for p in row] for row in pairs])
        end = np.array([[table[p[0].tobytes()] for p in row] for row in pairs])
    level = case.noise(single, answers)
    chord = end - start
    length = (chord**2).sum(axis=-1)
    if float(np.sqrt(length).min()) <= 20 * level:
        return Outcome(None, "a chord is too short to be read")
    share = ((answers - start) * chord).sum(axis=-1) / length
    if kind == "affine":
        t, slope = share, np.ones_like(share)
        off = float(np.abs(answers - start - t[..., None] * chord).max()) / case.tolerance(single, answers)
    else:
        found = _invert(case, pairs.reshape(-1, 2, case.width), start, end, answers, level)
        if isinstance(found, Outcome):
            return found
        t, slope, off = found[0].reshape(share.shape), found[1].reshape(share.shape), found[2]
    blur = SAFETY * level / np.sqrt(length)
    if np.any(np.minimum(np.abs(t), np.abs(1 - t)) <= blur):
        return Outcome(None, "scores are saturated on this plane")
    inner = bool(np.all((t > 0) & (t < 1)))
    on_line = off <= 1
    if not inner or not on_line:
        case.record(
            "between the tokens",
            off if inner else float(np.abs(t - 0.5).max()),
            1.0 if inner else 0.5,
            False,
            "A pair of tokens is not answered like a point between them.",
        )
        return Outcome(False, "a pair of tokens is not answered like a point between them")
    z = np.log(t / (1 - t))
    errors = level / (np.sqrt(length) * slope * t * (1 - t))
    if float(np.abs(z).max()) > 6 or float(errors.max()) > 0.1:
        return Outcome(None, "scores are too large or answers too coarse on this plane")
    return Plane.measured(origin, chosen, z, errors, np.vstack([values[:1], values[1:][loudest]]))


def _invert(
    case: Case, pairs: Floats, start: Floats, end: Floats, answers: Floats, level: float
) -> tuple[Floats, Floats, float] | Outcome:
    """Solve ``f([x + t u]) = f([x + u; x])`` for all pairs at once: bracketed inverse interpolation, about 5 queries each."""
    x, u = pairs[:, 1], pairs[:, 0] - pairs[:, 1]
    start, end, answers = (a.reshape(len(x), -1) for a in (start, end, answers))
    chord = end - start
    length = (chord**2).sum(axis=1)
    goal = ((answers - start) * chord).sum(axis=1) / length
    known_t = [[0.0, 1.0] for _ in x]
    known_h = [[0.0, 1.0] for _ in x]
    t = np.full(len(x), 0.5)
    best = np.full(len(x), np.inf)
    root, miss = t.copy(), np.full(len(x), np.inf)
    for step in range(9):
        open_roots = np.flatnonzero(best > 2 * level / np.sqrt(length))
        if not len(open_roots):
            break
        values = case.ask((x + t[:, None] * u)[open_roots, None])
        for row, b in enumerate(open_roots):
            h = float((values[row] - start[b]) @ chord[b] / length[b])
            if step == 0 and not 0 < h < 1:
                return Outcome(None, "one-token answers are not monotone along a line")
            known_t[b].append(float(t[b]))
            known_h[b].append(h)
            if abs(h - goal[b]) < best[b]:
                best[b], root[b] = abs(h - goal[b]), t[b]
                miss[b] = float(np.abs(values[row] - answers[b]).max())
            t[b] = _next_point(np.array(known_t[b]), np.array(known_h[b]), float(goal[b]))
    if not np.all((goal > 0) & (goal < 1)):
        case.record(
            "between the tokens",
            float(np.abs(goal - 0.5).max()),
            0.5,
            False,
            "A pair of tokens is answered beyond both of its tokens.",
        )
        return Outcome(False, "a pair of tokens is answered beyond both of its tokens")
    slope = np.array([_slope(np.array(a), np.array(b), r) for a, b, r in zip(known_t, known_h, root, strict=True)])
    tolerance = SAFETY * level + np.sqrt(length) * best
    return root, np.maximum(slope, 0.05), float((miss / tolerance).max())


def _next_point(t: Floats, h: Floats, goal: float) -> float:
    """Inverse interpolation through the nearest points, kept inside the bracket."""
    low, high = t[h <= goal], t[h >= goal]
    if not len(low) or not len(high):
        return 0.5
    a, b = float(low[np.argmax(h[h <= goal])]), float(high[np.argmin(h[h >= goal])])
    near = np.argsort(np.abs(h - goal), kind="stable")[:5]
    guess = 0.0
    for i in near:
        others = near[near != i]
        if np.any(h[others] == h[i]):
            return 0.5 * (a + b)
        guess += t[i] * float(np.prod((goal - h[others]) / (h[i] - h[others])))
    a, b = min(a, b), max(a, b)
    return guess if a < guess < b else 0.5 * (a + b)


def _slope(t: Floats, h: Floats, root: float) -> float:
    order = np.argsort(np.abs(t - root), kind="stable")
    for other in order[1:]:
        if abs(t[other] - t[order[0]]) > 1e-3:
            return abs(float((h[other] - h[order[0]]) / (t[other] - t[order[0]])))
    return 1.0


def _foretell(case: Case, kind: str, plane: Plane, strong: bool = False) -> Outcome:
    """Ask sequences in the plane and one-token sequences at the centres that the scores foretell; they must agree."""
    worst, effects, sizes = 0.0, [], []
    lengths = [n for n in (LENGTHS if kind == "affine" else FEWER_LENGTHS) if n <= case.longest]
    draws = [random_coordinates(case.rng, len(plane.axes), n) for n in lengths]
    centres = np.array([plane.centre(c) for c in draws])
    lasts = np.array([c[-1] for c in draws])
    base = _corners(case, plane)
    chords = np.abs(base[1:] - base[0]).max(axis=1)
    points = np.vstack([centres, lasts])
    singles = base[0] + points @ (base[1:] - base[0]) if kind == "affine" else case.ask(plane.tokens(points)[:, None])
    foretold, alone = singles[: len(draws)], singles[len(draws) :]
    for coordinates, there, last in zip(draws, foretold, alone, strict=True):
        answer = case.ask(plane.tokens(coordinates)[None])[0]
        tolerance = 12 * case.noise(singles) + 3 * float(plane.uncertainty(coordinates) @ chords)
        worst = max(worst, float(np.abs(answer - there).max()) / tolerance)
        effects.append(float(np.abs(answer - last).max()) / tolerance)
        sizes.append(float(np.abs((coordinates - coordinates[-1]) @ plane.slope(coordinates[-1])).max()))
    power, size = float(np.median(effects)), float(np.median(sizes))
    case.record("power", power, 20.0, power >= 20, "Effect of the weights over what answers may be off by.")
    case.record("score size", size, 0.0, True, "Score differences in the test.")
    needed = min(0.3, 30 / math.sqrt(max(power, 1e-9)))
    passed = worst <= 1
    case.record(
        "foretold answers",
        worst,
        1.0,
        passed,
        f"{len(draws)} sequences " + ("are" if passed else "are not") + " answered as one head foretells.",
    )
    if not passed:
        return Outcome(False, "answers differ from what one head foretells", plane)
    if power < 20 or (size < needed and not strong):
        return Outcome(None, "too little power", plane)
    return Outcome(True, "one head", plane)


def _corners(case: Case, plane: Plane) -> Floats:
    """One-token answers at the origin and at the ends of the axes."""
    if plane.values is not None:
        return plane.values
    axes = len(plane.axes)
    return case.ask(plane.tokens(np.vstack([np.zeros((1, axes)), np.eye(axes)]))[:, None])


def _steep(case: Case, outcome: Outcome) -> Outcome:
    """Two tokens far above the last one's score, close to each other: soft-caps and norms show here (4 queries)."""
    plane = outcome.plane
    assert plane is not None
    axes = len(plane.axes)
    seen = 0
    base = _corners(case, plane)
    chord = base[1:] - base[0]
    for height in (6.0, 6.0, 25.0, 25.0):
        last = case.rng.uniform(-1.0, 1.0, size=axes)
        slope = plane.slope(last)
        size = float(slope @ slope)
        if size < 1e-4:
            continue
        up = slope / size  # raises the score by one
        side = np.array([-up[1], up[0]]) if axes == 2 else np.zeros(1)
        spread = case.rng.uniform(0.3, 1.0)
        coordinates = np.array([last + height * up + height * side, last + (height - spread) * up - height * side, last])
        tokens = plane.tokens(coordinates)
        if np.sqrt((tokens**2).mean(axis=1)).max() > case.reach:
            continue
        answer = case.attempt(tokens[None])
        if answer is None:
            continue
        foretold = base[0] + plane.centre(coordinates) @ chord
        ends = base[0] + coordinates @ chord
        tolerance = case.tolerance(ends, base) * (1 + float(np.abs(coordinates).max())) + 10 * float(
            plane.uncertainty(coordinates) @ np.abs(chord).max(axis=1)
        )
        if tolerance > 0.05 * float(np.abs(ends[0] - ends[1]).max()):
            continue
        seen += 1
        share = float(np.abs(answer[0] - foretold).max()) / tolerance
        if not case.record(
            "steep scores",
            share,
            1.0,
            share <= 1,
            f"Scores {height:g} above the last token's " + ("follow" if share <= 1 else "do not follow") + " the same law.",
        ):
            return Outcome(False, "scores bend when they are large", plane)
    if seen < 2 and case.floor.relative > 2.0**-40:
        return Outcome(None, "large scores could not be tested", plane)
    return outcome


def _steep_behind(case: Case, outcome: Outcome) -> Outcome:
    """The same behind a network: two tokens with large scores against the one token at their weighted mean (4 queries each).

    Coarse answers do not tell a soft-cap from none while scores are of order one.
    """
    plane = outcome.plane
    assert plane is not None
    axes = len(plane.axes)
    for height in (12.0, 6.0, 20.0, 9.0):
        if case.left() < 4:
            break
        last = case.rng.uniform(-0.5, 0.5, size=axes)
        slope = plane.slope(last)
        up = slope / max(float(slope @ slope), 1e-4)  # raises the score by one
        side = np.array([-slope[1], slope[0]]) / max(float(np.linalg.norm(slope)), 1e-2) if axes == 2 else np.zeros(axes)
        spread = case.rng.uniform(0.5, 1.0)
        coordinates = np.array([last + height * up + 0.5 * side, last + (height - spread) * up - 0.5 * side, last])
        tokens = plane.tokens(coordinates)
        if np.sqrt((tokens**2).mean(axis=1)).max() > case.reach:
            continue
        ends = case.ask(tokens[:2, None])
        chord = float(np.abs(ends[0] - ends[1]).max())
        doubt = 3 * float(np.linalg.norm(plane.uncertainty(coordinates))) / float(np.linalg.norm(coordinates[0] - coordinates[1]))
        tolerance = 12 * case.noise(ends) + doubt * chord
        if tolerance > STEEP_POWER * (height / 6) ** 2 * chord:  # a cap of 50 bends scores of 6 by half a percent
            continue
        there = case.ask(plane.tokens(plane.centre(coordinates))[None, None])[0]
        answer = case.ask(tokens[None])[0]
        share = float(np.abs(answer - there).max()) / tolerance
        passed = case.record(
            "steep scores",
            share,
            1.0,
            share <= 1,
            f"Scores {height:g} above the last token's " + ("follow" if share <= 1 else "do not follow") + " the same law.",
        )
        return outcome if passed else Outcome(False, "scores bend when they are large", plane)
    return Outcome(None, "large scores could not be tested", plane)
