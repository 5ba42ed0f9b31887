"""In which layer each head is, and epsilon, from a first token that is infinitesimally short."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.decoder.limit import Limit
from unsoftmax.learners.decoder.settings import Settings
from unsoftmax.learners.decoder.start import on_sphere
from unsoftmax.models import Floats
from unsoftmax.models.decoder import rotated


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """All heads, whatever their layer: ``query (heads, rank, width)`` and the ``key``, ``value`` and ``out`` of each.

    ``key (heads, rank, width)`` and ``value (heads, inner, width)`` repeat those of a group; ``group (heads,)`` numbers them.
    """

    query: Floats
    key: Floats
    value: Floats
    out: Floats
    group: NDArray[np.intp]
    base: float

    @property
    def V(self) -> Floats:
        """``(heads, width, width)``."""
        return np.asarray(np.einsum("hri,hor->hio", self.value, self.out))


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Layers of the heads, epsilon, and the worst match."""

    layers: NDArray[np.intp]
    epsilon: float
    off: float


def find_order(limit: Limit, heads: Heads, rng: np.random.Generator) -> Order:
    """Layers by a token ``mu v`` behind zero tokens, odd part in ``mu``: layer ``l`` sees ``M_l mu v / sqrt(epsilon)`` with

        M_1 = 1,   M_(l+1) v = M_l v + sum_(g in l) V_g^T M_l v / ((zeros + 1) sqrt(epsilon)),

    because a gated MLP without biases is quadratic at zero.

    Raises:
        NotInFamilyError: heads are left over that see no such token.
    """
    order = Order(np.full(len(heads.query), -1), 0.0, 0.0)
    nearest = np.inf
    for short in limit.settings.short:
        seen = _seen(limit, heads, short, rng)
        order, nearest = _further(order, heads, seen, short, limit.settings)
        if (order.layers >= 0).all():
            return order
        if limit.settings.single and (together := found_together(heads, seen, short, limit.settings)) is not None:
            return together
    raise NotInFamilyError(
        f"{int((order.layers < 0).sum())} of {len(heads.query)} heads see a first token that no layer of such a decoder would show "
        f"them (the nearest is off by {nearest:.1e}): layers are tied or parallel, or MLPs are not gated."
    )


def _further(order: Order, heads: Heads, seen: Seen, short: float, settings: Settings) -> tuple[Order, float]:
    """As many further layers as a short token of this length shows, and what the nearest head of the next one is off by.

    Errors show in first layers, which see little of a token that is too short; a longer one is not infinitesimal further on.
    """
    layers, epsilon, off = order.layers.copy(), order.epsilon, order.off
    token, layer = short * seen.token, 0
    size = np.linalg.norm(seen.found, axis=1)
    clear = seen.noise < settings.match * size
    while True:
        left = layers < 0
        if layer > layers.max():
            if not left.any() or not clear[left].all():
                return Order(layers, epsilon, off), np.inf
            if layer == 0:
                alike = seen.of(heads, seen.token)
                along = np.einsum("hr,hr->h", alike, seen.found) / np.einsum("hr,hr->h", alike, alike)
                best = int(np.argmin(np.linalg.norm(seen.found - along[:, None] * alike, axis=1) / size))
                epsilon = _epsilon(token, short / float(along[best]))
            missed = np.sum((seen.found - seen.of(heads, _normed(token, epsilon))) ** 2, axis=1)
            miss = np.sqrt(np.maximum(missed - seen.noise**2, 0.0)) / size
            here = left & (miss < settings.match)
            if not here.any():
                return Order(layers, epsilon, off), float(miss[left].min())
            layers[here] = layer
            off = max(off, float(miss[here].max()))
            if layer == 0:  # all of the first layer's heads tell the size of the token
                alike = seen.of(heads, seen.token)[here]
                epsilon = _epsilon(token, short * float(np.sum(alike**2) / np.sum(alike * seen.found[here])))
        token = token + np.einsum("i,hio->o", _normed(token, epsilon), heads.V[layers == layer]) / (settings.order_zeros + 1)
        layer += 1


def _normed(token: Floats, epsilon: float) -> Floats:
    return np.asarray(token / np.sqrt(epsilon + np.mean(token**2)))


