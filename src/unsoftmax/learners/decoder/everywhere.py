"""Every position answered: a fit of all heads to the same tokens in several orders, where MLPs cancel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg as sl

from unsoftmax.learners.decoder.limit import Limit
from unsoftmax.learners.decoder.order import Heads
from unsoftmax.learners.decoder.settings import EVERYWHERE
from unsoftmax.learners.decoder.start import on_sphere
from unsoftmax.models import Floats
from unsoftmax.models.base import Places
from unsoftmax.models.decoder import rotated


@dataclass(frozen=True, slots=True, eq=False)
class Orders:
    """The same tokens in several orders behind zero tokens, every position answered.

    Attributes:
        tokens: ``(tokens, width)`` on the sphere.
        place: ``(orders, tokens)``: where each token stands.
        zeros: in front.
        told: ``(orders, tokens, width)``: limit answers less their mean over the orders, in which MLPs cancel.
    """

    tokens: Floats
    place: Places
    zeros: int
    told: Floats

    @property
    def sequences(self) -> Floats:
        """``(orders, tokens, width)``, as they are asked."""
        return np.asarray(self.tokens[np.argsort(self.place, axis=1)])

    def by_token(self, values: Floats) -> Floats:
        """``(orders, tokens, ...)`` by token from by place."""
        return np.asarray(values[np.arange(len(self.place))[:, None], self.place])


def orders_for(parameters: int, width: int, longest: int) -> int:
    """As many as show so many parameters several times over."""
    shown = min(EVERYWHERE.tokens, longest - EVERYWHERE.zeros) * (width - 1)
    return max(EVERYWHERE.orders, 1 + int(np.ceil(EVERYWHERE.times * parameters / shown)))


def asked_orders(limit: Limit, heads: Heads, longest: int, rng: np.random.Generator) -> Orders:
    """Ask as many orders as the heads take."""
    zeros = EVERYWHERE.zeros
    tokens = on_sphere(rng.normal(size=(min(EVERYWHERE.tokens, longest - zeros), limit.width)), limit.radius)
    orders = orders_for(number_of_parameters(heads), limit.width, longest)
    asked = Orders(tokens, np.array([rng.permutation(len(tokens)) for _ in range(orders)]), zeros, np.zeros(0))
    told = asked.by_token(limit.every(asked.sequences, zeros))
    return replace(asked, told=told - told.mean(axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """One head in all orders, by place: rotated queries and keys, values, weights, what attention hands over, and its values."""

    query: Floats
    key: Floats
    value: Floats
    weights: Floats
    mixed: Floats
    inner: Floats


def _seen(heads: Heads, h: int, orders: Orders) -> Seen:
    x = orders.sequences
    count = x.shape[1]
    there = np.arange(count, dtype=np.float64)
    query, key = (rotated(x @ block[h].T, there, heads.base) for block in (heads.query, heads.key))
    scores = np.where(np.tri(count, dtype=bool), query @ key.swapaxes(1, 2), -np.inf)
    top = np.maximum(scores.max(axis=2, keepdims=True), 0.0)
    raised = np.exp(scores - top)
    weights = raised / (raised.sum(axis=2, keepdims=True) + orders.zeros * np.exp(-top))
    value = x @ heads.value[h].T
    return Seen(query, key, value, weights, weights @ x, weights @ value)


def _state(heads: Heads, orders: Orders) -> tuple[list[Seen], Floats, float]:
    """Every head, what they leave of the answers, and its root mean square."""
    seen = [_seen(heads, h, orders) for h in range(len(heads.query))]
    said = orders.by_token(np.asarray(sum(one.inner @ heads.out[h].T for h, one in enumerate(seen))))
    left = orders.told - _across(orders.tokens, said - said.mean(axis=0))
    return seen, left, float(np.sqrt(np.mean(left**2)))


def _across(tokens: Floats, vectors: Floats) -> Floats:
    """Without their part along the token."""
    return np.asarray(vectors - np.einsum("sno,no->sn", vectors, tokens)[:, :, None] * tokens / tokens.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Slopes:
    """How a head's answers move: ``out`` times ``inner (answers, rank, parameters)`` with its key, query and value, less the mean.

    ``beside (answers, rank)`` are its values, which move the answers with ``out``.
    """

    inner: Floats
    beside: Floats


def _slopes(heads: Heads, h: int, one: Seen, orders: Orders, tokens: Places) -> Slopes:
    """Of the answers to some tokens, orders first."""
    x, rank = orders.sequences, heads.key.shape[1]
    rows = np.arange(len(x))[:, None], orders.place[:, tokens]
    count, there = x.shape[1], np.arange(x.shape[1], dtype=np.float64)
    weights = one.weights[rows]
    moving = weights[..., None] * (one.value[:, None] - one.inner[rows][:, :, None])  # (orders, tokens, places, rank)
    turned = rotated(one.query[rows][:, :, None], -there, heads.base)
    back = rotated(np.broadcast_to(one.key[:, None], turned.shape), -orders.place[:, tokens, None].astype(float), heads.base)
    both = (moving[..., None] * turned[..., None, :]).reshape(*weights.shape[:2], count, -1).swapaxes(2, 3)
    shape = (*weights.shape[:2], rank, -1)
    of_key = (both @ x[:, None]).reshape(shape)
    of_query = ((moving.swapaxes(2, 3) @ back)[..., None] * orders.tokens[tokens][None, :, None, None]).reshape(shape)
    of_value = (np.eye(rank)[..., None] * one.mixed[rows][:, :, None, None]).reshape(shape)
    inner = np.concatenate([of_key, of_query, of_value], axis=3)
    beside = one.inner[rows]
    inner, beside = inner - inner.mean(axis=0), beside - beside.mean(axis=0)
    return Slopes(inner.reshape(-1, *inner.shape[2:]), beside.reshape(-1, rank))


def _parts(heads: Heads, seen: list[Seen], orders: Orders) -> Iterator[tuple[Places, list[Slopes]]]:
    """Some tokens at a time with the slopes of all heads."""
    each = len(orders.place) * len(seen) * 3 * heads.key[0].size * heads.key.shape[1]
    step = max(1, EVERYWHERE.held // each)
    for start in range(0, len(orders.tokens), step):
        tokens = np.arange(start, min(start + step, len(orders.tokens)))
        yield tokens, [_slopes(heads, h, one, orders, tokens) for h, one in enumerate(seen)]


def _where(heads: Heads) -> list[tuple[Places, Places]]:
    """Where each head's parameters stand: key, query and value; out."""
    size = heads.value[0].size
    return [(np.concatenate([scores, values[:size]]), values[size:]) for scores, values in _places(heads)]


