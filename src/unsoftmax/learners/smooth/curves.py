"""A network of smooth neurons while it is being learned: its values, and their derivatives in the points and in its parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models import Floats
from unsoftmax.models.activations import Activation


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """``f(x) = constant + linear @ x + sum_j out[j] * phi(normal[j]·x + shift[j])``.

    Attributes:
        phi: the activation.
        out: ``(neurons, outputs)``.
        normal: ``(neurons, width)``.
        shift: ``(neurons,)``.
        linear: ``(outputs, width)``.
        constant: ``(outputs,)``.
    """

    phi: Activation
    out: Floats
    normal: Floats
    shift: Floats
    linear: Floats
    constant: Floats

    @property
    def neurons(self) -> int:
        """Number of neurons."""
        return len(self.shift)

    def before(self, points: Floats) -> Floats:
        """Pre-activations ``(n, neurons)``."""
        return points @ self.normal.T + self.shift

    def __call__(self, points: Floats) -> Floats:
        """Values ``(n, outputs)``."""
        return np.asarray(self.phi.value(self.before(points)) @ self.out + points @ self.linear.T + self.constant)

    def gradients(self, points: Floats) -> Floats:
        """Derivatives in the points ``(n, outputs, width)``."""
        slopes = self.phi.slope(self.before(points))
        return np.asarray(np.einsum("nj,jo,jw->now", slopes, self.out, self.normal, optimize=True) + self.linear)

    def lengths(self) -> Floats:
        """Distance from the origin within which each neuron bends, on a random line through it, ``(neurons,)``."""
        norms = np.maximum(np.linalg.norm(self.normal, axis=1), 1e-300)
        return np.asarray((np.abs(self.shift) + 1) / norms * np.sqrt(self.normal.shape[1]))

    def sizes(self, points: Floats) -> Floats:
        """Size of the numbers that such a target adds up at ``points``, ``(n,)``."""
        strengths = np.linalg.norm(self.out, axis=1)
        norms = np.linalg.norm(self.normal, axis=1)
        offset = float(strengths @ (np.abs(self.shift) + 1) + np.abs(self.constant).max(initial=0.0))
        slope = float(2 * strengths @ norms / np.sqrt(max(1, self.normal.shape[1])) + np.linalg.norm(self.linear))
        return np.asarray(offset + slope * np.linalg.norm(points, axis=1))

    def turned(self, chosen: NDArray[np.bool_]) -> Curves:
        """The same function with ``phi(z) = phi(-z) + z`` applied to the chosen neurons; for even activations only."""
        sign = np.where(chosen, -1.0, 1.0)
        moved = self.out[chosen]
        return replace(
            self,
            normal=self.normal * sign[:, None],
            shift=self.shift * sign,
            linear=self.linear + moved.T @ self.normal[chosen],
            constant=self.constant + self.shift[chosen] @ moved,
        )

    def derivatives(self, points: Floats, weights: Floats, linear: bool) -> Floats:
        """Derivatives of the weighted answers in the parameters, ``(outputs * n, parameters)``.

        Parameters: ``normal``, ``shift``, ``out``, ``constant`` and, if ``linear``, the linear part; rows output by output.
        """
        count, (neurons, outputs) = len(points), self.out.shape
        width = points.shape[1]
        before = self.before(points)
        bends, slopes = self.phi.value(before) * weights[:, None], self.phi.slope(before) * weights[:, None]
        own = neurons * (width + 1)
        total = own + neurons * outputs + outputs + (outputs * width if linear else 0)
        rows = np.zeros((outputs, count, total))
        for o in range(outputs):
            pull = slopes * self.out[:, o]
            np.multiply(pull[:, :, None], points[:, None, :], out=rows[o, :, : neurons * width].reshape(count, neurons, width))
            rows[o, :, neurons * width : own] = pull
            rows[o, :, own + o : own + neurons * outputs : outputs] = bends
            rows[o, :, own + neurons * outputs + o] = weights
            if linear:
                start = own + neurons * outputs + outputs + o * width
                rows[o, :, start : start + width] = points * weights[:, None]
        return rows.reshape(outputs * count, total)

    def moved_by(self, step: Floats, linear: bool) -> Curves:
        """The function with its parameters changed by ``step``."""
        (neurons, outputs), width = self.out.shape, self.normal.shape[1]
        shapes = [(neurons, width), (neurons,), (neurons, outputs), (outputs,)] + ([(outputs, width)] if linear else [])
        parts, start = [], 0
        for shape in shapes:
            size = int(np.prod(shape))
            parts.append(step[start : start + size].reshape(shape))
            start += size
        return replace(
            self,
            normal=self.normal + parts[0],
            shift=self.shift + parts[1],
            out=self.out + parts[2],
            constant=self.constant + parts[3],
            linear=self.linear + parts[4] if linear else self.linear,
        )
