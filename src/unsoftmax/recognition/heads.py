"""Diagnosis: several heads with affine one-token answers, fitted along one line of last tokens (57 queries)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.recognition.case import Case
from unsoftmax.recognition.settings import TESTS


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """Sequences of copies of ``x + steps u``, last token ``x = x0 + t e``: steps and copies ``(rows, kinds)``, t ``(rows,)``."""

    steps: Floats
    copies: Floats
    t: Floats

    def shares(self, height: Floats, pace: Floats) -> tuple[Floats, Floats, Floats]:
        """Mean step ``(…, rows)`` of heads whose score per step is ``height + pace t``, and its derivatives in both."""
        q = height[..., None] + pace[..., None] * self.t
        exponent = q[..., None] * self.steps
        exponent -= exponent.max(axis=-1, keepdims=True)
        weight = self.copies * np.exp(exponent)
        weight /= weight.sum(axis=-1, keepdims=True)
        mean = (weight * self.steps).sum(axis=-1)
        slope = (weight * self.steps**2).sum(axis=-1) - mean**2
        return mean, slope, slope * self.t

    def rows(self, chosen: slice) -> Design:
        """A part of the design."""
        return Design(self.steps[chosen], self.copies[chosen], self.t[chosen])


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
    design = _design(case.rng, min(case.longest, case.most))
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
    counts = _counts(Y[: TESTS.fit], noise)
    best = Heads(None, np.inf, np.inf)
    # floors: rounding errors add up over the one-token answers, and float32 layers round numbers larger than their answers
    limit = TESTS.heads_floors
    fewer: Floats | None = None
    for heads in counts:
        found = _fit(design.rows(slice(TESTS.fit)), Y[: TESTS.fit], heads, case.rng, noise, fewer)
        fewer = found.survivors
        if found.worst > limit * noise:
            best = min(best, Heads(None, found.worst / (limit * noise), np.inf), key=lambda h: h.fit)
            continue
        found = _prune(design.rows(slice(TESTS.fit)), Y[: TESTS.fit], found, noise, limit)
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
    return replace(best, nearly=missed <= TESTS.nearly)


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


def _design(rng: np.random.Generator, longest: int) -> Design:
    """Sequences of one length; those of the check have others, up to ``longest``: a target may change with the number of tokens."""
    rows, kinds = TESTS.fit + TESTS.check + TESTS.heads_far, 4
    lengths, most = np.full(rows, TESTS.heads_length), max(longest, TESTS.heads_length)
    others = np.exp(rng.uniform(np.log(kinds + 1), np.log(most), size=TESTS.check)).astype(int)
    lengths[TESTS.fit : TESTS.fit + TESTS.check] = np.r_[most, others[1:]]
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
    outputs = Y.shape[1]
    rank = int((np.linalg.svd(Y, compute_uv=False) > 20 * noise * np.sqrt(len(Y))).sum())
    if 1 <= rank < outputs:
        return [h for h in (rank, rank + 1) if h <= TESTS.most_vector]
    return list(range(max(1, rank), max(TESTS.most_scalar, min(rank + 3, TESTS.most_vector)) + 1))


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Height and pace ``(heads,)``, values A ``(heads, outputs)``, and the largest deviation."""

    height: Floats
    pace: Floats
    A: Floats
    worst: float
    survivors: Floats  # (starts, heads, 2): where the better starts ended


def _fit(design: Design, Y: Floats, heads: int, rng: np.random.Generator, noise: float, fewer: Floats | None) -> Fit:
    """Best fit of a number of heads: from a scan for vector answers, one head more than before for scalar ones."""
    if 1 < Y.shape[1] >= heads:
        found = _scan(design, Y, heads)
        if len(found) >= heads:
            first = _descend(design, Y, found[None, :heads], noise)
            if first.worst <= 4 * noise or len(found) == heads:
                return first
            spare = found[heads : 2 * heads]
            swapped = np.array(
                [np.vstack([np.delete(found[:heads], h, axis=0), other]) for other in spare[:, None] for h in range(heads)]
            )
            return min(first, _descend(design, Y, swapped, noise), key=lambda fit: fit.worst)
    starts = rng.normal(size=(TESTS.random * heads, heads, 2)) * 2.0 ** rng.uniform(-3.0, 2.5, size=(TESTS.random * heads, 1, 1))
    if fewer is None:
        fewer = np.zeros((1, 0, 2))
    if fewer.shape[1] == heads - 1:
        starts = np.concatenate([starts, _grown(design, Y, fewer)])
    return _descend(design, Y, starts, noise)


