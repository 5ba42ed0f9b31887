"""Boundaries as linear equations: ``(p - x)·(W x + c) = log((theta - v·x) / (v·p - theta))``, one per path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.labels.paths import Group, Keys
from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.learners.labels.values import Plane
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Equations:
    """``steps (count, width)`` times the image of the last token is ``odds``, within ``variance``."""

    steps: Floats
    odds: Floats
    variance: Floats


def equations(group: Group, plane: Plane) -> Equations:
    """What the boundaries of ``group`` say, with the plane as it is known now."""
    keys = group.paths
    assert isinstance(keys, Keys)
    place, spread = group.search.centre, group.search.spread
    given = keys.keys(slice(None), place)
    below, above = plane.offset - keys.last @ plane.normal, given @ plane.normal - plane.offset
    size = np.linalg.norm(given, axis=1) + np.linalg.norm(keys.last, axis=1)
    blur = np.hypot(plane.normal_spread * size, plane.offset_spread) + BOUNDARY.rounding * size
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.log(below / above)
        variance = spread**2 + blur**2 * (1 / below**2 + 1 / above**2)
    return Equations(given - keys.last, odds, variance)


def images(found: Equations, tokens: int) -> tuple[Floats, Floats]:
    """``W x + c (tokens, width)`` from as many equations each as the width, and variances."""
    width = found.steps.shape[1]
    inverse = np.linalg.inv(found.steps.reshape(tokens, width, width))
    odds, variance = found.odds.reshape(tokens, width), found.variance.reshape(tokens, width)
    return np.einsum("jab,jb->ja", inverse, odds), np.einsum("jab,jb->ja", inverse**2, variance)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """``W`` and ``c`` with their variances, and the rank that was read."""

    W: Floats
    c: Floats
    W_variance: Floats
    c_variance: Floats
    rank: int


def solved(last: Floats, image: Floats, variance: Floats, rank: int) -> Scores:
    """``W`` and ``c`` from the images of ``width + 1`` last tokens."""
    middle = last.mean(axis=0)  # apart: where the tokens lie far from the origin, c and W are told apart in two steps
    size = float(np.sqrt(np.mean((last - middle) ** 2)))
    inverse = np.linalg.inv(np.concatenate([(last - middle) / size, np.ones((len(last), 1))], axis=1))
    both, spread = inverse @ image, inverse**2 @ variance
    W, W_variance = both[:-1].T / size, spread[:-1].T / size**2
    return Scores(W, both[-1] - W @ middle, W_variance, spread[-1] + W_variance @ middle**2, rank)
