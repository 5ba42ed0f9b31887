"""Neurons that are almost duplicates: told apart by what all answers leave unexplained, without a further question.

Two neurons with rows and biases ``q_1``, ``q_2`` close together and output weights ``(1 - w) C``, ``w C`` add up to one neuron at
``q = (1 - w) q_1 + w q_2``, plus ``mu / 2`` times its second derivative along ``u = (q_2 - q_1) / g``, plus ``mu k / 6`` times the
third, where ``g = |q_2 - q_1|``, ``mu = w (1 - w) g^2`` and ``k = (1 - 2 w) g``. Answers tell ``mu`` well and ``k`` badly: in
weights and biases that is a long curved valley, where a fit by straight steps gets stuck; in ``(C, q, mu, k, u)`` it is straight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.linalg import null_space, qr, solve_triangular

from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Floats
from unsoftmax.models.activations import Activation


class Pair(NamedTuple):
    """Two neurons of a network, by their numbers."""

    first: int
    second: int


@dataclass(frozen=True, eq=False)
class Moments:
    """Two neurons in the coordinates in which their answers are nearly straight.

    Attributes:
        total: sum ``C (outputs,)`` of their output weights.
        mean: row and bias ``q (width + 1,)`` of the neuron that they nearly are.
        second: ``mu``.
        third: ``k``.
        unit: direction ``u (width + 1,)`` from the first to the second.
        beside: what the second neuron's output weights have across ``C``, times ``g``, ``(outputs - 1,)``.
    """

    total: Floats
    mean: Floats
    second: float
    third: float
    unit: Floats
    beside: Floats

    @classmethod
    def of(cls, curves: Curves, pair: Pair) -> Moments:
        """Those of two neurons of a network."""
        rows = np.c_[curves.normal, curves.shift][list(pair)]
        total = curves.out[list(pair)].sum(axis=0)
        share = float(curves.out[pair.second] @ total) / float(total @ total)
        apart = rows[1] - rows[0]
        distance = float(np.linalg.norm(apart))
        beside = null_space(total[None]).T @ curves.out[pair.second] * distance
        mean = (1 - share) * rows[0] + share * rows[1]
        return cls(total, mean, share * (1 - share) * distance**2, (1 - 2 * share) * distance, apart / distance, beside)

    @cached_property
    def _across(self) -> tuple[Floats, Floats]:
        """Bases of what is perpendicular to the total, and to the direction."""
        return null_space(self.total[None]), null_space(self.unit[None])

    def moved(self, step: NDArray[np.inexact]) -> NDArray[np.inexact]:
        """Output weights and then rows with biases of both neurons, one after the other, after a step in these coordinates.

        Steps may be complex, for derivatives. Where no two neurons have such moments, they come ten times as near as they were.
        """
        outputs, size = len(self.total), len(self.mean)
        total, mean = self.total + step[:outputs], self.mean + step[outputs : outputs + size]
        second, third = self.second + step[outputs + size], self.third + step[outputs + size + 1]
        turn, aside = step[outputs + size + 2 : outputs + 2 * size + 1], self.beside + step[outputs + 2 * size + 1 :]
        square = third**2 + 4 * second
        least = max(0.01 * (self.third**2 + 4 * self.second), (BENDS.closest * float(np.linalg.norm(self.mean))) ** 2)
        distance = np.sqrt(square if square.real > least else least)
        share = (1 - third / distance) / 2
        unit = self.unit + self._across[1] @ turn
        apart = unit * (distance / np.sqrt(unit @ unit))
        out = share * total + self._across[0] @ aside / distance
        return np.concatenate([total - out, out, mean - share * apart, mean + (1 - share) * apart])

    def derivatives(self) -> Floats:
        """Those of weights and rows in these coordinates, ``(n, n)``; by steps along the imaginary axis, which lose no digits."""
        count = 2 * (len(self.total) + len(self.mean))
        return np.stack([self.moved(1e-30j * axis).imag / 1e-30 for axis in np.eye(count)], axis=1)


@dataclass(frozen=True, eq=False)
class Paired:
    """A network some of whose neurons are moved in pairs, by their moments; else as it is."""

    curves: Curves
    pairs: tuple[Pair, ...]

    @property
    def normal(self) -> Floats:
        """Rows."""
        return self.curves.normal

    def before(self, points: Floats) -> Floats:
        """Pre-activations."""
        return self.curves.before(points)

    def __call__(self, points: Floats) -> Floats:
        """Values."""
        return self.curves(points)

    def sizes(self, points: Floats) -> Floats:
        """Size of the numbers added up."""
        return self.curves.sizes(points)

    def derivatives(self, points: Floats, weights: Floats, linear: bool) -> Floats:
        """As of the network, with the columns of each pair in its moments."""
        rows = self.curves.derivatives(points, weights, linear)
        for pair in self.pairs:
            columns = self.columns(pair)
            rows[:, columns] = rows[:, columns] @ Moments.of(self.curves, pair).derivatives()
        return rows

    def moved_by(self, step: Floats, linear: bool) -> Paired:
        """The network with its parameters changed."""
        step = step.copy()
        for pair in self.pairs:
            columns, moments = self.columns(pair), Moments.of(self.curves, pair)
            step[columns] = moments.moved(step[columns]) - moments.moved(np.zeros(len(columns)))
        return replace(self, curves=self.curves.moved_by(step, linear))

    def columns(self, pair: Pair) -> NDArray[np.int_]:
        """Places of a pair's output weights, rows and biases among the parameters, in the order of ``Moments.moved``."""
        (neurons, outputs), width = self.curves.out.shape, self.curves.normal.shape[1]
        out = [neurons * (width + 1) + j * outputs + np.arange(outputs) for j in pair]
        rows = [np.append(j * width + np.arange(width), neurons * width + j) for j in pair]
        return np.concatenate([*out, *rows])


