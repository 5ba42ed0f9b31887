"""Values where every position is answered: one question for each direction serves a whole crowd of last tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.stack.heads import Base
from unsoftmax.learners.stack.known import Known, ranks_of
from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.scores import Values, weigh
from unsoftmax.learners.stack.settings import STACK, Settings
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Crowd:
    """Last tokens in a space of two or three dimensions where values and scores are known, all in one sequence.

    What they make of each other is known, so that a further key, whose scores are affine in the last token, adds as many unknowns
    to a question as the space has dimensions, and one, for each head; and its values, which are linear in the answers.

    Attributes:
        tokens: ``(n, width)``.
        affine: ``(n, dimensions + 1)``: their coordinates, and a one.
        columns: ``(n, heads, dimensions)``: their ``W_h x + c_h``.
        whole: ``(n, heads)``: logarithm of the sum of all shares, their own being one.
        mean: ``(n, heads, dimensions)``: the token that each head sees on average.
        answers: ``(n, width)``: of the crowd alone.
    """

    tokens: Floats
    affine: Floats
    columns: Floats
    whole: Floats
    mean: Floats
    answers: Floats

    @classmethod
    def asked(cls, limit: Limit, plane: Floats, places: Floats, scores: Floats) -> Crowd:
        """Ask the tokens at ``places (n, dimensions)``: one question; ``scores (heads, dimensions, dimensions + 1)``: W beside c."""
        tokens = places @ plane
        affine = np.concatenate([places, np.ones((len(places), 1))], axis=1)
        columns = np.einsum("hij,nj->nhi", scores, affine, optimize=True)
        z = columns @ places.T
        z = np.where((limit.seen(len(places)) | np.eye(len(places), dtype=bool))[:, None], z, -np.inf)
        z -= np.einsum("nhi,ni->nh", columns, places)[:, :, None]
        most = z.max(2, keepdims=True)
        shares = np.exp(z - most)
        whole = shares.sum(2)
        return cls(
            tokens,
            affine,
            columns,
            np.log(whole) + most[:, :, 0],
            shares @ places / whole[:, :, None],
            limit.everywhere(tokens[None])[0],
        )


def crowd_values(
    limit: Limit, base: Base, plane: Floats, table: Floats, sure: float, settings: Settings, rng: np.random.Generator
) -> Known:
    """Values of more and more directions outside S until their ranks are exceeded.

    ``plane (dimensions, width)``: orthonormal rows in S; ``table (heads, dimensions, outputs)``: their values.
    """
    frame, heads = base.frame, base.heads
    sphere, T, few = frame.sphere, frame.C, len(plane)
    angle = base.apart
    pairs, scores = _scores(limit, base, plane, table, angle, rng)
    places = _cap(few, STACK.crowd_readers(heads), np.pi * angle / STACK.apart, rng) * sphere.radius
    crowd = Crowd.asked(limit, plane, places, scores)
    calm = np.abs(crowd.columns @ places.T - np.einsum("nhi,ni->nh", crowd.columns, places)[:, :, None]).max((0, 1)).argmin()
    rows, count, batch = np.linalg.qr(sphere.on(T).T)[0].T, 0, 6
    tables, along = [table], []
    while True:
        for row in rows[count : count + batch]:
            values, theta = _direction(limit, frame.outputs, crowd, table, places[calm], plane, row, angle, settings)
            tables.append(values[:, None])
            along.append(theta)
        count = min(count + batch, len(rows))
        found = np.concatenate(tables, axis=1)
        ranks = ranks_of(found, settings.cliff)
        wanted = settings.directions(max(ranks), heads) - few
        if count >= wanted or count == len(rows):
            break
        batch = max(1, min(count // 4, wanted - count))
    affine = np.concatenate([pairs, np.ones((len(pairs), 1))], axis=1)
    columns = np.concatenate([scores, np.stack(along, axis=1)], axis=1)  # (heads, basis, dimensions + 1)
    return Known(
        np.concatenate([plane, rows[:count]]),
        found,
        T[: count + (sphere.norm == "layer")],
        ranks,
        few + count >= max(ranks) + 3,
        sure,
        pairs @ plane,
        np.einsum("hbj,nj->nhb", columns, affine, optimize=True),
    )


def _cap(dimensions: int, count: int, angle: float, rng: np.random.Generator) -> Floats:
    """Unit vectors ``(count, dimensions)`` at up to ``angle`` from the first axis, evenly where that is a circle."""
    turns = angle * (np.arange(count) + 0.5) / count * np.where(np.arange(count) % 2, 1.0, -1.0)
    around = rng.normal(size=(count, dimensions - 1)) if dimensions > 2 else np.ones((count, 1))
    around /= np.linalg.norm(around, axis=1, keepdims=True)
    return np.concatenate([np.cos(turns)[:, None], np.sin(turns)[:, None] * around], axis=1)[rng.permutation(count)]


def _scores(
    limit: Limit, base: Base, plane: Floats, table: Floats, angle: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Some tokens ``(n, dimensions)`` of the plane, and W beside c there, ``(heads, dimensions, dimensions + 1)``, from all pairs of them."""
    few, frame, radius = len(plane), base.frame, base.frame.sphere.radius
    at = np.isin(np.arange(frame.sphere.width), frame.outputs)
    wide = np.zeros((*table.shape[:2], len(at)))
    wide[:, :, frame.outputs] = table
    values = Values(plane, wide, at)
    one, two = np.nonzero(limit.seen(few + 2) if limit.sight == "causal" else np.tril(limit.seen(few + 2)))
    if limit.sight == "causal":  # each reads the other in a question of its own
        one, two = np.concatenate([one, two]), np.concatenate([two, one])
    for _ in range(STACK.shortenings):
        places = max((radius * _cap(few, few + 2, angle, rng) for _ in range(STACK.draws)), key=lambda some: _spread(some, one, two))
        tokens = places @ plane
        told = [weigh(batch, values, limit.like) for batch in limit.together(np.stack([tokens[one], tokens[two]], axis=1))]
        z, error = (np.concatenate([getattr(batch, name)[:, :, 0] for batch in told]) for name in ("z", "error"))
        if np.isfinite(z).all():
            readers, keys = (np.concatenate([x for b in told for x in [getattr(b.batch, name)]]) for name in ("readers", "keys"))
            design = _design(readers @ plane.T, keys[:, 0] @ plane.T)
            found = [np.linalg.lstsq(design / e[:, None], s / e, rcond=None)[0] for s, e in zip(z.T, error.T, strict=True)]
            return places[:few], np.stack(found).reshape(-1, few, few + 1)
        angle /= STACK.shrink
    raise NotInFamilyError("Among a few tokens the answers are no mixture of the heads found: a weight stays negative.")


