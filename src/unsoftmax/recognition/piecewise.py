"""Diagnosis: one head before a ReLU network, with or without residual (about 50 queries)."""

from __future__ import annotations

import math

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.recognition.case import Case
from unsoftmax.recognition.cells import affine_fit, cells_at, excess_of, seems_residual, steps_of, stretch_of
from unsoftmax.recognition.one_head import Outcome
from unsoftmax.recognition.plane import Plane
from unsoftmax.recognition.settings import TESTS


def transformer(case: Case, scale: float, longer: float = 1.0) -> tuple[Outcome, bool | None]:
    """Read the scores inside linear cells of the network, then compare sequences that must be answered alike (about 50 queries).

    Large x and small u keep ``[(x+u)^k; x]`` inside one linear cell, where ``y - y_x = D k/(k + exp(-z))`` whatever the residual
    does; two ratios k give z, a third tells cells that hold a kink. Then two sequences with the same last token and the same
    weighted mean must be answered alike: this holds for any network and any residual, and for one head only. ``longer``: so many
    times longer x; smooth networks have linear cells only far out.

    Returns:
        The outcome, and whether the last token is added (a residual); without a verdict, whether it seems to be.
    """
    case.begin("one head before ReLU")
    axes = min(2, case.width)
    large = case.cap(longer * scale * stretch_of(case, scale), 3.0)
    # |u| |x| = scale^2 or twice that: score differences near one; large ones are read badly where answers are coarse
    step = (1 if case.coarse else 2) * (scale / large) ** 2
    origin, directions = large * case.draw(), large * case.draw(axes)
    for side in range(3):
        steps = steps_of(case, origin, directions, step)
        if steps is not None:
            break
        origin = -origin if side == 0 else large * case.draw()  # where one side of a network is silent the other seldom is
    if steps is None:
        return Outcome(None, "copies of a token do not follow the law of one head"), None
    cells = cells_at(case, origin, directions, steps)
    enough = bool(np.all(cells.good.sum(axis=1) >= 3))
    case.record(
        "linear cells",
        float(cells.good.mean()),
        0.6,
        enough,
        f"{int(cells.good.sum())} of {cells.good.size} places follow the law of one head inside a linear cell.",
    )
    if not enough:
        residual = seems_residual(case, origin, directions, steps, cells)
        lawless = cells.heard.sum() >= 4 and cells.good.sum() <= 0.2 * cells.heard.sum()
        return Outcome(False if lawless else None, "copies of a token do not follow the law of one head"), residual
    bases, z, errors, good = cells.bases, cells.z, cells.errors, cells.good
    scores, spread, bent = np.zeros((axes, 1 + axes)), np.zeros((axes, 1 + axes)), 0.0
    for j in range(axes):
        solution, doubt, off = affine_fit(bases, z[j], errors[j], good[j])
        while off > 1 and good[j].sum() > 4:  # a kink can pass the law of a cell when answers are coarse: leave the worst cell out
            trials = [np.where(np.arange(len(bases)) == i, False, good[j]) for i in np.flatnonzero(good[j])]
            good[j] = min(trials, key=lambda kept: affine_fit(bases, z[j], errors[j], kept)[2])
            solution, doubt, off = affine_fit(bases, z[j], errors[j], good[j])
        bent, scores[j], spread[j] = max(bent, off), solution / steps[j], doubt / abs(steps[j])
    spread *= excess_of(bases, z, errors, good)
    if not case.record(
        "bilinear scores",
        bent,
        1.0,
        bent <= 1,
        "Score differences " + ("are" if bent <= 1 else "are not") + " affine in the last token.",
    ):
        residual = seems_residual(case, origin, directions, steps, cells)
        return Outcome(None if case.coarse else False, "scores are not bilinear", broken=True), residual
    if np.ptp(z[good]) < 10 * np.median(errors[good]):
        return Outcome(None, "scores are too small or answers too coarse"), None
    # a plane's errors belong to measured differences, these to their coefficients: the same up to a factor of two
    # scores may have turned out larger than thought: then they are of order one, and bend if they do, at shorter lengths
    unit = min(scale / large, float(np.sqrt((scores[:, 1:] ** 2).mean())) ** -0.5)
    return _alike(case, Plane(origin, directions, scores, 2 * spread), unit)


def another_plane(case: Case, scale: float) -> tuple[Outcome, bool | None] | None:
    """The same on another plane; None where that might take more questions than are left."""
    return transformer(case, scale) if case.left() > TESTS.piecewise_enough else None


