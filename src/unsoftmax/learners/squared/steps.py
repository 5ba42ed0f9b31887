"""Answers beside a line: the rows of the neurons whose bends lie on it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.squared.line import Line
from unsoftmax.learners.squared.pieces import Piece
from unsoftmax.learners.squared.settings import SQUARES
from unsoftmax.learners.squared.squares import Mask
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The bends on a line, and the quadratic form left of all of them.

    In coordinates ``(t, u)``, ``x = start + t axes[0] + u @ axes[1:]``, the function is the form of the first cell plus
    ``sum_k jumps[k] relu(t - places[k] + slopes[k]·u)^2``.

    Attributes:
        start: ``(width,)``.
        axes: orthonormal rows ``(width, width)``, the line's direction first.
        places: ``(bends,)``, in order.
        jumps: ``(bends, outputs)``.
        slopes: ``(bends, width - 1)``.
        form: ``(outputs, width, width)``, symmetric.
    """

    start: Floats
    axes: Floats
    places: Floats
    jumps: Floats
    slopes: Floats
    form: Floats

    def nearer(self, places: Floats, aside: Floats) -> Floats:
        """By which share of the distance from a hyperplane steps ``aside (n, width - 1)`` from the line change it, ``(n,)``.

        Beyond 1 they may have crossed it.
        """
        before, change = places[:, None] - self.places, aside @ self.slopes.T
        return np.asarray((np.abs(change) / np.abs(before)).max(axis=1))


