"""Smooth MLPs of a stack, all layers together: students of growing width learn their sum on the sphere from one-token answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from unsoftmax.learners.stack.neurons import Neurons
from unsoftmax.learners.stack.settings import STACK
from unsoftmax.learners.stack.sphere import Sphere
from unsoftmax.learners.stack.student import Lesson, Student, pruned, random_student, taught
from unsoftmax.models import Floats
from unsoftmax.models.activations import activation_named


def find_smooth(
    value: Callable[[Floats], Floats], sphere: Sphere, layers: int, rng: np.random.Generator, allowed: float
) -> tuple[Neurons | None, int]:
    """Neurons whose sum is ``value`` on the sphere, and those of the widest student; None where no student explains it.

    Nothing is asked where even MLPs of twice the width in each of the ``layers`` would be too many for a fit of everything. No
    further student is tried once what the last two leave foretells more neurons than the widest would have, or once some students
    that were nearly wide enough have been followed by two that learned no better: then these are no such neurons.

    Price: one question per point, ``STACK.per_number`` numbers for each parameter of the widest student that is tried.
    """
    widest = STACK.most_unknowns // (sphere.dimension + 1)
    if 2 * layers * sphere.width > widest:
        return None, 0
    basis = sphere.complement(np.zeros((0, sphere.width)))
    fresh = sphere.dense(STACK.fresh, rng)
    truth = value(fresh)
    points, values = np.zeros((0, sphere.width)), np.zeros((0, sphere.width))
    taken, left, hopeful = 0, 1.0, 0
    for width, count in _sizes(sphere, widest):
        if count + len(fresh) > allowed:
            break
        more = sphere.dense(count - len(points), rng)
        points, values = np.concatenate([points, more]), np.concatenate([values, value(more)])
        lesson = Lesson.of(points @ basis.T, values)
        off = 1.0
        for student in _students(lesson, width, rng):
            off = min(off, student.off / max(float(np.linalg.norm(lesson.values)), 1e-300))
            if student.off > _enough(lesson):
                continue
            # to the end: only there do neurons that are not needed fade
            fewest = pruned(lesson, taught(lesson, student, STACK.fully * _enough(lesson)), _enough(lesson))
            found = _as_neurons(lesson, fewest, basis, points, values)
            if np.abs(found(fresh) - truth).max() <= STACK.close * float(np.sqrt(np.mean(truth**2))):
                return found, width
        foretold = width + off * (width - taken) / max(left - off, 1e-300)
        taken, left, hopeful = width, off, hopeful + (off <= STACK.hopeful)
        if hopeful > STACK.further or (not hopeful and foretold > widest):
            break
    return None, taken


def _sizes(sphere: Sphere, widest: int) -> Iterator[tuple[int, int]]:
    """Widths of students, and points that each wants."""
    width = STACK.narrow
    each = sphere.dimension + 1 + sphere.width
    while width <= widest:
        yield width, int(STACK.per_number * width * each / sphere.width) + 2 * sphere.dimension
        width += max(4, width // 2)


def _students(lesson: Lesson, width: int, rng: np.random.Generator) -> Iterator[Student]:
    """Students of one width after their lessons; more where one is nearly there, other activations only where there is hope."""
    size = float(np.linalg.norm(lesson.values))
    best: Student | None = None
    for name in STACK.smooth:
        phi = activation_named(name)
        starts = [] if best is None else [Student.of(lesson, phi, best.into, best.bias)]  # activations are much alike
        k, most = 0, STACK.student_starts
        while k < most:
            start = starts[k] if k < len(starts) else random_student(lesson, phi, width, rng)
            student = taught(lesson, start, _enough(lesson))
            best = student if best is None or student.off < best.off else best
            yield student
            if k and best.off > STACK.hopeful * size:
                return
            k += 1
            if best.phi is phi and best.off <= STACK.nearly * size:  # wide enough; another start may get there
                most = STACK.more_starts


def _enough(lesson: Lesson) -> float:
    """What a student may leave of a lesson that it has learned."""
    return STACK.explained * float(np.linalg.norm(lesson.values))


def _as_neurons(lesson: Lesson, student: Student, basis: Floats, points: Floats, values: Floats) -> Neurons:
    """The student with the linear part that was projected out, in the coordinates of tokens."""
    said = student.phi.value(lesson.points @ student.into.T + student.bias)
    rest = values - said @ student.out
    straight = np.linalg.lstsq(np.c_[lesson.points, np.ones(len(points))], rest, rcond=None)[0]
    return Neurons(student.into @ basis, student.bias, student.out, (basis.T @ straight[:-1]).T, straight[-1], student.phi)
