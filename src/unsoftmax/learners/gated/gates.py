"""A gated network while it is being learned: its values, and their derivatives in its parameters."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models import Floats
from unsoftmax.models.activations import Activation

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Gates:
    """``f(x) = constant + linear @ x + sum_j out[j] * phi(normal[j]·x + shift[j]) * (up[j]·x + lift[j])``.

    Attributes:
        phi: the activation.
        normal: rows of the gates, ``(neurons, width)``.
        shift: their biases ``(neurons,)``.
        up: what they let through, ``(neurons, width)``.
        lift: its biases ``(neurons,)``.
        out: ``(neurons, outputs)``.
        linear: ``(outputs, width)``.
        constant: ``(outputs,)``.
    """

    phi: Activation
    normal: Floats
    shift: Floats
    up: Floats
    lift: Floats
    out: Floats
    linear: Floats
    constant: Floats

    @property
    def neurons(self) -> int:
        """Number of gates."""
        return len(self.shift)

    def before(self, points: Floats) -> Floats:
        """What the gates see, ``(n, neurons)``."""
        return points @ self.normal.T + self.shift

    def __call__(self, points: Floats) -> Floats:
        """Values ``(n, outputs)``."""
        passed = self.phi.value(self.before(points)) * (points @ self.up.T + self.lift)
        return np.asarray(passed @ self.out + points @ self.linear.T + self.constant)

    def gradients(self, points: Floats) -> Floats:
        """Derivatives in the points ``(n, outputs, width)``."""
        before, ups = self.before(points), points @ self.up.T + self.lift
        slopes = np.einsum("nj,jo,jw->now", self.phi.slope(before) * ups, self.out, self.normal, optimize=True)
        slopes += np.einsum("nj,jo,jw->now", self.phi.value(before), self.out, self.up, optimize=True)
        return np.asarray(slopes + self.linear)

    def lengths(self) -> Floats:
        """Distance from the origin within which each gate bends, on a random line through it, ``(neurons,)``."""
        norms = np.maximum(np.linalg.norm(self.normal, axis=1), 1e-300)
        return np.asarray((np.abs(self.shift) + 1) / norms * np.sqrt(self.normal.shape[1]))

    def sizes(self, points: Floats) -> Floats:
        """Size of the numbers that such a target adds up at ``points``, ``(n,)``."""
        width = self.normal.shape[1]
        lengths = np.linalg.norm(points, axis=1)[:, None] / np.sqrt(width)
        gates = lengths * np.linalg.norm(self.normal, axis=1) + np.abs(self.shift) + 1
        ups = lengths * np.linalg.norm(self.up, axis=1) + np.abs(self.lift)
        rest = lengths[:, 0] * np.linalg.norm(self.linear) + np.abs(self.constant).max(initial=0.0)
        return np.asarray((gates * ups) @ np.linalg.norm(self.out, axis=1) + rest)

    def parameters(self) -> dict[str, Floats]:
        """All numbers by name, in the order of ``derivatives``."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)[1:]}

    def free(self, *names: str) -> Mask:
        """Which parameters a fit of the named parts moves; of each neuron's ``out`` the largest number stands still, for its ``up``
        takes over the scale, and of its ``normal`` too where the activation does not tell the length of it (ReLU)."""
        masks = {name: np.full(block.shape, name in names) for name, block in self.parameters().items()}
        neurons = np.arange(self.neurons)
        masks["out"][neurons, np.argmax(np.abs(self.out), axis=1)] = False
        if self.phi.name == "relu":
            masks["normal"][neurons, np.argmax(np.abs(self.normal), axis=1)] = False
        return np.concatenate([mask.ravel() for mask in masks.values()])

    def derivatives(self, points: Floats, weights: Floats, free: Mask) -> Floats:
        """Derivatives of the weighted answers in the ``free`` parameters, ``(outputs * n, free)``; rows output by output."""
        (neurons, outputs), width, count = self.out.shape, self.normal.shape[1], len(points)
        before, ups = self.before(points), points @ self.up.T + self.lift
        gates, slopes = self.phi.value(before) * weights[:, None], self.phi.slope(before) * ups * weights[:, None]
        rows = np.zeros((outputs, count, len(free)))
        own = neurons * (width + 1)
        for o in range(outputs):
            for start, factor in ((0, slopes * self.out[:, o]), (own, gates * self.out[:, o])):
                block = rows[o, :, start : start + neurons * width].reshape(count, neurons, width)
                np.multiply(factor[:, :, None], points[:, None, :], out=block)
                rows[o, :, start + neurons * width : start + own] = factor
            rows[o, :, 2 * own + o : 2 * own + neurons * outputs : outputs] = gates * ups
            start = 2 * own + neurons * outputs
            rows[o, :, start + o * width : start + (o + 1) * width] = points * weights[:, None]
            rows[o, :, start + outputs * width + o] = weights
        return rows.reshape(outputs * count, len(free))[:, free]

    def moved_by(self, step: Floats, free: Mask) -> Gates:
        """The function with its free parameters changed by ``step``."""
        whole = np.zeros(len(free))
        whole[free] = step
        moved: dict[str, Any] = {}
        start = 0
        for name, block in self.parameters().items():
            moved[name] = block + whole[start : start + block.size].reshape(block.shape)
            start += block.size
        return replace(self, **moved)
