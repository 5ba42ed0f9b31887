"""Which activation the neurons have, and how sharply each of them bends: from answers near their hyperplanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.offsets import Corners
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Floats
from unsoftmax.models.activations import SMOOTH, Activation, activation_named
from unsoftmax.oracles.base import phase


def profile(phi: Activation, sharp: float, along: Floats, turned: bool = False) -> Floats:
    """Height of a neuron above its off side, in units of its jump, at distance ``along`` from its straight parts' crossing.

    ``sharp`` is the length of its row. ``turned``: the neuron is written the other way round, and what it adds to the off side is
    part of the linear part.
    """
    z, gap = sharp * along, phi.low - phi.high
    if turned:
        return np.asarray((phi.value(-z + gap) + z - phi.low) / sharp)
    return np.asarray((phi.value(z + gap) - phi.low) / sharp)


@dataclass(frozen=True, slots=True, eq=False)
class Bend:
    """One neuron's activation as told by a few answers: ``misfit`` in widths of the bend."""

    phi: Activation
    sharp: float
    shift: float
    turned: bool
    misfit: float


def best_bends(along: Floats, heights: Floats) -> list[Bend]:
    """Every activation fitted to heights over one line, the best first."""
    found = []
    for name in SMOOTH:
        phi = activation_named(name)
        sides = [fitted_bend(phi, along, heights, turned) for turned in ((False,) if phi.even else (False, True))]
        found.append(min(sides, key=lambda bend: bend.misfit))
    return sorted(found, key=lambda bend: bend.misfit)


def fitted_bend(phi: Activation, along: Floats, heights: Floats, turned: bool) -> Bend:
    """Sharpness and place of one bend, by least squares from the best of a grid."""
    grid = np.geomspace(1e-2, 1e2, 121) / np.median(np.abs(along))
    errors = np.array([np.abs(profile(phi, sharp, along, turned) - heights).max() for sharp in grid])
    best = grid[np.argmin(errors)]
    width = 1 / best

    def gaps(unknown: Floats) -> Floats:
        return np.asarray((profile(phi, best * np.exp(unknown[0]), along + unknown[1] * width, turned) - heights) / width)

    # bounded: a bend that is no bend at all (sharpness 0) would fit anything, in its own widths
    result = scipy.optimize.least_squares(
        gaps, np.zeros(2), bounds=([-BENDS.free, -BENDS.free], [BENDS.free, BENDS.free]), xtol=1e-15, ftol=1e-15, gtol=1e-15
    )
    sharp = float(best * np.exp(result.x[0]))
    return Bend(phi, sharp, float(result.x[1] * width), turned, float(np.abs(result.fun).max() * width * sharp))


class Lines(Protocol):
    """Neurons known as corners, each with a line across its hyperplane on which the others are straight."""

    @property
    def units(self) -> Floats:
        """Unit normals ``(neurons, width)``."""

    @property
    def reach(self) -> float:
        """Distance from a hyperplane at which its neuron is straight."""

    @property
    def if_sharp(self) -> str:
        """What a target is whose neurons do not bend smoothly, in words."""

    def across(self, j: int, distances: Floats) -> Floats:
        """Points ``(n, width)`` on the line of neuron ``j`` at ``distances (n,)`` from its hyperplane."""

    def heights(self, j: int, points: Floats, answers: Floats) -> Floats:
        """What neuron ``j`` alone adds to ``answers``, in units of its jump, ``(n,)``."""


class StrangeBendError(NotInFamilyError):
    """Neurons that bend as no activation known here; or several at once, or seen from too near."""


def activation_of(corners: Lines, questions: Questions, order: list[int]) -> Bend:
    """The activation, from looks across the neurons in ``order`` until one fits.

    Raises:
        NotInFamilyError: the neurons are corners (a ReLU network).
        StrangeBendError: they bend in another way.
    """
    phase(questions.oracle, "activation")
    strange: list[int] = []
    best: list[Bend] = []
    for j in order[: BENDS.strangers + 1]:
        along, heights, bent = across(corners, questions, j)
        if not bent:
            raise NotInFamilyError(
                f"Within {np.abs(along).min():.1e} of a neuron's hyperplane its answers still form a sharp corner: "
                f"{corners.if_sharp}",
                evidence={"corner": float(np.abs(along).min())},
            )
        best = best_bends(along, heights)
        if best[0].misfit <= BENDS.bends_agree and best[1].misfit >= BENDS.bends_apart * best[0].misfit:
            return best[0]
        strange.append(j)
    raise StrangeBendError(
        f"{len(strange)} neurons bend smoothly, but as none of {', '.join(SMOOTH)}: the nearest, {best[0].phi.name}, misses "
        f"by {best[0].misfit:.1e} of the width of the bend. Attention in front of such a network can be learned (family "
        "`attention-behind-network`).",
        evidence={"nearest": best[0].phi.name, "misfit": best[0].misfit},
    )


