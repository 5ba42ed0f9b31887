"""The canonical form of attention heads: what is left when merging, dropping and reordering are used up."""

from __future__ import annotations

import numpy as np

from unsoftmax.models import Attention, Floats
from unsoftmax.models.matrices import Matrices

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
    if model.values is None:
        order = np.lexsort((model.c[:, 0], -model.scores.first_rows[:, 0], -model.scores.sizes))
        return model.with_(model.scores.some(order.tolist()), None, model.c[order] if model.has_c else None)
    scores, values, c = merged(model.scores, model.values, model.c, tolerance=tolerance)
    sizes = values.sizes
    largest = (sizes if values is model.values else model.values.sizes).max()  # of the given heads: sums may have cancelled
    kept = np.flatnonzero(sizes > tolerance * largest)
    if kept.size == 0:
        scores, values = (Matrices(np.zeros((1, *some.shape[1:]))) for some in (scores, values))
        return model.with_(scores, values, np.zeros_like(c[:1]) if model.has_c else None)
    order = np.lexsort((c[:, 0], -scores.first_rows[:, 0], -scores.sizes, -sizes))
    order = order[np.isin(order, kept)]
    if values is model.values and np.array_equal(order, np.arange(model.heads)):  # in canonical form: large ones are not copied
        return model
    chosen: list[int] = order.tolist()
    return model.with_(scores.some(chosen), values.some(chosen), c[order] if model.has_c else None)


def merged(scores: Matrices, values: Matrices, c: Floats, *, tolerance: float) -> tuple[Matrices, Matrices, Floats]:
    """Heads with equal ``(W, c)`` become one whose V is their sum; the first of each group lends its W and c."""
    groups, _ = score_groups(scores, c, tolerance=tolerance)
    if len(groups) == c.shape[0]:
        return scores, values, c
    firsts = [group[0] for group in groups]
    summed = np.stack([values.some(group).whole().sum(axis=0) for group in groups])
    return scores.some(firsts), Matrices(summed), c[firsts]


def score_groups(
    scores: Matrices, c: Floats, *, tolerance: float = ROUNDING, mirrored: bool = False
) -> tuple[list[list[int]], Floats]:
    """Heads with equal ``(W, c)``, or with ``mirrored`` equal up to sign, and each head's sign in its group, 0 where W = c = 0."""
    sizes, rows = np.hypot(scores.sizes, np.linalg.norm(c, axis=1)), scores.first_rows
    signs = (sizes > 0.0).astype(np.float64)
    groups: list[list[int]] = []

    def apart(i: int, j: int, sign: float, reach: float) -> float:
        """The distance of two heads; that of their first rows alone where it tells enough."""
        first = float(np.linalg.norm(rows[i] - sign * rows[j]))
        return first if first > reach else float(np.hypot(scores.apart(i, j, sign), np.linalg.norm(c[i] - sign * c[j])))

    for i in range(len(c)):
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


def head_gap(model: Attention) -> float:
    """Smallest distance between the (W, c) of two heads, relative to the larger of them."""
    scores, c = model.scores, model.c
    sizes = np.maximum(np.hypot(scores.sizes, np.linalg.norm(c, axis=1)), np.finfo(float).tiny)
    turns = c / sizes[:, None]
    products = scores.products(sizes) + turns @ turns.T
    gaps = []
    for i in range(model.heads):
        for j in range(i):
            larger, smaller = max(sizes[i], sizes[j]), min(sizes[i], sizes[j])
            square = 1 + (smaller / larger) ** 2 - 2 * products[i, j] * smaller / larger
            if square < 1e-6:  # where products cancel
                square = (scores.apart(i, j) ** 2 + float(np.sum((c[i] - c[j]) ** 2))) / larger**2
            gaps.append(float(np.sqrt(square)))
    return min(gaps, default=np.inf)
