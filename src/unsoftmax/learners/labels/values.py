"""The value vector and the threshold from labels of one token: the boundary is a plane, ``v·x = theta``.

First rough points of the plane, on random lines between a yes and a no; then one line along v for each direction beside v, and
one through the origin, so that every coordinate of the plane is read on its own and to the last bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.labels.asking import Asker
from unsoftmax.learners.labels.paths import Group, Lines, rounds
from unsoftmax.learners.labels.search import Halving, Prior
from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.learners.labels.start import Start
from unsoftmax.linalg import orthonormal
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """``normal·x = offset`` with a normal of length 1, pointing to yes; standard deviations of both."""

    normal: Floats
    offset: float
    normal_spread: float
    offset_spread: float

    @property
    def beside(self) -> Floats:
        """An orthonormal basis ``(width - 1, width)`` of the directions beside the normal."""
        width = len(self.normal)
        complete = np.linalg.qr(np.concatenate([self.normal[:, None], np.eye(width)], axis=1))[0]
        return np.ascontiguousarray(complete[:, 1:].T)


def rough_plane(asker: Asker, begin: Start, rng: np.random.Generator) -> Plane:
    """The plane to about a percent. Price: about ``(1.5 width + 4) * (rough + 1)`` labels.

    Raises:
        NotInFamilyError: the boundary is no plane.
    """
    width = asker.width
    count = width + max(4, width // 2)
    points = begin.length * rng.normal(size=(count, width)) / np.sqrt(width)
    points *= np.minimum(1.0, begin.length / np.linalg.norm(points, axis=1, keepdims=True))  # no longer than what was asked
    yes = asker(np.repeat(points[:, None], 2, axis=1))
    no_end = np.where(yes[:, None], begin.no, points)
    lines = Lines(no_end, np.where(yes[:, None], points, begin.yes) - no_end)
    search = Halving(Prior(count, None, np.zeros(count), np.ones(count)))
    wanted = 2.0**-BOUNDARY.rough
    rounds(asker, [Group.of(lines, search, wanted, late=asker.hurried)], 40 * BOUNDARY.rough)
    centre, spread = search.centre, search.spread
    found = lines.points(np.arange(count), centre)
    blur = float(np.sqrt(np.mean((spread * np.linalg.norm(lines.direction, axis=1)) ** 2)))
    plane, misfit = fitted_plane(found, lines.direction, begin.length, blur)
    if misfit > BOUNDARY.values_bent * blur:
        raise NotInFamilyError(
            f"The boundary between the labels of one token is no plane: points of it miss the best one by {misfit / blur:.0f} "
            "times what their own rounding explains. One attention layer has a plane there; a network behind or instead of it, a "
            "norm, or another kind of model bends it.",
            evidence={"plane_misfit": misfit / blur},
        )
    return plane


def fitted_plane(points: Floats, upwards: Floats, length: float, blur: float) -> tuple[Plane, float]:
    """The plane through points of standard deviation ``blur``, found along lines ``upwards`` to yes, and its rms misfit."""
    width = points.shape[1]
    rows = np.concatenate([points, np.full((len(points), 1), -length)], axis=1)
    _, singular, right = np.linalg.svd(rows, full_matrices=False)
    null = right[-1] / np.linalg.norm(right[-1, :-1])
    if (upwards @ null[:-1] > 0).mean() < 0.5:
        null = -null
    # few more rows than unknowns: what the fit took up is given back
    misfit = float(singular[-1] * np.linalg.norm(null) / np.sqrt(len(points) - width))
    variance = ((right[:-1] / singular[:-1, None]) ** 2).sum(axis=0) * blur**2
    spread = float(np.sqrt(variance[:-1].mean())), float(np.sqrt(variance[-1]) * length)
    return Plane(null[:-1], float(null[-1] * length), *spread), misfit


class PlaneSearch(Protocol):
    """A plane that is known better and better while other things are asked."""

    group: Group

    @property
    def plane(self) -> Plane:
        """What is known by now."""

    def sharpen(self, factor: float) -> None:
        """Ask so much more finely than planned, where tokens lie near the plane beside their length."""

    def finish(self) -> None:
        """Ask the rest."""


class Settled:
    """A plane that is known as well as it ever will be."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        nothing = np.empty((0, len(plane.normal)))
        self.group = Group.of(Lines(nothing, nothing), Halving(Prior(0, None, np.empty(0), np.empty(0))), 0.0)

    @property
    def plane(self) -> Plane:
        """The plane."""
        return self._plane

    def sharpen(self, factor: float) -> None:
        """It cannot be known better."""

    def finish(self) -> None:
        """There is nothing left to ask."""