def across(corners: Lines, questions: Questions, j: int) -> tuple[Floats, Floats, bool]:
    """Heights of neuron ``j`` at distances on both sides, nearer and nearer until they show its bend."""
    largest = corners.reach / 2
    along, heights = np.zeros(0), np.zeros(0)
    for _ in range(BENDS.again):
        steps = largest * BENDS.shrink ** -np.arange(BENDS.looks) * np.array([1.0, -1.0])[np.arange(BENDS.looks) % 2]
        points = corners.across(j, steps)
        found = corners.heights(j, points, questions.ask(points))
        along, heights = np.concatenate([along, steps]), np.concatenate([heights, found])
        off = np.abs(found - np.maximum(steps, 0.0)) / np.abs(steps)
        if np.sum(off > BENDS.round) >= 3:
            return along, heights, True
        largest = float(np.abs(steps[-1])) / BENDS.shrink
    return along, heights, False


def sharpness(corners: Lines, questions: Questions, phi: Activation, guess: float) -> tuple[Floats, Floats]:
    """Length of every neuron's row and whether it is turned, ``(neurons,)`` each, from one answer near each hyperplane and more
    where that was too far off or too near (two where the sides of an activation differ)."""
    phase(questions.oracle, "sharpness")
    neurons = len(corners.units)
    steps = np.full(neurons, 1 / guess)
    sharp, turned = np.full(neurons, guess), np.zeros(neurons, dtype=bool)
    todo = list(range(neurons))
    for _ in range(BENDS.tries):
        points = np.concatenate([corners.across(j, -steps[j : j + 1]) for j in todo])
        answers = questions.ask(points)
        again: list[int] = []
        for i, j in enumerate(todo):
            height = float(corners.heights(j, points[i : i + 1], answers[i : i + 1])[0])
            sharp[j] = told_sharpness(phi, float(steps[j]), height)
            if not BENDS.sharpness_least <= sharp[j] * steps[j] <= BENDS.sharpness_most:
                again.append(j)
                steps[j] = float(np.clip(1 / sharp[j], steps[j] / 16, 16 * steps[j]))
        todo = again
        if not todo:
            break
    if not phi.even:
        for j in range(neurons):
            along = np.array([1.0, -0.6, 0.4]) / sharp[j]
            points = corners.across(j, along)
            heights = corners.heights(j, points, questions.ask(points))
            best = min((fitted_bend(phi, along, heights, side) for side in (False, True)), key=lambda bend: bend.misfit)
            sharp[j], turned[j] = best.sharp, best.turned
    return sharp, turned


def told_sharpness(phi: Activation, step: float, height: float) -> float:
    """The sharpness at which a bend has ``height`` at distance ``step`` on its off side, where heights only shrink with it."""
    low, high = np.log(1e-3 / step), np.log(1e3 / step)
    along = np.array([-step])
    sign = np.sign(profile(phi, np.exp(low), along)[0])
    for _ in range(60):
        middle = (low + high) / 2
        if sign * (profile(phi, np.exp(middle), along)[0] - height) > 0:
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


def curves_of(corners: Corners, phi: Activation, sharp: Floats, turned: Floats) -> Curves:
    """The network with those bends."""
    sign = np.where(turned, -1.0, 1.0)
    out = corners.jumps / sharp[:, None]
    shift = sign * sharp * corners.offsets + phi.low - phi.high
    low = np.where(turned, shift + phi.high, phi.low)
    return Curves(
        phi,
        out,
        (sign * sharp)[:, None] * corners.units,
        shift,
        corners.linear + (turned[:, None] * corners.jumps).T @ corners.units,
        corners.constant - low @ out,
    )
