"""The proof of the theorem, taken literally: one-hot tokens and the textbook logit."""

from __future__ import annotations

import numpy as np

import unsoftmax as us
from unsoftmax.oracles import Metered


def one_hot(oracle: Metered, budget: int, seconds: float, rng: np.random.Generator) -> us.Attention:
    """``v_i`` from ``[e_i]``, ``W_ij`` from ``[e_i + e_j; e_j]``: d^2 + d questions, whatever the budget."""
    d = oracle.width
    axes = np.eye(d)
    v = oracle(axes[:, None])
    W = np.empty((d, d))
    for j in range(d):
        last = np.broadcast_to(axes[j], (d, d))
        share = (oracle(np.stack([axes + last, last], axis=1)) - v[j]) / v  # sigma(W_ij)
        W[:, j] = np.log(share / (1 - share))
    return us.Attention.single(W, v)