class Steps:
    """Answers beside a line: the form of the first cell, and the rows of the neurons."""

    def __init__(self, line: Line, pieces: list[Piece], axes: Floats) -> None:
        bends = [line.bend(left, right) for left, right in itertools.pairwise(pieces)]
        self.line, self.questions, self.axes, self.pieces = line, line.questions, axes, pieces
        self.places = np.array([bend[0] for bend in bends if bend is not None])
        self.jumps = np.stack([bend[1] for bend in bends if bend is not None])
        self.aside = np.eye(len(axes) - 1)
        outputs, span = self.jumps.shape[1], float(np.ptp(self.places)) + 1.0
        if not (np.diff(self.places) > 0).all():
            raise NotInFamilyError("Bends on a line are not told apart: they lie too close together.")
        self.ends = _ends(np.diff(self.places), outputs)
        outer = min(span, line.reach - float(np.abs(self.places).max()))
        self.first = float(self.places[0]) - outer * np.array([1.0, 0.5])
        before, beyond = self.places[np.array(self.ends[:-1], dtype=int) - 1], self.places[self.ends[:-1]]
        looked = np.array([pieces[end].high for end in self.ends[:-1]])
        self.at = np.append(np.minimum(looked, before + SQUARES.latest * (beyond - before)), self.places[-1] + outer)
        after = np.append(self.places, np.inf)[self.ends]
        margins = np.minimum(self.at - self.places[np.array(self.ends) - 1], after - self.at)
        self.lengths = SQUARES.aside * margins[:, None] * np.ones(len(self.aside))
        self.length = SQUARES.aside_first * outer / 2

    def read(self) -> Cells:
        """The rows, once no step crosses a hyperplane.

        Raises:
            NotInFamilyError: steps cross one however short they are.
        """
        phase(self.questions.oracle, "one cell")
        corner = self._corner()
        phase(self.questions.oracle, "rows")
        on = np.concatenate([self.pieces[end](place[None]) for end, place in zip(self.ends, self.at[:, None], strict=True)])
        steps = self._steps(np.ones(self.lengths.shape, dtype=bool), np.zeros((*self.lengths.shape, self.jumps.shape[1])))
        for _ in range(SQUARES.repairs):
            cells = self._solved(corner, on, steps)
            share = float(cells.nearer(*self._corner_steps()).max())
            if share > SQUARES.clear:
                self.length /= max(SQUARES.shorter, 2 * share / SQUARES.clear)
                corner = self._corner()
                continue
            at, aside = np.repeat(self.at, len(self.aside)), np.concatenate(self.lengths[:, :, None] * self.aside)
            shares = cells.nearer(at, aside).reshape(self.lengths.shape)
            crossed = shares > SQUARES.clear
            if not crossed.any():
                return cells
            if crossed.mean() > SQUARES.astray:
                break
            self.lengths[crossed] /= np.maximum(SQUARES.shorter, 2 * shares[crossed] / SQUARES.clear)
            steps = self._steps(crossed, steps)
        raise NotInFamilyError(
            "Steps off a line cross hyperplanes, most of them or however short they are: several nearly meet on it."
        )

    def _ask(self, places: Floats, aside: Floats) -> Floats:
        return self.questions.ask(self.line.start + places[:, None] * self.axes[0] + aside @ self.axes[1:])

    def _steps(self, wanted: Mask, known: Floats) -> Floats:
        """Answers to the wanted steps off the line, the others as they are known, ``(cells, width - 1, outputs)``."""
        cell, axis = np.nonzero(wanted)
        told = known.copy()
        if len(cell):
            told[cell, axis] = self._ask(self.at[cell], self.lengths[cell, axis][:, None] * self.aside[axis])
        return told

    def _corner_steps(self) -> tuple[Floats, Floats]:
        """Places and steps aside in the first cell: none, each axis both ways, two at once; at the second place none and each."""
        unit = self.aside
        pairs = [unit[i] + unit[j] for i, j in itertools.combinations(range(len(unit)), 2)]
        none = np.zeros((1, len(unit)))
        near = np.concatenate([none, unit, -unit, np.reshape(pairs, (len(pairs), len(unit)))])
        aside = np.concatenate([near, none, unit]) * self.length
        return np.repeat(self.first, [len(near), 1 + len(unit)]), aside

    def _corner(self) -> tuple[Floats, Floats, Floats]:
        """Slopes aside at the first place ``(width - 1, outputs)``, how they change along the line, and the form of two steps."""
        answers, h, n = self._ask(*self._corner_steps()), self.length, len(self.aside)
        here, up, down = answers[0], answers[1 : n + 1], answers[n + 1 : 2 * n + 1]
        slopes, own = (up - down) / (2 * h), (up + down - 2 * here) / (2 * h * h)
        form = np.zeros((n, n, len(here)))
        form[np.arange(n), np.arange(n)] = own
        for (i, j), both in zip(itertools.combinations(range(n), 2), answers[2 * n + 1 :], strict=False):
            form[i, j] = form[j, i] = ((both - here) / h - slopes[i] - slopes[j] - h * (own[i] + own[j])) / (2 * h)
        there, beyond = answers[-n - 1], answers[len(answers) - n :]
        changes = ((beyond - there) / h - h * own - slopes) / (self.first[1] - self.first[0])
        return slopes, changes, form

    def _solved(self, corner: tuple[Floats, Floats, Floats], on: Floats, steps: Floats) -> Cells:
        """The rows that steps from these cells tell, from the first cell on."""
        slopes, changes, form = corner
        n, outputs = slopes.shape
        own = form[np.arange(n), np.arange(n)]
        rows = np.zeros((len(self.places), n))
        start = 0
        for c, end in enumerate(self.ends):
            h, before = self.lengths[c], self.at[c] - self.places[:end]
            gain = steps[c] - on[c] - h[:, None] * (slopes + (self.at[c] - self.first[0]) * changes) - h[:, None] ** 2 * own
            pull = rows[:start] * h  # of the bends whose rows are known
            gain -= (2 * pull * before[:start, None] + pull**2).T @ self.jumps[:start]
            squares = np.linalg.lstsq(self.jumps[start:end].T, gain.T, rcond=None)[0] + before[start:, None] ** 2
            rows[start:end] = (np.sqrt(np.maximum(squares, 0.0)) - before[start:, None]) / h
            start = end
        first = self.pieces[0](self.first[0] + np.array([-1.0, 0.0, 1.0]) * (self.first[1] - self.first[0]))
        along = (first[0] + first[2] - 2 * first[1]) / (2 * (self.first[1] - self.first[0]) ** 2)
        whole = np.zeros((outputs, n + 1, n + 1))
        whole[:, 0, 0] = along
        whole[:, 0, 1:] = whole[:, 1:, 0] = changes.T / 2
        whole[:, 1:, 1:] = form.transpose(2, 0, 1)
        return Cells(self.line.start, self.axes, self.places, self.jumps, rows, whole)


def _ends(widths: Floats, outputs: int) -> list[int]:
    """The cells that are stepped from, by how many bends lie before them.

    An answer of several numbers tells several bends at once; of the cells up to which it may, the widest tells them best.
    """
    bends, ends = len(widths) + 1, [0]
    while ends[-1] < bends:
        offered = np.arange(ends[-1] + max(1, outputs // 2), ends[-1] + max(1, outputs - 1) + 1)
        offered = offered[offered < bends]
        ends.append(int(offered[np.argmax(widths[offered - 1])]) if len(offered) else bends)
    return ends[1:]
