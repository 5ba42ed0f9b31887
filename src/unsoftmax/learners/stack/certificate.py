"""Do the heads explain fresh sequences of very long tokens?"""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.settings import STACK, Settings
from unsoftmax.learners.stack.sphere import Sphere
from unsoftmax.models import Attention, Floats, Stack
from unsoftmax.oracles.base import Oracle


def misfit(limit: Limit, sphere: Sphere, model: Attention, count: int, rng: np.random.Generator) -> float:
    """Largest error on ``count`` fresh sequences with fresh sparse last tokens, over the root mean square of what keys change.

    By the uniqueness of the limit's heads, two sets of them that agree on all such differences are one; a few dozen are a check of
    it, not a proof. Price: two questions each.
    """
    told, said = [], []
    for keys, number in zip(STACK.check_keys, np.bincount(np.arange(count) % len(STACK.check_keys)), strict=True):
        most = max(3, sphere.width // 8)
        supports = [rng.choice(sphere.width, size=int(rng.integers(3, most + 1)), replace=False) for _ in range(number)]
        readers = np.stack([sphere.sparse(support, rng) for support in supports])
        before = sphere.dense(int(number) * keys, rng).reshape(int(number), keys, sphere.width)
        batch = limit.ask(before, readers)
        sequences = np.concatenate([before, readers[:, None]], axis=1)
        told.append(batch.moved[batch.clean])
        said.append((model(sequences) - model(readers[:, None]))[batch.clean])
    truth, guess = np.concatenate(told), np.concatenate(said)
    return float(np.abs(truth - guess).max() / max(float(np.sqrt(np.mean(truth**2))), 1e-300))


def compared_limit(
    oracle: Oracle, stack: Stack, positions: bool, batches: list[Floats], settings: Settings, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Answers and predictions ``(sequences, width)``: what keys change, zero where the last token is not.

    The tokens of ``batches`` give the directions; of each last token a few random coordinates are kept. Two questions each. With
    ``positions`` the last token alone is asked as often as the sequence is long, so that what is added to positions goes out.
    """
    sphere = Sphere(stack.width, stack.norm)
    limit = Limit.of(oracle, settings, positions)
    model = stack.limit()
    answers, predicted = [], []
    most = max(3, sphere.width // 8)
    for sequences in batches:
        tokens = sphere.flat(sequences + 1e-3 * rng.normal(size=sequences.shape))  # no token is all zeros, nor all alike
        tokens = tokens * (sphere.radius / np.linalg.norm(tokens, axis=2, keepdims=True))
        for i in range(len(tokens)):
            tokens[i, -1] = sphere.sparse(rng.choice(sphere.width, size=int(rng.integers(3, most + 1)), replace=False), rng)
        readers = tokens[:, -1]
        keys = tokens[:, :-1] if tokens.shape[1] > 1 else sphere.dense(len(tokens), rng)[:, None]
        batch = limit.ask(keys, readers)
        said = model(np.concatenate([keys, readers[:, None]], axis=1)) - model(readers[:, None])
        answers.append(np.where(batch.clean, batch.moved, 0.0))
        predicted.append(np.where(batch.clean, said, 0.0))
    return np.concatenate(answers), np.concatenate(predicted)
