"""Seen from far away a gated network is piecewise quadratic: its gates, and what they let through."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from unsoftmax.errors import NotInFamilyError, tried
from unsoftmax.learners.ffn.gradients import CrowdedCellError
from unsoftmax.learners.ffn.lattice import subset_sum
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.gated.gates import Gates
from unsoftmax.learners.gated.plane import Factors, read_plane
from unsoftmax.learners.gated.settings import GATES
from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.design import telling_points
from unsoftmax.learners.smooth.limit import FromAfar, far_scale
from unsoftmax.models import Floats
from unsoftmax.models.activations import activation_named
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """The gates as seen from afar (ReLU in the place of their activation, no biases), and the answers asked for it, in the
    target's own units."""

    gates: Gates
    answers: Answers


def quadratic_limit(oracle: Oracle, *, floor: Floor, max_norm: float | None, rng: np.random.Generator) -> Limit:
    """The piecewise quadratic function that ``y(T x) / T^2`` tends to.

    Raises:
        NotInFamilyError: it is none of ``sum_j out[j] relu(normal[j]·x)(up[j]·x)``.
    """
    scale = far_scale(oracle.width, max_norm)
    inner = None if max_norm is None else max_norm / scale
    exact = replace(floor, absolute=0.0)
    questions = Questions(FromAfar(oracle, scale, order=2), floor=exact, max_norm=inner)
    width = oracle.width
    phase(questions.oracle, "scale")
    size = GATES.room * float(np.linalg.norm(questions.ask(_rays(GATES.first, width, rng)), axis=1).max())
    if size == 0:
        raise NotInFamilyError("Seen from very far the target does not grow with the square of the distance: no gated network.")
    for _ in range(GATES.attempts):
        phase(questions.oracle, "gates")
        basis = np.linalg.qr(rng.normal(size=(width, width)))[0].T
        factors = tried(partial(read_plane, questions.ask, basis, size, floor.relative * size, rng), CrowdedCellError)
        if isinstance(factors, CrowdedCellError):
            continue
        phase(questions.oracle, "random points")
        questions.ask(_rays(max(0, len(factors.normal) - 3 * (width - 1)) + GATES.spare, width, rng))
        sided = with_sides(factors, questions.points, questions.answers)
        if sided is None:
            continue
        free = sided.free("normal", "up", "out")
        count = max(GATES.spare, int(GATES.extra * free.sum() / len(sided.constant)))
        answers = Answers(questions.points * scale, questions.answers * scale**2, exact)
        questions.ask(telling_points(sided, answers, _rays(GATES.pool * count, width, rng) * scale, count, free, rng) / scale)
        answers = Answers(questions.points * scale, questions.answers * scale**2, exact)
        fitted, misfit = answers.fit(sided, free)
        if misfit * floor.relative <= GATES.stray:
            return Limit(fitted, replace(answers, floor=floor))
    raise NotInFamilyError(
        f"Seen from very far the target is no sum of gates (products of a ReLU and a linear form), on any of {GATES.attempts} half "
        "circles: it may have several layers, gates that share a direction, or too many of them for the precision of the answers.",
        evidence={"planes": GATES.attempts},
    )


def _rays(count: int, width: int, rng: np.random.Generator) -> Floats:
    """Random unit vectors ``(count, width)``."""
    rays = rng.normal(size=(count, width))
    return np.asarray(rays / np.linalg.norm(rays, axis=1, keepdims=True))


def with_sides(factors: Factors, points: Floats, answers: Floats) -> Gates | None:
    """The gates with their active sides, so that nothing but gates is left; None where the answers are not explained that way.

    A gate written the other way round differs by the quadratic form ``(normal·x)(up·x)``: which ones are is told by a linear
    system with as many unknowns as gates, or by a reduced lattice where the forms are not independent. It costs no question.
    """
    width, outputs = points.shape[1], answers.shape[1]
    weights = 1 / np.einsum("nw,nw->n", points, points)
    before, ups = points @ factors.normal.T, points @ factors.up.T
    rest = (answers - (np.maximum(before, 0.0) * ups) @ factors.out) * weights[:, None]
    terms = np.einsum("nj,jo->noj", before * ups * weights[:, None], factors.out).reshape(rest.size, -1)
    size = float(np.abs(answers * weights[:, None]).max())
    if len(factors.normal) <= outputs * width * (width + 1) // 2:
        solution = np.linalg.lstsq(terms, -rest.ravel(), rcond=1e-9)[0]
        turned = np.asarray(solution > 0.5)
        if np.abs(solution - turned).max() > GATES.binary:
            return None
    else:
        chosen = subset_sum(terms.T, -rest.ravel(), error=GATES.explained**2 * size * np.sqrt(rest.size))
        if chosen is None:
            return None
        turned = chosen
    if np.abs(rest.ravel() + terms @ turned).max() > GATES.explained * size:
        return None
    sign = np.where(turned, -1.0, 1.0)[:, None]
    neurons = len(factors.normal)
    zero = np.zeros(neurons)
    # relu(z) q = relu(-z) q + z q: of a turned gate, q keeps its sign
    return Gates(
        activation_named("relu"),
        sign * factors.normal,
        zero,
        factors.up,
        zero,
        factors.out,
        np.zeros((outputs, width)),
        np.zeros(outputs),
    )
