"""Labels of several classes: the largest of some outputs of one head. Differences of class values are read pair by pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError
from unsoftmax.learners.labels.asking import Asker, flat_labels
from unsoftmax.learners.labels.paths import Group, Lines, Rows, rounds
from unsoftmax.learners.labels.search import Flags, Halving, Prior
from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.learners.labels.start import Start
from unsoftmax.learners.labels.values import Plane
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase


@dataclass(frozen=True, slots=True, eq=False)
class ClassValues:
    """Values and constants of the classes, centred, values of length 1 in all, and standard deviations of their entries."""

    V: Floats  # (classes, width)
    b: Floats  # (classes,)
    V_spread: float
    b_spread: float

    def between(self, i: int, j: int) -> Plane:
        """The plane between two classes, pointing to the first."""
        across = self.V[i] - self.V[j]
        length = float(np.linalg.norm(across))
        offset = float((self.b[j] - self.b[i]) / length)
        normal_spread = float(np.sqrt(2)) * self.V_spread / length
        return Plane(
            across / length, offset, normal_spread, float(np.hypot(np.sqrt(2) * self.b_spread / length, offset * normal_spread))
        )


class ClassAsker(Asker):
    """Answers with the classes themselves, as indices."""

    def __call__(self, sequences: Floats) -> Flags:
        """The index of each label."""
        return np.searchsorted(self.values, self.classes(sequences))  # type: ignore[return-value]  # lines of classes take indices


@dataclass(slots=True, eq=False)
class ClassLines(Lines):
    """Lines that start in one class and end in another; the boundary is where the first class ends."""

    first: NDArray[np.int_]
    other: NDArray[np.int_]  # the class seen nearest beyond the boundary

    def above(self, rows: Rows, labels: Flags) -> Flags:
        """Where the label is still the first one."""
        classes = np.asarray(labels, dtype=np.int_)
        inside: Flags = classes == self.first[rows]
        self.other[rows[~inside]] = classes[~inside]
        return inside


def class_values(asker: Asker, begin: Start, rng: np.random.Generator) -> tuple[ClassValues, Floats, NDArray[np.int_]]:
    """Values of all classes, points of their boundaries ``(lines, width)`` and the pair of classes at each."""
    phase(asker.oracle, "values")
    width = asker.width
    tokens = rng.normal(size=(BOUNDARY.sample * len(asker.values), width))
    lengths = np.minimum(
        begin.length * np.exp2(rng.uniform(*BOUNDARY.sample_octaves, size=(len(tokens), 1))), np.linalg.norm(begin.far[0])
    )
    tokens *= lengths / np.linalg.norm(tokens, axis=1, keepdims=True)
    answers = flat_labels(asker.oracle(tokens[:, None]), len(tokens))
    asker.values = tuple(np.unique(np.concatenate([answers, asker.values])).tolist())
    told, classes = np.searchsorted(asker.values, answers), len(asker.values)
    by_class = ClassAsker(asker.oracle, asker.values)
    each = int(np.ceil(BOUNDARY.extra * (width + 1))) + 2
    starts, ends = [], []
    for k in range(classes):
        inside, outside = np.flatnonzero(told == k), np.flatnonzero(told != k)
        if len(inside) < 2 or not len(outside):
            raise NotIdentifiableError(
                f"Label {asker.values[k]:g} is so rare that {len(inside)} of {len(tokens)} random tokens got it; its values cannot "
                "be read. Allow longer tokens (`max_norm`).",
                evidence={"rare_label": asker.values[k]},
            )
        starts.append(rng.choice(inside, size=each))
        ends.append(rng.choice(outside, size=each))
    start, end = np.concatenate(starts), np.concatenate(ends)
    lines = ClassLines(tokens[start], tokens[end] - tokens[start], told[start], told[end])
    search = Halving(Prior(len(start), None, np.zeros(len(start)), np.ones(len(start))))
    rounds(by_class, [Group.of(lines, search, BOUNDARY.finest, late=asker.hurried, hurry=BOUNDARY.finest)], 2 * BOUNDARY.bits)
    asker.rounds += by_class.rounds
    points = lines.points(slice(None), search.centre)
    pairs = np.stack([lines.first, lines.other], axis=1)
    return solved_values(points, pairs, classes, begin.length, (tokens, told)), points, pairs


def solved_values(
    points: Floats, pairs: NDArray[np.int_], classes: int, length: float, sample: tuple[Floats, NDArray[np.int_]]
) -> ClassValues:
    """Values from ``(V_i - V_j)·y + b_i - b_j = 0`` at every boundary point; the first class is the zero of all."""
    width = points.shape[1]
    extended = np.concatenate([points / length, np.ones((len(points), 1))], axis=1)
    rows = np.zeros((len(points), classes, width + 1))
    places = np.arange(len(points))
    rows[places, pairs[:, 0]] += extended
    rows[places, pairs[:, 1]] -= extended
    _, singular, right = np.linalg.svd(rows[:, 1:].reshape(len(points), -1), full_matrices=False)
    if singular[-2] < BOUNDARY.flat * singular[0]:
        raise NotIdentifiableError(
            "The boundaries between classes do not determine their values: some classes hardly touch others. Ask for yes or no.",
            evidence={"singular": float(singular[-2] / singular[0])},
        )
    if singular[-1] > BOUNDARY.classes_bent * np.sqrt(len(points)):
        raise NotInFamilyError(
            f"The boundaries between the labels of one token are no planes: they miss by {singular[-1]:.1g} of the tokens' length. "
            "A network, a norm, or another kind of model bends them.",
            evidence={"plane_misfit": float(singular[-1])},
        )
    values = np.concatenate([np.zeros((1, width + 1)), right[-1].reshape(classes - 1, width + 1)])
    values[:, :-1] /= length
    tokens, told = sample
    if np.mean(np.argmax(tokens @ values[:, :-1].T + values[:, -1], axis=1) == told) < 0.5:
        values = -values
    values -= values.mean(axis=0)
    size = float(np.linalg.norm(values[:, :-1]))
    # points are known to their own rounding, or to what the fit leaves
    rounding = np.finfo(float).eps * float(np.sqrt(np.mean(points**2, axis=0).sum())) / length * np.sqrt(2 / classes)
    noise = max(float(singular[-1]) / np.sqrt(max(len(points) - len(singular), 1)), rounding)
    variance = noise**2 * ((right[:-1] / singular[:-1, None]) ** 2).sum(axis=0).reshape(classes - 1, width + 1)
    V_spread, b_spread = np.sqrt(variance[:, :-1].mean()) / length, np.sqrt(variance[:, -1].mean())
    return ClassValues(values[:, :-1] / size, values[:, -1] / size, float(V_spread / size), float(b_spread / size))


@dataclass(frozen=True, slots=True, eq=False)
class Middle:
    """Where two classes touch, far from all others."""

    yes: int
    plane: Plane
    centre: Floats
    room: float


def middles(values: ClassValues, points: Floats, pairs: NDArray[np.int_], max_norm: float | None) -> list[Middle]:
    """Of the boundary points, and places nearer and further out on their boundaries, those far from other classes, by octaves."""
    found: list[tuple[float, float, Middle]] = []
    for point, (i, j) in zip(points, pairs, strict=True):
        plane = values.between(i, j)
        normal, offset = plane.normal, plane.offset
        for longer in BOUNDARY.middles:
            centre = longer * point
            centre = centre + (offset - normal @ centre) * normal
            far = float(np.linalg.norm(centre))
            ahead = values.V[i] @ centre + values.b[i] - values.V @ centre - values.b
            apart = np.linalg.norm(values.V[i] - values.V, axis=1)
            others = [k for k in range(len(apart)) if k not in (i, j)]
            room = min((float(ahead[k] / apart[k]) for k in others), default=far)
            if max_norm is not None:
                room = min(room, max_norm - far)
            found.append((room / far, far, Middle(int(i), plane, centre, BOUNDARY.room * room)))
    widest = max(share for share, _, _ in found)
    if widest <= 0:
        raise NotIdentifiableError("No two classes touch where no third one is near. Ask for yes or no.")
    by_octave: dict[int, tuple[float, Middle]] = {}
    for share, far, middle in found:
        octave = int(np.floor(np.log2(far) / 2))
        if share >= BOUNDARY.room * widest and share > by_octave.get(octave, (0.0, middle))[0]:
            by_octave[octave] = share, middle
    return [middle for _, middle in by_octave.values()]
