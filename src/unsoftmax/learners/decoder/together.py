"""All heads at once against all answers: what they leave, and products with the derivatives, without a matrix."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import scipy.linalg as sl

from unsoftmax.learners.decoder.answers import Data
from unsoftmax.learners.decoder.order import Heads
from unsoftmax.learners.decoder.rotary import waves
from unsoftmax.models import Floats
from unsoftmax.models.base import Places


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A step in all parameters, or a gradient: ``key`` and ``value`` group by group, ``query`` and ``out`` head by head."""

    key: Floats
    value: Floats
    query: Floats
    out: Floats

    @property
    def flat(self) -> Floats:
        """All numbers in a row."""
        return np.concatenate([part.ravel() for part in (self.key, self.value, self.query, self.out)])


def parts_of(heads: Heads, flat: Floats) -> Parts:
    """A row of numbers as parts, in the shapes of the heads."""
    groups = int(heads.group.max()) + 1
    shapes = ((groups, *heads.key.shape[1:]), (groups, *heads.value.shape[1:]), heads.query.shape, heads.out.shape)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    return Parts(*(part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True)))


def places_of(heads: Heads) -> Parts:
    """Where each number stands in such a row."""
    groups = int(heads.group.max()) + 1
    size = groups * (heads.key[0].size + heads.value[0].size) + heads.query.size + heads.out.size
    return parts_of(heads, np.arange(size))


def moved(heads: Heads, step: Parts) -> Heads:
    """The heads with a step in all parameters.

    Near scores, ``key.T @ query``, are told well, and slow rotations are told apart by little. So a step may mix keys far and
    queries back as far; that part of it is made as an exponential, which leaves the product as it is to all orders.
    """
    query, key = heads.query.copy(), heads.key.copy()
    for group, change in enumerate(step.key):
        members = np.flatnonzero(heads.group == group)
        mine, own, back = heads.key[members[0]], heads.query[members], step.query[members]
        mixed = change @ np.linalg.pinv(mine)
        mixed = (mixed - np.mean([b @ np.linalg.pinv(q) for q, b in zip(own, back, strict=True)], axis=0).T) / 2
        key[members] = sl.expm(mixed) @ (mine + change - mixed @ mine)
        query[members] = sl.expm(-mixed.T) @ (own + back + mixed.T @ own)
    return replace(heads, query=query, key=key, value=heads.value + step.value[heads.group], out=heads.out + step.out)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """One head at all data: attention on the keys ``a`` and on the last tokens ``b``, and what derivatives need.

    Attributes:
        slopes: two times ``(n, width)``: derivatives of the answer in the logarithms of what the keys, and the last tokens, raise.
        turned: derivatives of the first logarithm in the key's projections, ``(n, rank)``.
        back: of the first in the last token's projections.
        own_key: of the second in the last token's projections as a key.
        own_query: of the second in those as a query.
        mixed: ``(n, width)``, the token that attention hands over, less the last one.
        inner: ``(n, rank)``, its values.
    """

    slopes: tuple[Floats, Floats]
    turned: Floats
    back: Floats
    own_key: Floats
    own_query: Floats
    mixed: Floats
    inner: Floats


def raised(key: Floats, query: Floats, offsets: Floats, base: float) -> tuple[Floats, Floats, Floats]:
    """What keys raise together at some distances, ``sum exp(score)``, and the slopes of its logarithm in ``key`` and ``query``.

    A score is ``waves @ (A, B)`` with ``A + i B = conj(k) q`` for every frequency; ``key, query (n, rank)``.
    """
    half = key.shape[1] // 2
    k1, k2, q1, q2 = key[:, :half], key[:, half:], query[:, :half], query[:, half:]
    wave = waves(offsets, key.shape[1], base)
    scores = np.concatenate([k1 * q1 + k2 * q2, k1 * q2 - k2 * q1], axis=1) @ wave.T
    up = np.exp(np.clip(scores, -40, 40))
    total = up.sum(axis=1)
    mean = (up @ wave) / total[:, None]
    A, B = mean[:, :half], mean[:, half:]
    of_key = np.concatenate([A * q1 + B * q2, A * q2 - B * q1], axis=1)
    of_query = np.concatenate([A * k1 - B * k2, A * k2 + B * k1], axis=1)
    return total, of_key, of_query


