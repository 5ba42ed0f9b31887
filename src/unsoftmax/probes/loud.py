"""Sequences that one head answers loudly: their answers are large, and due to its scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unsoftmax.linalg import INSIDE

Floats = NDArray[np.float64]


def loud_sequences(direction: Floats, rng: np.random.Generator, *, count: int, length: int, norm: float) -> Floats:
    """``(count, length, width)`` tokens half along plus or minus the unit vector ``direction`` and half along random ones across.

    With ``direction`` that of the values, tokens of either sign come in equal numbers and cancel where attention is even, so that
    what is left of them in an answer is due to the scores.
    """
    across = rng.normal(size=(count, length, len(direction)))
    across -= (across @ direction)[..., None] * direction
    across /= np.maximum(np.linalg.norm(across, axis=-1, keepdims=True), np.finfo(float).tiny)
    signs = np.resize([1.0, -1.0], length) * rng.choice([-1.0, 1.0], size=(count, 1))
    tokens = rng.permuted(signs, axis=1)[..., None] * direction + across
    tokens *= norm * INSIDE / np.linalg.norm(tokens, axis=-1, keepdims=True)
    return np.asarray(tokens)