def _grown(design: Design, Y: Floats, fewer: Floats) -> Floats:
    """Each of the better fits with one head less, and one more head where it explains most of what is left."""
    axis = np.sinh(np.linspace(-3.6, 3.6, TESTS.coarse)) * 0.8
    height, pace = (g.ravel() for g in np.meshgrid(axis, axis, indexing="ij"))
    shares = design.shares(height, pace)[0]
    starts = []
    for theta in fewer[: TESTS.branches]:
        rest, atoms = Y, shares
        if len(theta):
            basis = np.linalg.qr(design.shares(theta[:, 0], theta[:, 1])[0].T)[0]
            rest = Y - basis @ (basis.T @ Y)
            atoms = shares - (shares @ basis) @ basis.T
        size = (atoms**2).sum(axis=1)
        gain = ((atoms @ rest) ** 2).sum(axis=1) / np.maximum(size, 1e-12 * (shares**2).sum(axis=1))
        spots = _peaks(gain.reshape(TESTS.coarse, TESTS.coarse))[: TESTS.spots]
        for a, b in spots:
            starts.append(np.vstack([theta, [[axis[a], axis[b]]]]))
    return np.array(starts)


def _peaks(values: Floats) -> Floats:
    """Where a map is larger than at its eight neighbours, highest first."""
    a, b = values.shape
    padded = np.pad(values, 1, constant_values=-np.inf)
    around = np.max([padded[1 + i : a + 1 + i, 1 + j : b + 1 + j] for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j], axis=0)
    spots = np.argwhere(values >= around)
    return np.asarray(spots[np.argsort(-values[spots[:, 0], spots[:, 1]], kind="stable")])


def _prune(design: Design, Y: Floats, found: Fit, noise: float, limit: float) -> Fit:
    """Leave heads out as long as the rest fits as well: empty heads, and pairs that are one."""
    while len(found.height) > 1:
        theta = np.column_stack([found.height, found.pace])
        fewer = _descend(design, Y, np.array([np.delete(theta, h, axis=0) for h in range(len(theta))]), noise)
        if fewer.worst > limit * noise:
            break
        found = fewer
    return found