def _seen(heads: Heads, h: int, data: Data) -> Seen:
    key_p, key_x, query = data.p @ heads.key[h].T, data.x @ heads.key[h].T, data.x @ heads.query[h].T
    n = len(query)
    P, E = np.zeros(n), np.zeros(n)
    turned, back, own_key, own_query = np.zeros((4, *query.shape))
    for copies in np.unique(data.copies).tolist():
        at = np.flatnonzero(data.copies == copies)
        E[at], own_key[at], own_query[at] = raised(key_x[at], query[at], np.arange(float(copies)), heads.base)
        for repeats in np.unique(data.repeats[at]).tolist():
            if repeats:
                rows = at[data.repeats[at] == repeats]
                far = np.arange(float(copies), float(copies + repeats))
                P[rows], turned[rows], back[rows] = raised(key_p[rows], query[rows], far, heads.base)
    total = data.zeros + P + E
    a, b = (P / total)[:, None], (E / total)[:, None]
    V = heads.value[h].T @ heads.out[h].T
    key, last = data.p @ V, data.x @ V
    slopes = a * (1 - a) * key - a * b * last, b * (1 - b) * last - a * b * key
    mixed = a * data.p + (b - 1) * data.x
    return Seen(slopes, turned, back, own_key, own_query, mixed, mixed @ heads.value[h].T)


