"""Queries and keys behind rotary positions: the base, a start from a few anchors, and one fit of everything that was read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg as sl

from unsoftmax.learners.decoder.readings import Readings
from unsoftmax.models import Floats
from unsoftmax.models.base import Places
from unsoftmax.models.decoder import rotated

BASES = np.exp(np.arange(np.log(50.0), np.log(2e8), 0.01))  # that the scan tries


def waves(offsets: Floats, rank: int, base: float) -> Floats:
    """``cos`` and ``-sin`` of every frequency at every offset, ``(n, rank)``."""
    half = rank // 2
    angles = offsets[:, None] * base ** (-np.arange(half) / half)
    return np.concatenate([np.cos(angles), -np.sin(angles)], axis=1)


def unexplained(offsets: Floats, scores: Floats, errors: Floats, rank: int, base: float) -> float:
    """What waves of this base leave of ``scores (channels, offsets)``, in units of their errors, root mean square."""
    Q = np.linalg.qr(waves(offsets, rank, base)[None] / errors[:, :, None])[0]
    wanted = scores / errors
    left = wanted - np.einsum("cnr,cr->cn", Q, np.einsum("cnr,cn->cr", Q, wanted))
    return float(np.sqrt(np.mean(left**2) * len(offsets) / max(1, len(offsets) - rank)))


def find_base(offsets: Floats, scores: Floats, errors: Floats, rank: int) -> tuple[float, float]:
    """The rotary base whose waves explain ``scores (channels, offsets)`` best, and what it leaves; no question is asked."""
    tried = [unexplained(offsets, scores, errors, rank, base) for base in BASES]
    at = int(np.argmin(tried))
    low, high = np.log(BASES[max(0, at - 1)]), np.log(BASES[min(len(BASES) - 1, at + 1)])
    golden = (np.sqrt(5.0) - 1) / 2
    for _ in range(60):
        one, two = high - golden * (high - low), low + golden * (high - low)
        left = [unexplained(offsets, scores, errors, rank, float(np.exp(u))) for u in (one, two)]
        low, high = (low, two) if left[0] < left[1] else (one, high)
    base = float(np.exp((low + high) / 2))
    best = unexplained(offsets, scores, errors, rank, base)
    for digits in (1, 2, 3):  # bases are round numbers; where one does as well, it is that
        plain = float(f"{base:.{digits}g}")
        rounded = unexplained(offsets, scores, errors, rank, plain)
        if rounded <= max(2.0 * best, 1.0):
            return plain, rounded
    return base, best


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Heads that share their keys: ``key (rank, dims)``, ``query (heads, rank, dims)``.

    ``misfit`` is what is left of the scores in units of their errors, root mean square; ``left`` the same over the scores.
    """

    key: Floats
    query: Floats
    misfit: float
    left: float


def keys_from_turns(scores: Floats, errors: Floats, offsets: Floats, rank: int, base: float) -> Floats:
    """Keys ``(rank, keys)`` at anchors from ``scores (keys, queries, offsets)``, without a search; queries may be of several heads.

    At a distance ``n`` the scores are ``Re sum_f conj(k_f) q_f e^(i n theta_f)``. So a row ``l_f`` that is one at ``conj(k_f)`` and
    zero at all other keys turns them into ``q_f e^(i n theta_f) / 2``: of all rows it is the one that leaves least when what is
    turned back is compared over the distances. These rows are the inverse of the keys. It takes ``rank`` keys.
    """
    half = rank // 2
    worst = np.sqrt(np.mean(errors**2, axis=0))
    weights = np.where(np.isfinite(worst), 1 / worst, 0.0)  # of a query at a distance, as its worst key is read
    told = np.where(weights > 0, scores, 0.0)
    space = np.linalg.svd((told * weights).reshape(len(told), -1), full_matrices=False)[0][:, :rank]
    told = np.einsum("ar,acn->rcn", space, told)
    total = np.maximum((weights**2).sum(axis=1), 1e-300)
    rows = []
    for theta in base ** (-np.arange(half) / half):
        still = told * np.exp(-1j * theta * offsets)
        mean = np.einsum("rcn,cn->rc", still, weights**2) / total
        left = ((still - mean[:, :, None]) * weights).reshape(rank, -1)
        rows.append(np.conj(np.linalg.svd(left, full_matrices=False)[0][:, -1]))
    inverse = np.linalg.inv(np.concatenate([rows, np.conj(rows)]))[:, half:]
    key = (space @ inverse).T
    return np.concatenate([key.real, key.imag])


def queries_of(key: Floats, scores: Floats, errors: Floats, offsets: Floats, base: float) -> Group:
    """Queries ``(heads, rank, queries)`` beside known keys at anchors: ``scores (keys, queries, offsets, heads)``, linear."""
    weights = np.where(np.isfinite(errors), 1 / errors, 0.0)
    wanted = np.where(weights > 0, scores, 0.0) * weights
    back = np.stack([rotated(key.T, np.array(-offset), base) for offset in offsets], axis=1)  # (keys, offsets, rank)
    heads, count = scores.shape[3], scores.shape[1]
    query, cost = np.zeros((heads, len(key), count)), 0.0
    for h in range(heads):
        for c in range(count):
            rows, right = (back * weights[:, c, :, h, None]).reshape(-1, len(key)), wanted[:, c, :, h].ravel()
            query[h, :, c] = _solved(rows, right)
            cost += float(np.sum((right - rows @ query[h, :, c]) ** 2))
    size = max(float(np.sum(wanted**2)), 1e-300)
    return Group(key, query, float(np.sqrt(cost / max(1, int((weights > 0).sum()) - query.size))), float(np.sqrt(cost / size)))