def _descend(design: Design, Y: Floats, starts: Floats, noise: float) -> Fit:
    """Levenberg-Marquardt from all starts at once; only the better ones go on."""
    current, damping = starts, np.full(len(starts), 1e-2)
    cost = _residual(design, Y, current)[2]
    before = np.inf
    for step in range(160):
        current, cost, damping = _improve(design, Y, current, cost, damping)
        if step % 20 == 19:
            if cost.min() > 0.8 * before and np.sqrt(cost.min() / Y.size) > 20 * noise:
                break  # stuck: a number of heads that fits is found in a few dozen steps
            before = float(cost.min())
        if step in (5, 10, 20, 40) and len(current) > 16:
            keep = np.argsort(cost, kind="stable")[: max(16, len(current) // 2)]
            current, cost, damping = current[keep], cost[keep], damping[keep]
        if np.sqrt(cost.min() / Y.size) <= 0.1 * noise or damping.min() > 1e12:
            break
    theta = current[np.argmin(cost)][None]
    for _ in range(12):  # a few plain Gauss-Newton steps through QR: normal equations stop early
        theta = _polish(design, Y, theta)
    A, rest, _ = _residual(design, Y, theta)
    return Fit(theta[0, :, 0], theta[0, :, 1], A[0], float(np.abs(rest).max()), _distinct(current[np.argsort(cost, kind="stable")]))


def _distinct(thetas: Floats) -> Floats:
    """Without repetitions (heads in any order), the first of each kept."""
    kept: list[Floats] = []
    for theta in thetas:
        ordered = theta[np.lexsort((theta[:, 1], theta[:, 0]))]
        if all(np.abs(ordered - k).max() > 1e-3 * (1 + np.abs(k).max()) for k in kept):
            kept.append(ordered)
    return np.array(kept)


def _residual(design: Design, Y: Floats, theta: Floats) -> tuple[Floats, Floats, Floats]:
    shares = design.shares(theta[..., 0], theta[..., 1])[0].transpose(0, 2, 1)  # (starts, rows, heads)
    gram = shares.transpose(0, 2, 1) @ shares
    ridge = 1e-13 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(gram.shape[1])
    A = np.linalg.solve(gram + ridge, shares.transpose(0, 2, 1) @ Y)
    A += np.linalg.solve(gram + ridge, shares.transpose(0, 2, 1) @ (Y - shares @ A))
    rest = Y - shares @ A
    return A, rest, (rest**2).sum(axis=(1, 2))


def _jacobian(design: Design, theta: Floats, A: Floats) -> Floats:
    """Variable projection (Kaufman): derivatives of the residual, ``(starts, rows * outputs, 2 heads)``."""
    shares, by_height, by_pace = design.shares(theta[..., 0], theta[..., 1])
    basis = np.linalg.qr(shares.transpose(0, 2, 1))[0]
    slopes = np.concatenate([by_height, by_pace], axis=1).transpose(0, 2, 1)  # (starts, rows, 2 heads)
    slopes = slopes - basis @ (basis.transpose(0, 2, 1) @ slopes)
    full = slopes[:, :, None, :] * np.concatenate([A, A], axis=1).transpose(0, 2, 1)[:, None]
    return np.asarray(-full.reshape(len(theta), -1, full.shape[-1]))


def _improve(design: Design, Y: Floats, theta: Floats, cost: Floats, damping: Floats) -> tuple[Floats, Floats, Floats]:
    A, rest, _ = _residual(design, Y, theta)
    J = _jacobian(design, theta, A)
    square = J.transpose(0, 2, 1) @ J
    diagonal = np.einsum("sii->si", square)
    square = square + (damping[:, None] * (diagonal + 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-300))[:, :, None] * np.eye(
        square.shape[1]
    )
    step = np.linalg.solve(square, J.transpose(0, 2, 1) @ rest.reshape(len(theta), -1, 1))[..., 0]
    heads = theta.shape[1]
    moved = theta - np.clip(np.stack([step[:, :heads], step[:, heads:]], axis=-1), -2.0, 2.0)
    moved = np.clip(moved, -TESTS.steepest, TESTS.steepest)
    there = _residual(design, Y, moved)[2]
    better = there < cost
    return (
        np.where(better[:, None, None], moved, theta),
        np.where(better, there, cost),
        np.where(better, np.maximum(damping / 5, 1e-14), np.minimum(damping * 4, 1e13)),
    )


def _polish(design: Design, Y: Floats, theta: Floats) -> Floats:
    A, rest, cost = _residual(design, Y, theta)
    J = _jacobian(design, theta, A)[0]
    step = np.linalg.lstsq(J, rest.reshape(-1), rcond=1e-14)[0]
    heads = theta.shape[1]
    moved = theta - np.stack([step[:heads], step[heads:]], axis=-1)[None]
    return moved if _residual(design, Y, moved)[2] < cost else theta


def _scan(design: Design, Y: Floats, heads: int) -> Floats:
    """Vector answers: shares that lie in the span of the answers' columns, as MUSIC finds sources.

    The map over (height, pace) is rugged where steps are long: the half of the rows with shorter steps is looked at as well.
    """
    gentle = np.argsort(np.abs(design.steps).max(axis=1), kind="stable")[: max(len(Y) // 2, 2 * heads + 4)]
    found = []
    for rows in (gentle, np.arange(len(Y))):
        part = Design(design.steps[rows], design.copies[rows], design.t[rows])
        span = np.linalg.svd(Y[rows], full_matrices=False)[0][:, :heads]
        found.append(_refine(part, span, _minima(part, span, 12 * heads), 40))
    span = np.linalg.svd(Y, full_matrices=False)[0][:, :heads]
    points = _refine(design, span, np.concatenate(found), 60)
    final = _miss(design, span, points[:, 0], points[:, 1])
    chosen: list[Floats] = []
    for i in np.argsort(final, kind="stable"):
        if all(np.abs(points[i] - c).max() > 1e-3 * (1 + np.abs(c).max()) for c in chosen):
            chosen.append(points[i])
        if len(chosen) == 2 * heads:
            break
    return np.array(chosen)


def _minima(design: Design, span: Floats, most: int) -> Floats:
    """Local minima on a grid that is finer near zero."""
    axis = np.sinh(np.linspace(-4.2, 4.2, TESTS.grid)) * 0.8
    height, pace = (g.ravel() for g in np.meshgrid(axis, axis, indexing="ij"))
    miss = _miss(design, span, height, pace).reshape(TESTS.grid, TESTS.grid)
    spots = _peaks(-miss)[:most]
    return np.column_stack([axis[spots[:, 0]], axis[spots[:, 1]]])


def _refine(design: Design, span: Floats, points: Floats, steps: int) -> Floats:
    """Pattern search from all points at once: derivative-free, each shrinks to its own minimum."""
    around = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1], [1, -1], [-1, 1]])
    width = 0.2
    for _ in range(steps):
        trial = points[:, None] + width * around * (0.2 + np.abs(points).max(axis=1))[:, None, None]
        values = _miss(design, span, trial[..., 0].ravel(), trial[..., 1].ravel()).reshape(len(points), 9)
        points = trial[np.arange(len(points)), values.argmin(axis=1)]
        width *= 0.75
    return points


def _miss(design: Design, span: Floats, height: Floats, pace: Floats) -> Floats:
    shares = design.shares(height, pace)[0]
    length = (shares**2).sum(axis=1)
    inside = ((shares @ span) ** 2).sum(axis=1)
    miss: Floats = np.maximum(1 - inside / np.maximum(length, 1e-300), 0.0)
    return miss


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
