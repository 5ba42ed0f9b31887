"""In which layer each head is, and epsilon, from a first token that is infinitesimally short."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import NotInFamilyError, tried
from unsoftmax.learners.decoder.limit import Limit
from unsoftmax.learners.decoder.settings import LOGITS
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
    worst: NotInFamilyError | None = None
    for short in LOGITS.short:
        found = tried(partial(_order, limit, heads, short, rng), NotInFamilyError)
        if not isinstance(found, NotInFamilyError):
            return found
        worst = worst or found
    assert worst is not None
    raise worst


def _order(limit: Limit, heads: Heads, short: float, rng: np.random.Generator) -> Order:
    values, keys, v = _seen(limit, heads, short, rng)
    count = len(heads.query)
    layers = np.full(count, -1)
    V, token, size, layer, off = heads.V, v, 0.0, 0, 0.0
    while (layers < 0).any():
        predicted = np.concatenate([heads.value @ token, heads.key @ token], axis=1)
        found = np.concatenate([values, keys], axis=1)
        along = np.einsum("hr,hr->h", predicted, found) / np.einsum("hr,hr->h", predicted, predicted)
        if layer == 0:
            miss = np.linalg.norm(found - along[:, None] * predicted, axis=1) / np.linalg.norm(found, axis=1)
            size = float(along[np.argmin(miss)])
        miss = np.linalg.norm(found - size * predicted, axis=1) / np.linalg.norm(found, axis=1)
        here = (layers < 0) & (miss < LOGITS.match)
        if not here.any():
            raise NotInFamilyError(
                f"{int((layers < 0).sum())} of {count} heads see a first token that no layer of such a decoder would show them "
                f"(the nearest is off by {float(miss[layers < 0].min()):.1e}): layers are tied or parallel, or MLPs are not gated."
            )
        layers[here] = layer
        off = max(off, float(miss[here].max()))
        if layer == 0:  # all of the first layer's heads tell the size of the token
            size = float(np.sum(predicted[here] * found[here]) / np.sum(predicted[here] ** 2))
        token = token + np.einsum("i,hio->o", token, V[here]) * (size / short) / (LOGITS.order_zeros + 1)
        layer += 1
    return Order(layers, float((short / size) ** 2), off)


def _seen(limit: Limit, heads: Heads, short: float, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Values and keys ``(heads, rank)`` of the short token as every head sees it, and the token ``v``."""
    count, rank, width = heads.query.shape
    inner = heads.value.shape[1]
    radius = np.sqrt(width)
    v = on_sphere(rng.normal(size=(1, width)), radius)[0]
    number = int(np.ceil(6 * count * (rank + inner) / (width - 1))) + 20
    x = on_sphere(rng.normal(size=(number, width)), radius)
    odd: Floats = np.zeros_like(x)
    for sign in (1.0, -1.0):
        tokens = np.stack([np.broadcast_to(sign * short / LOGITS.far * v, x.shape), x], axis=1)
        odd = odd + sign * limit.ask(tokens, LOGITS.order_zeros) / 2
    asked = np.einsum("nj,hrj->nhr", x, heads.query)
    turned = rotated(asked, np.array(1.0), heads.base)
    own = np.exp(np.einsum("nhr,nhr->nh", np.einsum("nj,hrj->nhr", x, heads.key), asked))
    total = LOGITS.order_zeros + 1 + own
    of_value = np.einsum("hor,nh->nohr", heads.out, 1 / total)
    of_key = -np.einsum("nho,nhr,nh->nohr", np.einsum("nj,hjo->nho", x, heads.V), turned, own / total**2)
    columns = np.concatenate([of_value, of_key], axis=3).reshape(number, width, -1)
    columns = columns - np.einsum("no,nc->noc", x, np.einsum("no,noc->nc", x, columns)) / width
    columns = columns.reshape(number * width, -1)
    solved = np.linalg.lstsq(columns, odd.ravel(), rcond=None)[0].reshape(count, inner + rank)
    return solved[:, :inner], solved[:, inner:], v
