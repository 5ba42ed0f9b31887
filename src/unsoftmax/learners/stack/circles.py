"""Bends of a ReLU network on great circles of the sphere: between two of them it is a constant, a cosine and a sine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.stack.settings import STACK
from unsoftmax.models import Floats

Known = dict[tuple[float, float, int], Floats | None]  # pieces by first and last angle and number of samples; None where none fits


@dataclass(frozen=True, slots=True, eq=False)
class Circle:
    """Points ``radius * (cos(t) first + sin(t) second)`` for orthonormal ``first, second (width,)``."""

    first: Floats
    second: Floats
    radius: float

    def at(self, angles: Floats) -> Floats:
        """Points ``(n, width)``."""
        return np.asarray(self.radius * (np.cos(angles)[:, None] * self.first + np.sin(angles)[:, None] * self.second))

    def along(self, angle: float) -> Floats:
        """The derivative of the point."""
        return np.asarray(self.radius * (np.cos(angle) * self.second - np.sin(angle) * self.first))


@dataclass(frozen=True, slots=True, eq=False)
class Bends:
    """Where answers bend: points ``(n, width)``, by how much the slope changes there ``(n, outputs)``; and what is not clear.

    Attributes:
        points: on the sphere.
        jumps: change of the slope along the circle.
        gaps: gaps between pieces that could not be told to hold exactly one bend.
        sampled: every point that was asked.
        answers: what the function is there.
    """

    points: Floats
    jumps: Floats
    gaps: int
    sampled: Floats
    answers: Floats


@dataclass(frozen=True, slots=True)
class _Piece:
    """Samples ``start`` to ``end``, both included, that one constant, cosine and sine explain."""

    start: int
    end: int
    weights: Floats


def find_bends(value: Callable[[Floats], Floats], circles: list[Circle], rounding: float, smooth: float) -> Bends:
    """Every bend on ``circles``; all circles are refined together, so that a round is one call.

    Args:
        value: the function, ``(n, width)`` to ``(n, outputs)``.
        circles: where to look.
        rounding: error of a value.
        smooth: amplitude of smooth terms beyond a constant, cosine and sine that pieces may have.
    """
    angles = [2 * np.pi * (np.arange(STACK.grid) + 0.5 * (i % 2)) / STACK.grid for i in range(len(circles))]
    values = _split(value(np.concatenate([c.at(a) for c, a in zip(circles, angles, strict=True)])), angles)
    known: list[Known] = [{} for _ in circles]
    found: list[tuple[list[tuple[float, Floats]], list[tuple[float, float]]]] = []
    for step in range(STACK.halvings + 1):
        found = [_read(a, v, rounding, smooth, seen) for a, v, seen in zip(angles, values, known, strict=True)]
        more = [_halved(a, gaps) for a, (_, gaps) in zip(angles, found, strict=True)]
        if step == STACK.halvings or not any(len(m) for m in more):
            break
        told = _split(value(np.concatenate([c.at(m) for c, m in zip(circles, more, strict=True)])), more)
        for i, (a, v) in enumerate(zip(more, told, strict=True)):
            joined = np.concatenate([angles[i], a])
            order = np.argsort(joined)
            angles[i], values[i] = joined[order], np.concatenate([values[i], v])[order]
    points, jumps = [], []
    for circle, (bends, _) in zip(circles, found, strict=True):
        for angle, jump in bends:
            points.append(circle.at(np.array([angle]))[0])
            jumps.append(jump)
    outputs = values[0].shape[1]
    return Bends(
        np.array(points).reshape(-1, len(circles[0].first)),
        np.array(jumps).reshape(-1, outputs),
        sum(len(gaps) for _, gaps in found),
        np.concatenate([c.at(a) for c, a in zip(circles, angles, strict=True)]),
        np.concatenate(values),
    )


def _split(rows: Floats, like: list[Floats]) -> list[Floats]:
    return np.split(rows, np.cumsum([len(one) for one in like])[:-1])


def _halved(angles: Floats, gaps: list[tuple[float, float]]) -> Floats:
    """The middles of all steps between samples inside ``gaps``."""
    fresh = []
    for start, end in gaps:
        round_ = np.concatenate([angles, angles + 2 * np.pi, angles + 4 * np.pi])
        inside = round_[(round_ >= start - 1e-15) & (round_ <= end + 1e-15)]
        fresh.append((inside[1:] + inside[:-1]) / 2)
    return np.unique(np.concatenate(fresh) % (2 * np.pi)) if fresh else np.zeros(0)


def _waves(angles: Floats) -> Floats:
    return np.stack([np.ones_like(angles), np.cos(angles), np.sin(angles)], axis=1)


def explained(angles: Floats, values: Floats, rounding: float, smooth: float) -> Floats | None:
    """Weights ``(3, outputs)`` of constant, cosine and sine, seen from the middle; None where they do not explain the values."""
    middle = (angles[0] + angles[-1]) / 2
    weights = np.asarray(np.linalg.lstsq(_waves(angles - middle), values, rcond=None)[0], dtype=np.float64)
    off = float(np.abs(values - _waves(angles - middle) @ weights).max())
    span = float(angles[-1] - angles[0])
    return weights if off <= rounding + smooth * min(1.0, span**3) else None


def _pieces(angles: Floats, values: Floats, rounding: float, smooth: float, known: Known) -> list[_Piece]:
    """Runs of samples, as long as they go, that one piece explains each; ``angles`` go once round, and then on by some."""

    def one(start: int, end: int) -> Floats | None:
        """The weights of samples ``start`` up to ``end``; what an earlier round saw is not fitted again."""
        name = (float(angles[start]), float(angles[end - 1]), end - start)
        if name not in known:
            known[name] = explained(angles[start:end], values[start:end], rounding, smooth)
        return known[name]

    found: list[_Piece] = []
    start = 0
    while start + STACK.in_a_row <= len(angles):
        weights, end = one(start, start + STACK.in_a_row), start + STACK.in_a_row
        if weights is None:
            start += 1
            continue
        while end < len(angles) and (longer := one(start, end + 1)) is not None:
            weights, end = longer, end + 1
        found.append(_Piece(start, end - 1, weights))
        start = end
    return found


def _read(
    angles: Floats, values: Floats, rounding: float, smooth: float, known: Known
) -> tuple[list[tuple[float, Floats]], list[tuple[float, float]]]:
    """Bends of one circle as angle and jump, and gaps that are not clear."""
    n = len(angles)
    pieces = _pieces(np.concatenate([angles, angles + 2 * np.pi]), np.tile(values, (2, 1)), rounding, smooth, known)
    inner = [p for p in pieces if p.start > 0]  # the first may have begun before the circle does
    if not inner:
        whole = bool(pieces) and pieces[0].end - pieces[0].start >= n
        return [], ([] if whole else [(float(angles[0]), float(angles[0] + 2 * np.pi))])
    twice = np.concatenate([angles, angles + 2 * np.pi])
    once = [p for p in inner if p.start - inner[0].start < n]
    again = [p for p in inner if p.start - inner[0].start >= n]
    following = [*once[1:], again[0] if again else _Piece(once[0].start + n, once[0].end + n, once[0].weights)]
    bends, gaps = [], []
    for left, right in zip(once, following, strict=True):
        if right.start > 2 * n - 1:
            gaps.append((float(twice[left.end]), float(twice[right.start - n] + 2 * np.pi)))
            continue
        start, end = float(twice[left.end]), float(twice[right.start])
        if right.start == left.end + 1:
            bend = _crossing(twice, left, right, rounding, smooth)
            if bend is not None:
                bends.append(bend)
                continue
        gaps.append((start, end))
    return bends, gaps


def _crossing(angles: Floats, left: _Piece, right: _Piece, rounding: float, smooth: float) -> tuple[float, Floats] | None:
    """Where two pieces meet, if they meet in all outputs at one angle between them."""

    def both(angle: float) -> tuple[Floats, Floats]:
        value, slope = np.zeros(left.weights.shape[1]), np.zeros(left.weights.shape[1])
        for sign, piece in ((1.0, right), (-1.0, left)):
            t = angle - (angles[piece.start] + angles[piece.end]) / 2
            value = value + sign * (np.array([1.0, np.cos(t), np.sin(t)]) @ piece.weights)
            slope = slope + sign * (np.array([0.0, -np.sin(t), np.cos(t)]) @ piece.weights)
        return value, slope

    start, end = float(angles[left.end]), float(angles[right.start])
    angle = (start + end) / 2
    for _ in range(8):
        value, slope = both(angle)
        angle -= float(value @ slope) / max(float(slope @ slope), 1e-300)
    value, slope = both(angle)
    margin = 1e-3 * (end - start)
    if not start - margin <= angle <= end + margin:
        return None
    spread = max((end - start) / (angles[p.end] - angles[p.start]) for p in (left, right)) + 1
    if np.abs(value).max() > (rounding + smooth * min(1.0, (end - start) ** 3)) * 10 * spread**2:
        return None
    return angle, slope


def grouped(jumps: Floats, near: float) -> NDArray[np.int_]:
    """A number per bend, the same for bends whose jumps are parallel: they are the work of one neuron."""
    signs = jumps / np.linalg.norm(jumps, axis=1, keepdims=True)
    labels = np.full(len(jumps), -1)
    for i in range(len(jumps)):
        if labels[i] < 0:
            alike = (np.linalg.norm(signs - np.outer(signs @ signs[i], signs[i]), axis=1) < near) & (labels < 0)
            labels[alike] = labels.max() + 1
    return labels
