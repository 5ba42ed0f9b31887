"""Values where every position is answered: one question for each direction serves a whole crowd of last tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
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
        places: ``(n, dimensions)``: coordinates of the tokens in the rows of ``plane``.
        plane: ``(dimensions, width)``, orthonormal.
        seen: ``(n, n)``: which tokens each one attends to, itself among them.
        scores: ``(heads, dimensions, dimensions + 1)``: W beside c.
        table: ``(heads, dimensions, outputs)``: values of the rows.
        answers: ``(n, outputs)``: of the crowd alone.
    """

    places: Floats
    plane: Floats
    seen: NDArray[np.bool_]
    scores: Floats
    table: Floats
    answers: Floats

    @property
    def affine(self) -> Floats:
        """The coordinates, and a one: ``(n, dimensions + 1)``."""
        return np.concatenate([self.places, np.ones((len(self.places), 1))], axis=1)

    @property
    def columns(self) -> Floats:
        """``W_h x + c_h`` of every token, ``(n, heads, dimensions)``."""
        return np.asarray(np.einsum("hij,nj->nhi", self.scores, self.affine, optimize=True))

    def weights(self, counts: Floats) -> Floats:
        """Of each token, so often in the sequence, for each last token and head: ``(n, heads, n)``."""
        z = np.where(self.seen[:, None], self.columns @ self.places.T + np.log(counts), -np.inf)
        shares = np.exp(z - z.max(2, keepdims=True))
        return np.asarray(shares / shares.sum(2, keepdims=True))

    def known(self) -> tuple[Floats, Floats]:
        """Logarithm of the sum of ``exp`` of scores ``(n, heads)``, and the mean token ``(n, heads, dimensions)``."""
        weights = self.weights(np.ones(len(self.places)))
        own = np.einsum("nhi,ni->nh", self.columns, self.places)
        return own - np.log(np.einsum("nhn->nh", weights)), weights @ self.places

    def told_apart(self, key: Floats) -> float:
        """How far from dependent the heads' weights of a ``key (dimensions,)`` in the space are: smallest singular value."""
        weights = expit(self.columns @ key - self.known()[0] + np.log(max(1, len(self.places) // 4)))
        return float(np.linalg.svd(weights, compute_uv=False)[-1])

    def settled(self, limit: Limit, outputs: NDArray[np.int_], floor: float, rng: np.random.Generator) -> Crowd:
        """The same with scores and values fitted to a few questions in which some of the tokens stand more often.

        The first values come from few last tokens, and all that follows rests on them. Values are linear in the differences of
        these answers, so that the fit is one in a few scores for each head.
        """
        n, (heads, few, _) = len(self.places), self.scores.shape
        counts = np.stack([rng.permutation(np.where(np.arange(n) < n // 3, n // 2, 1)) for _ in range(STACK.settling_questions)])
        told = []
        for count in counts:
            order = np.repeat(np.arange(n), count)
            last = np.array([np.flatnonzero(order == i)[-1] for i in range(n)])
            told.append(limit.everywhere((self.places @ self.plane)[order][None])[0][last][:, outputs])
        moved = (np.stack(told) - self.answers).reshape(-1, len(outputs))
        size = max(float(np.linalg.norm(moved)), 1e-300)

        def at(scores: Floats) -> tuple[Floats, Floats, Floats, Floats, Crowd]:
            crowd = replace(self, scores=scores)
            weights = np.stack([crowd.weights(one) for one in [np.ones(n), *counts]])  # (contexts, n, heads, n)
            means = weights @ self.places
            design = (means[1:] - means[:1]).reshape(-1, heads * few)
            basis, triangle = np.linalg.qr(design)
            table = np.linalg.lstsq(triangle, basis.T @ moved, rcond=None)[0]
            return weights, means, basis, moved - design @ table, replace(crowd, table=table.reshape(heads, few, -1))

        weights, means, basis, left, found = at(self.scores)
        for _ in range(STACK.descent):
            cost = float(np.linalg.norm(left))
            if cost <= floor * size:
                break
            away = self.places - means[:, :, :, None]  # (contexts, n, heads, n, dimensions): from the mean to each token
            spread = np.einsum("qnhm,qnhmi,mj->qnhij", weights, away, self.places, optimize=True)  # of the mean by a column
            slopes = np.einsum("qnhij,hio,nk->qnohjk", spread, found.table, self.affine, optimize=True)
            J = (slopes[1:] - slopes[:1]).reshape(len(moved), -1)
            J = J.reshape(len(left), left.shape[1], -1)
            J = (J - np.tensordot(basis, np.tensordot(basis.T, J, axes=1), axes=1)).reshape(left.size, -1)
            step = np.linalg.lstsq(J, left.ravel(), rcond=1e-12)[0].reshape(self.scores.shape)
            tried = at(found.scores + step)
            if not float(np.linalg.norm(tried[3])) < 0.5 * cost:
                break
            weights, means, basis, left, found = tried
        return found


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
    crowd = _drawn(limit, base, plane, scores, table, rng).settled(limit, frame.outputs, settings.floor, rng)
    scores, table = crowd.scores, crowd.table
    centre = crowd.places[np.argmax([crowd.told_apart(place) for place in crowd.places])]
    rows, count, batch = np.linalg.qr(sphere.on(T).T)[0].T, 0, 6
    tables, along = [table], []
    while True:
        for row in rows[count : count + batch]:
            values, theta = _direction(limit, frame.outputs, crowd, centre, row, angle, settings)
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


def _drawn(limit: Limit, base: Base, plane: Floats, scores: Floats, table: Floats, rng: np.random.Generator) -> Crowd:
    """Tokens all over the sphere, nearer together where scores are strong; of many draws the one that tells heads apart best."""
    count, outputs = STACK.crowd_readers(base.heads), base.frame.outputs
    seen = limit.seen(count) | np.eye(count, dtype=bool)
    best, most = None, -1.0
    for _ in range(STACK.draws):
        places = base.frame.sphere.radius * _cap(len(plane), count, np.pi * min(1.0, STACK.crowd_scores / base.strength), rng)
        crowd = Crowd(places, plane, seen, scores, table, np.zeros((count, len(outputs))))
        apart = crowd.told_apart(places[0])
        if apart > most:
            best, most = crowd, apart
    assert best is not None
    return replace(best, answers=limit.everywhere((best.places @ plane)[None])[0][:, outputs])


def _cap(dimensions: int, count: int, angle: float, rng: np.random.Generator) -> Floats:
    """Unit vectors ``(count, dimensions)`` at up to ``angle`` from a random one, evenly where that is a circle."""
    turns = angle * (np.arange(count) + 0.5) / count * np.where(np.arange(count) % 2, 1.0, -1.0)
    around = rng.normal(size=(count, dimensions - 1)) if dimensions > 2 else np.ones((count, 1))
    around /= np.linalg.norm(around, axis=1, keepdims=True)
    found = np.concatenate([np.cos(turns)[:, None], np.sin(turns)[:, None] * around], axis=1)[rng.permutation(count)]
    return np.asarray(found @ np.linalg.qr(rng.normal(size=(dimensions, dimensions)))[0])


def _scores(
    limit: Limit, base: Base, plane: Floats, table: Floats, angle: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Tokens ``(n, dimensions)`` of the plane, and W beside c ``(heads, dimensions, dimensions + 1)`` from all pairs of them."""
    few, frame, radius = len(plane), base.frame, base.frame.sphere.radius
    at = np.isin(np.arange(frame.sphere.width), frame.outputs)
    wide = np.zeros((*table.shape[:2], len(at)))
    wide[:, :, frame.outputs] = table
    values = Values(plane, wide, at)
    one, two = np.nonzero(np.tril(~np.eye(few + 1, dtype=bool)))
    if limit.sight == "causal":  # each reads the other in a question of its own
        one, two = np.concatenate([one, two]), np.concatenate([two, one])
    for _ in range(STACK.shortenings):
        places = max(
            (radius * _cap(few, few + 1, angle, rng) for _ in range(STACK.draws)), key=lambda some: _spread(some, one, two)
        )
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


def _spread(places: Floats, one: NDArray[np.int_], two: NDArray[np.int_]) -> float:
    """How well pairs tell scores."""
    both = np.concatenate([_design(places[one], places[two]), _design(places[two], places[one])])
    return float(np.linalg.svd(both, compute_uv=False)[-1])


def _direction(
    limit: Limit, outputs: NDArray[np.int_], crowd: Crowd, centre: Floats, row: Floats, angle: float, settings: Settings
) -> tuple[Floats, Floats]:
    """Values ``(heads, outputs)`` of one direction, and its scores ``(heads, dimensions + 1)``, affine in the last token."""
    n, radius, least = len(crowd.places), float(np.linalg.norm(centre)), np.inf
    copies, (whole, mean), tokens = max(1, n // 4), crowd.known(), crowd.places @ crowd.plane
    for turn in STACK.input_turns:
        turn = turn * min(1.0, angle)
        near, step = np.cos(turn) * centre, radius * np.sin(turn)
        sequence = np.concatenate([np.tile(near @ crowd.plane + step * row, (copies, 1)), tokens])
        moved = limit.everywhere(sequence[None])[0][copies:, outputs] - crowd.answers
        start = np.einsum("nhi,hio->nho", near - mean, crowd.table, optimize=True)
        theta, values, left = _fitted(moved, crowd.columns @ near - whole + np.log(copies), start, crowd.affine, settings.floor)
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
