"""From a line to all of space: where a network is known, long steps into new directions are safe.

On a plane in which every bend is known, points far from all of them are known too, with as many different activation patterns as
one likes. A step from such a point into a new direction may be a thousand times longer than one between two bends of a line, and its
answer is one equation in the new components of the neurons that are active there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from unsoftmax.learners.ffn.design import choose_points, predicted_error, telling
from unsoftmax.learners.ffn.fit import fit
from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.normal_equations import NormalEquations
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Steps from the same bases into each of several new directions, and what they tell of every bend.

    Attributes:
        inverse: from weighted slopes to what is unknown of one direction, ``(unknowns, bases, outputs)``.
        found: that of every direction ``(unknowns, new)``.
        ratios: error of the slope from each base, in expected errors of an answer ``(bases,)``.
    """

    inverse: Floats
    found: Floats
    ratios: Floats

    @classmethod
    def solved(cls, rows: Floats, slopes: Floats, weights: Floats, ratios: Floats, scales: Floats) -> Block:
        """From ``slopes (bases, outputs, new)`` of weight ``weights (bases,)``, and ``rows (bases, outputs, unknowns)``."""
        bases, outputs, unknowns = rows.shape
        weighted = (rows * scales * weights[:, None, None]).reshape(-1, unknowns)
        inverse = scales[:, None] * np.linalg.pinv(weighted, rcond=RELU.singular)
        found = inverse @ (slopes * weights[:, None, None]).reshape(bases * outputs, -1)
        return cls(inverse.reshape(unknowns, bases, outputs), found, ratios)

    def error(self, row: Floats) -> float:
        """Error to expect of the slope that ``row (outputs, unknowns)`` predicts, into a mix of all directions.

        Steps from one base share its error, so that theirs add up.
        """
        told = np.einsum("ou,ubp->obp", row, self.inverse) * self.ratios[:, None]
        return float(np.sqrt(self.found.shape[1]) * np.linalg.norm(told))

    def mended(self, checks: list[Check]) -> Block | None:
        """With the one slope set right that explains what the checks miss; None where there is none, or several do."""
        lengths = [check.length for check in checks]
        off = np.concatenate([check.off for check in checks])
        told = [length * np.einsum("ou,ubp->bop", check.row, self.inverse) for check, length in zip(checks, lengths, strict=True)]
        limit = max(check.limit for check in checks)
        best: tuple[float, int, int, Floats] | None = None
        others = np.inf
        for base in range(self.inverse.shape[1]):
            for new in range(self.found.shape[1]):
                effect = np.concatenate([check.mix[new] * part[base] for check, part in zip(checks, told, strict=True)])
                wanted = np.linalg.lstsq(effect, off, rcond=None)[0]
                left = float(np.linalg.norm(off - effect @ wanted))
                if best is None or left < best[0]:
                    others, best = np.inf if best is None else min(others, best[0]), (left, base, new, wanted)
                else:
                    others = min(others, left)
        if best is None or best[0] > limit or others < RELU.loud * limit:
            return None
        found = self.found.copy()
        found[:, best[2]] += self.inverse[:, best[1]] @ best[3]
        return replace(self, found=found)


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """A step of some length into a mix of the new directions, and what its answer has beyond the predicted one.

    Attributes:
        row: what the unknowns of a direction add to a slope there ``(outputs, unknowns)``.
        length: of the step.
        mix: its unit vector ``(new,)``.
        off: answer minus predicted ``(outputs,)``.
        limit: how large that may be.
    """

    row: Floats
    length: float
    mix: Floats
    off: Floats
    limit: float