def _gradient(heads: Heads, seen: list[Seen], orders: Orders, left: Floats) -> Floats:
    """Of half the squares of what is left, downhill."""
    where = _where(heads)
    gradient = np.zeros(_count(where))
    for tokens, slopes in _parts(heads, seen, orders):
        rest = left[:, tokens].reshape(-1, left.shape[2])
        for h, one in enumerate(slopes):
            gradient[where[h][0]] += np.einsum("nap,na->p", one.inner, rest @ heads.out[h], optimize=True)
            gradient[where[h][1]] += (rest.T @ one.beside).ravel()
    return gradient


def _normal(heads: Heads, seen: list[Seen], orders: Orders, ridge: float) -> tuple[Floats, Floats]:
    """The normal matrix scaled to a unit diagonal, factored, and the scales."""
    where = _where(heads)
    size, width = _count(where), orders.tokens.shape[1]
    normal = np.zeros((size, size))

    def add(one: Places, other: Places, block: Floats) -> None:
        normal[np.ix_(one, other)] += block

    for tokens, slopes in _parts(heads, seen, orders):
        x = np.tile(orders.tokens[tokens], (len(orders.place), 1))
        for h, one in enumerate(slopes):
            lost = x @ heads.out[h]  # along the token, which no answer shows
            shown_along = np.einsum("nap,na->pn", one.inner, lost, optimize=True) / width
            for g, other in enumerate(slopes):
                along = (x[:, :, None] * other.beside[:, None]).reshape(len(x), -1)
                block = np.einsum("oa,apr->por", heads.out[h], np.tensordot(one.inner, other.beside, axes=(0, 0)), optimize=True)
                flat = block.reshape(len(where[h][0]), -1) - shown_along @ along
                add(where[h][0], where[g][1], flat)
                add(where[g][1], where[h][0], flat.T)
                if g < h:
                    continue
                shown = heads.out[h].T @ heads.out[g] - lost[:, :, None] * (x @ heads.out[g])[:, None] / width
                inner = one.inner.reshape(-1, one.inner.shape[2]).T @ (shown @ other.inner).reshape(-1, other.inner.shape[2])
                mine = (x[:, :, None] * one.beside[:, None]).reshape(len(x), -1)
                outer = np.kron(np.eye(width), one.beside.T @ other.beside) - mine.T @ along / width
                for kind, part in enumerate((inner, outer)):
                    add(where[h][kind], where[g][kind], part)
                    if g > h:
                        add(where[g][kind], where[h][kind], part.T)
    scale = np.sqrt(np.diag(normal)) + 1e-300
    normal /= scale
    normal /= scale[:, None]
    normal[np.diag_indices(size)] += ridge
    return sl.cholesky(normal, lower=False, overwrite_a=True, check_finite=False), scale


