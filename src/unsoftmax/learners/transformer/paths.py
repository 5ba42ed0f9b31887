"""Straight paths through a known network: which are monotone, and how far along one an answer lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.transformer.settings import TRANSFORMER
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True)
class Paths:
    """How paths are judged and answers found on them, for one kind of network.

    Attributes:
        quality: of ``(network, starts, moves)``.
        place_of: of ``(network, starts, moves, answers)``.
    """

    quality: Callable[[Any, Floats, Floats], Floats]
    place_of: Callable[[Any, Floats, Floats, Floats], Floats]


def along(network: Hinges, starts: Floats, moves: Floats) -> tuple[Floats, Floats]:
    """Bends ``t (n, neurons + 2)`` in order from 0 to 1 on ``start + t * move``, and the network's values there.

    The values are ``(n, neurons + 2, outputs)``.
    """
    places, values = [], []
    for i in range(0, len(starts), TRANSFORMER.chunk):
        part = slice(i, i + TRANSFORMER.chunk)
        before, rate = network.before(starts[part]), moves[part] @ network.normal.T
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(rate != 0, -before / rate, 1.0)
        t = np.where((t > 0) & (t < 1), t, 1.0)
        t = np.sort(np.concatenate([np.zeros((len(t), 1)), t, np.ones((len(t), 1))], axis=1), axis=1)
        hidden = np.maximum(before[:, None, :] + t[:, :, None] * rate[:, None, :], 0.0) @ network.out
        linear = (starts[part] @ network.linear.T)[:, None] + t[:, :, None] * (moves[part] @ network.linear.T)[:, None]
        places.append(t)
        values.append(hidden + linear + network.constant)
    return np.concatenate(places), np.concatenate(values)


def projected(values: Floats) -> tuple[Floats, Floats]:
    """Values ``(n, places, outputs)`` along their whole change: directions ``(n, outputs)`` and numbers ``(n, places)``."""
    change = values[:, -1] - values[:, 0]
    directions = change / np.maximum(np.linalg.norm(change, axis=1, keepdims=True), 1e-300)
    return directions, np.einsum("npo,no->np", values, directions)


def quality(network: Hinges, starts: Floats, moves: Floats) -> Floats:
    """How well a place on each path can be read from its answer: the change from end to end, 0 where the path is not monotone."""
    places, values = along(network, starts, moves)
    _, heights = projected(values)
    lengths = np.diff(places, axis=1)
    slopes = np.diff(heights, axis=1) / np.where(lengths > 0, lengths, 1.0)
    lowest = np.where(lengths > 1e-9, slopes, np.inf).min(axis=1)
    total = heights[:, -1] - heights[:, 0]
    return np.where(lowest > 0.1 * total, total, 0.0)


def place_of(network: Hinges, starts: Floats, moves: Floats, answers: Floats) -> Floats:
    """Where on each path the network gives ``answers (n, outputs)``: ``t (n,)``, beyond [0, 1] where it does not."""
    places, values = along(network, starts, moves)
    directions, heights = projected(values)
    goals = np.einsum("no,no->n", answers, directions)
    found = np.zeros(len(goals))
    for i, goal in enumerate(goals):
        k = int(np.clip(np.searchsorted(heights[i], goal) - 1, 0, heights.shape[1] - 2))
        low, high = places[i, k], places[i, k + 1]
        rise = heights[i, k + 1] - heights[i, k]
        found[i] = low + (goal - heights[i, k]) * (high - low) / rise if rise > 0 else low
    return found


BROKEN = Paths(quality, place_of)