@dataclass(frozen=True, slots=True, eq=False)
class Together:
    """All heads at all data. Rows are white: independent, of one size.

    Attributes:
        heads: the heads.
        data: the answers.
        left: answers less predictions, white, ``(n, width)``.
    """

    heads: Heads
    data: Data
    seen: tuple[Seen, ...] = field(init=False)
    left: Floats = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", tuple(_seen(self.heads, h, self.data) for h in range(len(self.heads.query))))
        told = sum(one.inner @ out.T for one, out in zip(self.seen, self.heads.out, strict=True))
        object.__setattr__(self, "left", self._shown(self.data.moved - told))

    @property
    def cost(self) -> float:
        """Root mean square of what is left of an answer's output."""
        return float(np.sqrt(np.mean(self.left**2)))

    def _shown(self, rows: Floats) -> Floats:
        """What answers show: nothing along the last token; white. Its own transpose."""
        x = self.data.x
        along = np.einsum("no,no->n", x, rows) / np.einsum("no,no->n", x, x)
        return self.data.white(rows - x * along[:, None])

    def changed(self, step: Parts) -> Floats:
        """Derivatives times a step: what it changes in the rows."""
        p, x = self.data.p, self.data.x
        total = np.zeros_like(x)
        for h, one in enumerate(self.seen):
            key, value = step.key[self.heads.group[h]], step.value[self.heads.group[h]]
            query = x @ step.query[h].T
            of_key = np.einsum("nr,nr->n", one.turned, p @ key.T) + np.einsum("nr,nr->n", one.back, query)
            of_last = np.einsum("nr,nr->n", one.own_key, x @ key.T) + np.einsum("nr,nr->n", one.own_query, query)
            total += of_key[:, None] * one.slopes[0] + of_last[:, None] * one.slopes[1]
            total += (one.mixed @ value.T) @ self.heads.out[h].T + one.inner @ step.out[h].T
        return self._shown(total)

    def gradient(self, rows: Floats) -> Parts:
        """Transposed derivatives times rows."""
        p, x, rest = self.data.p, self.data.x, self._shown(rows)
        found = parts_of(self.heads, np.zeros(places_of(self.heads).flat.size))
        for h, one in enumerate(self.seen):
            of_key, of_last = (np.einsum("no,no->n", slope, rest)[:, None] for slope in one.slopes)
            group = self.heads.group[h]
            found.key[group] += (of_key * one.turned).T @ p + (of_last * one.own_key).T @ x
            found.value[group] += (rest @ self.heads.out[h]).T @ one.mixed
            found.query[h] += (of_key * one.back + of_last * one.own_query).T @ x
            found.out[h] += rest.T @ one.inner
        return found

    def score_blocks(self, most: int, rng: np.random.Generator) -> list[tuple[Places, Floats]]:
        """For every group the normal matrix of its key and queries, estimated from ``most`` answers, and where they stand."""
        places, count = places_of(self.heads), len(self.data.x)
        rows = np.sort(rng.permutation(count)[:most])
        p, x = self.data.p[rows], self.data.x[rows]
        blocks = []
        for group in range(len(places.key)):
            members = np.flatnonzero(self.heads.group == group)
            size = places.key[group].size
            normal = np.zeros((size * (1 + len(members)),) * 2)
            for i, h in enumerate(members.tolist()):
                one = self.seen[h]
                first, second = (self._shown(slope)[rows] for slope in one.slopes)
                alike = np.einsum("no,no->n", first, second)
                length = np.linalg.norm(first, axis=1) + 1e-300
                beside = np.sqrt(np.maximum(np.einsum("no,no->n", second, second) - (alike / length) ** 2, 0.0))
                of_key = np.concatenate([_outer(one.turned[rows], p), _outer(one.back[rows], x)], axis=1)
                of_last = np.concatenate([_outer(one.own_key[rows], x), _outer(one.own_query[rows], x)], axis=1)
                both = length[:, None] * of_key + (alike / length)[:, None] * of_last
                of_last *= beside[:, None]
                at = np.concatenate([np.arange(size), size * (1 + i) + np.arange(size)])
                normal[np.ix_(at, at)] += (both.T @ both + of_last.T @ of_last) * (count / len(rows))
            where = np.concatenate([places.key[group].ravel(), *(places.query[h].ravel() for h in members)])
            blocks.append((where, normal))
        return blocks

    def value_block(self) -> tuple[Places, Floats]:
        """The normal matrix of all values and outputs, the projection along last tokens left out, and where they stand."""
        heads, places = self.heads, places_of(self.heads)
        mixed = [self.data.white(one.mixed) for one in self.seen]
        where = np.concatenate([places.value.ravel(), places.out.ravel()])
        lowest = np.full(places.flat.size, -1)
        lowest[where] = np.arange(len(where))
        normal = np.zeros((len(where), len(where)))
        width = heads.out.shape[1]
        for h, out in enumerate(heads.out):
            for g, other in enumerate(heads.out):
                gram = mixed[h].T @ mixed[g]
                of_value, of_out = (lowest[places.value[heads.group[h]]].ravel(), lowest[places.out[h]].ravel())
                its_value, its_out = (lowest[places.value[heads.group[g]]].ravel(), lowest[places.out[g]].ravel())
                normal[np.ix_(of_value, its_value)] += np.kron(out.T @ other, gram)
                crossed = np.einsum("op,ir->pior", out, gram @ heads.value[g].T).reshape(len(of_value), -1)
                normal[np.ix_(of_value, its_out)] += crossed
                normal[np.ix_(its_out, of_value)] += crossed.T
                normal[np.ix_(of_out, its_out)] += np.kron(np.eye(width), heads.value[h] @ gram @ heads.value[g].T)
        return where, normal


def _outer(a: Floats, b: Floats) -> Floats:
    """Row by row ``a`` times ``b``, flat."""
    return np.asarray(a[:, :, None] * b[:, None, :]).reshape(len(a), -1)


@dataclass(frozen=True, slots=True, eq=False)
class Rough:
    """Nearly the inverse of the normal matrix: blocks, scaled to a unit diagonal and factored."""

    blocks: tuple[tuple[Places, Floats, Floats], ...]

    @staticmethod
    def of(blocks: list[tuple[Places, Floats]], ridge: float) -> Rough:
        """Factor the blocks; ``ridge`` of a unit diagonal is added, so that directions that nothing shows stay put."""
        found = []
        for where, normal in blocks:
            scale = np.sqrt(np.diag(normal)) + 1e-300
            normal = normal / scale / scale[:, None]
            normal[np.diag_indices(len(normal))] += ridge
            found.append((where, sl.cholesky(normal, lower=False, overwrite_a=True, check_finite=False), scale))
        return Rough(tuple(found))

    def solved(self, flat: Floats) -> Floats:
        """Nearly the solution."""
        found = np.zeros_like(flat)
        for where, factor, scale in self.blocks:
            found[where] = sl.cho_solve((factor, False), flat[where] / scale, check_finite=False) / scale
        return found
