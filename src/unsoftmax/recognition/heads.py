"""Diagnosis: several heads with affine one-token answers, fitted along one line of last tokens (57 queries)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.proof.settings import PROOF
from unsoftmax.recognition.case import Case
from unsoftmax.recognition.heads_design import Design
from unsoftmax.recognition.heads_fit import Fit, fitted, pruned, rank_of
from unsoftmax.recognition.settings import TESTS


@dataclass(frozen=True, slots=True)
class Heads:
    """``heads`` is None where no number of heads fits; ``nearly`` where some fit so well that two of them are almost alike."""

    heads: int | None
    fit: float
    check: float
    residual: bool = False
    nearly: bool = False


def several_heads(case: Case, scale: float) -> Heads:
    """Fit ``y - f([x]) = sum_h A_h share_h`` with two numbers a head besides A_h, and check it on sequences not in the fit."""
    case.begin("several heads")
    design = _design(case.rng, min(case.longest, case.most), every=case.cheap)
    size = case.cap(1.4 * _unsaturated(case, scale), 14.0)
    x0, e, u = size * case.draw(3)
    single = case.ask(np.stack([x0, x0 + e, x0 + u])[:, None])
    tokens = x0 + design.t[:, None] * e
    sequences = []
    for x, steps, copies in zip(tokens, design.steps, design.copies, strict=True):
        sequences.append(np.repeat(x + steps[:, None] * u, copies.astype(int), axis=0))
    alike = [list(group) for _, group in groupby(sequences, key=len)]
    answers = np.concatenate([case.ask(np.array(group)) for group in alike])
    Y = answers - single[0] - design.t[:, None] * (single[1] - single[0])
    total = single[2] - single[0]
    noise = case.noise(answers[: -TESTS.heads_far], single)
    far_noise = case.noise(answers, single)
    if Y.shape[1] > 1 and rank_of(Y[: TESTS.fit], noise) == 1:  # all values are multiples of one: they are read as numbers
        value = np.linalg.svd(Y[: TESTS.fit])[2][:1].T
        Y, total = Y @ value, total @ value
    counts = _counts(Y[: TESTS.fit], noise)
    best = Heads(None, np.inf, np.inf)
    # floors: rounding errors add up over the one-token answers, and float32 layers round numbers larger than their answers
    limit = TESTS.heads_floors
    fewer: Floats | None = None
    nearest: Fit | None = None
    for heads in counts:
        found = fitted(design.rows(slice(TESTS.fit)), Y[: TESTS.fit], heads, case.rng, noise, fewer)
        fewer = found.survivors
        if nearest is None or (heads <= TESTS.split and found.worst < nearest.worst):
            nearest = found
        if found.worst > limit * noise:
            best = min(best, Heads(None, found.worst / (limit * noise), np.inf), key=lambda h: h.fit)
            continue
        found = pruned(design.rows(slice(TESTS.fit)), Y[: TESTS.fit], found, noise, limit)
        height, pace, A = found.height, found.pace, found.A
        gap = np.abs(Y - design.shares(height, pace)[0].T @ A)
        blur, blur_of_sum = _amplification(design, height, pace, A)
        level = np.r_[np.full(TESTS.fit + TESTS.check, noise), np.full(TESTS.heads_far, far_noise)]
        summed = np.maximum(1.0, design.copies.sum(axis=1) / TESTS.heads_length)  # rounding errors of a sum grow with its terms
        allowed = limit * (level * summed)[:, None] + 3 * noise * blur
        check = float((gap / allowed)[TESTS.fit :].max())
        excess = float(np.abs(A.sum(axis=0) - total).max() / (10 * noise + 5 * noise * blur_of_sum))
        loud = float(np.abs(Y).max() / allowed.max())
        if check <= 1 and loud >= 20 and _soft(design.rows(slice(TESTS.fit)), height, pace, A, noise):
            count = len(height)
            case.foretold.update(int(n) for n in design.copies.sum(axis=1))
            case.record("heads fit", found.worst / (limit * noise), 1.0, True, f"{count} heads fit {TESTS.fit} answers.")
            case.record("heads check", check, 1.0, True, f"{count} heads foretell {TESTS.check + TESTS.heads_far} other answers.")
            case.record(
                "no residual",
                excess,
                1.0,
                excess <= 1,
                "Values add up to the one-token answer." if excess <= 1 else "The last token has an effect of its own.",
            )
            return Heads(count, found.worst / (limit * noise), check, residual=excess > 1)
        best = Heads(None, found.worst / (limit * noise), check)
    missed = max(best.fit, best.check if best.fit <= 1 else 0.0)
    case.record("heads fit", missed, 1.0, False, "No small number of heads explains the answers.")
    nearly = missed <= TESTS.nearly
    if nearly and nearest is not None and not case.coarse and nearest.worst <= TESTS.nearly * limit * noise:
        nearly = _almost_alike(case, design.rows(slice(TESTS.fit)), Y[: TESTS.fit], nearest, limit * noise)
    return replace(best, nearly=nearly)


def _almost_alike(case: Case, design: Design, Y: Floats, found: Fit, allowed: float) -> bool:
    """Whether heads almost alike, around each of a few that were fitted, may be what these miss by."""
    if len(found.height) > TESTS.split:
        return True
    beside = design.beside(found.height, found.pace)
    left = float(np.abs(Y - beside @ np.linalg.lstsq(beside, Y, rcond=1e-14)[0]).max())
    threshold = max(TESTS.split_floors * allowed, TESTS.split_share * found.worst)
    may = left <= threshold
    words = (
        f"What {len(found.height)} fitted heads miss by {'may be' if may else 'is not'} that of heads almost alike in their place."
    )
    return case.record("almost alike", left / allowed, threshold / allowed, may, words)


def _soft(design: Design, height: Floats, pace: Floats, A: Floats, noise: float) -> bool:
    """Whether every head's scores show in some answer; a saturated one might as well be a maximum over the tokens."""
    _, by_height, _ = design.shares(height, pace)
    seen = np.abs(by_height).max(axis=1) * np.abs(A).max(axis=1)
    return bool(np.all(seen > 30 * noise) and max(np.abs(height).max(), np.abs(pace).max()) < 4 * TESTS.steepest)