def fit_group(
    p: Floats,
    x: Floats,
    offsets: Floats,
    scores: Floats,
    errors: Floats,
    base: float,
    start: tuple[Floats, Floats],
    steps: int = 60,
) -> Group:
    """Fit ``score = (key p).rotated(query_h x)`` to everything read about a group: ``scores, errors (n, heads)``."""
    key, query = start[0].copy(), start[1].copy()
    rank = len(key)
    weights = np.where(np.isfinite(errors), 1 / errors, 0.0)
    wanted = np.where(weights > 0, scores, 0.0)

    def left(key: Floats, query: Floats) -> Floats:
        turned = rotated(np.einsum("nj,hrj->nhr", x, query), offsets[:, None], base)
        return np.asarray((wanted - np.einsum("nr,nhr->nh", p @ key.T, turned)) * weights)

    rest = left(key, query)
    slow, cost, damping = 0, float(np.sum(rest**2)), 1e-3
    for _ in range(steps):
        J = _derivatives(p, x, offsets, weights, base, key, query)
        scale = np.linalg.norm(J, axis=0) + 1e-300
        Q, R = sl.qr(J / scale, mode="economic", overwrite_a=True, check_finite=False)  # no normal equations: weights span decades
        wanted_step = Q.T @ rest.T.ravel()
        if float(np.sum(wanted_step**2)) <= 1e-6 * cost:  # no step takes more off
            break
        before = cost
        for _ in range(10):
            held = sl.qr(np.concatenate([R, np.sqrt(damping) * np.eye(len(scale))]), mode="economic", check_finite=False)
            step = sl.solve_triangular(held[1], held[0][: len(R)].T @ wanted_step, check_finite=False) / scale
            new_key = key + step[: key.size].reshape(key.shape)
            new_query = query + step[key.size :].reshape(query.shape)
            trial = left(new_key, new_query)
            reached = float(np.sum(trial**2))
            if reached < cost:
                key, query, rest, cost = new_key, new_query, trial, reached
                damping = max(damping / 10, 1e-20)
                break
            damping *= 5
        slow = slow + 1 if not cost < 0.999 * before else 0
        if slow == 3:
            break
    free = max(1, int((weights > 0).sum()) - key.size - query.size + rank)
    return Group(
        key, query, float(np.sqrt(cost / free)), float(np.sqrt(cost / max(float(np.sum((wanted * weights) ** 2)), 1e-300)))
    )


def _derivatives(p: Floats, x: Floats, offsets: Floats, weights: Floats, base: float, key: Floats, query: Floats) -> Floats:
    """Of the weighted scores, head by head, in the key and in each query."""
    turned = rotated(np.einsum("nj,hrj->nhr", x, query), offsets[:, None], base)
    back = rotated(p @ key.T, -offsets, base)
    J = np.zeros((len(query), len(p), key.size + query.size))
    each = query[0].size
    for h in range(len(query)):
        J[h, :, : key.size] = np.einsum("nr,ni,n->nri", turned[:, h], p, weights[:, h]).reshape(len(p), -1)
        at = key.size + h * each
        J[h, :, at : at + each] = np.einsum("nr,nj,n->nrj", back, x, weights[:, h]).reshape(len(p), -1)
    return J.reshape(len(query) * len(p), -1)


def spread_out(readings: Readings, heads: Places, anchors: tuple[Floats, Floats], known: Group, base: float, steps: int) -> Group:
    """Keys and queries on all of space from those of a few anchors: two linear solves, then steps of a fit of everything.

    Args:
        readings: of anchors among themselves, of all keys before anchors, and of anchors before all last tokens.
        heads: which of the heads form the group.
        anchors: tokens ``(keys, width)`` and ``(queries, width)``.
        known: the group on anchors: ``key (rank, keys)``, ``query (heads, rank, queries)``.
        base: of the rotary frequencies.
        steps: of the fit; one of all answers follows.
    """
    scores, errors = readings.scores[:, heads], readings.errors[:, heads]
    weights = np.where(np.isfinite(errors), 1 / errors, 0.0)
    width, rank = readings.p.shape[1], len(known.key)
    a, c = _which(readings.p, anchors[0]), _which(readings.x, anchors[1])
    rows, wanted = [], []
    for h in range(len(heads)):
        at = np.flatnonzero((c >= 0) & (weights[:, h] > 0))
        turned = rotated(known.query[h].T[c[at]], readings.offsets[at], base)
        rows.append(np.einsum("nr,ni,n->nri", turned, readings.p[at], weights[at, h]).reshape(len(at), -1))
        wanted.append(scores[at, h] * weights[at, h])
    key = _solved(np.concatenate(rows), np.concatenate(wanted)).reshape(rank, width)
    queries = []
    for h in range(len(heads)):
        at = np.flatnonzero((a >= 0) & (weights[:, h] > 0))
        back = rotated(known.key.T[a[at]], -readings.offsets[at], base)
        rows_h = np.einsum("nr,nj,n->nrj", back, readings.x[at], weights[at, h]).reshape(len(at), -1)
        queries.append(_solved(rows_h, scores[at, h] * weights[at, h]).reshape(rank, width))
    start = key, np.array(queries)
    return fit_group(readings.p, readings.x, readings.offsets, scores, errors, base, start, steps=steps)


def _solved(rows: Floats, wanted: Floats) -> Floats:
    sizes = np.linalg.norm(rows, axis=0) + 1e-300
    return np.asarray(np.linalg.lstsq(rows / sizes, wanted, rcond=None)[0] / sizes)


def _which(tokens: Floats, anchors: Floats) -> Places:
    """Which anchor each token is; -1 for none."""
    names = {anchor.tobytes(): i for i, anchor in enumerate(np.ascontiguousarray(anchors))}
    return np.array([names.get(np.ascontiguousarray(token).tobytes(), -1) for token in tokens])