def _alike(case: Case, plane: Plane, unit: float) -> tuple[Outcome, bool | None]:
    """Ask five sequences and, for each, one token in many copies that has the same weighted mean for the same last token."""
    axes = len(plane.axes)
    questions: list[Floats] = []
    twins: list[Floats] = []
    centres: list[Floats] = []
    limits: list[Floats] = []
    sizes: list[tuple[Floats, Floats]] = []
    for _ in range(40):
        if len(questions) == TESTS.alike:
            break
        last = case.rng.uniform(-0.7, 0.7, size=axes)
        slope = plane.slope(last)
        up = slope / float(slope @ slope)
        side = np.array([-slope[1], slope[0]]) / np.linalg.norm(slope) if axes == 2 else np.zeros(axes)
        doubt = float(plane.errors.sum(axis=1).max())
        # far tokens with equal scores, as far as the scores are known: well enough for power, not at all beyond 0.4
        wide = min(0.5, 0.4 / max(doubt, 1e-12), max(1.5 * unit, (0.03 if case.coarse else 1e-4) / max(doubt, 1e-12)))
        if wide < 0.7 * unit:  # shorter ones would not show scores that bend with the earlier token
            return Outcome(None, "answers are too coarse to test scores of distant tokens"), None
        heights = case.rng.uniform(-1.5, 2.0, size=3)
        offsets = heights[:, None] * up + wide * case.rng.uniform(-1, 1, size=(3, 1)) * side
        coordinates = np.vstack([last + offsets, last])
        drift = plane.centre(coordinates) - last
        factor = _stand_in(float(drift @ slope))
        if factor is None:
            continue
        twin = np.vstack([np.tile(last + factor * drift, (TESTS.shared, 1)), last])
        questions.append(plane.tokens(coordinates))
        twins.append(plane.tokens(twin))
        centres.append(plane.tokens(last + drift))
        limits.append(plane.uncertainty(coordinates) + plane.uncertainty(twin))
        sizes.append((drift, last))
    if len(questions) < 4 or case.longest <= TESTS.shared:
        return Outcome(None, "no sequences could be made that must be answered alike"), None
    answers, same, alone = case.ask(np.array(questions)), case.ask(np.array(twins)), case.ask(np.array(centres[:3])[:, None])
    lasts = case.ask(plane.tokens(np.array([last for _, last in sizes]))[:, None])
    noise = case.noise(answers, same, alone, lasts)
    effect = np.abs(answers - lasts).max(axis=1)
    length = np.array([float(np.linalg.norm(drift)) for drift, _ in sizes])
    # the network's steepness per coordinate, as seen between the last token and the mean; twice for other cells;
    # and scores themselves carry rounding errors in proportion to their size, which is that of the long tokens
    rounding = 8 * case.floor.relative / unit**2
    doubts = np.array([float(limit.sum()) for limit in limits])
    tolerance = 12 * noise + rounding * effect + 1.5 * effect / np.maximum(length, 1e-300) * doubts
    if not case.coarse:
        tolerance *= 20  # exact answers leave room: what is not one head misses by a million
    worst = float((np.abs(answers - same).max(axis=1) / tolerance).max())
    power = float(np.sort(effect / tolerance)[-3 if case.coarse else -2])  # the others may lie where the network is constant
    most = 1.0 if case.coarse else 10.0
    passed = case.record(
        "sequences alike",
        worst,
        most,
        worst <= most,
        "Sequences with the same weighted mean " + ("are" if worst <= most else "are not") + " answered alike.",
    )
    if not passed:
        # at a coarse floor a kink may have spoilt the scores a little: a small miss asks for another plane, a large one decides
        # one of exact answers that a recovery lets pass leaves it open
        faint = not case.coarse and worst <= TESTS.faint_bent
        small = faint or (case.coarse and bool(np.all(np.abs(answers - same).max(axis=1) < 0.2 * effect + tolerance)))
        why = "sequences with the same weighted mean are answered differently"
        return Outcome(None if small else False, why, plane, broken=not faint), None
    plain = float((np.abs(answers[:3] - alone).max(axis=1) / tolerance[:3]).max())
    case.record(
        "residual",
        plain,
        1.0,
        plain <= 1,
        "The last token is " + ("not " if plain <= 1 else "") + "added to the attention's output.",
    )
    case.record("power", power, 6.0, power >= 6, "The effect of the weights against what is known of them.")
    if power < 6:
        return Outcome(None, "too little power", plane), True if plain > 1 else None
    return Outcome(True, "one head", plane, blur=most / power), plain > 1


