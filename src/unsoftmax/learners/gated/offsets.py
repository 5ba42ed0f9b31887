"""Biases of gates, from answers so far out that every gate is straight; and lines on which one gate alone bends."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.gated.gates import Gates
from unsoftmax.learners.gated.settings import GATES
from unsoftmax.learners.smooth.offsets import telling
from unsoftmax.learners.smooth.places import clear_directions, clear_place
from unsoftmax.models import Floats
from unsoftmax.models.activations import Activation
from unsoftmax.oracles.base import phase


@dataclass(frozen=True, slots=True, eq=False)
class GateCorners:
    """The straight parts of gates: ReLU in the place of their activation, right far from all hyperplanes.

    Attributes:
        gates: with normals of length one.
        places: ``(neurons, width)``: for each gate a unit vector in its hyperplane, far from the others and from where nothing is
            let through.
        margins: ``(neurons,)``: how far.
        reach: distance from a hyperplane at which its gate is straight.
    """

    gates: Gates
    places: Floats
    margins: Floats
    reach: float

    @classmethod
    def of(cls, gates: Gates, reach: float, rng: np.random.Generator) -> GateCorners:
        """Those of the limit."""
        lengths = np.linalg.norm(gates.normal, axis=1)
        units, ups = gates.normal / lengths[:, None], gates.up * lengths[:, None]
        through = ups / np.linalg.norm(ups, axis=1, keepdims=True)
        found = [clear_place(np.concatenate([units, through[j : j + 1]]), j, rng) for j in range(len(units))]
        places, margins = np.array([place for place, _ in found]), np.array([margin for _, margin in found])
        return cls(replace(gates, normal=units, up=ups), places, margins, reach)

    @property
    def units(self) -> Floats:
        """Unit normals."""
        return self.gates.normal

    @property
    def if_sharp(self) -> str:
        """What corners that stay sharp belong to."""
        return "gates of ReLU (ReGLU), which are not learned."

    def across(self, j: int, distances: Floats) -> Floats:
        """Points ``(n, width)`` on a line through hyperplane ``j`` and far from the others, at ``distances (n,)`` from it."""
        foot = self.places[j] * (2 * self.reach / self.margins[j])
        return np.asarray(foot + (np.asarray(distances) - self.gates.shift[j])[:, None] * self.units[j])

    def heights(self, j: int, points: Floats, answers: Floats) -> Floats:
        """What gate ``j`` alone lets through, of what it is offered, ``(n,)``."""
        gates, out = self.gates, self.gates.out[j]
        own = np.maximum(points @ self.units[j] + gates.shift[j], 0.0)
        offered = points @ gates.up[j] + gates.lift[j]
        rest = (answers - gates(points)) @ out / (out @ out)
        return np.asarray(rest / offered + own)


def with_biases(corners: GateCorners, questions: Questions, rng: np.random.Generator) -> GateCorners:
    """The corners with their biases, the linear part and the constant; about ``2 neurons / outputs + width + 1`` questions.

    A far answer less its quadratic part is linear in the biases of the active gates, but for their products, which count less the
    farther out it was asked.
    """
    phase(questions.oracle, "offsets")
    gates = corners.gates
    (neurons, outputs), width = gates.out.shape, questions.width
    unknowns = 2 * neurons + outputs * (width + 1)
    rays, margins = clear_directions(corners.units, GATES.choice * unknowns, rng)
    pairs = [replace(corners, gates=_bare(gates)).across(j, np.array([-1.0, 1.0]) * corners.reach) for j in range(neurons)]
    points = np.concatenate([rays * (corners.reach / margins)[:, None], *pairs])
    before = points @ gates.normal.T
    active = before > 0
    strengths = np.linalg.norm(gates.up, axis=1)
    far = np.linalg.norm(points, axis=1)
    identity = np.eye(outputs)
    rows = np.concatenate(
        [
            np.einsum("nj,jo->noj", active * (points @ (gates.up / strengths[:, None]).T), gates.out),
            np.einsum("nj,jo->noj", active * before, gates.out),
            np.einsum("nw,op->nopw", points, identity).reshape(len(points), outputs, -1),
            np.broadcast_to(corners.reach * identity, (len(points), outputs, outputs)),
        ],
        axis=2,
    )
    rows /= far[:, None, None]
    chosen = telling(rows, unknowns)
    points, rows, far, active = points[chosen], rows[chosen].reshape(-1, unknowns), far[chosen], active[chosen].astype(np.float64)
    told = questions.ask(points) - _bare(gates)(points)
    shift = lift = np.zeros(neurons)
    for _ in range(GATES.offset_turns):
        rest = (told - (active * (shift * lift)) @ gates.out) / far[:, None]
        solution = np.asarray(np.linalg.lstsq(rows, rest.ravel(), rcond=1e-13)[0])
        shift, lift = solution[:neurons] / strengths, solution[neurons : 2 * neurons]
    linear = solution[2 * neurons : -outputs].reshape(outputs, width)
    constant = solution[-outputs:] * corners.reach
    return replace(corners, gates=replace(gates, shift=shift, lift=lift, linear=linear, constant=constant))


def _bare(gates: Gates) -> Gates:
    """Without biases."""
    zero = np.zeros(gates.neurons)
    return replace(gates, shift=zero, lift=zero, linear=np.zeros_like(gates.linear), constant=np.zeros_like(gates.constant))


def bent(corners: GateCorners, phi: Activation, sharp: Floats) -> Gates:
    """The network whose gates bend as ``phi`` does, each as sharply as told."""
    gates = corners.gates
    return replace(
        gates,
        phi=phi,
        normal=gates.normal * sharp[:, None],
        shift=gates.shift * sharp,
        up=gates.up / sharp[:, None],
        lift=gates.lift / sharp,
    )
