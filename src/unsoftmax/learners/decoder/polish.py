"""All heads at once against everything that was asked: Gauss-Newton steps by conjugate gradients, no normal matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.random import Generator

from unsoftmax.learners.decoder.answers import Data
from unsoftmax.learners.decoder.order import Heads
from unsoftmax.learners.decoder.settings import Settings
from unsoftmax.learners.decoder.together import Rough, Together, moved, parts_of, places_of
from unsoftmax.models import Floats
from unsoftmax.models.decoder import rotated


@dataclass(frozen=True, slots=True, eq=False)
class Polished:
    """The heads, the root mean square of what is left of an answer's output, and error bars.

    ``bars (2, heads)`` are half-widths of 95% for entries of every head's values and of its scores (the widest of several
    distances): what the fit left is added again with other signs.
    """

    heads: Heads
    left: float
    bars: Floats | None = None


def polished(heads: Heads, data: Data, noise: float, settings: Settings, rng: Generator) -> Polished:
    """The heads that fit everything best.

    Errors of values no longer bias scores then: both come out near the error of the answers, ``noise``. With more than ``largest``
    parameters the heads stay as they were. Answers that are off by far more than most are left out: the limit came out badly there.
    """
    now = Together(heads, data)
    if places_of(heads).flat.size > settings.largest:
        return Polished(heads, now.cost)
    for _ in range(settings.polish_steps):
        each = np.sqrt(np.mean(now.left**2, axis=1))
        now = Together(now.heads, data.some(np.flatnonzero(each <= settings.outlying * np.median(each))))
        before = now.cost
        rough = Rough.of([*now.score_blocks(settings.most_rows, rng), now.value_block()], settings.ridge)
        now = _further(now, rough, settings)
        if now.cost <= settings.enough * noise or not now.cost < settings.helps * before:
            break
        now = Together(now.heads, data)
    if not settings.draws:
        return Polished(now.heads, now.cost)
    squares = []
    for _ in range(settings.draws):
        signs = rng.choice([-1.0, 1.0], size=(len(now.left), 1))
        squares.append(_shown(now.heads, _solved(now, rough, signs * now.left, settings), settings.stated))
    return Polished(now.heads, now.cost, settings.bar * np.sqrt(np.mean(squares, axis=0)))


def _further(now: Together, rough: Rough, settings: Settings) -> Together:
    """A step, or as much of it as helps."""
    step = _solved(now, rough, now.left, settings)
    for share in (1.0, 0.3, 0.1):
        there = _moved(now, share * step)
        if there.cost < now.cost:
            return there
    return now


def _moved(now: Together, step: Floats) -> Together:
    return Together(moved(now.heads, parts_of(now.heads, step)), now.data)


def _solved(now: Together, rough: Rough, rows: Floats, settings: Settings) -> Floats:
    """The step that explains the rows best, to first order."""
    wanted = now.gradient(rows).flat
    size = (len(wanted),) * 2
    normal = scipy.sparse.linalg.LinearOperator(
        size, lambda flat: now.gradient(now.changed(parts_of(now.heads, flat))).flat, dtype=np.float64
    )
    nearly = scipy.sparse.linalg.LinearOperator(size, rough.solved, dtype=np.float64)
    return np.asarray(scipy.sparse.linalg.cg(normal, wanted, rtol=settings.solved, maxiter=settings.products, M=nearly)[0])


def _shown(heads: Heads, step: Floats, distances: tuple[float, ...]) -> Floats:
    """Mean squares of what a step changes in values and scores, to first order, ``(2, heads)``."""
    parts = parts_of(heads, step)
    query, key, value, out = parts.query, parts.key[heads.group], parts.value[heads.group], parts.out
    V = np.einsum("hri,hor->hio", value, heads.out) + np.einsum("hri,hor->hio", heads.value, out)
    scores = []
    for distance in distances:
        turned, changed = (rotated(np.swapaxes(a, 1, 2), np.array(distance), heads.base) for a in (heads.query, query))
        change = np.einsum("hri,hjr->hij", key, turned) + np.einsum("hri,hjr->hij", heads.key, changed)
        scores.append(np.mean(change**2, axis=(1, 2)))
    return np.array([np.mean(V**2, axis=(1, 2)), np.max(scores, axis=0)])
