"""Diagnosis: one head where one-token answers are affine, ``f(X) = f([sum_i a_i x_i])`` exactly; large scores; the plain mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.recognition.case import Case, DecidedError, Verdict
from unsoftmax.recognition.plane import Plane, random_coordinates
from unsoftmax.recognition.settings import TESTS


@dataclass(frozen=True, slots=True)
class Outcome:
    """``passed`` is None where the test had too little power to say; ``plane`` where scores were measured.

    ``behind``: the answer at the mean of the tokens was told from the mean of their answers, so that a network stands behind.
    ``broken``: a law of one head was seen broken, though perhaps by a kink alone.
    ``blur``: share of the weights' effect by which sequences may have missed the law unseen. ``faint``: they missed it by little.
    ``far``: only sequences of longer tokens than natural ones missed it.
    """

    passed: bool | None
    why: str
    plane: Plane | None = None
    behind: bool = False
    broken: bool = False
    blur: float = 0.0
    faint: bool = False
    far: bool = False


def afar(plane: Plane) -> Outcome:
    """The law was missed, but only where tokens are longer than natural ones, of which a recovery says nothing."""
    return Outcome(None, "sequences of tokens longer than natural ones miss what it foretells", plane, far=True)


def faintly(plane: Plane) -> Outcome:
    """The law was missed by more than rounding, and by too little to exclude a head."""
    return Outcome(None, "some sequences miss by more than rounding what it foretells", plane, faint=True)


def one_head(case: Case, scale: float, *, flat: bool = False) -> Outcome:
    """Where one-token answers are affine: measure the six numbers of the scores on a random plane, then foretell eight sequences.

    30 queries. ``flat``: scores seem to be zero, whatever network stands behind; the plain mean is foretold.
    """
    case.begin("one head")
    if flat:
        return _plain_mean(case, scale)
    outcome = Outcome(None, "no plane was found on which the head can be read")
    larger = 1.0
    for reach in (1.0, 0.3, 0.1):
        plane = case.tried(partial(_read_plane, case, case.cap(scale * larger, 4.0), reach if larger == 1.0 else 1.0))
        if isinstance(plane, Verdict):
            if outcome.passed is None:
                raise DecidedError(plane)
            return outcome
        if isinstance(plane, Outcome):
            outcome = plane
            if plane.passed is False or plane.faint:
                return outcome
            continue
        outcome = _foretell(case, plane)
        if outcome.passed:
            return _steep(case, outcome)
        if outcome.passed is False or outcome.faint:
            return outcome
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
    return _foretell(case, plane, flat=True)


def natural_plane(case: Case, scale: float, spare: int) -> Plane | Outcome | None:
    """Scores on one more plane, of natural tokens or shorter ones, where ``spare`` questions are left after that; 9 queries.

    None where that is not so, or nothing can be read there.
    """
    axes = min(2, case.width)
    if case.coarse or case.left() < (1 + axes) ** 2 + spare:
        return None
    found = _read_plane(case, case.cap(min(scale, 1.0), 4.0), 1.0, candidates=axes)
    return None if isinstance(found, Outcome) and found.passed is None and not found.faint else found


def _read_plane(case: Case, scale: float, reach: float, candidates: int = 4) -> Plane | Outcome:
    axes = min(2, case.width)
    origin = scale * case.draw()
    steps = reach * scale * case.draw(candidates)
    values = case.ask(np.vstack([origin, origin + steps])[:, None])
    change = np.abs(values[1:] - values[0]).max(axis=1)
    loudest = np.argsort(-change, kind="stable")[:axes]
    chosen = steps[loudest]
    bases = np.vstack([origin, origin + chosen])
    pairs = np.array([[[base + axis, base] for base in bases] for axis in chosen])  # (axes, bases, 2, width)
    answers = case.ask(pairs.reshape(-1, 2, case.width)).reshape(axes, 1 + axes, -1)
    start = np.broadcast_to(np.vstack([values[:1], values[1:][loudest]]), answers.shape)
    chord = np.broadcast_to((start[0, 1:] - start[0, 0])[:, None], answers.shape)
    level = case.noise(values, answers)
    length = (chord**2).sum(axis=-1)
    if float(np.sqrt(length).min()) <= 20 * level:
        return Outcome(None, "a chord is too short to be read")
    share = ((answers - start) * chord).sum(axis=-1) / length
    off = float(np.abs(answers - start - share[..., None] * chord).max()) / case.tolerance(values, answers)
    blur = TESTS.safety * level / np.sqrt(length)
    if np.any(np.minimum(np.abs(share), np.abs(1 - share)) <= blur):
        return Outcome(None, "scores are saturated on this plane")
    inner = bool(np.all((share > 0) & (share < 1)))
    if not inner or off > 1:
        case.record(
            "between the tokens",
            off if inner else float(np.abs(share - 0.5).max()),
            1.0 if inner else 0.5,
            False,
            "A pair of tokens is not answered like a point between them.",
        )
        faint = inner and off <= TESTS.faint
        return Outcome(None if faint else False, "a pair of tokens is not answered like a point between them", faint=faint)
    z = np.log(share / (1 - share))
    errors = level / (np.sqrt(length) * share * (1 - share))
    if float(np.abs(z).max()) > 6 or float(errors.max()) > 0.1:
        return Outcome(None, "scores are too large or answers too coarse on this plane")
    return Plane.measured(origin, chosen, z, errors, np.vstack([values[:1], values[1:][loudest]]))


def _foretell(case: Case, plane: Plane, flat: bool = False) -> Outcome:
    """Ask sequences in the plane; they must be answered as one-token sequences at the centres that the scores foretell.

    Those are asked as well where ``flat``, since a network may stand behind, and computed where they are affine.
    """
    worst, effects, sizes = 0.0, [], []
    lengths = [n for n in (TESTS.fewer_lengths if flat else TESTS.one_head_lengths) if n <= case.longest]
    draws = [random_coordinates(case.rng, len(plane.axes), n) for n in lengths]
    centres = np.array([plane.centre(c) for c in draws])
    lasts = np.array([c[-1] for c in draws])
    base = corners(case, plane)
    chords = np.abs(base[1:] - base[0]).max(axis=1)
    points = np.vstack([centres, lasts])
    singles = case.ask(plane.tokens(points)[:, None]) if flat else base[0] + points @ (base[1:] - base[0])
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
    if worst > TESTS.faint:
        return Outcome(False, "answers differ from what one head foretells", plane)
    if not passed:
        return faintly(plane)
    if power < 20 or (size < needed and not flat):
        return Outcome(None, "too little power", plane)
    case.foretold.update(lengths)
    return Outcome(True, "one head", plane)


def corners(case: Case, plane: Plane) -> Floats:
    """One-token answers at the origin and at the ends of the axes."""
    if plane.values is not None:
        return plane.values
    axes = len(plane.axes)
    return case.ask(plane.tokens(np.vstack([np.zeros((1, axes)), np.eye(axes)]))[:, None])


def _steep(case: Case, outcome: Outcome) -> Outcome:
    """Two tokens far above the last one's score, close to each other: soft-caps and norms show here (4 queries).

    The last token is of natural size where scores are so steep that the plane lies in shorter ones.
    """
    plane = outcome.plane
    assert plane is not None
    axes = len(plane.axes)
    seen, far = 0, False
    base = corners(case, plane)
    for height in (6.0, 6.0, 25.0, 25.0):
        last, spread = case.rng.uniform(-1.0, 1.0, size=axes), case.rng.uniform(0.3, 1.0)
        told = None
        for further in sorted({1.0, max(1.0, 1.0 / plane.unit)}, reverse=True):
            if told is None or told.blurred:
                told = _above(case, plane, further * last, height, spread, base)
        if told is None or told.blurred:
            continue
        seen += 1
        follows = told.share <= 1
        words = f"Scores {height:g} above the last token's {'follow' if follows else 'do not follow'} the same law."
        if not case.record("steep scores", told.share, 1.0, follows, words):
            far = far or not told.natural
            if told.natural or told.share <= TESTS.faint:
                return Outcome(False if told.share > TESTS.faint else None, "scores bend when they are large", plane)
    if far:
        return afar(plane)
    if seen < 2 and case.floor.relative > 2.0**-40:
        return Outcome(None, "large scores could not be tested", plane)
    return outcome


def _above(case: Case, plane: Plane, last: Floats, height: float, spread: float, base: Floats) -> Told | None:
    """Ask two tokens so far above the score of the ``last``; None where that cannot be asked, or scores hardly change there."""
    slope = plane.slope(last)
    size = float(slope @ slope)
    if size < 1e-4:
        return None
    up = slope / size  # raises the score by one
    side = np.array([-up[1], up[0]]) if len(last) == 2 else np.zeros(1)
    coordinates = np.array([last + height * up + height * side, last + (height - spread) * up - height * side, last])
    return against(case, plane, coordinates, base)


@dataclass(frozen=True, slots=True)
class Told:
    """How far one answer misses what the scores of a plane foretell, of what is allowed; ``blurred`` where that says little.

    ``natural``: no token is longer than natural ones are, of which a recovery says something.
    """

    share: float
    blurred: bool
    natural: bool


def against(case: Case, plane: Plane, coordinates: Floats, base: Floats) -> Told | None:
    """Ask one sequence in the plane; None where its tokens are too long, or the target fails on it."""
    tokens, chord = plane.tokens(coordinates), base[1:] - base[0]
    longest = float(np.linalg.norm(tokens, axis=1).max())
    if longest > case.reach * math.sqrt(case.width):
        return None
    answer = case.attempt(tokens[None])
    if answer is None:
        return None
    foretold, ends = base[0] + plane.centre(coordinates) @ chord, base[0] + coordinates @ chord
    tolerance = case.tolerance(ends, base) * (1 + float(np.abs(coordinates).max())) + 10 * float(
        plane.uncertainty(coordinates) @ np.abs(chord).max(axis=1)
    )
    blurred = tolerance > 0.05 * float(np.abs(ends[0] - ends[1]).max())
    natural = longest <= math.sqrt(case.width) + TESTS.natural
    return Told(float(np.abs(answer[0] - foretold).max()) / tolerance, blurred, natural)
