"""All heads at once against everything that was asked: Gauss-Newton steps, gradients exact."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg as sl
from numpy.random import Generator

from unsoftmax.learners.decoder.limit import Asked
from unsoftmax.learners.decoder.order import Heads
from unsoftmax.learners.decoder.settings import LOGITS, Settings
from unsoftmax.models import Floats
from unsoftmax.models.base import Places
from unsoftmax.models.decoder import rotated


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """Answers less those to the last tokens alone: key ``p`` (zero rows for none) before ``copies`` of ``x`` behind zero tokens."""

    p: Floats
    x: Floats
    copies: Places
    zeros: Floats
    moved: Floats
    keyed: Floats

    def some(self, rows: Places) -> Data:
        """A part of them."""
        return Data(*(getattr(self, name)[rows] for name in ("p", "x", "copies", "zeros", "moved", "keyed")))


def collected(asked: list[Asked]) -> Data:
    """What was asked, as far as the answer to the last token alone is known."""
    alone = {_name(x): answer for a in asked if a.zeros == 0 and a.tokens.shape[1] == 1 for x, answer in a.each()}
    p, x, copies, zeros, moved, keyed = [], [], [], [], [], []
    for a in asked:
        if a.zeros == 0 and a.tokens.shape[1] == 1:
            continue
        for tokens, answer in zip(a.tokens, a.answers, strict=True):
            last = tokens[-1]
            key = bool((tokens[0] != last).any())
            p.append(tokens[0] if key else np.zeros_like(last))
            x.append(last)
            copies.append(len(tokens) - key)
            zeros.append(float(a.zeros))
            moved.append(answer - alone[_name(last)])
            keyed.append(float(key))
    return Data(np.array(p), np.array(x), np.array(copies), np.array(zeros), np.array(moved), np.array(keyed))


def _name(token: Floats) -> bytes:
    """A token up to rounding: products of the same numbers may differ in their last bits."""
    return (np.round(token, 9) + 0.0).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """One head at all data: attention on the key ``a`` and on the last tokens ``b``, and what derivatives need."""

    a: Floats
    b: Floats
    key: Floats  # what the key adds, (n, width)
    last: Floats
    turned: Floats  # slopes of the key's score in the key's and in the last token's projections, (n, rank)
    back: Floats
    own_key: Floats  # the same of the logarithm of what the last tokens raise together
    own_query: Floats


def _head(heads: Heads, h: int, data: Data) -> Head:
    key_p, key_x, query = data.p @ heads.key[h].T, data.x @ heads.key[h].T, data.x @ heads.query[h].T
    turned = rotated(query, data.copies.astype(float), heads.base)
    back = rotated(key_p, -data.copies.astype(float), heads.base)
    P = np.exp(np.clip(np.einsum("nr,nr->n", key_p, turned), -40, 40)) * data.keyed
    E, own_key, own_query = np.zeros(len(P)), np.zeros_like(query), np.zeros_like(query)
    for i in range(int(data.copies.max())):
        rows = np.flatnonzero(data.copies > i)
        place = np.array(float(i))
        there = rotated(query[rows], place, heads.base)
        raised = np.exp(np.clip(np.einsum("nr,nr->n", key_x[rows], there), -40, 40))
        E[rows] += raised
        own_key[rows] += raised[:, None] * there
        own_query[rows] += raised[:, None] * rotated(key_x[rows], -place, heads.base)
    total = data.zeros + P + E
    V = heads.value[h].T @ heads.out[h].T
    return Head(P / total, E / total, data.p @ V, data.x @ V, turned, back, own_key / E[:, None], own_query / E[:, None])


def _across(x: Floats, vectors: Floats) -> Floats:
    along = np.einsum("no,no->n", x, vectors) / np.einsum("no,no->n", x, x)
    return np.asarray(vectors - x * along[:, None])


def _left(heads: Heads, seen: list[Head], data: Data) -> Floats:
    """Answers less predictions."""
    total = np.zeros_like(data.moved)
    for one in seen:
        total += one.a[:, None] * one.key + (one.b - 1)[:, None] * one.last
    return data.moved - _across(data.x, total)


def members(heads: Heads) -> list[Places]:
    """The heads of every group, which share key and value."""
    return [np.flatnonzero(heads.group == g) for g in range(int(heads.group.max()) + 1)]


def moved(heads: Heads, step: Floats) -> Heads:
    """The heads with a step in all parameters: group by group key and value, then query and out of each head."""
    query, key, value, out = heads.query.copy(), heads.key.copy(), heads.value.copy(), heads.out.copy()
    at = 0

    def taken(shape: tuple[int, ...]) -> Floats:
        nonlocal at
        size = int(np.prod(shape))
        at += size
        return step[at - size : at].reshape(shape)

    for mine in members(heads):
        first = mine[0]
        key[mine] = heads.key[first] + taken(key.shape[1:])
        value[mine] = heads.value[first] + taken(value.shape[1:])
        for h in mine.tolist():
            query[h] = heads.query[h] + taken(query.shape[1:])
            out[h] = heads.out[h] + taken(out.shape[1:])
    return replace(heads, query=query, key=key, value=value, out=out)


def _slopes(one: Head) -> tuple[Floats, Floats]:
    """Derivatives of the answer in the key's score and in the logarithm of what the last tokens raise, ``(n, width)``."""
    a, b, ab = (one.a * (1 - one.a))[:, None], (one.b * (1 - one.b))[:, None], (one.a * one.b)[:, None]
    return a * one.key - ab * one.last, b * one.last - ab * one.key


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A head's derivatives as sums of outputs times parameters, before the projection along the last token.

    Attributes:
        slopes: two times ``(n, width)``, projected: outputs that the two kinds of score move.
        scores: two times ``(n, parameters)``: how they move with key and query.
        mixed: ``(n, width)``, the token that attention hands over, less the last one.
        inner: ``(n, rank)``, its values.
        along: ``(n, parameters)``: the part along the last token of what value and out move.
    """

    slopes: tuple[Floats, Floats]
    scores: tuple[Floats, Floats]
    mixed: Floats
    inner: Floats
    along: Floats


def _outer(a: Floats, b: Floats) -> Floats:
    """Row by row ``a`` times ``b``, flat."""
    return np.asarray(a[:, :, None] * b[:, None, :]).reshape(len(a), -1)


def _columns(heads: Heads, h: int, data: Data) -> Columns:
    one = _head(heads, h, data)
    first, second = (_across(data.x, slope) for slope in _slopes(one))
    of_key = np.concatenate([_outer(one.turned, data.p), _outer(one.back, data.x)], axis=1)
    of_last = np.concatenate([_outer(one.own_key, data.x), _outer(one.own_query, data.x)], axis=1)
    mixed = one.a[:, None] * data.p + (one.b - 1)[:, None] * data.x
    inner = mixed @ heads.value[h].T
    along = np.concatenate([_outer(data.x @ heads.out[h], mixed), _outer(data.x, inner)], axis=1)
    return Columns((first, second), (of_key, of_last), mixed, inner, along)


def places(heads: Heads) -> list[tuple[Places, Places]]:
    """Where each head's parameters stand in the order of ``moved``: key and query, value and out."""
    size_k, size_v = heads.key[0].size, heads.value[0].size
    found: list[tuple[Places, Places]] = [(np.zeros(0, dtype=np.intp),) * 2] * len(heads.query)
    at = 0
    for mine in members(heads):
        key, value = np.arange(at, at + size_k), np.arange(at + size_k, at + size_k + size_v)
        at += size_k + size_v
        for h in mine.tolist():
            query, out = np.arange(at, at + size_k), np.arange(at + size_k, at + size_k + size_v)
            found[h] = np.concatenate([key, query]), np.concatenate([value, out])
            at += size_k + size_v
    return found


