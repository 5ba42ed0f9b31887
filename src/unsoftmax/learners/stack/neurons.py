"""All MLPs of a stack as one network: on very long tokens they all see the same normalised token, and their outputs add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.stack.circles import Circle, explained, find_bends, grouped
from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.settings import STACK
from unsoftmax.learners.stack.sphere import Sphere
from unsoftmax.models import Attention, Floats
from unsoftmax.models.activations import RELU, Activation


@dataclass(frozen=True, slots=True, eq=False)
class Neurons:
    """``value = out^T phi(into n + bias) + linear n + constant`` on the sphere; for ReLU units of ``into`` have length one.

    Attributes:
        into: ``(neurons, width)``.
        bias: ``(neurons,)``.
        out: ``(neurons, outputs)``.
        linear: ``(outputs, width)``.
        constant: ``(outputs,)``.
        phi: the activation, one with ``phi(z) = phi(-z) + z``.
    """

    into: Floats
    bias: Floats
    out: Floats
    linear: Floats
    constant: Floats
    phi: Activation = RELU

    def hidden(self, points: Floats) -> Floats:
        """What each neuron says, ``(n, neurons)``."""
        return self.phi.value(points @ self.into.T + self.bias)

    def __call__(self, points: Floats) -> Floats:
        """The network at points ``(n, width)``."""
        return np.asarray(self.hidden(points) @ self.out + points @ self.linear.T + self.constant)


def sum_of_mlps(limit: Limit, heads: Attention, far: float = STACK.far) -> Callable[[Floats], Floats]:
    """A function of points on the sphere: biases and MLPs of all layers together, off by about one part in ``far``.

    Price: one question of one token per point.
    """
    assert heads.V is not None
    through = heads.V.sum(0)

    def value(points: Floats) -> Floats:
        return np.asarray(limit.raw(points[:, None], far) - far * points - points @ through)

    return value


@dataclass(frozen=True, slots=True)
class Look:
    """What a sum of MLPs is, from a few points.

    Attributes:
        sharp: it is made of pieces, as ReLU networks are.
        size: root mean square of its values.
        rounding: error of a value.
        smooth: amplitude of what is not explained by a constant, cosine and sine on a piece of a circle.
    """

    sharp: bool
    size: float
    rounding: float
    smooth: float


def looked(value: Callable[[Floats], Floats], sphere: Sphere, rng: np.random.Generator) -> Look:
    """Whether a sum of MLPs is piecewise, from four questions on a short arc, and more of those where a bend lies on it.

    Smooth neurons leave something between rounding and what a bend leaves.
    """
    angles, rounding = STACK.arc * np.arange(4.0), 8 * 2.0**-53 * STACK.far * sphere.radius
    size, smooth, sharp = 0.0, 0.0, False
    for arc in _circles(sphere, STACK.arcs, rng):
        told = value(arc.at(angles))
        size = max(size, float(np.sqrt(np.mean(told**2))))
        smooth = 8 * size / STACK.far * sphere.radius
        sharp = explained(angles, told, rounding, smooth) is not None
        if sharp or explained(angles, told, size * STACK.bent, smooth) is not None:
            break
    return Look(sharp, size, rounding, smooth)


def find_neurons(
    value: Callable[[Floats], Floats], look: Look, sphere: Sphere, rng: np.random.Generator, go_on: Callable[[int], bool]
) -> Neurons | None:
    """Every neuron that bends on the sphere, from great circles; None where neurons do not explain fresh points.

    A great circle meets a neuron twice or not at all, and as many points as normalised tokens have dimensions give its plane.
    ``go_on`` is asked with the number of circles to come whether that is worth it.
    """
    count = (sphere.dimension + 1) // 2 + 2
    seen = [find_bends(value, _circles(sphere, 1, rng), look.rounding, look.smooth)]
    if not go_on(count - 1):
        return None
    seen.append(find_bends(value, _circles(sphere, count - 1, rng), look.rounding, look.smooth))
    fresh = sphere.dense(STACK.fresh, rng)
    truth = value(fresh)
    for _ in range(STACK.most_circles * sphere.dimension):
        points, jumps = (np.concatenate([getattr(one, name) for one in seen]) for name in ("points", "jumps"))
        rows, few = _planes(points, grouped(jumps, STACK.alike), sphere)
        if few:
            circles = [_through(sphere, point, rng) for point in few[:2]]
        else:
            sampled = np.concatenate([fresh, *(one.sampled for one in seen)])
            found = _solved(rows, sampled, np.concatenate([truth, *(one.answers for one in seen)]), sphere)
            off = np.abs(found(fresh) - truth).max(1)
            if off.max() <= STACK.close * look.size:
                return found
            circles = [_through(sphere, fresh[i], rng) for i in np.argsort(-off)[:2]]
        if not go_on(len(circles)):
            return None
        seen.append(find_bends(value, circles, look.rounding, look.smooth))
    return None


def _planes(points: Floats, labels: NDArray[np.int_], sphere: Sphere) -> tuple[Floats, list[Floats]]:
    """Per neuron ``(into, bias)`` of the plane through its bends; a bend of each that has too few, fewest first."""
    rows, few = [], []
    basis = sphere.complement(np.zeros((0, sphere.width)))
    for label in range(int(labels.max(initial=-1)) + 1):
        mine = points[labels == label]
        design = np.concatenate([mine @ basis.T, np.full((len(mine), 1), sphere.radius)], axis=1)
        if len(mine) < design.shape[1]:
            few.append((len(mine), label))
            continue
        _, values, right = np.linalg.svd(design)
        if values[-1] > STACK.flat * values[-2]:
            few.append((len(mine), label))
            continue
        into = right[-1, :-1] @ basis
        rows.append(np.append(into, right[-1, -1] * sphere.radius) / np.linalg.norm(into))
    return np.array(rows).reshape(-1, sphere.width + 1), [points[labels == label][0] for _, label in sorted(few)]


def _solved(rows: Floats, points: Floats, values: Floats, sphere: Sphere) -> Neurons:
    """Output weights, a linear part and a constant for given planes: one linear problem."""
    hidden = np.maximum(points @ rows[:, :-1].T + rows[:, -1], 0.0)
    basis = sphere.complement(np.zeros((0, sphere.width)))
    design = np.concatenate([hidden, points @ basis.T, np.ones((len(points), 1))], axis=1)
    solved = np.linalg.lstsq(design, values, rcond=None)[0]
    m = len(rows)
    return Neurons(rows[:, :-1], rows[:, -1], solved[:m], (basis.T @ solved[m:-1]).T, solved[-1])


def _circles(sphere: Sphere, count: int, rng: np.random.Generator) -> list[Circle]:
    return [_through(sphere, point, rng) for point in sphere.dense(count, rng)]


def _through(sphere: Sphere, point: Floats, rng: np.random.Generator) -> Circle:
    """A random great circle through ``point``."""
    first = point / np.linalg.norm(point)
    other = sphere.dense(1, rng)[0]
    other = other - (other @ first) * first
    return Circle(first, other / np.linalg.norm(other), sphere.radius)
