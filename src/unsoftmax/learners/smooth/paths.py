"""Straight paths through a known smooth network: which are monotone, and how far along one an answer lies."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.learners.transformer.model import Network
from unsoftmax.learners.transformer.paths import Paths, projected
from unsoftmax.models import Floats


def heights_along(network: Network, starts: Floats, moves: Floats, places: Floats) -> Floats:
    """Values ``(n, places, outputs)`` of the network at ``start + t * move`` for ``t`` in ``places (n, places)``."""
    points = starts[:, None] + places[:, :, None] * moves[:, None]
    return network(points.reshape(-1, points.shape[2])).reshape(*places.shape, -1)


def quality(network: Network, starts: Floats, moves: Floats) -> Floats:
    """How well a place on each path can be read from its answer: the change from end to end, 0 where the path is not monotone."""
    places = np.broadcast_to(np.linspace(0, 1, BENDS.grid), (len(starts), BENDS.grid))
    _, heights = projected(heights_along(network, starts, moves, places))
    total = heights[:, -1] - heights[:, 0]
    lowest = np.diff(heights, axis=1).min(axis=1) * (BENDS.grid - 1)
    return np.where(lowest > 0.1 * total, total, 0.0)


def place_of(network: Network, starts: Floats, moves: Floats, answers: Floats) -> Floats:
    """Where on each path the network gives ``answers (n, outputs)``: ``t (n,)`` in [0, 1]."""
    ends = np.broadcast_to(np.array([0.0, 1.0]), (len(starts), 2))
    directions, _ = projected(heights_along(network, starts, moves, ends))
    goals = np.einsum("no,no->n", answers, directions)
    low, high = np.zeros(len(goals)), np.ones(len(goals))
    for _ in range(56):
        middle = (low + high) / 2
        here = np.einsum("no,no->n", heights_along(network, starts, moves, middle[:, None])[:, 0], directions)
        low, high = np.where(here < goals, middle, low), np.where(here < goals, high, middle)
    return (low + high) / 2


SMOOTH = Paths(quality, place_of)
