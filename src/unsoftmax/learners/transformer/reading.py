"""The score matrix, its rank and the query bias in front of a known network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from unsoftmax.learners.transformer.model import Kind, Mixture, Sequences
from unsoftmax.learners.transformer.paths import BROKEN, Paths
from unsoftmax.learners.transformer.scores import ScoreReader, column
from unsoftmax.learners.transformer.settings import TRANSFORMER
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Known(Generic[Kind]):
    """A target on one token: its network, the length on which that varies, the spread of its answers, its relative error."""

    network: Kind
    length: float
    spread: float
    error: float


def read_scores(
    sequences: Sequences, found: Known[Kind], mix: Floats, rng: np.random.Generator, paths: Paths = BROKEN
) -> tuple[Mixture[Kind], Floats | None, bool]:
    """W, c and the column space of W if its rank is not full."""
    width, limit = len(mix), sequences.max_norm
    length = found.length if limit is None else min(found.length, 0.4 * limit)
    reader = ScoreReader(sequences, found.network, mix, length, np.zeros(width), paths)
    base = _base(reader, length, rng)
    reader, bias = _bias(reader, base, found, rng)
    distance = _distance(reader, base, length, rng)
    reader = replace(reader, reach=distance)
    moves = np.linalg.qr(rng.normal(size=(width, width)))[0].T * distance
    known, size, columns = np.zeros((width, 0)), 0.0, np.zeros((width, width))
    for k in range(width):
        moves[k] = _good_move(reader, base, moves[k])
        columns[:, k], fresh = column(reader, base + moves[k], known, size, rng)
        size = max(size, float(np.linalg.norm(columns[:, k])))
        if fresh:
            unit = columns[:, k] / np.linalg.norm(columns[:, k])
            known = np.linalg.qr(np.concatenate([known, unit[:, None]], axis=1))[0]
    W = np.asarray(np.linalg.solve(moves, columns.T).T)
    return Mixture(found.network, mix, W, reader.c - W @ base), known if known.shape[1] < width else None, bias


def _bias(reader: ScoreReader, base: Floats, found: Known[Kind], rng: np.random.Generator) -> tuple[ScoreReader, bool]:
    """At the base, mostly ``x = 0``, the scores are ``u·(W x + c)``: a few tell whether there is a query bias, the others what.

    What was read is taken off all that is read later, so that ``W`` times the way from the base is left.
    """
    width = len(base)
    if not base.any():
        steps = reader.steps(base, rng.normal(size=(min(3, width), width)))
        scores, steps = reader.read(np.repeat(base[None], len(steps), axis=0), steps)
        silent = TRANSFORMER.no_bias + 1e3 * found.error + 1e2 * reader.sequences.floor.absolute / found.spread
        if np.abs(scores).max() <= silent:
            return reader, False
    there, _ = column(reader, base, np.zeros((width, 0)), 0.0, rng)
    return replace(reader, c=there), True


def _distance(reader: ScoreReader, base: Floats, length: float, rng: np.random.Generator) -> float:
    """Length of ``x`` and ``u`` at which scores are of order 1, between a sixteenth and sixteen lengths of the network."""
    width = len(reader.c)
    move = rng.normal(size=width)
    move = _good_move(reader, base, move * (length / np.linalg.norm(move)))
    steps = reader.steps(base + move, rng.normal(size=(4, width)))
    scores, steps = reader.read(np.repeat((base + move)[None], 4, axis=0), steps)
    rates = np.abs(scores - steps @ reader.c) / (np.linalg.norm(steps, axis=1) * np.linalg.norm(move))
    rate = float(np.sqrt(np.mean(rates**2)))
    distance = float(np.clip(np.sqrt(1.0 / max(rate, 1e-300)), length / 16, 16 * length))
    limit = reader.sequences.max_norm
    return distance if limit is None else min(distance, 0.4 * limit)


def _steepness(reader: ScoreReader, points: Floats) -> Floats:
    """How fast the answer changes with an attended token at ``points (n, width)``, ``(n,)``."""
    return np.asarray(np.linalg.norm(reader.network.gradients(points) @ reader.mix, axis=(1, 2)))


def _base(reader: ScoreReader, length: float, rng: np.random.Generator) -> Floats:
    """The origin, where scores are those of the query bias alone; where the network is constant there, the steepest of many."""
    width = len(reader.c)
    places = rng.normal(size=(TRANSFORMER.places, width))
    places *= length / np.linalg.norm(places, axis=1, keepdims=True)
    steepness = _steepness(reader, places)
    if _steepness(reader, np.zeros((1, width)))[0] > TRANSFORMER.asleep * steepness.max():
        return np.zeros(width)
    return np.asarray(places[np.argmax(steepness)])


def _good_move(reader: ScoreReader, base: Floats, move: Floats) -> Floats:
    """``move`` from the base, or a multiple of it to where the network is steeper: it may be flat right there."""
    factors = np.array([1.0, -1.0, 0.7, -0.7, 1.3, -1.3])
    steepness = _steepness(reader, base + factors[:, None] * move)
    return np.asarray(factors[np.flatnonzero(steepness >= 0.5 * steepness.max())[0]] * move)