def bends_obey(case: Case, plane: Plane) -> bool | None:
    """Whether pairs that are answered off the mixture of their one-token answers are answered like the token at their mean.

    A law says something of bends only where these show in it: one that sequences within one linear cell follow says nothing about
    what one-token answers do beyond its border. None where no bend showed, False where one broke the law. 24 questions.
    """
    axes, pairs = len(plane.axes), []
    doubt = float(plane.errors.sum(axis=1).max())
    for _ in range(TESTS.bent_pairs):
        last = case.rng.uniform(-1.0, 1.0, size=axes)
        slope = plane.slope(last)
        up = slope / float(slope @ slope)
        side = np.array([-slope[1], slope[0]]) / np.linalg.norm(slope) if axes == 2 else np.zeros(axes)
        wide = min(TESTS.bent_reach, 0.4 / max(doubt, 1e-12))
        pairs.append(np.stack([last + case.rng.uniform(-2.0, 2.0) * up + wide * case.rng.choice([-1.0, 1.0]) * side, last]))
    ends = np.array(pairs)
    means = np.array([plane.centre(pair) for pair in ends])
    share = np.linalg.norm(means - ends[:, 1], axis=1) / np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1)
    told = case.ask(plane.tokens(ends))
    points = np.concatenate([means, ends[:, 0], ends[:, 1]])
    at_mean, first, last = case.ask(plane.tokens(points)[:, None]).reshape(3, len(ends), -1)
    mixed = last + share[:, None] * (first - last)
    steep = np.abs(first - last).max(axis=1) / np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1)
    unsure = np.array([float(plane.uncertainty(pair).sum()) for pair in ends])
    tolerance = TESTS.safety * case.noise(told, at_mean, first, last) + 6 * steep * unsure
    bent, off = (np.abs(other - at_mean).max(axis=1) / tolerance for other in (mixed, told))
    seen = bent > TESTS.bent_loud
    broken = bool(np.any(off > TESTS.bent_loud))
    words = "broke" if broken else "follow" if seen.any() else "do not show in"
    case.record(
        "bends in the law", float(off.max()), TESTS.bent_loud, not broken, f"Bends of one-token answers {words} the law of a head."
    )
    return False if broken else (int(seen.sum()) >= TESTS.few or None)


def _stand_in(height: float) -> float | None:
    """Solve ``t n / (n + exp(-t height)) = 1``: how much further one token in n copies must lie to give the same mean."""
    t = 1.0
    for _ in range(200):
        following = 1 + math.exp(min(50.0, -t * height)) / TESTS.shared
        if following > 20:
            return None
        if abs(following - t) < 1e-15 * t:
            return following
        t = following
    return None


def chord_law(case: Case, scale: float) -> bool | None:
    """Whether pairs are answered by mixing their one-token answers, though one token between them is not (9 or 12 queries).

    Then the network stands before the attention: within one of its linear cells it looks like one behind. None where the pairs
    show no bend or their weights hardly move.
    """
    obeyed = None
    pairs = case.cap(scale, 3.0) * np.stack([case.draw(2), 2 * case.draw(2)], axis=1)
    ends = case.ask(pairs.reshape(4, 1, -1)).reshape(2, 2, -1)
    middle = case.ask(pairs.mean(axis=1)[:, None])
    bend = np.abs(middle - ends.mean(axis=1)).max(axis=1)
    level = case.tolerance(ends, middle)
    for best in np.argsort(-bend, kind="stable"):
        p, x = pairs[best]
        answers = case.ask(np.array([[p] * many + [x] * few for many, few in TESTS.copies]))
        start, chord = ends[best, 1], ends[best, 0] - ends[best, 1]
        share = (answers - start) @ chord / max(float(chord @ chord), 1e-300)
        if min(abs(share[1]), abs(1 - share[1])) < 1e-6:  # saturated: one token alone answers, wherever the network stands
            continue
        weight = float(np.clip(share[1], 1e-6, 1 - 1e-6))  # mixtures lie between the two
        decay = 4 * (1 - weight) / weight  # exp(-z), from share = 4 / (4 + decay)
        foretold = start + np.array([1 / (1 + 4 * decay), weight, 2 / (2 + 3 * decay)])[:, None] * chord
        off = float(np.abs(answers - foretold).max()) / level
        sentence = "Pairs are " + ("not " if off > 1 else "") + "answered by mixing their one-token answers."
        if case.record("between one-token answers", off, 1.0, off > 1, sentence):
            return False
        # weights that are read from one of them take up what a smooth bend adds to all, all but the square of it
        if (
            bend[best] ** 2 < 10 * level * max(float(np.linalg.norm(chord)), float(bend[best]))
            or not 0 < share[0] < share[1] - 0.2 < 0.8
        ):
            continue
        obeyed = True
    return obeyed
