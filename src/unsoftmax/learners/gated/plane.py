"""All gates of a piecewise quadratic function from one plane through the origin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.ffn.gradients import CrowdedCellError
from unsoftmax.learners.gated.arcs import Arc, ArcSearch, crossings
from unsoftmax.learners.gated.settings import GATES
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """``sum_j out[j] relu(normal[j]·x)(up[j]·x)`` and a quadratic form: the gates as far as one plane tells them.

    ``normal (gates, width)`` are unit vectors, ``up (gates, width)``, ``out (gates, outputs)`` unit vectors.
    """

    normal: Floats
    up: Floats
    out: Floats


def read_plane(ask: Callable[[Floats], Floats], basis: Floats, size: float, error: float, rng: np.random.Generator) -> Factors:
    """The gates of ``Q(x) = sum_j out[j] relu(normal[j]·x)(up[j]·x) + form(x)``, from bends on the unit circle of the first two
    rows of ``basis (width, width)`` and from steps along the others.

    In a cell of the circle ``Q(x + h e) = Q(x) + h B(x, e) + h^2 Q(e)`` with B linear in ``x``. From one cell to the next B changes
    by ``out ((normal·e)(up·x) + (up·e)(normal·x))``: two answers per direction and cell give both slopes, since the forms of the
    gates on the plane are known from the bends, and ``Q(e)`` changes by the product of the slopes.

    Args:
        ask: points ``(n, width)`` to answers ``(n, outputs)``.
        basis: orthonormal rows.
        size: of the answers on the unit circle.
        error: to expect of each, there.

    Raises:
        CrowdedCellError: bends too close together for a step to fit between them.
    """
    search = ArcSearch(lambda t: ask(circle(t) @ basis[:2]), error)
    ends = [0.0, np.pi / 3, 2 * np.pi / 3, np.pi - 2 * GATES.step]
    arcs = search.run(search.begun(ends))
    if len(arcs) == 1:
        raise NotInFamilyError("Seen from very far the target is a quadratic form without bends: it has no gates.")
    bends = []
    for left, right in pairwise(arcs):
        found = crossings(left, right)
        if len(found) != 1:
            raise CrowdedCellError("Two bends lie too close together on the half circle.")
        bends.append(found[0][0])
    cells = Cells(ask, basis, arcs, np.array(bends), size, error, rng)
    return cells.run()


def circle(t: Floats) -> Floats:
    """Points ``(n, 2)`` of the unit circle."""
    return np.stack([np.cos(t), np.sin(t)], axis=-1)


class Cells:
    """Slopes of the gates along the directions that leave the plane, two answers per direction and cell and one check per cell."""

    def __init__(
        self,
        ask: Callable[[Floats], Floats],
        basis: Floats,
        arcs: list[Arc],
        bends: Floats,
        size: float,
        error: float,
        rng: np.random.Generator,
    ) -> None:
        self.ask, self.basis, self.arcs, self.bends, self.size, self.error = ask, basis, arcs, bends, size, error
        count = len(bends)
        self.out, self.form = self._on_plane()
        edges = np.concatenate([[bends[-1] - np.pi], bends, [bends[0] + np.pi]])  # the outermost cells go on beyond the half circle
        self.middles, widths = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
        self.first, self.second = self.middles - widths / 4, self.middles + widths / 4
        away = np.abs(np.sin(np.concatenate([self.first, self.second])[:, None] - bends)).reshape(2, count + 1, count)
        crowding = (1 / away).sum(axis=2).max(axis=0)
        self.across = basis[2:]
        self.at_bend = np.einsum("jc,jc->j", self.form, circle(bends))  # what each gate lets through at its bend
        share = GATES.short * np.abs(self.at_bend) / np.linalg.norm(self.form, axis=1)
        shortest = np.minimum(np.append(share, np.inf), np.append(np.inf, share))
        self.lengths = np.minimum(GATES.caution * np.pi / 2 / (max(1, len(self.across)) * crowding), shortest)
        mix = rng.choice([-1.0, 1.0], size=len(self.across)) * rng.uniform(0.5, 1.5, size=len(self.across))
        self.mix = mix / max(float(np.linalg.norm(mix)), 1e-300)

    def _on_plane(self) -> tuple[Floats, Floats]:
        """``out (gates, outputs)`` and what the gates let through on the plane, ``(gates, 2)``."""
        out, form = [], []
        for t, (left, right) in zip(self.bends, pairwise(self.arcs), strict=True):
            places = np.array([(left.low + left.high) / 2, (right.low + right.high) / 2])
            jumps = np.array([right.value(s) - left.value(s) for s in places]) / np.sin(places - t)[:, None]
            u, s, v = np.linalg.svd(np.linalg.solve(circle(places), jumps), full_matrices=False)
            out.append(v[0])
            form.append(u[:, 0] * s[0])
        return np.array(out), np.array(form)

    def run(self) -> Factors:
        """Ask, check, repair."""
        if len(self.across) == 0:
            return self._factors(np.zeros((0, len(self.bends))), np.zeros((0, len(self.bends))))
        self._ask_cells(np.arange(len(self.arcs)))
        for _ in range(GATES.repairs):
            slopes, gaps = self._solved()
            wrong = np.linalg.norm(gaps, axis=1) / (self.lengths * self.size)
            limit = GATES.wrong + 100 * self.error / (self.lengths * self.size)
            bad = np.flatnonzero((wrong > limit) & (wrong > GATES.loud * wrong.max()))
            if len(bad) == 0:
                return self._factors(*slopes)
            self.lengths[bad] /= GATES.shrink
            self._ask_cells(bad)
        raise CrowdedCellError("A cell of the half circle is crossed by every step tried.")

    def _ask_cells(self, cells: NDArray[np.intp]) -> None:
        """Steps from two places of each cell along every direction, one mixed step from its middle; in the first cell both ways."""
        count, outputs = len(self.across), len(self.out[0])
        if not hasattr(self, "steps"):
            self.steps = np.zeros((len(self.arcs), 2, count, outputs))
            self.checks = np.zeros((len(self.arcs), outputs))
            self.back, self.back_mixed = np.zeros((count, outputs)), np.zeros(outputs)
        lengths = self.lengths[cells][:, None, None]
        mixed = self.mix @ self.across
        groups = [(circle(places[cells]) @ self.basis[:2])[:, None] + lengths * self.across for places in (self.first, self.second)]
        groups.append((circle(self.middles[cells]) @ self.basis[:2])[:, None] + lengths * mixed)
        points = [group.reshape(-1, len(self.basis)) for group in groups]
        if cells[0] == 0:
            start, middle = circle(np.array([self.first[0], self.middles[0]])) @ self.basis[:2]
            points += [start - self.lengths[0] * self.across, (middle - self.lengths[0] * mixed)[None]]
        answers = self.ask(np.concatenate(points))
        own = len(cells) * count
        self.steps[cells] = answers[: 2 * own].reshape(2, len(cells), count, outputs).transpose(1, 0, 2, 3)
        self.checks[cells] = answers[2 * own : 2 * own + len(cells)]
        if cells[0] == 0:
            self.back, self.back_mixed = answers[-1 - count : -1], answers[-1]

    def _solved(self) -> tuple[tuple[Floats, Floats], Floats]:
        """Slopes of gates and of what passes them, ``(directions, gates)`` each, and gaps ``(cells, outputs)`` of the checks."""
        arcs, lengths = self.arcs, self.lengths[:, None]
        known = np.array([[arc.value(s) for s in pair] for arc, pair in zip(arcs, self._pairs(), strict=True)])
        middle = np.array([arc.value(t) for arc, t in zip(arcs, self.middles, strict=True)])
        first = (self.steps[0, 0] + self.back - 2 * known[0, 0]) / (2 * self.lengths[0] ** 2)
        first_mixed = (self.checks[0] + self.back_mixed - 2 * middle[0]) / (2 * self.lengths[0] ** 2)
        side = np.einsum("jc,jc->j", self.form, circle(self.bends + np.pi / 2))
        squares = np.broadcast_to(first, (len(arcs), *first.shape)).copy()
        gate = passed = np.zeros((len(self.across), len(self.bends)))
        for _ in range(GATES.slope_turns):
            if np.abs(squares).max() > GATES.lost * self.size:
                raise CrowdedCellError("The slopes of gates that let little through at their bends cannot be told.")
            changes = (self.steps - known[:, :, None]) / lengths[:, None, None] - (lengths[:, None] * squares)[:, None]
            at_bend = self._between(changes, self.bends)
            beside = self._between(changes, self.bends + np.pi / 2)
            gate = np.einsum("jio,jo->ij", at_bend, self.out) / self.at_bend
            passed = np.einsum("jio,jo->ij", beside, self.out) - gate * side
            grown = np.cumsum((gate * passed).T[:, :, None] * self.out[:, None], axis=0)
            squares = first + np.concatenate([np.zeros((1, *first.shape)), grown])
        mixed = np.einsum("i,kio->ko", self.mix, self._at(changes, self.middles))
        grown = np.cumsum(((self.mix @ gate) * (self.mix @ passed))[:, None] * self.out, axis=0)
        square = first_mixed + np.concatenate([np.zeros((1, grown.shape[1])), grown])
        return (gate, passed), self.checks - middle - lengths * mixed - lengths**2 * square

    def _pairs(self) -> Floats:
        return np.stack([self.first, self.second], axis=1)

    def _at(self, changes: Floats, places: Floats) -> Floats:
        """The linear changes ``(cells, 2, directions, outputs)`` at one place ``(cells,)`` per cell."""
        wide = np.sin(self.second - self.first)
        before, after = np.sin(self.second - places) / wide, np.sin(places - self.first) / wide
        return np.asarray(before[:, None, None] * changes[:, 0] + after[:, None, None] * changes[:, 1])

    def _between(self, changes: Floats, places: Floats) -> Floats:
        """By how much they differ between the cells beside each bend, at one place ``(bends,)`` each."""
        padded = np.concatenate([places, places[-1:]])
        left = self._at(changes, padded)[:-1]
        right = self._at(changes, np.concatenate([places[:1], places]))[1:]
        return np.asarray(right - left)

    def _factors(self, gate: Floats, passed: Floats) -> Factors:
        across = circle(self.bends + np.pi / 2)
        normal = across @ self.basis[:2] + gate.T @ self.across
        up = self.form @ self.basis[:2] + passed.T @ self.across
        lengths = np.linalg.norm(normal, axis=1, keepdims=True)
        return Factors(normal / lengths, up * lengths, self.out)