def _normal(heads: Heads, data: Data, ridge: float) -> tuple[Floats, Floats]:
    """The normal matrix scaled to a unit diagonal, factored, and the scales.

    Every derivative is an output vector times a row of parameters, so that blocks are products of rows alone: an answer costs as
    much as two or three numbers would, not as much as ``width`` of them.
    """
    where = places(heads)
    size = 1 + int(max(place.max() for pair in where for place in pair))
    normal = np.zeros((size, size))
    for start in range(0, len(data.x), LOGITS.chunk):
        part = data.some(np.arange(start, min(start + LOGITS.chunk, len(data.x))))
        columns = [_columns(heads, h, part) for h in range(len(where))]
        for h, one in enumerate(columns):
            for g, other in enumerate(columns):
                block = _score_value(one, other, heads.out[g])
                normal[np.ix_(where[h][0], where[g][1])] += block
                normal[np.ix_(where[g][1], where[h][0])] += block.T
                if g < h:
                    continue
                for kind, block in enumerate((_score_score(one, other), _value_value(one, other, heads.out[h], heads.out[g]))):
                    normal[np.ix_(where[h][kind], where[g][kind])] += block
                    if g > h:
                        normal[np.ix_(where[g][kind], where[h][kind])] += block.T
    scale = np.sqrt(np.diag(normal)) + 1e-300
    normal /= scale
    normal /= scale[:, None]
    normal[np.diag_indices(size)] += ridge
    return sl.cholesky(normal, lower=False, overwrite_a=True, check_finite=False), scale


