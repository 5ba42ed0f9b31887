"""All neurons of a network from one straight line through its domain."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.ffn.gradients import CellSlopes, CrowdedCellError
from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.kinks import KinkSearch, Piece, crossing, nearness
from unsoftmax.learners.ffn.lift import Lift
from unsoftmax.learners.ffn.orientation import subset_of
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase

Answers = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """What a line tells.

    Attributes:
        pieces: straight ones, in order.
        bends: where they meet.
        jumps: of the slope there ``(bends, outputs)``.
        middles: a place well inside each piece.
    """

    pieces: list[Piece]
    bends: Floats
    jumps: Floats
    middles: Floats

    def hinges(self) -> Hinges:
        """The function on the line."""
        strengths, linear = np.linalg.norm(self.jumps, axis=1), self.pieces[0].slope[:, None]
        constant = self.pieces[0].value(float(self.middles[0])) - linear[:, 0] * self.middles[0]
        return Hinges(self.jumps / strengths[:, None], strengths[:, None], -strengths * self.bends, linear, constant)

    def active_below(self) -> NDArray[np.bool_] | None:
        """The bends that are active at the low end, of a scalar network without skip, where the slope there tells them."""
        if self.jumps.shape[1] > 1:
            return None
        errors = [(piece.low_error + piece.high_error) / (piece.high - piece.low) for piece in self.pieces]
        return subset_of(self.jumps[:, 0], -float(self.pieces[0].slope[0]), 2 * float(np.linalg.norm(errors)))


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Learns what a known model lacks, from its bends on the line ``origin + t * direction``.

    Args:
        origin: a point ``(width,)``.
        direction: a unit vector ``(width,)``.
        reach: bends are searched for ``|t| <= reach``.
        scale: length on which the target is thought to vary.
        caution: expected number of steps per cell that cross a bend (and cost a repair); small steps lose digits.
        most: refuse more bends than that.
        doubt: error of the known model, relative to the size of the numbers in the target.
        ends: share of the reach that the outermost pieces are thought to take (less where it turns out less).
        through_origin: every hyperplane passes through the origin and nothing is added, so that ``f(x) = gradient @ x`` gives one
            derivative of each cell for nothing.
        lift: the normals of all bends are learned together, by long steps from where they are known; from the cells of the line
            only if that fails.
        farthest: no step ends farther from the origin of the line.
        partial: hand over the bends that were read, and nothing about those beside a cell that could not be; the affine part may
            then be missing.
    """

    origin: Floats
    direction: Floats
    reach: float
    scale: float
    caution: float
    most: int
    doubt: float = 0.0
    ends: float = 0.5
    through_origin: bool = False
    lift: bool = False
    farthest: float = np.inf
    partial: bool = False

    def run(self, questions: Questions, known: Hinges | None, *, rng: np.random.Generator) -> Hinges:
        """The difference of the target and ``known``, as far as it bends on this line."""
        phase(questions.oracle, "kinks")
        asked: list[tuple[int, Floats]] = []

        def difference(points: Floats) -> Floats:
            answers = questions.ask(points)
            return answers if known is None else np.asarray(answers - known(points))

        def ask(t: Floats) -> Floats:
            asked.append((questions.calls, t))
            return difference(self._points(t))

        def noise(t: Floats) -> Floats:
            points = self._points(t)
            sizes = questions.offset + questions.slope * np.linalg.norm(points, axis=1)
            return np.asarray(questions.noise(points) + self.doubt * sizes)

        lift = self.lift and len(self.origin) > 1
        lean = lift and questions.answers.shape[1] == 1 and self.reach == RELU.reach * self.scale
        first = self._first_pieces(ask, noise, questions, sized=known is not None, lean=lean)
        search = KinkSearch(ask, noise, self.scale, self.most, nearness(questions.floor.relative), lean=lean)
        read = self._read(search.run(first))
        if lift and len(read.bends) and np.linalg.norm(read.jumps, axis=1).min() > 0:
            read, lifted = self._lifted(questions, search, read, asked, rng)
            if lifted is not None:
                return lifted
        if known is None:  # else the bends are those of the difference, and there are more on the line
            self._relocate(questions, read, asked)
        phase(questions.oracle, "gradients")
        return self._assemble(questions, difference, read, noise, rng)

    def _hold(self, search: KinkSearch, read: Read) -> None:
        """Refuse ends that bend in their middle."""
        t = self.reach * (1 - self.ends / 2) * np.array([-1.0, 1.0])
        for end, *answer in zip((read.pieces[0], read.pieces[-1]), t, search.ask(t), search.noise(t), strict=True):
            if not end.holds(*answer):
                raise CrowdedCellError("A bend lies near the end of the line.")

    def _read(self, pieces: list[Piece]) -> Read:
        bends = np.array([crossing(a, b) for a, b in itertools.pairwise(pieces)])
        jumps = np.array([b.slope - a.slope for a, b in itertools.pairwise(pieces)]).reshape(len(bends), len(pieces[0].low_value))
        return Read(pieces, bends, jumps, self._middles(bends))

    def _relocate(self, questions: Questions, read: Read, asked: list[tuple[int, Floats]]) -> None:
        """Tell which answers were given in which cell."""
        for call, t in asked:
            questions.relocate(call, self._points(read.middles[np.searchsorted(read.bends, t)]))

    def _points(self, t: Floats) -> Floats:
        return np.asarray(self.origin + np.asarray(t)[:, None] * self.direction)

    def _first_pieces(self, ask: Answers, noise: Answers, questions: Questions, *, sized: bool, lean: bool) -> list[Piece]:
        """The outermost pieces, from three answers at each end of which the middle one must agree, and two pieces in between.

        With ``lean`` the middle ones are not asked: the slopes must add up.
        """
        inner = min(0.7 * self.scale, 0.3 * self.reach)
        starts = np.array([-inner, inner])
        seeds = np.stack([starts, starts + nearness(questions.floor.relative) * (self.scale + inner)], axis=1)
        for attempt in range(4):
            share = self.ends * 10.0**-attempt
            outer = self.reach * np.array([-1.0, share - 1, 1 - share, 1.0])
            between = np.zeros(0) if lean else self.reach * np.array([share / 2 - 1, 1 - share / 2])
            t = np.concatenate([outer, between, seeds.ravel() if attempt == 0 else []])
            values = ask(t)
            if not sized:
                slopes = [np.linalg.norm(values[i + 1] - values[i]) / (t[i + 1] - t[i]) for i in (0, 2)]
                questions.slope = max(questions.slope, RELU.room * float(max(slopes)))
            if attempt == 0:
                seed_values = values[-4:]
                if not sized:
                    questions.offset = max(questions.offset, RELU.room * float(np.linalg.norm(seed_values, axis=1).max()))
            errors = noise(t)
            ends = [Piece(t[i], t[i + 1], values[i], values[i + 1], errors[i], errors[i + 1]) for i in (0, 2)]
            if lean or all(end.holds(t[k], values[k], errors[k]) for end, k in zip(ends, (4, 5), strict=True)):
                break
        errors = noise(seeds.ravel())
        middle = [
            Piece(seeds[k, 0], seeds[k, 1], seed_values[2 * k], seed_values[2 * k + 1], errors[2 * k], errors[2 * k + 1])
            for k in range(2)
            if ends[0].high < seeds[k, 0] and seeds[k, 1] < ends[1].low
        ]
        return [ends[0], *middle, ends[1]]

    def _middles(self, bends: Floats) -> Floats:
        """A place well inside each cell, ``(bends + 1,)``."""
        if len(bends) == 0:
            return np.zeros(1)
        margin = max(0.3 * float(np.median(np.abs(bends - np.median(bends)))), 1e-3 * self.scale)
        first, last = max(bends[0] - margin, -self.reach), min(bends[-1] + margin, self.reach)
        return np.concatenate([[first], (bends[:-1] + bends[1:]) / 2, [last]])

    def _chosen_cells(self, jumps: Floats, bends: Floats) -> list[int]:
        """Cells whose gradients determine every bend: with several outputs one in ``outputs - 1`` is enough, wide ones best."""
        count, outputs = jumps.shape if len(jumps) else (0, 1)
        out = jumps / np.maximum(np.linalg.norm(jumps, axis=1, keepdims=True), 1e-300) if count else jumps
        widths = np.concatenate([[np.inf], np.diff(bends), [np.inf]]) if count else np.array([np.inf])
        stride = max(1, outputs - (outputs > 2))
        chosen = [0]
        while chosen[-1] < count:
            here = chosen[-1]
            options = []
            for cell in range(here + 1, min(here + stride, count) + 1):
                if np.linalg.cond(out[here:cell].T) < 60:
                    options.append(cell)
            options = options or [here + 1]
            far = [cell for cell in options if cell > here + (3 * stride) // 4] or [options[-1]]
            chosen.append(count if count in options else max(far, key=lambda cell: widths[cell]))
        return chosen

    def _lifted(
        self, questions: Questions, search: KinkSearch, read: Read, asked: list[tuple[int, Floats]], rng: np.random.Generator
    ) -> tuple[Read, Hinges | None]:
        """The line, and the whole network from that on it; None where its answers do not fit together.

        Bends with a near answer on one side alone are believed where little is unexplored on the other and all slopes add up: of a
        network without skip the one at the low end is minus the sum of the jumps of those that are active there, a choice of a few
        numbers that one number tells. Where the network beside the line is not what the line says, they are all looked at again.
        """
        width, share = len(self.origin), RELU.unexplored
        basis = np.linalg.qr(np.concatenate([self.direction[:, None], rng.normal(size=(width, width - 1))], axis=1))[0].T
        basis[0] = self.direction
        while True:
            phase(questions.oracle, "kinks")
            if search.lean:
                read = self._read(search.confirmed(read.pieces, share))
            chosen = read.active_below()
            if chosen is None and search.lean and share > 0:
                share = 0.0
                self._hold(search, read)
                continue
            self._relocate(questions, read, asked)
            points, references, answers = questions.of([call for call, _ in asked])
            t, inside = (((x - self.origin) @ self.direction)[:, None] for x in (points, references))
            cells = self._chosen_cells(read.jumps, read.bends)
            values = np.array([read.pieces[k].value(read.middles[k]) for k in cells])
            phase(questions.oracle, "gradients")
            lift = Lift(questions, self.origin, basis, chosen, self.farthest, rng, [(t, inside, answers)])
            lifted = lift.run(read.hinges(), read.middles[cells, None], values)
            if lifted is not None or share == 0.0 or not search.lean:
                return read, lifted
            share = 0.0
            phase(questions.oracle, "kinks")
            confirmed = search.confirmed(read.pieces, share)
            if len(confirmed) == len(read.pieces):
                return read, None
            read = self._read(confirmed)

    def _assemble(
        self,
        questions: Questions,
        difference: Answers,
        read: Read,
        noise: Answers,
        rng: np.random.Generator,
    ) -> Hinges:
        pieces, bends, jumps, middles = read.pieces, read.bends, read.jumps, read.middles
        width = len(self.origin)
        basis = np.linalg.qr(np.concatenate([self.direction[:, None], rng.normal(size=(width, width - 1))], axis=1))[0]
        across = basis[:, 1:].T
        free = np.zeros((0, width))
        inward = self.origin - (self.origin @ self.direction) * self.direction
        if self.through_origin and width > 1:
            free = (inward / np.linalg.norm(inward))[None]
            spanned = np.concatenate([self.direction[:, None], free.T, rng.normal(size=(width, width - 2))], axis=1)
            across = np.linalg.qr(spanned)[0][:, 2:].T
        cells = self._chosen_cells(jumps, bends)
        questions.beside += len(cells)
        bases = middles[cells]
        values = np.array([pieces[k].value(t) for k, t in zip(cells, bases, strict=True)])
        crowding = np.array([np.sum(1 / np.abs(t - bends)) for t in bases]) if len(bends) else np.full(1, 1 / self.scale)
        lengths = self.caution * 1.57 / (max(1, width - 1) * crowding)
        errors = noise(bases) + np.array([pieces[k].error(t) for k, t in zip(cells, bases, strict=True)])
        slopes = CellSlopes(
            lambda x, _: difference(x), self._points(bases), values, lengths, across, errors, rng, partial=self.partial
        ).run()
        if len(free):
            along = np.array([pieces[k].slope for k in cells])
            rest = values - (self._points(bases) @ self.direction)[:, None] * along
            slopes = np.concatenate([rest[:, None] / np.linalg.norm(inward), slopes], axis=1)
            across = np.concatenate([free, across])
        strengths = np.linalg.norm(jumps, axis=1)
        out = jumps / np.maximum(strengths, 1e-300)[:, None]
        normal = strengths[:, None] * self.direction
        for (here, there), before, after in zip(itertools.pairwise(cells), slopes[:-1], slopes[1:], strict=True):
            if not np.isfinite(after - before).all():
                normal[here:there] = 0.0
                continue
            parts = np.linalg.lstsq(out[here:there].T, (after - before).T, rcond=None)[0]
            normal[here:there] += parts @ across
        shift = -np.einsum("jw,jw->j", normal, self._points(bends)) if len(bends) else np.zeros(0)
        linear = np.outer(pieces[0].slope, self.direction) + slopes[0].T @ across
        constant = pieces[0].value(float(middles[0])) - linear @ self._points(middles[:1])[0]
        outputs = len(constant)
        return Hinges(out.reshape(-1, outputs), normal.reshape(-1, width), shift, linear, constant)
