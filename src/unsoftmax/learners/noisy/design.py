"""Which questions to ask: directions at random, lengths and copies where the answers tell most."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.noisy.fit import Head
from unsoftmax.learners.noisy.probes import of_norm
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.models import Floats

# lengths of the last token that are tried, as shares of the limit: quarter octaves over six octaves
LENGTHS = 2.0 ** (-np.arange(25) / 4)


def frames(rng: np.random.Generator, count: int, width: int, norm: float) -> Floats:
    """``count`` tokens of length ``norm``, orthonormal in groups of ``width``: fresh ones dither the rounding of the answers."""
    groups = [np.linalg.qr(rng.normal(size=(width, width)))[0] for _ in range(max(1, -(-count // width)))]
    signs = rng.choice([-1.0, 1.0], size=(count, 1))  # the factorisation fixes its own signs
    tokens = of_norm(signs * np.concatenate(groups)[:count], norm)
    # one dimension has but two directions: there the lengths have to differ
    return tokens if width > 1 else tokens * rng.uniform(0.6, 1.0, size=(count, 1))


def tilted_keys(rng: np.random.Generator, count: int, v: Floats, norm: float) -> Floats:
    """Keys half along v and half along a random direction across it: their values never vanish, and all directions are seen."""
    direction = v / np.linalg.norm(v)
    across = rng.normal(size=(count, len(v)))
    across -= (across @ direction)[:, None] * direction
    lengths = np.linalg.norm(across, axis=1, keepdims=True)
    return of_norm(direction + across / np.maximum(lengths, np.finfo(float).tiny), norm)


def softened(head: Head, keys: Floats, last: Floats) -> Floats:
    """Last tokens of the same length, moved along ``W^T key`` until no score exceeds what copies can balance.

    One direction in ``width`` is then seen less through this key; shortening the token instead would dim all of them.
    """
    direction = keys @ head.W
    strength = np.linalg.norm(direction, axis=1)
    score = np.einsum("md,md->m", direction, last) + keys @ head.c
    excess = score - np.clip(score, -NOISY.design_largest_score, NOISY.design_largest_score)
    direction *= (excess / np.maximum(strength, 1e-100) ** 2)[:, None]
    norm = np.linalg.norm(last, axis=1, keepdims=True)
    moved = last - direction
    lengths = np.linalg.norm(moved, axis=1, keepdims=True)
    # a token that would lose nearly all of itself stays: the shorter one is then chosen among the lengths tried
    return np.where(lengths > 0.1 * norm, moved * (norm / np.maximum(lengths, 1e-200)) * NOISY.shrink, last)


def recentred(head: Head, keys: Floats, last: Floats, copies: int) -> tuple[Floats, Floats]:
    """Lengths ``(count,)`` and copies of ``+key`` that make the answers most sensitive to the scores, judged by ``head``."""
    length, plus = np.empty(len(keys)), np.empty(len(keys))
    for start in range(0, len(keys), NOISY.rows_at_once):
        rows = slice(start, start + NOISY.rows_at_once)
        length[rows], plus[rows] = _recentred(head, keys[rows], last[rows], copies)
    return length, plus


def _recentred(head: Head, keys: Floats, last: Floats, copies: int) -> tuple[Floats, Floats]:
    image = last @ head.W.T
    score = LENGTHS * np.einsum("md,md->m", keys, image)[:, None] + (keys @ head.c)[:, None]
    own = LENGTHS**2 * np.einsum("md,md->m", last, image)[:, None] + LENGTHS * (last @ head.c)[:, None]
    plus = np.clip(np.rint(copies / (1 + np.exp(np.clip(2 * score, -50, 50)))), 1, copies - 1)
    top = np.maximum(np.abs(score), own)
    up, down, rest = plus * np.exp(score - top), (copies - plus) * np.exp(-score - top), np.exp(own - top)
    total = up + down + rest
    up, down, rest = up / total, down / total, rest / total
    key, value = (keys @ head.v)[:, None], LENGTHS * (last @ head.v)[:, None]
    mean = key * (up - down) + value * rest
    sensitivity = LENGTHS * np.abs(key * (up + down) - mean * (up - down))
    best = sensitivity.argmax(axis=1)
    rows = np.arange(len(keys))
    return LENGTHS[best], plus[rows, best]
