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
        order = np.lexsort(_ordering(model.W, model.c, model.W))
        return _pick(model, model.W[order], None, model.c[order])
    W, V, c = merged(model.W, model.V, model.c, tolerance=tolerance)
    sizes = np.linalg.norm(V.reshape(len(V), -1), axis=1)
    largest = np.linalg.norm(model.V.reshape(model.heads, -1), axis=1).max()  # of the given heads: sums may have cancelled
    kept = np.flatnonzero(sizes > tolerance * largest)
    if kept.size == 0:
        return _pick(model, np.zeros_like(model.W[:1]), np.zeros_like(model.V[:1]), np.zeros_like(model.c[:1]))
    order = kept[np.lexsort(_ordering(W[kept], c[kept], V[kept]))]
    return _pick(model, W[order], V[order], c[order])


def merged(W: Floats, V: Floats, c: Floats, *, tolerance: float) -> tuple[Floats, Floats, Floats]:
    """Heads with equal ``(W, c)`` become one whose V is their sum; the first of each group lends its W and c."""
    groups, _ = score_groups(W, c, tolerance=tolerance)
    firsts = [group[0] for group in groups]
    return W[firsts], np.stack([V[group].sum(axis=0) for group in groups]), c[firsts]


def score_groups(W: Floats, c: Floats, *, tolerance: float = ROUNDING, mirrored: bool = False) -> tuple[list[list[int]], Floats]:
    """Heads with equal ``(W, c)``, or with ``mirrored`` equal up to sign, and each head's sign in its group, 0 where W = c = 0."""
    scores = np.concatenate([W.reshape(len(W), -1), c], axis=1)
    sizes = np.linalg.norm(scores, axis=1)
    signs = (sizes > 0.0).astype(np.float64)
    groups: list[list[int]] = []
    for i in range(len(W)):
        for group in groups:
            j, reach = group[0], tolerance * max(sizes[i], sizes[group[0]])
            if np.linalg.norm(scores[i] - scores[j]) <= reach:
                signs[i] = signs[j]
                group.append(i)
                break
            if mirrored and np.linalg.norm(scores[i] + scores[j]) <= reach:
                signs[i] = -signs[j]
                group.append(i)
                break
        else:
            groups.append([i])
    return groups, signs


def _ordering(W: Floats, c: Floats, leading: Floats) -> tuple[Floats, ...]:
    """Keys for ``lexsort``, least important first: largest ``leading`` block first, then largest W, then largest first entry."""
    return c[:, 0], -W[:, 0, 0], -np.linalg.norm(W, axis=(1, 2)), -np.linalg.norm(leading.reshape(len(leading), -1), axis=1)


def _pick(model: Attention, W: Floats, V: Floats | None, c: Floats) -> Attention:
    return Attention(W, V, c if model.has_c else None, model.b if model.has_b else None)


def head_gap(model: Attention) -> float:
    """Smallest distance between the (W, c) of two heads, relative to the larger of them."""
    scores = np.concatenate([model.W.reshape(model.heads, -1), model.c], axis=1)
    sizes = np.maximum(np.linalg.norm(scores, axis=1), np.finfo(float).tiny)
    gaps = [float(np.linalg.norm(scores[i] - scores[j]) / max(sizes[i], sizes[j])) for i in range(model.heads) for j in range(i)]
    return min(gaps, default=np.inf)
