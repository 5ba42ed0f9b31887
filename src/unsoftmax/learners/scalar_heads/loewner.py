"""Heads that jump together: copies of the tokens make the response a rational function, whose poles are the heads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import eig
from scipy.special import expit

from unsoftmax.learners.scalar_heads.settings import SCALAR
from unsoftmax.models import Floats

Copies = tuple[int, int]
MANY: tuple[Copies, ...] = (
    *SCALAR.few,
    (12, 1),
    (1, 12),
    (16, 1),
    (1, 16),
    (3, 2),
    (2, 3),
    (5, 1),
    (1, 5),
    (24, 1),
    (1, 24),
    (10, 1),
    (1, 10),
)


class Split(NamedTuple):
    """Heads that share a place: their values V·u, scores, and what all other heads add."""

    values: Floats
    scores: Floats
    background: float


def split_sigmoids(copies: tuple[Copies, ...], responses: Floats, noise: float) -> Split | None:
    """The fewest heads whose ``background + sum_j value_j * k / (k + exp(-score_j))`` fits the responses to ``noise``, or None.

    The response less its value at k = 1, over k - 1, is strictly proper with poles at ``-exp(-score)``: the eigenvalues of
    the Loewner pencil of its values (Mayo and Antoulas 2007). ``copies`` must contain (1, 1).
    """
    k = np.array([a / b for a, b in copies])
    one = int(np.argmax(k == 1.0))
    if np.abs(responses - responses[one]).max() <= noise:
        return Split(np.zeros(0), np.zeros(0), float(responses[one]))
    others = np.arange(len(k)) != one
    proper = (responses - responses[one])[others] / (k[others] - 1.0)
    for count in range(1, SCALAR.most_together + 1):
        scores = _pencil(k[others], proper, count)
        if scores is None:
            continue
        found, misfit = _polish(k, responses, scores)
        apart = np.abs(np.subtract.outer(found.scores, found.scores))[~np.eye(count, dtype=bool)]
        if misfit <= noise and (apart > 1e-6).all() and np.abs(found.scores).max() < 20.0:
            return found
    return None


def _pencil(k: Floats, proper: Floats, count: int) -> Floats | None:
    """Scores from the eigenvalues of the Loewner pencil, reduced to ``count`` directions."""
    order = np.argsort(k)
    rows, columns = order[::2], order[1::2]
    gaps = k[rows, None] - k[None, columns]
    weights = np.sqrt(k[rows, None] * k[None, columns])  # makes small and large k count alike
    plain = weights * (proper[rows, None] - proper[None, columns]) / gaps
    times = weights * ((k * proper)[rows, None] - (k * proper)[None, columns]) / gaps
    if count > min(plain.shape):
        return None
    left = np.linalg.svd(np.concatenate([plain, times], axis=1))[0][:, :count]
    right = np.linalg.svd(np.concatenate([plain, times]))[2][:count].T
    try:
        poles = eig(left.T @ times @ right, left.T @ plain @ right, right=False)
    except (np.linalg.LinAlgError, ValueError):
        return None
    zeta = -np.real(poles)
    return -np.log(np.clip(zeta, 1e-6, 1e6)) if np.isfinite(zeta).all() else None


def _polish(k: Floats, responses: Floats, scores: Floats) -> tuple[Split, float]:
    """Gauss-Newton on values, background and scores; returns them with the largest misfit."""
    shift, count = np.log(k)[:, None], len(scores)
    flat = np.ones((len(k), 1))
    linear = np.linalg.lstsq(np.concatenate([expit(scores + shift), flat], axis=1), responses, rcond=None)[0]
    best: tuple[Split, float] | None = None
    for _ in range(16):
        on = expit(scores + shift)
        residual = responses - np.concatenate([on, flat], axis=1) @ linear
        misfit = float(np.abs(residual).max())
        if best is None or misfit < best[1]:
            best = Split(linear[:count], scores, float(linear[count])), misfit
        move = np.linalg.lstsq(np.concatenate([on, flat, on * (1.0 - on) * linear[:count]], axis=1), residual, rcond=1e-15)[0]
        linear = linear + move[: count + 1]
        scores = scores + np.clip(move[count + 1 :], -1.0, 1.0)
    assert best is not None  # the loop ran
    return best
