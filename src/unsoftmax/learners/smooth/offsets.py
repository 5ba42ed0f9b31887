"""How far out all neurons are straight, and where their hyperplanes lie: from answers out there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.smooth.places import clear_directions, clear_place
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase


@dataclass(frozen=True, slots=True, eq=False)
class Corners:
    """The straight parts: ``constant + linear @ x + sum_j jumps[j] * relu(units[j]·x + offsets[j])``, right far from all bends.

    Attributes:
        units: ``(neurons, width)``, unit normals.
        jumps: ``(neurons, outputs)``.
        offsets: ``(neurons,)``.
        linear: ``(outputs, width)``.
        constant: ``(outputs,)``.
        places: ``(neurons, width)``: for each neuron a unit vector in its hyperplane far from the others.
        margins: ``(neurons,)``: how far.
        reach: distance from a hyperplane at which its neuron is straight.
    """

    units: Floats
    jumps: Floats
    offsets: Floats
    linear: Floats
    constant: Floats
    places: Floats
    margins: Floats
    reach: float

    @classmethod
    def of(cls, hinges: Hinges, rng: np.random.Generator) -> Corners:
        """Those of a ReLU network without biases."""
        strengths = np.linalg.norm(hinges.normal, axis=1)
        units = hinges.normal / strengths[:, None]
        found = [clear_place(units, j, rng) for j in range(len(units))]
        places, margins = np.array([place for place, _ in found]), np.array([margin for _, margin in found])
        jumps = hinges.out * strengths[:, None]
        return cls(units, jumps, np.zeros(len(units)), hinges.linear, np.zeros_like(hinges.constant), places, margins, 0.0)

    def __call__(self, points: Floats) -> Floats:
        """Values of the straight parts ``(n, outputs)``."""
        hidden = np.maximum(points @ self.units.T + self.offsets, 0.0)
        return np.asarray(hidden @ self.jumps + points @ self.linear.T + self.constant)

    @property
    def if_sharp(self) -> str:
        """What corners that stay sharp belong to."""
        return "a ReLU network (or a leaky one), not a smooth one. Family `ffn` learns it."

    def across(self, j: int, distances: Floats) -> Floats:
        """Points ``(n, width)`` on a line through hyperplane ``j`` and far from the others, at ``distances (n,)`` from it."""
        foot = self.places[j] * (0.0 if np.isinf(self.margins[j]) else 2 * self.reach / self.margins[j])
        return np.asarray(foot + (np.asarray(distances) - self.offsets[j])[:, None] * self.units[j])

    def heights(self, j: int, points: Floats, answers: Floats) -> Floats:
        """What neuron ``j`` alone adds to ``answers``, in units of its jump, ``(n,)``."""
        own = np.maximum(points @ self.units[j] + self.offsets[j], 0.0)
        rest = answers - self(points) + own[:, None] * self.jumps[j]
        return np.asarray(rest @ self.jumps[j] / (self.jumps[j] @ self.jumps[j]))


def with_reach(corners: Corners, questions: Questions, error: float, rng: np.random.Generator) -> Corners:
    """The corners with their reach: on a ray far from all hyperplanes and on its mirror image, four times as far must be on one
    line; 4 questions and 2 more for every farther try.

    Both rays: a neuron whose hyperplane lies beyond the reach shows on one of them only. ``error`` is that of the corners' slopes,
    relative to their sum.
    """
    phase(questions.oracle, "reach")
    ray, margin = clear_directions(corners.units, 1, rng)
    rays = np.concatenate([ray, -ray])
    strengths = np.linalg.norm(corners.jumps, axis=1)
    slope = float(np.median(strengths) * margin[0])
    allowed = BENDS.straight * slope + 30 * (error + 2.0**-50) * float(strengths.sum() + np.linalg.norm(corners.linear))
    radius = (64.0 if corners.reach == 0 else BENDS.further * corners.reach) / margin[0]
    bare = replace(corners, offsets=np.zeros(len(strengths)))
    here = questions.ask(radius * rays)
    for _ in range(16):
        there = questions.ask(BENDS.further * radius * rays)
        rise = bare(BENDS.further * radius * rays) - bare(radius * rays)
        if np.linalg.norm(there - here - rise, axis=1).max() <= allowed * radius * (BENDS.further - 1):
            return replace(corners, reach=float(radius * margin[0]))
        here, radius = there, BENDS.further * radius
        if questions.max_norm is not None and BENDS.further * radius > questions.max_norm:
            break
    raise NotInFamilyError(
        f"Seen from {radius:.1e} away the target still bends, although it has {len(strengths)} corners seen from very far: its "
        "neurons do not become straight as those of GELU, SiLU, softplus, Mish and ELU do, or not within `max_norm`.",
        evidence={"distance": float(radius), "neurons": len(strengths)},
    )


def with_offsets(corners: Corners, questions: Questions, rng: np.random.Generator) -> Corners:
    """The corners with their offsets and the constant, from about ``neurons / outputs + 1`` far answers.

    A far answer less its slopes is the constant plus the jumps times offsets of the active neurons. Points on both sides of each
    hyperplane would tell them one by one; a pivoted choice among those and random ones needs half as many.
    """
    phase(questions.oracle, "offsets")
    neurons, outputs = corners.jumps.shape
    rays, margins = clear_directions(corners.units, 64, rng)
    pairs = [corners.across(j, np.array([-1.0, 1.0]) * corners.reach) for j in range(neurons)]
    points = np.concatenate([rays * (corners.reach / margins)[:, None], *pairs])
    strengths = np.linalg.norm(corners.jumps, axis=1)
    active = (points @ corners.units.T > 0).astype(np.float64)
    rows = np.concatenate(
        [
            np.einsum("nj,jo->noj", active, corners.jumps / strengths[:, None]),
            np.broadcast_to(np.eye(outputs), (len(points), outputs, outputs)),
        ],
        axis=2,
    )
    chosen = telling(rows / np.linalg.norm(points, axis=1).clip(corners.reach)[:, None, None], neurons + outputs)
    answers = questions.ask(points[chosen]) - replace(corners, offsets=np.zeros(neurons), constant=np.zeros(outputs))(
        points[chosen]
    )
    weights = 1 / np.repeat(np.linalg.norm(points[chosen], axis=1).clip(corners.reach), outputs)
    system = rows[chosen].reshape(-1, neurons + outputs) * weights[:, None]
    solution = np.asarray(np.linalg.lstsq(system, answers.ravel() * weights, rcond=1e-13)[0])
    return replace(corners, offsets=solution[:neurons] / strengths, constant=solution[neurons:])


def telling(rows: Floats, unknowns: int) -> list[int]:
    """Which of the equations ``rows (n, outputs, unknowns)`` to ask so that every unknown is told, the most telling first."""
    left = rows.copy()
    chosen: list[int] = []
    first = float(np.linalg.norm(left, axis=(1, 2)).max())
    while len(chosen) < unknowns:
        sizes = np.linalg.norm(left, axis=(1, 2))
        best = int(np.argmax(sizes))
        if sizes[best] <= BENDS.enough * first:
            break
        chosen.append(best)
        _, singular, span = np.linalg.svd(left[best], full_matrices=False)
        span = span[singular > 1e-3 * singular[0]]
        left = left - (left @ span.T) @ span
    return chosen
