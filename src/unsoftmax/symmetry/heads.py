"""The canonical form of attention heads: what is left when merging, dropping and reordering are used up."""

from __future__ import annotations

import numpy as np

from unsoftmax.models import Attention, Floats

ROUNDING = (
    2.0**-46
)  # a product of a few dozen float64 terms is right to a few units in 2**-52: equal below this, apart from rounding


def canonical_heads(model: Attention, *, tolerance: float = ROUNDING) -> Attention:
    """Merge heads with equal ``(W, c)`` by adding their V, drop heads with ``V = 0``, sort the rest by size of V.

    Args:
        model: any attention layer; with ``V=None`` heads are only sorted.
        tolerance: blocks closer than this, relative to their Frobenius norms, count as equal, and values below it,
            relative to the largest head, as zero.

    A layer whose answers do not depend on the tokens becomes one head of zeros.
    """
    if model.V is None:
        order = np.lexsort((model.c[:, 0], -model.W[:, 0, 0], -_sizes(model.W)))
        return _pick(model, model.W[order], None, model.c[order])
    W, V, c = merged(model.W, model.V, model.c, tolerance=tolerance)
    sizes = _sizes(V)
    largest = (sizes if V is model.V else _sizes(model.V)).max()  # of the given heads: sums may have cancelled
    kept = np.flatnonzero(sizes > tolerance * largest)
    if kept.size == 0:
        return _pick(model, np.zeros_like(model.W[:1]), np.zeros_like(model.V[:1]), np.zeros_like(model.c[:1]))
    order = np.lexsort((c[:, 0], -W[:, 0, 0], -_sizes(W), -sizes))
    order = order[np.isin(order, kept)]
    if V is model.V and np.array_equal(order, np.arange(model.heads)):  # in canonical form already; large ones are not copied
        return model
    return _pick(model, W[order], V[order], c[order])


def merged(W: Floats, V: Floats, c: Floats, *, tolerance: float) -> tuple[Floats, Floats, Floats]:
    """Heads with equal ``(W, c)`` become one whose V is their sum; the first of each group lends its W and c."""
    groups, _ = score_groups(W, c, tolerance=tolerance)
    if len(groups) == len(W):
        return W, V, c
    firsts = [group[0] for group in groups]
    return W[firsts], np.stack([V[group].sum(axis=0) for group in groups]), c[firsts]


def score_groups(W: Floats, c: Floats, *, tolerance: float = ROUNDING, mirrored: bool = False) -> tuple[list[list[int]], Floats]:
    """Heads with equal ``(W, c)``, or with ``mirrored`` equal up to sign, and each head's sign in its group, 0 where W = c = 0."""
    sizes = np.hypot(_sizes(W), _sizes(c))
    signs = (sizes > 0.0).astype(np.float64)
    groups: list[list[int]] = []

    def apart(i: int, j: int, sign: float, reach: float) -> float:
        """The distance of two heads; that of their first rows alone where it tells enough."""
        first = float(np.linalg.norm(W[i, 0] - sign * W[j, 0]))
        return first if first > reach else float(np.hypot(np.linalg.norm(W[i] - sign * W[j]), np.linalg.norm(c[i] - sign * c[j])))

    for i in range(len(W)):
        for group in groups:
            j, reach = group[0], tolerance * max(sizes[i], sizes[group[0]])
            if apart(i, j, 1.0, reach) <= reach:
                signs[i] = signs[j]
                group.append(i)
                break
            if mirrored and apart(i, j, -1.0, reach) <= reach:
                signs[i] = -signs[j]
                group.append(i)
                break
        else:
            groups.append([i])
    return groups, signs


def shows(block: Floats) -> bool:
    """Whether any number of a block is not zero; the first row tells of most, and large ones take long to look through."""
    return bool(block[0].any() or block.any())


def _sizes(blocks: Floats) -> Floats:
    """The Frobenius norm of each block; one pass."""
    return np.sqrt([np.dot(flat, flat) for flat in blocks.reshape(len(blocks), -1)])


def _pick(model: Attention, W: Floats, V: Floats | None, c: Floats) -> Attention:
    return Attention(W, V, c if model.has_c else None, model.b if model.has_b else None)


def head_gap(model: Attention) -> float:
    """Smallest distance between the (W, c) of two heads, relative to the larger of them."""
    W, c = model.W.reshape(model.heads, -1), model.c
    sizes = np.maximum(np.hypot(_sizes(W), _sizes(c)), np.finfo(float).tiny)
    units, turns = W / sizes[:, None], c / sizes[:, None]
    products = units @ units.T + turns @ turns.T
    gaps = []
    for i in range(model.heads):
        for j in range(i):
            larger, smaller = max(sizes[i], sizes[j]), min(sizes[i], sizes[j])
            square = 1 + (smaller / larger) ** 2 - 2 * products[i, j] * smaller / larger
            if square < 1e-6:  # where products cancel
                square = float(np.sum((W[i] - W[j]) ** 2) + np.sum((c[i] - c[j]) ** 2)) / larger**2
            gaps.append(float(np.sqrt(square)))
    return min(gaps, default=np.inf)