def _score_score(one: Columns, other: Columns) -> Floats:
    total: Floats = np.zeros((one.scores[0].shape[1], other.scores[0].shape[1]))
    for slope, rows in zip(other.slopes, other.scores, strict=True):
        shares = [np.einsum("no,no->n", mine, slope)[:, None] for mine in one.slopes]
        total += (shares[0] * one.scores[0] + shares[1] * one.scores[1]).T @ rows
    return total


def _score_value(one: Columns, other: Columns, out: Floats) -> Floats:
    total: Floats = np.zeros((one.scores[0].shape[1], other.along.shape[1]))
    for slope, rows in zip(one.slopes, one.scores, strict=True):
        total += rows.T @ np.concatenate([_outer(slope @ out, other.mixed), _outer(slope, other.inner)], axis=1)
    return total


def _value_value(one: Columns, other: Columns, out: Floats, other_out: Floats) -> Floats:
    width = len(out)
    total = -(one.along.T @ other.along) / width
    size = out.size
    total[:size, :size] += np.kron(out.T @ other_out, one.mixed.T @ other.mixed)
    total[:size, size:] += np.einsum("op,ir->pior", out, one.mixed.T @ other.inner).reshape(size, -1)
    total[size:, :size] += np.einsum("op,ri->orpi", other_out, one.inner.T @ other.mixed).reshape(-1, size)
    total[size:, size:] += np.kron(np.eye(width), one.inner.T @ other.inner)
    return np.asarray(total)


def _gradient(heads: Heads, seen: list[Head], data: Data, left: Floats) -> Floats:
    """``J^T left`` without the matrix."""
    rest, parts = _across(data.x, left), []
    for mine in members(heads):
        dK, dval, own = np.zeros(heads.key.shape[1:]), np.zeros(heads.value.shape[1:]), []
        for h in mine.tolist():
            one = seen[h]
            of_key, of_last = (np.einsum("no,no->n", slope, rest)[:, None] for slope in _slopes(one))
            mixed = one.a[:, None] * data.p + (one.b - 1)[:, None] * data.x
            dK += (of_key * one.turned).T @ data.p + (of_last * one.own_key).T @ data.x
            dval += (rest @ heads.out[h]).T @ mixed
            dQ = (of_key * one.back + of_last * one.own_query).T @ data.x
            own += [dQ.ravel(), (rest.T @ (mixed @ heads.value[h].T)).ravel()]
        parts += [dK.ravel(), dval.ravel(), *own]
    return np.concatenate(parts)