def _count(where: list[tuple[Places, Places]]) -> int:
    return 1 + int(max(place.max() for pair in where for place in pair))


def number_of_parameters(heads: Heads) -> int:
    """Numbers in all blocks, gauges included."""
    return int(heads.query.size + heads.out.size + len(_members(heads)) * (heads.key[0].size + heads.value[0].size))


def fitted(heads: Heads, orders: Orders, noise: float) -> tuple[Heads, float]:
    """The heads that explain all orders best, and the root mean square of what they leave: Gauss-Newton.

    Every step has its own matrix: gauges turn with the heads, and an old one would take rounding along them for a step.
    """
    settings = EVERYWHERE
    seen, left, cost = _state(heads, orders)
    for _ in range(settings.steps):
        factor, scale = _normal(heads, seen, orders, settings.ridge)
        step = sl.cho_solve((factor, False), _gradient(heads, seen, orders, left) / scale, check_finite=False) / scale
        before = cost
        for share in (1.0, 0.3, 0.1):
            trial = _moved(heads, share * step)
            there, rest, reached = _state(trial, orders)
            if reached < cost:
                heads, seen, left, cost = trial, there, rest, reached
                break
        if cost <= settings.enough * noise or not cost < settings.helps * before:
            break
    return heads, cost


def _members(heads: Heads) -> list[Places]:
    """The heads of every group, which share key and value."""
    return [np.flatnonzero(heads.group == g) for g in range(int(heads.group.max()) + 1)]


def _moved(heads: Heads, step: Floats) -> Heads:
    """The heads with a step in all parameters: group by group key and value, then query and out of each head."""
    query, key, value, out = heads.query.copy(), heads.key.copy(), heads.value.copy(), heads.out.copy()
    at = 0

    def taken(shape: tuple[int, ...]) -> Floats:
        nonlocal at
        size = int(np.prod(shape))
        at += size
        return step[at - size : at].reshape(shape)

    for mine in _members(heads):
        first = mine[0]
        key[mine] = heads.key[first] + taken(key.shape[1:])
        value[mine] = heads.value[first] + taken(value.shape[1:])
        for h in mine.tolist():
            query[h] = heads.query[h] + taken(query.shape[1:])
            out[h] = heads.out[h] + taken(out.shape[1:])
    return replace(heads, query=query, key=key, value=value, out=out)


def _places(heads: Heads) -> list[tuple[Places, Places]]:
    """Where each head's parameters stand in the order of ``_moved``: key and query, value and out."""
    size_k, size_v = heads.key[0].size, heads.value[0].size
    found: list[tuple[Places, Places]] = [(np.zeros(0, dtype=np.intp),) * 2] * len(heads.query)
    at = 0
    for mine in _members(heads):
        key, value = np.arange(at, at + size_k), np.arange(at + size_k, at + size_k + size_v)
        at += size_k + size_v
        for h in mine.tolist():
            query, out = np.arange(at, at + size_k), np.arange(at + size_k, at + size_k + size_v)
            found[h] = np.concatenate([key, query]), np.concatenate([value, out])
            at += size_k + size_v
    return found
