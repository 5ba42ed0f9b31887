"""A piecewise linear function as bends plus a linear part, and its derivatives in the parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Hinges:
    """``f(x) = constant + linear @ x + sum_j out[j] * relu(normal[j]·x + shift[j])`` with ``|out[j]| = 1``.

    Attributes:
        out: ``(neurons, outputs)``.
        normal: ``(neurons, width)``.
        shift: ``(neurons,)``.
        linear: ``(outputs, width)``.
        constant: ``(outputs,)``.
    """

    out: Floats
    normal: Floats
    shift: Floats
    linear: Floats
    constant: Floats

    @classmethod
    def zero(cls, width: int, outputs: int) -> Hinges:
        """The function that is 0 everywhere."""
        return cls(np.zeros((0, outputs)), np.zeros((0, width)), np.zeros(0), np.zeros((outputs, width)), np.zeros(outputs))

    @property
    def neurons(self) -> int:
        """Number of bends."""
        return len(self.shift)

    def before(self, points: Floats) -> Floats:
        """Pre-activations ``(n, neurons)``."""
        return points @ self.normal.T + self.shift

    def __call__(self, points: Floats) -> Floats:
        """Values ``(n, outputs)``."""
        return np.asarray(np.maximum(self.before(points), 0.0) @ self.out + points @ self.linear.T + self.constant)

    def gradients(self, points: Floats) -> Floats:
        """Derivatives ``(n, outputs, width)``."""
        active = (self.before(points) > 0).astype(np.float64)
        return np.asarray(np.einsum("nj,jo,jw->now", active, self.out, self.normal, optimize=True) + self.linear)

    def plus(self, other: Hinges) -> Hinges:
        """The sum of two functions; bends on one and the same hyperplane become one."""
        return Hinges(
            np.concatenate([self.out, other.out]),
            np.concatenate([self.normal, other.normal]),
            np.concatenate([self.shift, other.shift]),
            self.linear + other.linear,
            self.constant + other.constant,
        )

    def keep(self, chosen: NDArray[np.intp]) -> Hinges:
        """Only some of the bends, by index."""
        return Hinges(self.out[chosen], self.normal[chosen], self.shift[chosen], self.linear, self.constant)

    def sizes(self) -> tuple[float, float]:
        """Offset and slope of the numbers that a target of this kind adds up at ``x``: ``offset + slope * |x|``."""
        norms = np.linalg.norm(self.normal, axis=1)
        width = max(1, self.normal.shape[1])
        offset = float(np.abs(self.shift).sum() + np.abs(self.constant).max(initial=0.0))
        return offset, float(2 * norms.sum() / np.sqrt(width) + np.linalg.norm(self.linear))


def merge_parallel(hinges: Hinges, close: float) -> Hinges:
    """Join bends whose hyperplanes agree within ``close`` (relative) and drop those that cancel."""
    kept: list[int] = []
    out, normal, shift = hinges.out.copy(), hinges.normal.copy(), hinges.shift.copy()
    linear, constant = hinges.linear.copy(), hinges.constant.copy()
    rows = np.concatenate([normal, shift[:, None]], axis=1)
    lengths = np.linalg.norm(normal, axis=1)
    units = rows / np.maximum(lengths, 1e-300)[:, None]
    for j in range(hinges.neurons):
        twin = None
        for i in kept:
            for sign in (1.0, -1.0):
                if np.linalg.norm(units[j] - sign * units[i]) <= close * np.linalg.norm(units[i]):
                    twin = (i, sign)
        if twin is None:
            kept.append(j)
            continue
        i, sign = twin
        if sign < 0:  # relu(z) = relu(-z) + z
            linear += np.outer(out[j], normal[j])
            constant += out[j] * shift[j]
        total = out[i] * lengths[i] + out[j] * lengths[j]
        strength = float(np.linalg.norm(total))
        if strength <= close * (lengths[i] + lengths[j]):
            strength = 0.0
        normal[i], shift[i] = units[i, :-1] * strength, units[i, -1] * strength
        out[i] = total / strength if strength else out[i]
        lengths[i] = strength
    alive = [i for i in kept if lengths[i] > 0]
    return Hinges(out[alive], normal[alive], shift[alive], linear, constant)


def _design(hinges: Hinges, points: Floats, active: Floats, weights: Floats) -> Floats:
    """Derivatives of the weighted answers in the parameters: ``(n * outputs, parameters)``.

    Parameters: for each bend ``normal`` and ``shift``; for each output ``linear`` and ``constant``; with several outputs ``out``
    too.
    """
    count, outputs, neurons = len(points), hinges.out.shape[1], hinges.neurons
    extended = np.concatenate([points, np.ones((count, 1))], axis=1) * weights[:, None]
    side = extended.shape[1]
    blocks = neurons * side
    total = blocks + outputs * side + (neurons * outputs if outputs > 1 else 0)
    rows = np.zeros((outputs, count, total))
    for o in range(outputs):
        np.multiply(
            (active * hinges.out[:, o])[:, :, None], extended[:, None, :], out=rows[o, :, :blocks].reshape(count, neurons, side)
        )
        rows[o, :, blocks + o * side : blocks + (o + 1) * side] = extended
        if outputs > 1:
            rows[o, :, blocks + outputs * side + o :: outputs] = active * hinges.before(points) * weights[:, None]
    return rows.reshape(outputs * count, total)


def shifted(hinges: Hinges, by: Floats) -> Hinges:
    """The same function of ``x - by``."""
    return Hinges(hinges.out, hinges.normal, hinges.shift + hinges.normal @ by, hinges.linear, hinges.constant + hinges.linear @ by)


def moved_by(hinges: Hinges, step: Floats) -> Hinges:
    """The function with its parameters changed by ``step``, bends scaled back to ``|out| = 1``."""
    neurons, outputs = hinges.out.shape
    side = hinges.normal.shape[1] + 1
    blocks = neurons * side
    rows = step[:blocks].reshape(neurons, side)
    affine = step[blocks : blocks + outputs * side].reshape(outputs, side)
    out = hinges.out
    lengths = np.ones(neurons)
    if outputs > 1:
        out = out + step[blocks + outputs * side :].reshape(neurons, outputs)
        lengths = np.linalg.norm(out, axis=1)
        out = out / lengths[:, None]
    return Hinges(
        out,
        (hinges.normal + rows[:, :-1]) * lengths[:, None],
        (hinges.shift + rows[:, -1]) * lengths,
        hinges.linear + affine[:, :-1],
        hinges.constant + affine[:, -1],
    )


def tie_rows(hinges: Hinges, chosen: NDArray[np.bool_]) -> Floats:
    """Derivatives ``(width, parameters)`` of the linear part plus the sum of the ``chosen`` bends; scalar answers."""
    neurons, width = hinges.normal.shape
    side, here = width + 1, np.arange(width)
    rows = np.zeros((width, (neurons + 1) * side))
    rows[here, neurons * side + here] = 1.0
    for j in np.flatnonzero(chosen):
        rows[here, j * side + here] = hinges.out[j, 0]
    return rows


def fixed_pattern(hinges: Hinges, points: Floats, references: Floats) -> Floats:
    """Values with the activation pattern read at ``references``, ``(n, outputs)``."""
    active = hinges.before(references) > 0
    return np.where(active, hinges.before(points), 0.0) @ hinges.out + points @ hinges.linear.T + hinges.constant


def beyond_doubt(hinges: Hinges, points: Floats, margin: float) -> NDArray[np.bool_]:
    """Where the activation pattern ``(n,)`` is beyond doubt, if the bends are right within ``margin`` of the points' usual length.

    Nearer to the origin they are no better known: there a network without biases has the pattern of its rounding errors.
    """
    lengths = np.linalg.norm(points, axis=1)
    lengths = np.maximum(lengths, np.median(lengths))
    sizes = np.linalg.norm(hinges.normal, axis=1) * lengths[:, None] + np.abs(hinges.shift)
    return np.asarray(np.all(np.abs(hinges.before(points)) >= margin * sizes, axis=1))


def design_at(hinges: Hinges, centre: Floats, points: Floats, references: Floats, weights: Floats) -> Floats:
    """Derivatives of the weighted answers in the parameters around ``centre``, ``(outputs * n, parameters)``."""
    active = (hinges.before(references) > 0).astype(np.float64)
    return _design(shifted(hinges, centre), points - centre, active, weights)
