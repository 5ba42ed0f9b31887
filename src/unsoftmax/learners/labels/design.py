"""The questions for the scores: last tokens at the corners of a simplex around the foot of the plane, keys beside each of them.

Corners of a simplex determine ``W`` and ``c`` with no loss at all, and so do ``size`` keys at the corners of a small one for the
score along v; the other keys lie along axes. All of it is turned at random, so that no target looks special.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.labels.paths import Keys, Rows
from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.learners.labels.sizes import Sizes
from unsoftmax.learners.labels.values import Plane
from unsoftmax.linalg import orthonormal
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """Where scores are asked.

    Attributes:
        plane: the plane as known when the questions were chosen.
        sizes: lengths.
        last: the last tokens ``(width + 1, width)``.
        far: their distances from the plane, negative where the label is yes.
        directions: of the keys ``(width, width)``, beside v.
    """

    plane: Plane
    sizes: Sizes
    last: Floats
    far: Floats
    directions: Floats

    def keys(self, tokens: Rows, directions: Floats) -> Keys:
        """Paths of keys beside these last tokens."""
        last, far = self.last[tokens], self.far[tokens]
        foot = last + far[:, None] * self.plane.normal
        return Keys(last, foot, self.sizes.key * directions, self.plane.normal, far)


def designed(plane: Plane, sizes: Sizes, rng: np.random.Generator, centre: Floats | None = None) -> Design:
    """A random design around ``centre``, a point of the plane; None takes the one nearest to the origin."""
    width = len(plane.normal)
    beside = plane.beside
    corners = simplex(width + 1, rng)
    turned = orthonormal(width - 1, rng) @ beside if width > 1 else beside
    middle = plane.offset * plane.normal if centre is None else centre
    last = middle + sizes.depth * corners[:, :1] * plane.normal + sizes.reach * corners[:, 1:] @ turned
    return Design(plane, sizes, last, -sizes.depth * corners[:, 0], key_directions(width, rng) @ beside)


def simplex(corners: int, rng: np.random.Generator) -> Floats:
    """``(corners, corners - 1)`` with orthonormal columns that sum to zero, the first of two values of either sign."""
    signs = np.where(np.arange(corners) % 2 == 0, 1.0, -1.0)[rng.permutation(corners)]
    signs[signs > 0] *= (signs < 0).sum() / (signs > 0).sum()
    fixed = np.stack([np.ones(corners), signs], axis=1)
    full = np.linalg.qr(np.concatenate([fixed, rng.normal(size=(corners, corners - 2))], axis=1))[0]
    full[:, 1] *= np.sign(full[:, 1] @ signs)
    return np.ascontiguousarray(full[:, 1:])


def key_directions(width: int, rng: np.random.Generator) -> Floats:
    """``(width, width - 1)``: corners of a small simplex, then unit vectors along the axes left."""
    if width == 1:
        return np.zeros((1, 0))
    few = min(BOUNDARY.corners, width)
    found = np.zeros((width, width - 1))
    small = simplex(few, rng)
    found[:few, : few - 1] = BOUNDARY.short * small / np.linalg.norm(small, axis=1, keepdims=True)
    found[few:, few - 1 :] = np.eye(width - few)
    turned: Floats = found @ orthonormal(width - 1, rng)
    return turned