class Fine:
    """The fine search for the plane, which goes on while scores are asked."""

    def __init__(
        self,
        asker: Asker,
        begin: Start,
        rough: Plane,
        rng: np.random.Generator,
        *,
        until: float = BOUNDARY.finest,
        max_norm: float | None = None,
    ) -> None:
        width = asker.width
        self.rough, self.asker = rough, asker
        # how far from the foot of the plane its other points are: as far as the foot itself where that is far
        self.arm = max(abs(rough.offset), begin.length / 4)
        if max_norm is not None:
            self.arm = min(self.arm, float(np.sqrt(max(0.9 * max_norm**2 - rough.offset**2, 0.1 * max_norm**2))))
        turned = orthonormal(width - 1, rng) @ rough.beside if width > 1 else np.empty((0, width))
        self.arms = np.concatenate([np.zeros((1, width)), self.arm * turned])
        self.lines = Lines(self.arms, np.broadcast_to(rough.normal, (width, width)))
        sd = np.full(width, np.hypot(rough.offset_spread, self.arm * rough.normal_spread))
        low, high = bracketed(asker, self.lines, np.full(width, rough.offset), BOUNDARY.reach * sd)
        self.planned = self.until = until
        target = self._target()
        search = Halving(Prior(width, None, low, high))
        self.group = Group.of(self.lines, search, target, late=asker.hurried, hurry=BOUNDARY.hurried * self.arm)
        rounds(asker, [self.group], BOUNDARY.alone if asker.hurried else 2 * BOUNDARY.alone)

    def _target(self) -> Floats:
        """Widths of brackets that are narrow enough."""
        target = np.full(self.asker.width, self.until * self.arm)
        if abs(self.rough.offset) > 2 * BOUNDARY.reach * self.rough.offset_spread:
            target[0] = self.until * abs(self.rough.offset)
        return target

    def sharpen(self, factor: float) -> None:
        """Ask so much more finely than planned, where tokens lie near the plane beside their length."""
        self.until = max(BOUNDARY.finest, factor * self.planned)
        self.group.until = self._target()

    @property
    def plane(self) -> Plane:
        """What is known of the plane by now."""
        search = self.group.search
        centre, spread = search.centre, search.spread
        # the plane passes through arm_i + s_i n, with n the rough normal: (s_i - s_0) / arm is its slope along arm i
        slopes = (centre[1:] - centre[0]) / self.arm
        normal = self.rough.normal - slopes @ (self.arms[1:] / self.arm)
        normal = normal / np.linalg.norm(normal)
        offset = 0.0 if self._through_origin() else float(centre[0] * (self.rough.normal @ normal))
        sd = float(np.hypot(np.sqrt(np.mean(spread[1:] ** 2)) if len(spread) > 1 else 0.0, spread[0]) / self.arm)
        return Plane(normal, offset, sd, float(spread[0]))

    def finish(self) -> None:
        """Finish, and go on with the offset alone until it is known relative to itself: it may be far smaller than the tokens."""
        rounds(self.asker, [self.group], 2 * BOUNDARY.bits)
        search = self.group.search
        if not self._through_origin():
            last = Lines(self.arms[:1], self.lines.direction[:1])
            alone = Halving(Prior(1, None, search.low[:1], search.high[:1]))
            rounds(self.asker, [Group.of(last, alone, self.until * abs(float(search.centre[0])))], 2 * BOUNDARY.bits)
            search.low[:1], search.high[:1] = alone.low, alone.high

    def _through_origin(self) -> bool:
        search = self.group.search
        return bool(search.low[0] <= 0 <= search.high[0] and search.width[0] <= 2 * self.until * self.arm)


def bracketed(asker: Asker, lines: Lines, centre: Floats, reach: Floats) -> tuple[Floats, Floats]:
    """Brackets around ``centre`` whose ends have different labels, made wider where they have not."""
    count = len(centre)
    low, high = centre - reach, centre + reach
    open_ = np.arange(count)
    for _ in range(BOUNDARY.widest):
        labels = asker(lines.tokens(np.tile(open_, 2), np.concatenate([low[open_], high[open_]]))).reshape(2, -1)
        right = ~labels[0] & labels[1]
        open_ = open_[~right]
        if not len(open_):
            return low, high
        reach[open_] *= 8
        low[open_], high[open_] = centre[open_] - reach[open_], centre[open_] + reach[open_]
    raise NotInFamilyError(
        f"On {len(open_)} of {count} lines the label of one token does not change where a plane would have it change. One "
        "attention layer has a plane there; a network behind it, or another kind of model, has not.",
        evidence={"lines_without_boundary": len(open_)},
    )
