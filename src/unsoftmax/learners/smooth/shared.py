"""Neurons that share a direction: seen from afar they are one corner, across it they are several bends."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import scipy

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.smooth.bends import best_bends, profile
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.offsets import Corners
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Floats
from unsoftmax.models.activations import Activation
from unsoftmax.oracles.base import phase


@dataclass(frozen=True, slots=True, eq=False)
class Bends:
    """Bends across one hyperplane: their jumps ``(bends, outputs)``, sharpness, places and sides ``(bends,)``."""

    jumps: Floats
    sharp: Floats
    places: Floats
    turned: tuple[bool, ...]


def suspects(corners: Corners, questions: Questions, phi: Activation, sharp: Floats, turned: Floats) -> list[int]:
    """The neurons whose answers at two further places are not those of one bend; 2 questions each."""
    phase(questions.oracle, "shared directions")
    along = np.array([-0.4, 1.3])
    points = np.concatenate([corners.across(j, along / sharp[j]) for j in range(len(sharp))])
    answers = questions.ask(points).reshape(len(sharp), 2, -1)
    errors = np.zeros(len(sharp))
    for j in range(len(sharp)):
        told = corners.heights(j, points[2 * j : 2 * j + 2], answers[j])
        expected = profile(phi, float(sharp[j]), along / sharp[j], bool(turned[j]))
        errors[j] = np.abs(told - expected).max() * sharp[j]
    return [int(j) for j in np.flatnonzero(errors > max(BENDS.suspect, BENDS.shared_apart * float(np.median(errors))))]


def separated(corners: Corners, questions: Questions, phi: Activation, j: int, rng: np.random.Generator) -> Bends:
    """The neurons, three at most, whose hyperplanes are parallel to that of corner ``j``; ``2 * coarse + fine`` questions and more
    where their bends lie far from the crossing of the straight parts.

    Raises:
        NotInFamilyError: more of them, too close together, or of another activation.
    """
    along, heights, extent = _looked(corners, questions, j)
    best, lowest = None, np.inf
    for count in range(1, BENDS.most + 1):
        sides = _sides(phi, count)
        starts = {1: BENDS.starts // 5, 2: BENDS.starts, 3: 2 * BENDS.starts}[count] // len(sides) + 1
        for turned in sides:
            bends, misfit = _fitted(phi, along, heights, extent, turned, starts, rng)
            if misfit < lowest / BENDS.shared_apart or (best is not None and len(best.sharp) == count and misfit < lowest):
                best, lowest = bends, misfit
        if lowest <= BENDS.exactly or (count == BENDS.most - 1 and lowest <= BENDS.fits):
            break
        if count == 1:
            _refuse_mixture(phi, along, heights @ corners.jumps[j] / (corners.jumps[j] @ corners.jumps[j]))
    strengths = np.zeros(0) if best is None else np.linalg.norm(best.jumps, axis=1)
    if best is None or lowest > BENDS.fits or not strengths.any():
        raise NotInFamilyError(
            f"{len(along)} answers across one hyperplane are not those of up to {BENDS.most} {phi.name} bends (they miss by "
            f"{lowest:.1e} of their width): more neurons share that direction of weights, they lie too close together, or they "
            "bend otherwise.",
            evidence={"misfit": lowest},
        )
    kept = np.flatnonzero(strengths > BENDS.faint * strengths.max())
    return Bends(best.jumps[kept], best.sharp[kept], best.places[kept], tuple(best.turned[k] for k in kept))


def _sides(phi: Activation, count: int) -> list[tuple[bool, ...]]:
    """Which way round so many neurons may be written."""
    return [(False,) * count] if phi.even else list(itertools.product((False, True), repeat=count))


def _refuse_mixture(phi: Activation, along: Floats, heights: Floats) -> None:
    """Refuse a network one of whose neurons bends alone (``heights (n,)`` in units of its jump), but as another activation does."""
    best = best_bends(along, heights)[0]
    if best.phi.name != phi.name and best.misfit <= BENDS.bends_agree:
        raise NotInFamilyError(
            f"One neuron bends as {best.phi.name} does and others as {phi.name}: networks of several activations are not learned.",
            evidence={"activations": [phi.name, best.phi.name]},
        )


def _looked(corners: Corners, questions: Questions, j: int) -> tuple[Floats, Floats, tuple[float, float]]:
    """Distances from hyperplane ``j``, what its neurons add there, and between which of them they bend.

    The crossing of the straight parts may lie far from the bends, where two jumps nearly cancel: the extent is narrowed down.
    """
    steps = corners.reach * BENDS.shrink ** -np.arange(BENDS.coarse)
    along = np.concatenate([-steps, steps[::-1]])
    heights = _vectors(corners, questions, j, along)
    size = float(np.linalg.norm(corners.jumps[j]))
    low, high = -np.inf, np.inf
    for _ in range(3):
        allowed = BENDS.bent * size * (np.abs(along) + steps[-1])
        off = np.linalg.norm(heights, axis=1) > allowed
        beyond = np.linalg.norm(heights - along[:, None] * corners.jumps[j], axis=1) > allowed
        before, width = along[: int(np.argmax(off))] if off.any() else along[:1], high - low
        after = along[len(along) - int(np.argmax(beyond[::-1])) :] if beyond.any() else along[-1:]
        low, high = float(before.max(initial=along[0])), float(after.min(initial=along[-1]))
        if low >= high:  # an answer that lies on both straight parts, at their crossing
            low, high = high - float(steps[-1]), low + float(steps[-1])
        if not high - low < width / 2:
            break
        fine = np.linspace(low, high, BENDS.fine + 2)[1:-1]
        along, heights = np.concatenate([along, fine]), np.concatenate([heights, _vectors(corners, questions, j, fine)])
        order = np.argsort(along, kind="stable")
        along, heights = along[order], heights[order]
    return along, heights, (low, high)


def _vectors(corners: Corners, questions: Questions, j: int, along: Floats) -> Floats:
    """What the neurons of corner ``j`` add to the answers at distances ``along``, ``(n, outputs)``."""
    points = corners.across(j, along)
    own = np.maximum(points @ corners.units[j] + corners.offsets[j], 0.0)
    return np.asarray(questions.ask(points) - corners(points) + own[:, None] * corners.jumps[j])


def _fitted(
    phi: Activation,
    along: Floats,
    heights: Floats,
    between: tuple[float, float],
    turned: tuple[bool, ...],
    starts: int,
    rng: np.random.Generator,
) -> tuple[Bends, float]:
    """Sharpness and places by least squares from many starts; the jumps are linear in the answers and solved for."""
    count, centre, extent = len(turned), sum(between) / 2, (between[1] - between[0]) / 2
    weights = 1 / (extent / BENDS.fine + 0.05 * np.abs(along - centre))  # far answers carry their slope's error
    size = float(np.linalg.norm(heights, axis=1).max()) / float(np.abs(along).max())

    def basis(unknown: Floats) -> Floats:
        sharp, places = np.exp(unknown[:count]), unknown[count:]
        columns = [profile(phi, float(r), along - t, side) for r, t, side in zip(sharp, places, turned, strict=True)]
        return np.stack([*columns, np.ones_like(along)], axis=1) * weights[:, None]

    def gaps(unknown: Floats) -> Floats:
        columns = basis(unknown)
        jumps = np.linalg.lstsq(columns, heights * weights[:, None], rcond=1e-13)[0]
        return np.asarray((columns @ jumps - heights * weights[:, None]).ravel() / size)

    best, lowest = np.zeros(2 * count), np.inf
    bounds = (
        np.concatenate([np.full(count, np.log(0.3 / extent)), np.full(count, centre - 1.5 * extent)]),
        np.concatenate([np.full(count, np.log(400 / extent)), np.full(count, centre + 1.5 * extent)]),
    )
    scales = np.repeat([0.3, 0.1 * extent], count)
    for _ in range(starts):
        places = centre + rng.uniform(-0.6, 0.6, size=count) * extent
        sharp = rng.uniform(3, 40, size=count) if count > 1 else np.exp(rng.uniform(1, 5.5, size=1))
        start = np.concatenate([np.log(sharp / extent), places])
        result = scipy.optimize.least_squares(
            gaps, start, bounds=bounds, x_scale=scales, xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=80
        )
        misfit = float(np.abs(result.fun).max())
        if misfit < lowest:
            best, lowest = result.x, misfit
        if lowest <= 0.01 * BENDS.fits:
            break
    if lowest <= BENDS.fits:  # bends that lie close together: a narrow valley, followed to its end
        result = scipy.optimize.least_squares(
            gaps, best, "3-point", bounds, x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=400
        )
        misfit = float(np.abs(result.fun).max())
        best, lowest = (result.x, misfit) if misfit < lowest else (best, lowest)
    jumps = np.linalg.lstsq(basis(best), heights * weights[:, None], rcond=1e-13)[0][:count]
    return Bends(np.asarray(jumps), np.exp(best[:count]), best[count:], turned), lowest


def with_bends(curves: Curves, corners: Corners, j: int, bends: Bends) -> Curves:
    """The network with neuron ``j`` replaced by several of its direction."""
    phi, unit = curves.phi, corners.units[j]
    whole = np.delete(np.arange(curves.neurons), j)
    old_turned = bool(curves.normal[j] @ unit < 0)
    linear, constant = curves.linear.copy(), curves.constant.copy()
    if old_turned:  # what the single neuron had moved into the linear part goes back
        linear -= np.outer(corners.jumps[j], unit)
        constant += (curves.shift[j] + phi.high) * curves.out[j]
    else:
        constant += phi.low * curves.out[j]
    out, normal, shift = [], [], []
    for c, rho, place, turned in zip(bends.jumps, bends.sharp, bends.places, bends.turned, strict=True):
        sign = -1.0 if turned else 1.0
        out.append(c / rho)
        normal.append(sign * rho * unit)
        own = sign * rho * (corners.offsets[j] - place) + phi.low - phi.high
        shift.append(own)
        if turned:
            linear += np.outer(c, unit)
            constant -= (own + phi.high) * c / rho
        else:
            constant -= phi.low * c / rho
    return Curves(
        phi,
        np.concatenate([curves.out[whole], out]),
        np.concatenate([curves.normal[whole], normal]),
        np.concatenate([curves.shift[whole], shift]),
        linear,
        constant,
    )
