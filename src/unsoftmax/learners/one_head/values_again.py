"""How far the values of coarse answers are off: some axes asked again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy
from scipy.special import stdtrit

from unsoftmax.learners.one_head.settings import HEAD
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import LastPosition, Oracle
from unsoftmax.results import Floor

EVENLY = 0.95 * 3**0.5  # standard deviations: 95% of an error that is spread evenly


def price(outputs: int) -> int:
    """Questions that ``values_bars`` asks."""
    return max(HEAD.axes_again, -(-HEAD.read_again // outputs))


def values_bars(oracle: Oracle, model: Attention, length: float, floor: Floor, rng: np.random.Generator) -> Floats:
    """95% bars of V, read from axes of this length: some are asked again, a little shorter, and so rounded otherwise.

    Both readings err alike. Beyond the last digit, products err by a share of their size, and sums inside the target by one of all
    sizes: both shares are fitted, and half of the former counts as the latter, for few answers tell them apart badly and a sum that
    nearly cancels errs by its terms. Answers of ordinary tokens do not show them beside a constant.
    """
    assert model.V is not None
    V, b = model.V.reshape(oracle.width, -1), np.reshape(model.b, -1)
    asked = np.arange(price(V.shape[1]))
    which = rng.permutation(len(V))[asked % len(V)]
    sizes = length * (1 - 2.0 ** -(2 + asked // len(V)))
    tokens = np.zeros((len(which), 1, len(V)))
    tokens[asked, 0, which] = sizes
    apart = (LastPosition(oracle)(tokens).reshape(len(which), -1) - b) / sizes[:, None] - V[which]
    own, cast = V**2 / np.mean(V**2), replace(floor, cast=True).written(V) ** 2
    weights = 1 / (1 + own[which].ravel())
    law = np.stack([np.ones(apart.size), own[which].ravel()], axis=1)
    even, along = scipy.optimize.nnls(law * weights[:, None], weights * (apart**2 / 2 - cast[which]).ravel())[0]
    squares = EVENLY**2 * cast + float(stdtrit(apart.size, 0.975)) ** 2 * (even + along * (1 + own) / 2)
    return np.asarray(np.sqrt(squares)).reshape(model.V.shape)
