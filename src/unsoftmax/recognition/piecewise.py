"""Diagnosis: one head before a ReLU network, with or without residual (about 50 queries)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.recognition.case import Case
from unsoftmax.recognition.one_head import Outcome
from unsoftmax.recognition.plane import Plane
from unsoftmax.recognition.settings import TESTS

BASES = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-0.7, 0.6], [0.5, -0.8], [-0.6, -0.7], [0.8, 0.7], [-1.0, 0.1], [0.1, -1.1]])


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
    large = case.cap(longer * scale * _spread(case, scale), 3.0)
    # |u| |x| = scale^2 or twice that: score differences near one; large ones are read badly where answers are coarse
    step = (1 if case.coarse else 2) * (scale / large) ** 2
    origin, directions = large * case.draw(), large * case.draw(axes)
    for side in range(3):
        steps = _steps(case, origin, directions, step)
        if steps is not None:
            break
        origin = -origin if side == 0 else large * case.draw()  # where one side of a network is silent the other seldom is
    if steps is None:
        return Outcome(None, "copies of a token do not follow the law of one head"), None
    cells = _cells(case, origin, directions, steps)
    enough = bool(np.all(cells.good.sum(axis=1) >= 3))
    case.record(
        "linear cells",
        float(cells.good.mean()),
        0.6,
        enough,
        f"{int(cells.good.sum())} of {cells.good.size} places follow the law of one head inside a linear cell.",
    )
    if not enough:
        residual = _seems_residual(case, origin, directions, steps, cells)
        lawless = cells.heard.sum() >= 4 and cells.good.sum() <= 0.2 * cells.heard.sum()
        return Outcome(False if lawless else None, "copies of a token do not follow the law of one head"), residual
    bases, z, errors, good = cells.bases, cells.z, cells.errors, cells.good
    scores, spread, bent = np.zeros((axes, 1 + axes)), np.zeros((axes, 1 + axes)), 0.0
    for j in range(axes):
        solution, doubt, off = _affine(bases, z[j], errors[j], good[j])
        while off > 1 and good[j].sum() > 4:  # a kink can pass the law of a cell when answers are coarse: leave the worst cell out
            trials = [np.where(np.arange(len(bases)) == i, False, good[j]) for i in np.flatnonzero(good[j])]
            good[j] = min(trials, key=lambda kept: _affine(bases, z[j], errors[j], kept)[2])
            solution, doubt, off = _affine(bases, z[j], errors[j], good[j])
        bent, scores[j], spread[j] = max(bent, off), solution / steps[j], doubt / abs(steps[j])
    spread *= _excess(bases, z, errors, good)
    if not case.record(
        "bilinear scores",
        bent,
        1.0,
        bent <= 1,
        "Score differences " + ("are" if bent <= 1 else "are not") + " affine in the last token.",
    ):
        residual = _seems_residual(case, origin, directions, steps, cells)
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


def _affine(bases: Floats, z: Floats, errors: Floats, kept: Floats) -> tuple[Floats, Floats, float]:
    """Weighted affine fit of score differences over the bases: coefficients, their errors, worst deviation over the allowed one."""
    sure = 1 / errors[kept]
    rows = np.column_stack([np.ones(len(sure)), bases[kept]])
    inverse = np.linalg.pinv(rows * sure[:, None]) * sure
    solution = inverse @ z[kept]
    doubt = np.sqrt(((inverse / sure) ** 2).sum(axis=1))
    allowed = 2 / sure + 2 * np.abs(rows) @ doubt + 1e-12
    return solution, doubt, float((np.abs(z[kept] - rows @ solution) / allowed).max())


def _excess(bases: Floats, z: Floats, errors: Floats, good: Floats) -> float:
    """Three times the scatter of the score differences in units of their errors, at most one: the floor is a cautious guess."""
    squares, freedom = 0.0, 0
    for j, kept in enumerate(good):
        solution = _affine(bases, z[j], errors[j], kept)[0]
        rest = z[j, kept] - np.column_stack([np.ones(int(kept.sum())), bases[kept]]) @ solution
        squares += float(((rest / errors[j, kept]) ** 2).sum())
        freedom += max(0, int(kept.sum()) - len(solution))
    return float(np.clip(3 * math.sqrt(squares / freedom), 0.05, 1.0)) if freedom >= 2 else 1.0


def _spread(case: Case, scale: float) -> float:
    """How much longer than ``scale`` the last token can be, and u shorter, before rounding hides the cells' law (3 queries)."""
    y = case.ask(case.cap(scale, 1.5) * case.draw(3, 1))
    change = max(float(np.ptp(y, axis=0).max()), 1e-300)
    relative = case.floor.relative * float(np.abs(y).max()) / change
    # scores per unit are wrong by B^3 (absolute floor) or B^4 (relative floor) times the floor: keep that at a few percent
    most = min((0.001 / max(relative, 1e-18)) ** 0.25, (0.004 * change / max(case.floor.absolute, 1e-18)) ** (1 / 3))
    return float(np.clip(most, 6.0, 64.0))


