"""Where to ask a network: how far out, along which lines, at which random points."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.line import Line
from unsoftmax.learners.ffn.orientation import flipped
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Chooses points to ask; none is longer than ``max_norm``.

    Args:
        max_norm: bound on the length of a point.
        caution: see ``Line``.
        most: see ``Line``.
    """

    max_norm: float | None
    caution: float
    most: int

    def scale(self, questions: Questions, rng: np.random.Generator) -> float:
        """Distance at which to look: near the origin, farther out where the answers are coarse, within the bound.

        Four questions, or none where answers that are there tell that these are not coarse at all.

        Steps and answers grow with the distance, the rounding of the answers and of a constant in them does not: what is lost near
        the origin to either is seen from farther away.
        """
        phase(questions.oracle, "scale")
        near = float(np.sqrt(questions.width))
        bound = np.inf if self.max_norm is None else 0.95 * self.max_norm
        far = min(1e3 * near, bound)
        if questions.calls and RELU.plainly * self._wanted(questions, questions.points, questions.answers) < near:
            return min(near, 0.05 * bound)
        rays = rng.normal(size=(3, questions.width))
        rays *= far / np.linalg.norm(rays, axis=1, keepdims=True)
        wanted = self._wanted(questions, rays, questions.ask(rays))
        if near < wanted < np.inf:
            return min(wanted, bound)
        return min(near, 0.05 * bound)  # a line farther out than that misses hyperplanes near the origin

    def _wanted(self, questions: Questions, points: Floats, answers: Floats) -> float:
        """Distance from which on answers are not coarse, as far as those at ``points`` tell."""
        middle = questions.at_origin()
        distances = np.maximum(np.linalg.norm(points, axis=1), 1e-300)
        slope = float((np.linalg.norm(answers - middle, axis=1) / distances).max())
        coarse = questions.floor.absolute + 2.0**-52 * float(np.linalg.norm(middle))
        return min(RELU.farthest, RELU.seen * coarse / slope) if slope > 0 else np.inf

    def line(self, width: int, scale: float, doubt: float, rng: np.random.Generator) -> Line:
        """A random line at distance about ``scale`` from the origin."""
        origin = rng.normal(size=width)
        origin *= scale / np.linalg.norm(origin)
        direction = rng.normal(size=width)
        direction /= np.linalg.norm(direction)
        reach, farthest = RELU.reach * scale, np.inf
        if self.max_norm is not None:
            farthest = 0.999 * self.max_norm - scale
            along = abs(float(origin @ direction))
            reach = min(reach, float(np.sqrt(along**2 + (0.999 * self.max_norm) ** 2 - scale**2)) - along)
        return Line(origin, direction, reach, scale, self.caution, self.most, doubt, farthest=farthest)

    def around_corner(self, questions: Questions, radius: float, rng: np.random.Generator) -> Hinges:
        """All neurons from the two legs ``-a -> b -> a`` of a right angle at distance ``radius``.

        A hyperplane that passes near the origin separates ``a`` from ``-a`` and so crosses the path once, wherever it points;
        unlike on a straight line no bend is far away, and the bends lie as far apart as the radius allows, which is what coarse
        answers need.
        """
        if questions.width == 1:
            return self.line(1, radius, 0.0, rng).run(questions, None, rng=rng)
        a, b = radius * np.linalg.qr(rng.normal(size=(questions.width, 2)))[0].T
        legs = []
        for start, stop in ((-a, b), (b, a)):
            direction = (stop - start) / np.linalg.norm(stop - start)
            leg = Line((start + stop) / 2, direction, radius / np.sqrt(2), radius, self.caution, self.most, ends=RELU.corner)
            legs.append(leg.run(questions, None, rng=rng))
        first, second = flipped(legs[0], np.ones(legs[0].neurons, dtype=bool)), legs[1]  # both idle at the corner
        planes = [np.concatenate([leg.normal, leg.shift[:, None]], axis=1) for leg in (first, second)]
        planes = [rows / np.linalg.norm(rows[:, :-1], axis=1, keepdims=True) for rows in planes]
        apart = np.linalg.norm(planes[1][:, None] - planes[0][None], axis=2)
        new = np.all(apart > 1e-3 * np.linalg.norm(planes[1], axis=1)[:, None], axis=1)  # one that cuts the corner is met twice
        both = first.plus(second.keep(np.flatnonzero(new)))
        return replace(both, linear=(first.linear + second.linear) / 2, constant=(first.constant + second.constant) / 2)

    def length(self, model: Hinges, scale: float) -> float:
        """Median distance at which a random line through the origin meets the bends; without any, the scale decides."""
        length = max(float(np.median(distances(model))) if model.neurons else 0.0, 0.5 * scale)
        return length if self.max_norm is None else min(length, 0.5 * self.max_norm)

    def random(self, model: Hinges, length: float, count: int, rng: np.random.Generator) -> Floats:
        """Random points whose distances follow those of the hyperplanes, so that each is met from both sides."""
        met = distances(model) if model.neurons else np.full(1, length)
        radii = np.clip(rng.choice(met, size=count), 0.5 * length, 8 * length) * rng.uniform(0.5, 1.5, size=count)
        return self.at(radii, model.normal.shape[1], rng)

    def at(self, radii: Floats, width: int, rng: np.random.Generator) -> Floats:
        """Random directions at the given distances, or at the bound."""
        points = rng.normal(size=(len(radii), width))
        if self.max_norm is not None:
            radii = np.minimum(radii, 0.999 * self.max_norm)
        return np.asarray(points * (radii / np.linalg.norm(points, axis=1))[:, None])


def distances(model: Hinges) -> Floats:
    """Distance at which a random line through the origin meets each bend, ``(neurons,)``."""
    norms = np.maximum(np.linalg.norm(model.normal, axis=1), 1e-300)
    return np.asarray(np.abs(model.shift) / norms * np.sqrt(model.normal.shape[1]))