def polished(heads: Heads, data: Data, noise: float, settings: Settings = LOGITS, rng: Generator | None = None) -> Polished:
    """The heads that fit everything best.

    Errors of values no longer bias scores then: both come out near the error of the answers, ``noise``. The normal matrix is kept
    as long as steps with it help, because gradients are exact. With more than ``largest`` parameters the heads stay as they were.
    Answers that are off by far more than most are left out: the limit came out badly there. With ``rng`` error bars are drawn.
    """
    seen, left, cost = _state(heads, data)
    if heads.query.size + heads.out.size + len(members(heads)) * (heads.key[0].size + heads.value[0].size) > settings.largest:
        return Polished(heads, cost)
    factor, scale = np.zeros((0, 0)), np.zeros(0)
    for _ in range(settings.built):
        start = cost
        factor, scale = _normal(heads, data, settings.ridge)
        for _ in range(settings.polish_steps):
            gradient = _gradient(heads, seen, data, left) / scale
            step = sl.cho_solve((factor, False), gradient, check_finite=False) / scale
            before = cost
            for share in (1.0, 0.3, 0.1):
                trial = moved(heads, share * step)
                there, rest, reached = _state(trial, data)
                if reached < cost:
                    heads, seen, left, cost = trial, there, rest, reached
                    break
            if not cost < settings.helps * before:
                break
        if cost <= settings.enough * noise or not cost < 0.95 * start:
            break
        each = np.sqrt(np.mean(left**2, axis=1))
        data = data.some(np.flatnonzero(each <= settings.outlying * np.median(each)))
        seen, left, cost = _state(heads, data)
    if rng is None:
        return Polished(heads, cost)
    names = np.unique(np.round(data.x, 9), axis=0, return_inverse=True)[1].ravel()
    squares = []
    for _ in range(settings.draws):
        signs = rng.choice([-1.0, 1.0], size=int(names.max()) + 1)[names]
        gradient = _gradient(heads, seen, data, signs[:, None] * left) / scale
        squares.append(_shown(heads, sl.cho_solve((factor, False), gradient, check_finite=False) / scale, settings.stated))
    return Polished(heads, cost, settings.bar * np.sqrt(np.mean(squares, axis=0)))


@dataclass(frozen=True, slots=True, eq=False)
class Polished:
    """The heads, the root mean square of what is left of an answer's output, and error bars.

    ``bars (2, heads)`` are half-widths of 95% for entries of every head's values and of its scores (the widest of several
    distances): what the fit left is added again with other signs, the same for all answers to one last token, which share errors.
    """

    heads: Heads
    left: float
    bars: Floats | None = None


def _state(heads: Heads, data: Data) -> tuple[list[Head], Floats, float]:
    seen = [_head(heads, h, data) for h in range(len(heads.query))]
    left = _left(heads, seen, data)
    return seen, left, float(np.sqrt(np.mean(left**2)))


def _shown(heads: Heads, step: Floats, distances: tuple[float, ...]) -> Floats:
    """Mean squares of what a step changes in values and scores, to first order, ``(2, heads)``."""
    there = moved(heads, step)
    query, key, value, out = (getattr(there, name) - getattr(heads, name) for name in ("query", "key", "value", "out"))
    V = np.einsum("hri,hor->hio", value, heads.out) + np.einsum("hri,hor->hio", heads.value, out)
    scores = []
    for distance in distances:
        turned, changed = (rotated(np.swapaxes(a, 1, 2), np.array(distance), heads.base) for a in (heads.query, query))
        change = np.einsum("hri,hjr->hij", key, turned) + np.einsum("hri,hjr->hij", heads.key, changed)
        scores.append(np.mean(change**2, axis=(1, 2)))
    return np.array([np.mean(V**2, axis=(1, 2)), np.max(scores, axis=0)])