@dataclass(slots=True, eq=False)
class Cells:
    """What was read at places ``origin + bases @ directions``.

    Attributes:
        bases: ``(places, axes)``.
        z: score differences ``(axes, places)`` of the steps.
        errors: theirs.
        good: which follow the law of one head.
        heard: where the steps change the answer at all.
        whole: rise for full weight ``(axes, places, outputs)``.
    """

    bases: Floats
    z: Floats
    errors: Floats
    good: Floats
    heard: Floats
    whole: Floats


def _law(case: Case, answers: Floats, steps: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Answers ``(1 + 3 axes, outputs)`` to a place and to copies of its steps: z, errors, good, heard ``(axes,)``, whole."""
    noise = case.noise(answers)
    rise = (answers[1:] - answers[0]).reshape(len(steps), 3, -1)
    low, high, middle = rise[:, 0], rise[:, 1], rise[:, 2]
    size = np.maximum((high**2).sum(axis=-1), 1e-300)
    ratio = (low * high).sum(axis=-1) / size
    legal = (ratio > 1 / 16) & (ratio < 1)
    ratio = np.where(legal, ratio, 0.25)
    decay = 4 * (1 - ratio) / (16 * ratio - 1)  # exp(-z), from (4 + decay) / (4 (1 + 4 decay)) = ratio
    whole = high * (1 + decay / 4)[..., None]
    foretold = whole * (2 / (2 + 3 * decay))[..., None]
    error = noise / np.sqrt(size)
    slope = 15 * decay / (4 * (1 + 4 * decay) ** 2)  # |d ratio / d z|
    errors = (
        error * np.sqrt(2 + ratio**2) / slope + 4 * case.floor.relative / steps
    )  # scores are rounded in proportion to their size
    off = np.abs(middle - foretold).max(axis=-1)
    flat = np.abs(low - ratio[..., None] * high).max(axis=-1)
    allowed = 10 * noise + np.sqrt(size) * errors
    good = legal & (off <= allowed) & (flat <= allowed) & (errors < (0.03 if case.coarse else 1e-5))
    if not case.coarse:  # where all three weights are near one, a kink before them changes z unseen: the law bends with decay^2
        good &= noise / np.sqrt(size) < 1e-5 * np.minimum(decay, 1.0) ** 2
    return -np.log(decay), errors, good, np.sqrt(size) > 100 * noise, whole


def _copies(x: Floats, u: Floats) -> list[Floats]:
    return [np.array([x + u] * many + [x] * few) for many, few in TESTS.copies]


def _steps(case: Case, origin: Floats, directions: Floats, step: float) -> Floats | None:
    """Signed lengths ``(axes,)`` at which each direction's score difference is near one at the origin.

    Scores are linear in the step, so that one good reading gives the length; saturated ones ask for shorter steps. 7 queries where
    the first step is right, at most 31. None where the answers never follow the law.
    """
    axes = len(directions)
    base = case.ask(np.repeat(origin[None], 5, axis=0)[None])[0]
    lengths, settled, turned = np.full(axes, step), np.zeros(axes, dtype=bool), np.zeros(axes, dtype=bool)
    for _ in range(5):
        trying = np.flatnonzero(~settled)
        answers = case.ask(np.array([q for j in trying for q in _copies(origin, lengths[j] * directions[j])]))
        for j, three in zip(trying, answers.reshape(len(trying), 3, -1), strict=True):
            z, errors, good, heard, _ = (part[0] for part in _law(case, np.vstack([base, three]), np.abs(lengths[j : j + 1])))
            if good and abs(z) > 3 * errors:
                settled[j] = True
                lengths[j] *= np.clip(TESTS.wanted / z, -8.0, 8.0)
            elif not heard and turned[j]:
                return None
            elif not heard:  # a score far below hides the step: its opposite has one far above
                turned[j] = True
                lengths[j] *= -0.5
            else:  # saturated, or a kink
                lengths[j] /= 8.0
        if settled.all():
            return lengths
    return None


def _cells(case: Case, origin: Floats, directions: Floats, steps: Floats) -> Cells:
    """Read the scores at one place after the other until three (more for coarse answers) follow the law; 7 queries each.

    Steps become shorter where scores turn out too large to be read; all are told as for the first ones.
    """
    axes, wanted = len(directions), 5 if case.coarse else 3
    shrunk, shortest = np.ones(axes), 2.0**-9
    rows, bases = [], BASES[:, :axes] if axes == 2 else BASES[[0, 1, 3, 4, 6, 7], :1]
    for base in bases:
        x = origin + base @ directions
        questions = [np.repeat(x[None], 5, axis=0)]
        for j in range(axes):
            questions += _copies(x, shrunk[j] * steps[j] * directions[j])
        z, errors, good, heard, whole = _law(case, case.ask(np.array(questions)), np.abs(shrunk * steps))
        rows.append((z / shrunk, errors / shrunk, good, heard, whole / shrunk[:, None]))
        found = np.array([row[2] for row in rows]).sum(axis=0)
        if np.all(found >= wanted) or (np.all(found >= 3) and case.left() < TESTS.piecewise_enough):
            break
        shrunk *= np.where(good, np.minimum(1.0, 3 / np.maximum(np.abs(z), 1e-300)), 1 / 8)
        shrunk = np.maximum(shrunk, shortest)
    z, errors, good, heard, whole = (np.array([row[k] for row in rows]).swapaxes(0, 1) for k in range(5))
    return Cells(bases[: len(rows)], z, errors, good, heard, whole)


def _seems_residual(case: Case, origin: Floats, directions: Floats, steps: Floats, cells: Cells) -> bool | None:
    """Compare the rise for full weight with the one-token answers in up to three good cells (6 queries); None without any."""
    places = np.argwhere(cells.good)[:: max(1, int(cells.good.sum()) // 3)][:3]
    if not len(places):
        return None
    x = origin + cells.bases[places[:, 1]] @ directions
    u = steps[places[:, 0], None] * directions[places[:, 0]]
    y = case.ask(np.concatenate([x, x + u])[:, None]).reshape(2, len(places), -1)
    rise = cells.whole[places[:, 0], places[:, 1]]
    gap, size = np.abs(y[1] - y[0] - rise).max(axis=1), np.abs(rise).max(axis=1)
    return bool(np.median(gap / np.maximum(0.003 * size + 30 * case.noise(y), 1e-300)) > 1)


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
        small = case.coarse and bool(np.all(np.abs(answers - same).max(axis=1) < 0.2 * effect + tolerance))
        why = "sequences with the same weighted mean are answered differently"
        return Outcome(None if small else False, why, plane, broken=True), None
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
        if bend[best] < 10 * level or not 0 < share[0] < share[1] - 0.2 < 0.8:
            continue
        obeyed = True
    return obeyed