def _unsaturated(case: Case, scale: float) -> float:
    """The scale, or a smaller one where the response to unequal weights still grows faster than the tokens (10 to 22 queries).

    Values of several heads that cancel can mislead the pilot; a saturated response is proportional to the tokens.
    """
    scale = case.cap(scale, 3.0)
    pairs = case.draw(3, 2)
    single = case.ask(scale * np.concatenate([pairs[:, 0], np.zeros((1, case.width))])[:, None])
    for _ in range(3):
        grid = np.array([1.0, 0.5])
        sequences = np.array([[s * scale * np.array([x + u, x - u, x]) for x, u in pairs] for s in grid])
        answers = case.ask(sequences.reshape(-1, 3, case.width)).reshape(2, 3, -1)
        odd = np.abs(answers - single[3] - grid[:, None, None] * (single[:3] - single[3])).max(axis=2).sum(axis=1)
        if odd[0] > 6 * odd[1]:  # 8 where scores are small: longer tokens separate the heads better
            return case.cap(2 * scale, 3.0)
        if odd[0] > 2.5 * odd[1]:  # 4 where a bias makes the scores, 2 where they are saturated
            break
        scale /= 2.5
        single[:3] = single[3] + (single[:3] - single[3]) / 2.5
    return scale


def _design(rng: np.random.Generator, longest: int, *, every: bool = False) -> Design:
    """Sequences of one length; those of the check have others, up to ``longest``: a target may change with the number of tokens.

    With ``every`` all have different ones, up to 64: what is another law at one of them explains no fit.
    """
    rows, kinds = TESTS.fit + TESTS.check + TESTS.heads_far, 4
    lengths, most = np.full(rows, TESTS.heads_length), max(longest, TESTS.heads_length)
    others = np.exp(rng.uniform(np.log(kinds + 1), np.log(most), size=TESTS.check)).astype(int)
    lengths[TESTS.fit : TESTS.fit + TESTS.check] = np.r_[most, others[1:]]
    if every and most >= PROOF.moderate:
        elsewhere = {2 * TESTS.length}  # where tokens are doubled
        each = [n for n in range(PROOF.moderate + 1 - rows, PROOF.moderate + 1) if n not in elsewhere]
        lengths = np.insert(np.resize(rng.permutation(each), rows - 1), TESTS.fit, most)
    steps = np.zeros((rows, kinds))
    # sizes over three octaves both ways: heads of one layer differ in scale, and values that cancel mislead the pilot
    steps[:, :-1] = rng.uniform(-2.0, 2.0, size=(rows, kinds - 1)) * 2.0 ** rng.uniform(-3.0, TESTS.heads_largest, size=(rows, 1))
    copies = np.ones((rows, kinds))
    for row, length in zip(copies, lengths.tolist(), strict=True):
        cuts = np.sort(rng.choice(np.arange(1, length), size=kinds - 1, replace=False))
        row[:] = np.diff(np.r_[0, cuts, length])
    t = rng.uniform(-2.0, 2.0, size=rows)
    steps[-TESTS.heads_far :] *= 6 / np.abs(steps[-TESTS.heads_far :]).max(axis=1, keepdims=True)
    t[-TESTS.heads_far :] *= 2
    return Design(steps, copies, t)


def _counts(Y: Floats, noise: float) -> list[int]:
    """Numbers of heads worth trying: the rank of vector answers, or one by one."""
    outputs, rank = Y.shape[1], rank_of(Y, noise)
    if 1 <= rank < outputs:
        return [h for h in (rank, rank + 1) if h <= TESTS.most_vector]
    return list(range(max(1, rank), max(TESTS.most_scalar, min(rank + 3, TESTS.most_vector)) + 1))


def _full_jacobian(design: Design, height: Floats, pace: Floats, A: Floats) -> Floats:
    """Derivatives of the answers ``(rows, outputs)`` in A, height and pace: ``(rows, outputs, parameters)``."""
    shares, by_height, by_pace = design.shares(height, pace)
    outputs = A.shape[1]
    linear = np.kron(shares.T, np.eye(outputs)).reshape(-1, outputs, len(height) * outputs)
    bent = [np.einsum("hr,ho->roh", d, A) for d in (by_height, by_pace)]
    return np.concatenate([linear, *bent], axis=2)


def _amplification(design: Design, height: Floats, pace: Floats, A: Floats) -> tuple[Floats, float]:
    """How errors of the fitted answers grow in every answer ``(rows, outputs)``, and in the sum of the values."""
    J = _full_jacobian(design, height, pace, A)
    inverse = np.linalg.pinv(J[: TESTS.fit].reshape(-1, J.shape[2]), rcond=1e-15)
    rows = (J.reshape(-1, J.shape[2]) @ inverse).reshape(*J.shape[:2], -1)
    outputs = A.shape[1]
    total = np.kron(np.ones((1, len(height))), np.eye(outputs)) @ inverse[: len(height) * outputs]
    return np.sqrt((rows**2).sum(axis=2)), float(np.sqrt((total**2).sum(axis=1)).max())
