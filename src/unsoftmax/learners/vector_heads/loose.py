"""Values of heads whose ranges nearly depend on each other: what their sum leaves open is read from answers to several keys.

The sum of all values, split by projectors, is off by the rounding over the smallest angle between ranges: by a part of each head
along a combination of values that all but cancel. In answers to several keys each head weighs them in its own way, so that those
parts do not cancel; and there are fewer weights than outputs. So the answers that scores are read from tell those parts as well.
"""

from __future__ import annotations

from dataclasses import replace

from array_api_compat import array_namespace

from unsoftmax.learners.vector_heads.keys import Keys
from unsoftmax.learners.vector_heads.values import Values
from unsoftmax.linalg import left_inverse
from unsoftmax.models import Floats


def tightened(keys: Keys, told: Floats) -> Keys:
    """The keys with values whose loose parts are known, from answers ``(n, groups, outputs)`` per step, less the last token's.

    To first order in the loose parts, twice.
    """
    for _ in range(2):
        keys = Keys.of(_once(keys, told), keys.U)
    return replace(keys, values=replace(keys.values, loose=None))


def _once(keys: Keys, told: Floats) -> Values:
    values, loose, (groups, size, width) = keys.values, keys.values.loose, keys.U.shape
    assert loose is not None
    assert values.right is not None
    xp, (count, heads, _) = array_namespace(told), loose.shape
    weights, _ = keys.weights(told)
    parts, amplified = [], 0.0
    for group in range(groups):
        unseen = xp.linalg.qr(keys.seen[group, 0].T, mode="complete")[0][:, heads * size :]  # of the outputs, by any weights
        moved = xp.tensordot(weights[:, group], loose @ unseen, axes=((0,), (1,)))  # (size, n, count, unseen)
        inverse = left_inverse(xp.permute_dims(moved, (1, 3, 0, 2)).reshape(-1, size * count))
        parts.append((inverse @ (told[:, group] @ unseen).reshape(-1)).reshape(size, count))
        amplified = max(amplified, float(xp.linalg.matrix_norm(inverse)) / float(size * count) ** 0.5)
    found = keys.inverse @ xp.concat(parts)  # (width, count)
    left = values.left + found @ (xp.permute_dims(loose, (1, 0, 2)) @ values.right.swapaxes(1, 2))
    conditioning = amplified * float(xp.max(xp.abs(told))) * width**0.5 / float(values.sizes.max())
    return replace(values, left=left, conditioning=max(conditioning, 1.0))
