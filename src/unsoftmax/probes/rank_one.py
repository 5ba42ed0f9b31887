"""Probes drawn before any answer is known: single tokens for the values, pairs of tokens for the scores."""

from __future__ import annotations

import numpy as np

from unsoftmax.linalg import INSIDE, orthonormal
from unsoftmax.models import Floats

FAR = 2.0**60  # size of keys against last tokens where nothing bounds them: the last token's own value and score vanish
NEAR = 0.5  # last tokens against keys where tokens are bounded


def singles(width: int, max_norm: float | None) -> Floats:
    """The zero token and each axis, ``(width + 1, 1, width)``; long, so that a constant in the answers drowns."""
    size = 2.0**30 if max_norm is None else max_norm
    return np.concatenate([np.zeros((1, width)), size * np.eye(width)])[:, None]


def random_pairs(width: int, count: int, rng: np.random.Generator, *, scale: float, max_norm: float | None) -> Floats:
    """Gaussian keys and last tokens, ``(count, 2, width)``: each pair is one random rank-one measurement of W."""
    keys, tokens = rng.normal(size=(count, width)), rng.normal(size=(count, width))
    return _sized(keys, tokens, scale, max_norm)


def grid_of_pairs(width: int, rng: np.random.Generator, *, scale: float, max_norm: float | None) -> Floats:
    """All pairs of two rotated bases, ``(width^2, 2, width)``, last tokens in blocks: just enough for a W of full rank."""
    root = np.sqrt(width)  # as long as the Gaussian vectors
    keys = np.tile(root * orthonormal(width, rng), (width, 1))
    tokens = np.repeat(root * orthonormal(width, rng), width, axis=0)
    return _sized(keys, tokens, scale, max_norm)


def bias_pair(width: int, rng: np.random.Generator, max_norm: float | None) -> Floats:
    """A long key before the zero token, ``(1, 2, width)``: it weighs one half unless there is a query bias."""
    key = rng.normal(size=width)
    size = FAR if max_norm is None else max_norm * INSIDE
    return np.stack([size * key / np.linalg.norm(key), np.zeros(width)])[None]


def _sized(keys: Floats, tokens: Floats, scale: float, max_norm: float | None) -> Floats:
    if max_norm is None:
        return np.stack([FAR * keys, (scale / FAR) * tokens], axis=1)
    longest = max_norm * INSIDE
    keys = keys * (longest / np.linalg.norm(keys, axis=1, keepdims=True))
    return np.stack([keys, tokens * (NEAR * longest / np.linalg.norm(tokens, axis=1, keepdims=True))], axis=1)