def _design(readers: Floats, keys: Floats) -> Floats:
    """Scores of ``keys (n, dimensions)`` at ``readers``, linear in W beside c."""
    affine = np.concatenate([readers, np.ones((len(readers), 1))], axis=1)
    return np.asarray(((keys - readers)[:, :, None] * affine[:, None]).reshape(len(readers), -1))


def _spread(places: Floats, one: Floats, two: Floats) -> float:
    """How well pairs tell scores."""
    both = np.concatenate([_design(places[one], places[two]), _design(places[two], places[one])])
    return float(np.linalg.svd(both, compute_uv=False)[-1])


def _direction(
    limit: Limit, outputs: Floats, crowd: Crowd, table: Floats, centre: Floats, plane: Floats, row: Floats, angle: float, settings: Settings
) -> tuple[Floats, Floats]:
    """Values ``(heads, outputs)`` of one direction, and its scores ``(heads, dimensions + 1)``, affine in the last token."""
    n, radius = len(crowd.tokens), float(np.linalg.norm(centre))
    copies, least = max(1, n // 4), np.inf
    own = np.einsum("nhi,ni->nh", crowd.columns, crowd.affine[:, :-1])
    for turn in STACK.input_turns:
        turn = turn * min(1.0, angle)
        key, step = np.cos(turn) * centre @ plane + radius * np.sin(turn) * row, radius * np.sin(turn)
        sequence = np.concatenate([np.tile(key, (copies, 1)), crowd.tokens])
        moved = (limit.everywhere(sequence[None])[0, copies:] - crowd.answers)[:, outputs]
        z = crowd.columns @ (np.cos(turn) * centre) - own - crowd.whole + np.log(copies)
        start = np.einsum("nhi,hio->nho", np.cos(turn) * centre - crowd.mean, table, optimize=True)
        theta, values, left = _fitted(moved, z, start, crowd.affine, settings.floor)
        if left <= settings.accept:
            return values / step, theta / step
        least = min(least, left)
    raise NotInFamilyError(
        f"In one direction the answers of many positions are no sum of the heads found: {least:.1e} of them is left.",
        evidence={"left": least},
    )


def _fitted(moved: Floats, z: Floats, start: Floats, affine: Floats, floor: float) -> tuple[Floats, Floats, float]:
    """Fit ``moved[n] = sum_h sigmoid(z + affine theta_h)(start[n, h] + A[h])``: theta, A, and the relative misfit.

    A is linear and eliminated (Kaufman); damped Gauss-Newton in theta, which has a few numbers for each head.
    """
    heads = z.shape[1]
    size = max(float(np.linalg.norm(moved)), 1e-300)

    def at(theta: Floats) -> tuple[Floats, Floats, Floats, Floats, float]:
        weights = expit(z + affine @ theta.T)
        basis, triangle = np.linalg.qr(weights)
        told = moved - np.einsum("nh,nho->no", weights, start)
        A = np.linalg.lstsq(triangle, basis.T @ told, rcond=None)[0]
        left = told - weights @ A
        return weights, basis, A, left, float(np.linalg.norm(left)) / size

    theta, damping, stalled = np.zeros((heads, affine.shape[1])), 1e-3, 0
    weights, basis, A, left, cost = at(theta)
    for _ in range(STACK.descent):
        if cost <= floor or stalled >= STACK.patience:
            break
        slopes = (weights * (1 - weights))[:, :, None] * (start + A)
        J = np.einsum("nho,ni->nohi", slopes, affine, optimize=True).reshape(*moved.shape, -1)
        J = J - np.tensordot(basis, np.tensordot(basis.T, J, axes=1), axes=1)
        flat = J.reshape(moved.size, -1)
        scale = np.linalg.norm(flat, axis=0) + 1e-300
        damped = np.concatenate([flat / scale, np.sqrt(damping) * np.eye(flat.shape[1])])
        step = np.linalg.lstsq(damped, np.concatenate([left.ravel(), np.zeros(flat.shape[1])]), rcond=None)[0] / scale
        step = step.reshape(theta.shape)
        longest = float(np.abs(affine @ step.T).max())
        tried = at(theta + step * min(1.0, STACK.longest / max(longest, 1e-300)))
        if tried[4] < cost:
            stalled = stalled + 1 if tried[4] > 0.5 * cost else 0
            theta = theta + step * min(1.0, STACK.longest / max(longest, 1e-300))
            (weights, basis, A, left, cost), damping = tried, max(damping / 10, 1e-15)
        else:
            damping, stalled = 10 * damping, stalled + (4 if cost < 1e-10 else 1)
    return theta, A, cost
