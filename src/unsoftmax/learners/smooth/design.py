"""Which further points tell most about a smooth network that is already roughly known."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import qr, solve_triangular

from unsoftmax.learners.smooth.answers import Answers, Neurons
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Floats


def telling_points(network: Neurons, answers: Answers, pool: Floats, count: int, free: Any, rng: np.random.Generator) -> Floats:
    """The ``count`` points of ``pool`` whose answers are predicted worst by those so far, one after the other.

    A pivoted Cholesky factorisation of the covariance of the predictions: its remaining diagonal is what is still unknown.
    """
    own = answers.clear(network)
    outputs = own.answers.shape[1]
    fresh = network.derivatives(pool, own.weights(network, pool), free)
    if fresh.shape[1] > BENDS.largest:
        return pool[:count]
    rows = network.derivatives(own.points, own.weights(network, own.points), free)
    scales = np.sqrt(np.einsum("ij,ij->j", rows, rows))
    scales[scales == 0] = 1.0
    factor = qr(np.concatenate([rows / scales, BENDS.design_ridge * np.eye(len(scales))]), mode="r", check_finite=False)[0][
        : len(scales)
    ]
    mix = rng.normal(size=outputs)
    mixed = np.einsum("o,onp->np", mix / np.linalg.norm(mix), fresh.reshape(outputs, len(pool), -1))
    spread = solve_triangular(factor, (mixed / scales).T, trans="T", check_finite=False)
    unknown = np.einsum("ij,ij->j", spread, spread)
    columns, picks = np.zeros((len(pool), count)), []
    for step in range(count):
        best = int(np.argmax(unknown))
        column = spread.T @ spread[:, best] - columns[:, :step] @ columns[best, :step]
        columns[:, step] = column / np.sqrt(unknown[best] + 1.0)  # every answer carries one expected error
        unknown = np.maximum(unknown - columns[:, step] ** 2, 0.0)
        picks.append(best)
    return np.asarray(pool[picks])