def _epsilon(token: Floats, root: float) -> float:
    """From what the first norm divides the token by."""
    return max(root**2 - float(np.mean(token**2)), 1e-6 * root**2)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What every head sees of the short token: its values and keys in units of their errors, times ``noise``.

    Attributes:
        token: the token, on the sphere.
        found: ``(heads, inner + rank)``, whitened.
        white: ``(heads, inner + rank, inner + rank)``, what whitens.
        noise: length of the error of a head's row.
        columns: ``(answers, heads, inner + rank)``, what they add to the answers.
        odd: the answers, in units of their errors like the columns.
    """

    token: Floats
    found: Floats
    white: Floats
    noise: float
    columns: Floats
    odd: Floats

    def of(self, heads: Heads, token: Floats) -> Floats:
        """What heads would see of a token, whitened."""
        return np.asarray(np.einsum("hrs,hs->hr", self.white, np.concatenate([heads.value @ token, heads.key @ token], axis=1)))


def found_together(heads: Heads, seen: Seen, short: float, settings: Settings) -> Order | None:
    """The layers of all heads at once: those that explain the answers best, where errors hide what single heads see.

    A guess of all layers and of epsilon predicts the answers. From one layer for all, heads are moved one or two at a time as
    long as that helps. None where the best guess does not explain the answers, or where another one does nearly as well.
    """
    count = len(heads.query)
    columns = seen.columns.reshape(len(seen.odd), -1)
    gram, right = columns.T @ columns, columns.T @ seen.odd
    whole = float(seen.odd @ seen.odd)

    def cost(layers: NDArray[np.intp], epsilon: float) -> float:
        token, told = short * seen.token, np.zeros((count, seen.columns.shape[2]))
        for layer in range(int(layers.max()) + 1):
            here, normed = layers == layer, _normed(token, epsilon)
            told[here] = np.concatenate([heads.value[here] @ normed, heads.key[here] @ normed], axis=1)
            token = token + np.einsum("i,hio->o", normed, heads.V[here]) / (settings.order_zeros + 1)
        flat = told.ravel()
        return float(whole - 2 * flat @ right + flat @ gram @ flat)

    def best(layers: NDArray[np.intp], near: float | None) -> tuple[float, float]:
        grid = settings.epsilons if near is None else near * np.geomspace(0.8, 1.25, 9)
        return min((cost(layers, float(e)), float(e)) for e in grid)

    layers = np.zeros(count, dtype=np.intp)
    reached, epsilon = best(layers, None)
    while True:
        tries = []
        for moved in _moves(layers):
            left, at = best(moved, None)
            tries.append((left, at, moved))
        left, at, moved = min(tries, key=lambda one: one[0])
        if left >= reached:
            break
        reached, epsilon, layers = left, at, moved
    for _ in range(3):
        reached, epsilon = best(layers, epsilon)
    rival = min(best(moved, epsilon)[0] for moved in _moves(layers)) if count > 1 else np.inf
    free = len(seen.odd)
    off = float(np.sqrt(max(reached - free, 0.0) / max(whole - free, 1.0)))
    if off > settings.match or rival - reached < settings.sure**2:
        return None
    return Order(layers, epsilon, off)


def _moves(layers: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """All ways to put one head, or two of one layer together, into another layer; none stays empty."""
    found = []
    places = range(int(layers.max()) + 2)
    sets = [(h,) for h in range(len(layers))] + [(g, h) for h in range(len(layers)) for g in range(h) if layers[g] == layers[h]]
    for one in sets:
        for layer in places:
            if layer != layers[one[0]]:
                moved = layers.copy()
                moved[list(one)] = layer
                if len(np.unique(moved)) == moved.max() + 1:
                    found.append(moved)
    return found


def _behind(limit: Limit, front: Floats, x: Floats) -> Floats:
    """Limits at ``x (n, length, width)`` behind zero tokens and a short one, ``front (n, width)``; by default of one ``x`` each."""
    if limit.everywhere is not None:
        return limit.every(x, limit.settings.order_zeros, front)
    return limit.ask(np.concatenate([front[:, None] / limit.settings.far, x], axis=1), limit.settings.order_zeros)[:, None]


def _seen(limit: Limit, heads: Heads, short: float, rng: np.random.Generator) -> Seen:
    """Values and keys of the short token as every head sees it, by least squares."""
    count, rank, width = heads.query.shape
    inner = heads.value.shape[1]
    v = on_sphere(rng.normal(size=(1, width)), limit.radius)[0]
    number = limit.settings.order_probes * (int(np.ceil(6 * count * (rank + inner) / (width - 1))) + 20)
    x = on_sphere(rng.normal(size=(number, width)), limit.radius)
    weak = limit.nearer(limit.settings.nearer)
    length = 1 if limit.everywhere is None else limit.settings.order_length
    x = x[: len(x) // length * length].reshape(-1, length, width)  # every position of these sequences is read
    odd: Floats = np.zeros_like(x)
    for sign in (1.0, -1.0):
        front = np.broadcast_to(sign * short * v, (len(x), width))
        odd = odd + sign * _behind(weak, front, x) / 2
    at = np.arange(length, dtype=np.float64)
    asked = np.einsum("nlj,hrj->nhlr", x, heads.query)
    turned = rotated(asked, at + 1, heads.base)
    keys = rotated(np.einsum("nlj,hrj->nhlr", x, heads.key), at, heads.base)
    scores = rotated(asked, at, heads.base) @ keys.swapaxes(2, 3)
    raised = np.where(np.tri(length, dtype=bool), np.exp(np.minimum(scores, 500.0)), 0.0)  # (n, heads, positions, keys)
    total = limit.settings.order_zeros + 1 + raised.sum(axis=3)
    of_value = np.einsum("hor,nhl->nlohr", heads.out, 1 / total)
    handed = np.einsum("nhlk,nkj,hjo->nhlo", raised, x, heads.V, optimize=True)
    of_key = -np.einsum("nhlo,nhlr,nhl->nlohr", handed, turned, 1 / total**2, optimize=True)
    x, odd, number = x.reshape(-1, width), odd.reshape(-1, width), x.shape[0] * length
    of_value, of_key = (block.reshape(number, *block.shape[2:]) for block in (of_value, of_key))
    columns = np.concatenate([of_value, of_key], axis=3).reshape(number, width, -1)
    columns = columns - np.einsum("no,nc->noc", x, np.einsum("no,noc->nc", x, columns)) / width
    columns = columns.reshape(number * width, -1)
    solved = np.linalg.lstsq(columns, odd.ravel(), rcond=None)[0].reshape(count, inner + rank)
    spread = np.linalg.pinv(columns.T @ columns).reshape(count, inner + rank, count, inner + rank)
    white = np.array([np.linalg.inv(np.linalg.cholesky(spread[h, :, h])) for h in range(count)])
    noise = weak.noise / np.sqrt(2) * float(np.sqrt(inner + rank))
    off = weak.noise / np.sqrt(2)
    return Seen(
        v, np.einsum("hrs,hs->hr", white, solved), white, noise, columns.reshape(-1, count, inner + rank) / off, odd.ravel() / off
    )