@dataclass(frozen=True, slots=True, eq=False)
class Lift:
    """Learns the normals of bends of which a line told the rest: a network on one coordinate, then on two, grows to all of them.

    Args:
        questions: asks.
        origin: where all coordinates are 0, ``(width,)``.
        basis: orthonormal rows ``(width, width)``, the line's direction first, the others random.
        chosen: the bends active at the low end of the line ``(neurons,)``, of a network without skip; None where that is not known.
        farthest: no coordinates longer than this.
        rng: random.
        asked: coordinates ``(n, known)``, a place in the same linear piece as each, and answers; for the fits on the way.
    """

    questions: Questions
    origin: Floats
    basis: Floats
    chosen: NDArray[np.bool_] | None
    farthest: float
    rng: np.random.Generator
    asked: list[tuple[Floats, Floats, Floats]] = field(default_factory=list)

    def run(self, line: Hinges, places: Floats, values: Floats) -> Hinges | None:
        """The network; None where answers do not fit together.

        Args:
            line: the network on the line, of width 1, bends in order and active above.
            places: a place well inside each cell of the line ``(cells, 1)``.
            values: the function there ``(cells, outputs)``.
        """
        model = self._beside(line, places, values)
        while model is not None and model.normal.shape[1] < len(self.origin):
            model = self._farther(model, places)
        if model is None:
            return None
        normal, linear = model.normal @ self.basis, model.linear @ self.basis
        return Hinges(model.out, normal, model.shift - normal @ self.origin, linear, model.constant - linear @ self.origin)

    def _beside(self, line: Hinges, places: Floats, values: Floats) -> Hinges | None:
        """The network on the plane of the line and one more direction, from short steps beside the line.

        With one output a step that crosses a bend betrays itself, and costs one question: across the next one, the slope that it tells
        makes that bend pass right through its end; across farther ones it ends beyond a bend that the other steps tell.
        """
        (cells, outputs), rows = values.shape, self._rows(line, places)
        lengths = self._lengths(line, places, (RELU.betrayed if outputs == 1 else RELU.crossing) / cells)
        if lengths.min() <= 0:
            return None
        weights, scales = lengths / self._noise(places), _scales(line, rows)
        picks = np.arange(cells)
        if outputs > 1:  # fewer cells tell all, and half as many again whether they agree
            picks = telling(rows * scales * weights[:, None, None], min(cells, 3 * -(-rows.shape[2] // outputs) // 2))
        wrong, slopes = picks, np.zeros((cells, outputs))
        for _ in range(RELU.again):
            ends = np.concatenate([places[wrong], lengths[wrong, None]], axis=1)
            slopes[wrong] = (self._ask(ends, ends) - values[wrong]) / lengths[wrong, None]
            if outputs == 1:
                jumps = np.diff(slopes, axis=0) * line.out
                before = line.before(places)
                left = (before + lengths[:, None] * jumps[:, 0]) / before
                wrong = np.flatnonzero(left.min(axis=1, initial=1.0) < RELU.through)
            if outputs > 1 or len(wrong) == 0:
                told = slopes[picks][:, :, None]
                found = Block.solved(rows[picks], told, weights[picks], np.ones(len(picks)), scales).found
                limit = 3 * RELU.trust / weights[picks] + RELU.unheard * float(np.abs(told).max())
                if np.all(np.linalg.norm(told - rows[picks] @ found, axis=1)[:, 0] <= limit):
                    return self._with(line, found)
                wrong = picks
            lengths[wrong] /= -1.0 if len(wrong) < len(picks) else RELU.shrink
        return None

    def _farther(self, model: Hinges, places: Floats) -> Hinges | None:
        """The network in more directions, from long steps where it is known."""
        model, system = self._fitted(model)
        outputs, known = model.out.shape[1], model.normal.shape[1]
        new = len(self.origin) - known
        if model.neurons >= RELU.crowded:
            new = min(new, RELU.block * known)
        pool = self._pool(model, places)
        rows, noise = self._rows(model, pool), self._noise(pool)
        count = -(-rows.shape[2] // outputs)
        lengths = self._lengths(model, pool, RELU.crossing / (count * new))
        weights = lengths / noise
        scales = _scales(model, rows)
        picks = telling(rows * scales * weights[:, None, None], count)
        unsure = choose_points(
            model, system, pool[picks], noise[picks], RELU.base * float(np.median(noise)), count, least=1, rng=self.rng
        )
        bases = pool[picks[unsure]]
        off = np.linalg.norm(self._ask(bases, bases) - model(bases), axis=1)
        if np.any(off > 3 * RELU.trust * (predicted_error(model, system, bases) + noise[picks[unsure]])):
            return None
        model, system = self._fitted(model)
        spare = self.rng.choice(np.setdiff1d(np.arange(len(pool)), picks), size=2, replace=False)
        errors = np.zeros(len(pool))
        for some in (picks, spare):
            errors[some] = np.hypot(noise[some], predicted_error(model, system, pool[some]))
        ends = np.zeros((count, new, known + new))
        ends[:, :, :known] = pool[picks, None]
        ends[:, np.arange(new), known + np.arange(new)] = lengths[picks, None]
        ends = ends.reshape(-1, known + new)
        answers = self._ask(ends, ends).reshape(count, new, outputs)
        slopes = (answers - model(pool[picks])[:, None]) / lengths[picks, None, None]
        block = Block.solved(rows[picks], slopes.transpose(0, 2, 1), weights[picks], (errors / noise)[picks], scales)
        checks: list[Check] = []
        for at in spare:
            mix = self.rng.choice([-1.0, 1.0], size=new) * self.rng.uniform(0.5, 1.5, size=new)
            mix /= np.linalg.norm(mix)
            end = np.concatenate([pool[at], lengths[at] * mix])[None]
            predicted = model(pool[at][None]) + lengths[at] * rows[at] @ block.found @ mix
            error = errors[at] + lengths[at] * block.error(rows[at])
            limit = 3 * RELU.trust * error + RELU.unheard * lengths[at] * float(np.abs(slopes).max())
            checks.append(Check(rows[at], lengths[at], mix, (self._ask(end, end) - predicted)[0], limit))
            if len(checks) == 1 and np.linalg.norm(checks[0].off) <= limit:
                return self._with(model, block.found)
        mended = block.mended(checks)
        return None if mended is None else self._with(model, mended.found)

    def _ask(self, ends: Floats, references: Floats) -> Floats:
        answers = self.questions.ask(self._points(ends))
        self.asked.append((ends, references, answers))
        return answers

    def _points(self, coordinates: Floats) -> Floats:
        return np.asarray(self.origin + coordinates @ self.basis[: coordinates.shape[1]])

    def _noise(self, coordinates: Floats) -> Floats:
        return self.questions.noise(self._points(coordinates))

    def _fitted(self, model: Hinges) -> tuple[Hinges, NormalEquations]:
        """The model after a fit to all that was asked where it is known."""
        known = model.normal.shape[1]
        points, references = (
            np.concatenate([np.pad(part[i], ((0, 0), (0, known - part[i].shape[1]))) for part in self.asked]) for i in range(2)
        )
        answers = np.concatenate([part[2] for part in self.asked])
        return fit(model, points, references, answers, self._noise(points), chosen=self.chosen)

    def _rows(self, model: Hinges, points: Floats) -> Floats:
        """What the new component of every bend, and of the linear part, adds to the slope at ``points``: ``(n, outputs, unknowns)``."""
        outputs = model.out.shape[1]
        active = (model.before(points) > 0).astype(np.float64)
        if self.chosen is not None:
            return np.asarray((active - self.chosen)[:, None, :] * model.out.T)
        linear = np.broadcast_to(np.eye(outputs), (len(points), outputs, outputs))
        return np.concatenate([active[:, None, :] * model.out.T, linear], axis=2)

    def _with(self, model: Hinges, found: Floats) -> Hinges:
        """The model in more coordinates."""
        new, linear = np.split(found, [model.neurons])
        if self.chosen is not None:
            linear = -model.out[self.chosen].T @ new[self.chosen]
        normal = np.concatenate([model.normal, new], axis=1)
        return replace(model, normal=normal, linear=np.concatenate([model.linear, linear], axis=1))

    def _lengths(self, model: Hinges, points: Floats, share: float) -> Floats:
        """Steps into a new direction ``(n,)`` of which this share crosses a bend.

        The basis is random, so that the next component of a normal, in root mean squares of the ``known`` ones, is distributed as
        Student's t with that many degrees of freedom, whatever the network.
        """
        known = model.normal.shape[1]
        room = np.abs(model.before(points)) / (np.linalg.norm(model.normal, axis=1) / np.sqrt(known))
        if known > 1:  # the nearest matter; on a line the tails are long, and all do
            room = np.partition(room, min(RELU.nearest, model.neurons) - 1, axis=1)[:, : RELU.nearest]
        low, high = np.full(len(points), -80.0), np.log(np.maximum(room.max(axis=1), 1e-300))
        for _ in range(48):
            middle = (low + high) / 2
            much = stdtr(known, -room / np.exp(middle)[:, None]).sum(axis=1) > share
            low, high = np.where(much, low, middle), np.where(much, middle, high)
        return np.asarray(np.minimum(np.exp(low), self.farthest - np.linalg.norm(points, axis=1)))

    def _pool(self, model: Hinges, places: Floats) -> Floats:
        """Random points as far out as the bends are, and the places on the line, which have every bend on either side."""
        neurons, known = model.normal.shape
        distances = np.abs(model.shift) / np.linalg.norm(model.normal, axis=1) * np.sqrt(known)
        count = min(RELU.candidates * (neurons + 10), RELU.pool_largest)
        radii = np.maximum(self.rng.choice(distances, size=count), 0.5 * np.median(distances)) * self.rng.uniform(0.5, 1.5, size=count)
        points = self.rng.normal(size=(count, known))
        points *= (np.minimum(radii, 0.9 * self.farthest) / np.linalg.norm(points, axis=1))[:, None]
        return np.concatenate([points, np.pad(places, ((0, 0), (0, known - 1)))])


def _scales(model: Hinges, rows: Floats) -> Floats:
    """Sizes to expect of what is unknown of one direction, ``(unknowns,)``."""
    sizes = np.linalg.norm(model.normal, axis=1)
    return np.concatenate([sizes, np.full(rows.shape[2] - len(sizes), np.median(sizes))])