def fitted_pairs(answers: Answers, curves: Curves, pairs: tuple[Pair, ...], linear: bool) -> tuple[Curves, float]:
    """All parameters fitted to all answers, pairs by their moments; and the misfit in expected errors.

    Of two neurons that point opposite ways, with no linear part beside them, the slopes tell the output weights: no valley.
    """
    found, misfit = answers.fit(Paired(curves, tuple(pair for pair in pairs if np.dot(*curves.normal[list(pair)]) > 0)), linear)
    return found.curves, misfit


def doubled(curves: Curves, answers: Answers, pairs: tuple[Pair, ...]) -> tuple[Pair, list[Curves]]:
    """The fitted network with one of its neurons, of no pair yet, replaced by two almost alike; and these, most promising first.

    Which neuron: the one whose second derivatives along its row and its bias explain most of what the fit has left, all other
    parameters being free. Then the two are fitted to that, with the others eliminated, from several ratios of weights.
    """
    own = answers.clear(curves)
    weights = own.weights(curves, own.points)
    matrix = curves.derivatives(own.points, weights, True)
    scales = np.sqrt(np.einsum("ij,ij->j", matrix, matrix))
    basis = qr(matrix / np.where(scales > 0, scales, 1.0), mode="economic", overwrite_a=True, check_finite=False)[0]

    def left(columns: Floats) -> Floats:
        """What no change of the parameters explains."""
        once = columns - basis @ (basis.T @ columns)
        return np.asarray(once - basis @ (basis.T @ once))

    def weighted(heights: Floats, j: int) -> Floats:
        """What heights ``(n,)`` of neuron ``j`` add to the weighted answers."""
        return np.asarray(np.outer(curves.out[j], heights * weights).ravel())

    gaps = left(((own.answers - curves(own.points)) * weights[:, None]).T.ravel())
    before = curves.before(own.points)
    best, lowest = 0, np.inf
    tensor: Floats = np.zeros(3)
    for j in set(range(curves.neurons)) - {j for pair in pairs for j in pair}:
        z, along = before[:, j], before[:, j] - curves.shift[j]
        bend = _second(curves.phi, z)
        columns = left(np.stack([weighted(bend * power, j) for power in (0.5, along, 0.5 * along**2)], axis=1))
        solution = np.asarray(np.linalg.lstsq(columns, gaps, rcond=1e-10)[0], dtype=np.float64)
        misfit = float(np.linalg.norm(gaps - columns @ solution))
        if misfit < lowest:
            best, lowest, tensor = j, misfit, solution
    sizes, axes = np.linalg.eigh([[tensor[0], tensor[1]], [tensor[1], tensor[2]]])
    main = int(np.argmax(np.abs(sizes)))
    size, angle = max(float(np.sqrt(abs(sizes[main]))), 10 * BENDS.closest), float(np.arctan2(axes[1, main], axes[0, main]))
    sign = 1.0 if sizes[main] > 0 else -1.0
    z, along = before[:, best], before[:, best] - curves.shift[best]

    def bends(unknown: Floats) -> tuple[float, float, float, float]:
        """Share of the second neuron, distances of both from the first, and the angle."""
        square = unknown[1] ** 2 + 4 * unknown[0]
        distance = np.sqrt(max(square, 0.01))
        share = (1 - unknown[1] / distance) / 2
        return share, -share * distance * size, (1 - share) * distance * size, unknown[2]

    def missing(unknown: Floats) -> Floats:
        share, one, other, way = bends(unknown)
        pull = np.cos(way) + np.sin(way) * along
        heights = (1 - share) * curves.phi.value(z + one * pull) + share * curves.phi.value(z + other * pull)
        return np.asarray((gaps - left(weighted(heights - curves.phi.value(z), best))) / scale)

    scale = float(np.linalg.norm(gaps)) or 1.0
    found = []
    for third in BENDS.thirds if sign > 0 else BENDS.thirds[1:]:
        for way in (1.0, -1.0):
            result = scipy.optimize.least_squares(missing, [sign, way * third, angle], x_scale=[1.0, third + 1.0, 1.0], max_nfev=40)
            found.append((result.cost, result.x))
    found.sort(key=lambda one: one[0])
    return Pair(best, curves.neurons), [_with_two(curves, best, *bends(unknown)) for _, unknown in found[: BENDS.tried]]


