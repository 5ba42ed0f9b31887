"""Do the heads explain fresh sequences of very long tokens?"""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.sphere import Sphere
from unsoftmax.models import Attention

LENGTHS = (1, 2, 4, 8)  # keys


def misfit(limit: Limit, sphere: Sphere, model: Attention, count: int, rng: np.random.Generator) -> float:
    """Largest error on ``count`` fresh sequences with fresh sparse last tokens, over the root mean square of what keys change.

    By the uniqueness of the limit's heads, two sets of them that agree on all such differences are one; a few dozen are a check of
    it, not a proof. Price: two questions each.
    """
    told, said = [], []
    for keys, number in zip(LENGTHS, np.bincount(np.arange(count) % len(LENGTHS)), strict=True):
        most = max(3, sphere.width // 8)
        supports = [rng.choice(sphere.width, size=int(rng.integers(3, most + 1)), replace=False) for _ in range(number)]
        readers = np.stack([sphere.sparse(support, rng) for support in supports])
        before = sphere.dense(int(number) * keys, rng).reshape(int(number), keys, sphere.width)
        batch = limit.ask(before, readers, keep=False)
        sequences = np.concatenate([before, readers[:, None]], axis=1)
        told.append(batch.moved[batch.clean])
        said.append((model(sequences) - model(readers[:, None]))[batch.clean])
    truth, guess = np.concatenate(told), np.concatenate(said)
    return float(np.abs(truth - guess).max() / max(float(np.sqrt(np.mean(truth**2))), 1e-300))
