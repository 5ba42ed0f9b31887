"""Scores read inside linear cells of a network, from copies of a token and of one beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.recognition.case import Case
from unsoftmax.recognition.settings import TESTS

BASES = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-0.7, 0.6], [0.5, -0.8], [-0.6, -0.7], [0.8, 0.7], [-1.0, 0.1], [0.1, -1.1]])


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


def cell_law(case: Case, answers: Floats, steps: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
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


def copies_of(x: Floats, u: Floats) -> list[Floats]:
    """Sequences of ``x + u`` and ``x`` in three ratios, ``x`` last."""
    return [np.array([x + u] * many + [x] * few) for many, few in TESTS.copies]


def steps_of(case: Case, origin: Floats, directions: Floats, step: float) -> Floats | None:
    """Signed lengths ``(axes,)`` at which each direction's score difference is near one at the origin.

    Scores are linear in the step, so that one good reading gives the length; saturated ones ask for shorter steps. 7 queries where
    the first step is right, at most 31. None where the answers never follow the law.
    """
    axes = len(directions)
    base = case.ask(np.repeat(origin[None], 5, axis=0)[None])[0]
    lengths, settled, turned = np.full(axes, step), np.zeros(axes, dtype=bool), np.zeros(axes, dtype=bool)
    for _ in range(5):
        trying = np.flatnonzero(~settled)
        answers = case.ask(np.array([q for j in trying for q in copies_of(origin, lengths[j] * directions[j])]))
        for j, three in zip(trying, answers.reshape(len(trying), 3, -1), strict=True):
            z, errors, good, heard, _ = (part[0] for part in cell_law(case, np.vstack([base, three]), np.abs(lengths[j : j + 1])))
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


def cells_at(case: Case, origin: Floats, directions: Floats, steps: Floats) -> Cells:
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
            questions += copies_of(x, shrunk[j] * steps[j] * directions[j])
        z, errors, good, heard, whole = cell_law(case, case.ask(np.array(questions)), np.abs(shrunk * steps))
        rows.append((z / shrunk, errors / shrunk, good, heard, whole / shrunk[:, None]))
        found = np.array([row[2] for row in rows]).sum(axis=0)
        if np.all(found >= wanted) or (np.all(found >= 3) and case.left() < TESTS.piecewise_enough):
            break
        shrunk *= np.where(good, np.minimum(1.0, 3 / np.maximum(np.abs(z), 1e-300)), 1 / 8)
        shrunk = np.maximum(shrunk, shortest)
    z, errors, good, heard, whole = (np.array([row[k] for row in rows]).swapaxes(0, 1) for k in range(5))
    return Cells(bases[: len(rows)], z, errors, good, heard, whole)


def stretch_of(case: Case, scale: float) -> float:
    """How much longer than ``scale`` the last token can be, and u shorter, before rounding hides the cells' law (3 queries)."""
    y = case.ask(case.cap(scale, 1.5) * case.draw(3, 1))
    change = max(float(np.ptp(y, axis=0).max()), 1e-300)
    relative = case.floor.relative * float(np.abs(y).max()) / change
    # scores per unit are wrong by B^3 (absolute floor) or B^4 (relative floor) times the floor: keep that at a few percent
    most = min((0.001 / max(relative, 1e-18)) ** 0.25, (0.004 * change / max(case.floor.absolute, 1e-18)) ** (1 / 3))
    return float(np.clip(most, 6.0, 64.0))


def affine_fit(bases: Floats, z: Floats, errors: Floats, kept: Floats) -> tuple[Floats, Floats, float]:
    """Weighted affine fit of score differences over the bases: coefficients, their errors, worst deviation over the allowed one."""
    sure = 1 / errors[kept]
    rows = np.column_stack([np.ones(len(sure)), bases[kept]])
    inverse = np.linalg.pinv(rows * sure[:, None]) * sure
    solution = inverse @ z[kept]
    doubt = np.sqrt(((inverse / sure) ** 2).sum(axis=1))
    allowed = 2 / sure + 2 * np.abs(rows) @ doubt + 1e-12
    return solution, doubt, float((np.abs(z[kept] - rows @ solution) / allowed).max())


def excess_of(bases: Floats, z: Floats, errors: Floats, good: Floats) -> float:
    """Three times the scatter of the score differences in units of their errors, at most one: the floor is a cautious guess."""
    squares, freedom = 0.0, 0
    for j, kept in enumerate(good):
        solution = affine_fit(bases, z[j], errors[j], kept)[0]
        rest = z[j, kept] - np.column_stack([np.ones(int(kept.sum())), bases[kept]]) @ solution
        squares += float(((rest / errors[j, kept]) ** 2).sum())
        freedom += max(0, int(kept.sum()) - len(solution))
    return float(np.clip(3 * math.sqrt(squares / freedom), 0.05, 1.0)) if freedom >= 2 else 1.0


def seems_residual(case: Case, origin: Floats, directions: Floats, steps: Floats, cells: Cells) -> bool | None:
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