def merged(curves: Curves, pairs: tuple[Pair, ...], gone: Pair) -> tuple[Curves, tuple[Pair, ...]]:
    """The network with one pair made one neuron again, and the other pairs in it."""
    moments = Moments.of(curves, gone)
    out, normal, shift = curves.out.copy(), curves.normal.copy(), curves.shift.copy()
    out[gone.first], normal[gone.first], shift[gone.first] = moments.total, moments.mean[:-1], moments.mean[-1]
    kept = np.delete(np.arange(len(shift)), gone.second)
    others = (Pair(*(int(np.searchsorted(kept, j)) for j in pair)) for pair in pairs if pair != gone)
    return replace(curves, out=out[kept], normal=normal[kept], shift=shift[kept]), tuple(others)


def alike(curves: Curves) -> list[tuple[Pair, bool]]:
    """Neurons almost alike, and whether they point opposite ways (which for even activations is a linear part beside them)."""
    units = curves.normal / np.linalg.norm(curves.normal, axis=1, keepdims=True)
    cosines = units @ units.T
    rows = np.c_[curves.normal, curves.shift]
    found = []
    for i, j in np.argwhere(np.triu(np.abs(cosines) > 1 - BENDS.parallel**2 / 2, 1)):
        opposite = bool(cosines[i, j] < 0)
        apart = float(np.linalg.norm(rows[i] + rows[j] if opposite else rows[i] - rows[j]))
        if 0 < apart <= BENDS.alike * max(1.0, float(np.linalg.norm(rows[i]))) and (curves.phi.even or not opposite):
            found.append((Pair(int(i), int(j)), opposite))
    return found


def notes_on_pairs(curves: Curves, answers: Answers) -> tuple[str, ...]:
    """A sentence for every two neurons almost alike, which are told together as exactly as the rest: how well each of them is."""
    notes = []
    for pair, opposite in alike(curves):
        aligned = curves.turned(np.arange(curves.neurons) == pair.second) if opposite else curves
        moments = Moments.of(aligned, pair)
        apart = float(np.sqrt(moments.third**2 + 4 * moments.second))
        own = answers.clear(aligned)
        paired = Paired(aligned, (pair,))
        matrix = paired.derivatives(own.points, own.weights(aligned, own.points), True)
        place = int(paired.columns(pair)[len(moments.total) + len(moments.mean) + 1])
        scales = np.sqrt(np.einsum("ij,ij->j", matrix, matrix))
        factor = qr(matrix / np.where(scales > 0, scales, 1.0), mode="r", check_finite=False)[0][: len(scales)]
        goal = np.zeros(len(scales))
        goal[place] = 1.0
        known = float(np.linalg.norm(solve_triangular(factor, goal, trans="T", check_finite=False))) / scales[place] / apart
        notes.append(
            f"Two neurons have rows of one direction and lie {apart:.1e} apart in row and bias. Together they are as exact as the "
            f"others; each for itself is told to about {known:.0e} of that distance."
        )
    return tuple(notes)


def _with_two(curves: Curves, j: int, share: float, one: float, other: float, way: float) -> Curves:
    """Neuron ``j`` replaced by two, the second at the end, moved so far along a direction between its bias and a longer row."""
    out, normal, shift = curves.out.copy(), curves.normal.copy(), curves.shift.copy()
    out[j] *= 1 - share
    normal[j] *= 1 + one * np.sin(way)
    shift[j] += one * np.cos(way)
    return replace(
        curves,
        out=np.concatenate([out, share * curves.out[j : j + 1]]),
        normal=np.concatenate([normal, (1 + other * np.sin(way)) * curves.normal[j : j + 1]]),
        shift=np.append(shift, curves.shift[j] + other * np.cos(way)),
    )


def _second(phi: Activation, z: Floats) -> Floats:
    """Second derivative, to a start's precision."""
    return np.asarray((phi.slope(z + 1e-4) - phi.slope(z - 1e-4)) / 2e-4)
