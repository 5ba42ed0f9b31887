"""A network of smooth neurons fitted to values on the sphere: output weights by projection, all else by damped Gauss-Newton.

Whatever is linear in the points is projected out, so that a neuron and the same one facing the other way are alike
(``phi(z) = phi(-z) + z``). A student somewhat wider than the truth finds all of its neurons; the others are taken off again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from unsoftmax.learners.stack.settings import STACK
from unsoftmax.linalg import singular
from unsoftmax.models import Floats
from unsoftmax.models.activations import Activation


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """Points and what is told there, without what is linear.

    Attributes:
        points: ``(n, dimension)``.
        values: ``(n, outputs)``, linear part projected out.
        straight: orthonormal columns that span the linear functions at the points.
    """

    points: Floats
    values: Floats
    straight: Floats

    @classmethod
    def of(cls, points: Floats, values: Floats) -> Lesson:
        """From values as they are."""
        straight = np.linalg.qr(np.c_[points, np.ones(len(points))])[0]
        return cls(points, values - straight @ (straight.T @ values), straight)

    def bent(self, columns: Floats) -> Floats:
        """``columns (n, k)`` without what is linear."""
        return columns - self.straight @ (self.straight.T @ columns)


@dataclass(frozen=True, slots=True, eq=False)
class Student:
    """Neurons ``phi(into·x + bias)`` and what they leave of a lesson.

    Attributes:
        phi: the activation.
        into: ``(neurons, dimension)``.
        bias: ``(neurons,)``.
        out: ``(neurons, outputs)``, by projection.
        range: orthonormal columns that span what the neurons say.
        left: ``(n, outputs)``: what they do not explain.
    """

    phi: Activation
    into: Floats
    bias: Floats
    out: Floats
    range: Floats
    left: Floats

    @classmethod
    def of(cls, lesson: Lesson, phi: Activation, into: Floats, bias: Floats) -> Student:
        """With the best output weights."""
        said = lesson.bent(phi.value(lesson.points @ into.T + bias))
        sizes = np.linalg.norm(said, axis=0) + 1e-300
        left, values, right = singular(said / sizes)
        kept = values > STACK.dependent * values[0]
        seen = left[:, kept].T @ lesson.values
        out = (right[kept].T / values[kept]) @ seen / sizes[:, None]
        return cls(phi, into, bias, out, left[:, kept], lesson.values - left[:, kept] @ seen)

    @property
    def off(self) -> float:
        """Size of what is not explained."""
        return float(np.linalg.norm(self.left))


def random_student(lesson: Lesson, phi: Activation, neurons: int, rng: np.random.Generator) -> Student:
    """Neurons that bend somewhere among the points."""
    width = lesson.points.shape[1]
    into = rng.normal(size=(neurons, width)) / np.sqrt(np.mean(np.sum(lesson.points**2, axis=1)))
    return Student.of(lesson, phi, into, 0.5 * rng.normal(size=neurons))


def taught(lesson: Lesson, student: Student, enough: float) -> Student:
    """The student after damped Gauss-Newton steps, until it leaves no more than ``enough`` or learns no more.

    The normal matrix has a closed form: products of derivatives of the hidden layer times those of output weights. So a step
    costs ``(neurons * (dimension + 1))^3 / 3`` and no Jacobian of all outputs is built.
    """
    beside = np.c_[lesson.points, np.ones(len(lesson.points))]
    neurons, each = len(student.bias), beside.shape[1]
    damping = STACK.damping
    for step in range(STACK.lessons):
        slopes = student.phi.slope(lesson.points @ student.into.T + student.bias)
        columns = lesson.bent((slopes[:, :, None] * beside[:, None]).reshape(len(beside), -1))
        columns -= student.range @ (student.range.T @ columns)
        weights = np.repeat(student.out, each, axis=0)
        with np.errstate(over="ignore", invalid="ignore"):  # output weights of neurons that are alike grow without bound
            normal = (columns.T @ columns) * (weights @ weights.T)
        pull = np.sum(weights * (columns.T @ student.left), axis=1)
        better, damping = _stepped(lesson, student, normal, pull, neurons, damping)
        if better is None:
            return student
        slow = better.off > (1 - STACK.slow) * student.off and step > STACK.settling
        student = better
        if student.off <= enough or slow:
            break
    return student


def _stepped(
    lesson: Lesson, student: Student, normal: Floats, pull: Floats, neurons: int, damping: float
) -> tuple[Student | None, float]:
    """A student that leaves less, and the damping for the next step; None where no step helps."""
    scale = np.diag(normal) + 1e-12 * float(np.diag(normal).max()) + 1e-300
    if not np.isfinite(scale).all():
        return None, damping
    for _ in range(STACK.tries):
        step = _solved(normal + np.diag(damping * scale), pull)
        if step is not None:
            change = step.reshape(neurons, -1)
            trial = Student.of(lesson, student.phi, student.into + change[:, :-1], student.bias + change[:, -1])
            if trial.off < student.off:
                return trial, max(damping / 5, 1e-14)
        damping *= 4
    return None, damping


def _solved(matrix: Floats, right: Floats) -> Floats | None:
    """The solution of a positive definite system; None where it is not one, or the step is wild."""
    try:
        step = np.asarray(cho_solve(cho_factor(matrix, check_finite=False), right, check_finite=False))
    except LinAlgError:  # not positive definite to rounding: more damping makes it so
        return None
    return step if np.isfinite(step).all() and float(np.abs(step).max()) < STACK.wild else None


def pruned(lesson: Lesson, student: Student, enough: float) -> Student:
    """As few of the neurons as explain the lesson up to ``enough``: the least needed goes first, the others learn again."""
    while len(student.bias) > 1:
        for j in _least_needed(lesson, student)[: STACK.candidates]:
            keep = np.arange(len(student.bias)) != j
            fewer = taught(lesson, Student.of(lesson, student.phi, student.into[keep], student.bias[keep]), enough)
            if fewer.off <= enough:
                student = fewer
                break
        else:
            return student
    return student


def _least_needed(lesson: Lesson, student: Student) -> list[int]:
    """Numbers of the neurons, the one first whose loss the others make up best."""
    said = lesson.bent(student.phi.value(lesson.points @ student.into.T + student.bias))
    costs = []
    for j in range(len(student.bias)):
        others = np.linalg.qr(np.delete(said, j, axis=1))[0]
        costs.append(float(np.linalg.norm(lesson.values - others @ (others.T @ lesson.values))))
    return [int(j) for j in np.argsort(costs)]
