"""From a line to all of space: where a network is known, long steps into new directions are safe.

On a plane in which every bend is known, points far from all of them are known too, with as many different activation patterns as
one likes. A step from such a point into a new direction may be a thousand times longer than one between two bends of a line, and
its answer is one equation in the new components of the neurons that are active there.
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
class Bases:
    """Known places from which steps go into new directions.

    Attributes:
        points: coordinates ``(n, known)``.
        values: the function there ``(n, outputs)``.
        lengths: of the steps ``(n,)``.
        rows: what the unknowns of a direction add to the slope, ``(n, outputs, unknowns)``.
        noise: error to expect of an answer ``(n,)``.
        errors: the same of the difference of an answer and the value.
    """

    points: Floats
    values: Floats
    lengths: Floats
    rows: Floats
    noise: Floats
    errors: Floats

    @property
    def weights(self) -> Floats:
        """How precisely an answer tells a slope ``(n,)``."""
        return self.lengths / self.noise

    def take(self, picks: NDArray[np.intp]) -> Bases:
        """Some of them."""
        return Bases(*(part[picks] for part in (self.points, self.values, self.lengths, self.rows, self.noise, self.errors)))

    def times(self, share: float) -> Bases:
        """The same with longer or shorter steps."""
        return replace(self, lengths=share * self.lengths)


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What steps from the same bases into each of several new directions told.

    Attributes:
        inverse: from slopes to the unknowns of a direction, ``(unknowns, bases, outputs)``.
        found: the unknowns of every direction ``(unknowns, new)``.
        slopes: ``(bases, outputs, new)``.
        errors: to expect of them ``(bases,)``.
    """

    inverse: Floats
    found: Floats
    slopes: Floats
    errors: Floats

    @property
    def steepest(self) -> float:
        """The largest slope."""
        return float(np.abs(self.slopes).max())

    @classmethod
    def solved(cls, bases: Bases, slopes: Floats, scales: Floats) -> Told:
        """From ``slopes (bases, outputs, new)``; the unknowns are about as large as ``scales``."""
        count, outputs, unknowns = bases.rows.shape
        weights = np.repeat(bases.weights, outputs)
        weighted = weights[:, None] * bases.rows.reshape(-1, unknowns) * scales
        inverse = scales[:, None] * np.linalg.pinv(weighted, rcond=RELU.singular) * weights
        found = inverse @ slopes.reshape(count * outputs, -1)
        return cls(inverse.reshape(unknowns, count, outputs), found, slopes, bases.errors / bases.lengths)

    def culprits(self, witnesses: Bases, off: Floats, limit: float) -> NDArray[np.intp]:
        """Bases of which one wrong slope explains, within ``limit``, what answers ``(witnesses, outputs)`` are off."""
        told = np.einsum("c,cou,ubp->bcop", witnesses.lengths, witnesses.rows, self.inverse, optimize=True)
        told = told.reshape(len(told), off.size, -1)
        left = [off.ravel() - effect @ np.linalg.lstsq(effect, off.ravel(), rcond=None)[0] for effect in told]
        return np.flatnonzero(np.linalg.norm(left, axis=1) <= limit)

    def hearing(self, rows: Floats, culprits: Floats, taken: NDArray[np.intp]) -> NDArray[np.intp]:
        """Of places with ``rows (n, outputs, unknowns)``, few whose slopes show a wrong one at any base.

        Wrong slopes are off by the output weights of a bend that was crossed: ``culprits (bases, nearest, outputs)``.
        """
        effects = np.einsum("ubp,bkp->ubk", self.inverse, culprits).reshape(len(self.inverse), -1)
        heard = np.linalg.norm(rows @ effects, axis=1) > RELU.heard
        heard[taken] = False
        chosen: list[int] = []
        missing = np.ones(heard.shape[1], dtype=bool)
        while heard[:, missing].any():
            chosen.append(int(np.argmax(heard[:, missing].sum(axis=1))))
            missing &= ~heard[chosen[-1]]
        return np.array(chosen, dtype=np.intp)

    def limits(self, bases: Bases, moves: Floats) -> Floats:
        """How far answers at ``moves (n, new)`` from other bases may be from those foretold ``(n,)``.

        Steps from one base share its error, so that those of all directions add up.
        """
        shares = np.einsum("cou,ubp->cobp", bases.rows, self.inverse, optimize=True) * self.errors[:, None]
        across = np.sqrt(np.einsum("cobp,cobp->c", shares, shares))
        steep = 3 * RELU.trust * across * np.sqrt(self.found.shape[1]) + RELU.unheard * self.steepest
        return np.asarray(3 * RELU.trust * bases.errors + np.linalg.norm(moves, axis=1) * steep)


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
            places: a place well inside each of so many cells of the line that their slopes tell all bends ``(cells, 1)``.
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

        A step that crosses a bend betrays itself, and costs one question. Across the next one: the slope that it tells disagrees
        with the others, or makes that bend pass right through its end; across farther ones: it ends beyond bends that others tell.
        """
        (cells, outputs), scales = values.shape, self._scales(line)
        bases = self._bases(line, places, values, RELU.betrayed / cells)
        if bases.lengths.min() <= 0:
            return None
        open_rows = replace(self, chosen=None)._rows(line, places)
        wrong, signed, slopes = np.arange(cells), bases.lengths.copy(), np.zeros((cells, outputs, 1))
        before = line.before(places)
        for _ in range(RELU.again):
            ends = np.concatenate([places[wrong], signed[wrong, None]], axis=1)
            slopes[wrong, :, 0] = (self._ask(ends) - values[wrong]) / signed[wrong, None]
            bases = replace(bases, lengths=np.abs(signed))
            bends = Told.solved(replace(bases, rows=open_rows), slopes, np.ones(open_rows.shape[2])).found[: line.neurons, 0]
            left = (before + signed[:, None] * bends) / before
            wrong = np.flatnonzero(left.min(axis=1) < RELU.through)
            signed[wrong] *= -1.0
            if len(wrong) == 0:
                told = Told.solved(bases, slopes, scales)
                limits = 3 * RELU.trust * bases.noise / bases.lengths + RELU.unheard * told.steepest
                if np.all(np.linalg.norm(slopes - bases.rows @ told.found, axis=(1, 2)) <= limits):
                    return self._with(line, told.found)
                wrong = np.arange(cells)
            signed[wrong] /= RELU.shrink
        return None

    def _culprits(self, model: Hinges, bases: Bases) -> Floats:
        """By what a slope from each base is off that crossed one of the nearest bends, ``(bases, nearest, outputs)``."""
        nearest = np.argsort(self._room(model, bases.points), axis=1)[:, : 1 if model.out.shape[1] == 1 else RELU.nearest]
        return np.asarray(model.out[nearest])

    def _farther(self, model: Hinges, places: Floats) -> Hinges | None:
        """The network in more directions, from long steps where it is known."""
        model, system = self._fitted(model)
        outputs, known = model.out.shape[1], model.normal.shape[1]
        new = len(self.origin) - known
        if model.neurons >= RELU.crowded:
            new = min(new, RELU.block * known)
        scales, points = self._scales(model), self._pool(model, places)
        count = -(-len(scales) // outputs)
        pool = self._bases(model, points, model(points), RELU.crossing / (count * new))
        picks = telling(pool.rows * scales * pool.weights[:, None, None], count)
        if np.linalg.matrix_rank((pool.rows[picks] * scales).reshape(-1, len(scales)), tol=1e-8) < len(scales):
            picks = telling(pool.rows * scales * pool.weights[:, None, None], count + 1)
        bases = pool.take(picks)
        goal = RELU.base * float(np.median(pool.noise))
        unsure = bases.take(
            choose_points(model, system, bases.points, bases.noise, goal, count, least=RELU.least_bases, rng=self.rng)
        )
        off = np.linalg.norm(self._ask(unsure.points) - unsure.values, axis=1)
        if np.any(off > 3 * RELU.trust * (predicted_error(model, system, unsure.points) + unsure.noise)):
            return None

        model, system = self._fitted(model)

        def known_by_now(some: Bases) -> Bases:
            return replace(
                some, values=model(some.points), errors=np.hypot(some.noise, predicted_error(model, system, some.points))
            )

        bases = known_by_now(bases)
        told = self._told(bases, np.eye(new), scales)
        hearing = told.hearing(pool.rows, self._culprits(model, bases), picks)
        checks = known_by_now(pool.take(hearing))
        moves = self._mixes(checks, np.ones(new))
        if np.all(np.linalg.norm(self._off(checks, told, moves), axis=1) <= told.limits(checks, moves)):
            return self._with(model, told.found)
        more = self.rng.choice(np.setdiff1d(np.arange(len(pool.lengths)), picks), size=2, replace=False)
        return self._mended(model, bases, known_by_now(pool.take(np.concatenate([hearing, more]))), told, scales)

    def _mended(self, model: Hinges, bases: Bases, witnesses: Bases, told: Told, scales: Floats) -> Hinges | None:
        """The network with steps repeated shorter that crossed a bend; None where no such steps explain what the witnesses miss."""
        count, new = len(witnesses.lengths), told.found.shape[1]
        singly = witnesses.take(np.repeat(np.arange(count), new))
        moves = singly.lengths[:, None] * np.tile(np.eye(new), (count, 1))
        off = self._off(singly, told, moves).reshape(count, new, -1)
        limits = told.limits(singly, moves).reshape(count, new)
        heard = np.linalg.norm(off, axis=2) > limits
        wrong, crossed, unexplained = [], [], 0
        for i in np.flatnonzero(heard.any(axis=0)):
            suspects = told.culprits(witnesses, off[:, i], float(np.linalg.norm(limits[:, i])))
            if len(suspects) == 0 and heard[:, i].sum() > 1:  # more than one step; else the only witness may have crossed a bend
                suspects, unexplained = np.arange(len(bases.lengths)), unexplained + 1
            crossed += suspects.tolist()
            wrong += [i] * len(suspects)
        if 4 * unexplained > max(4, new):  # the ground is not what it was thought to be
            return None
        among = np.zeros(new)
        among[wrong] = 1.0
        for shorter in RELU.shrink ** -np.arange(1.0, 4.0):
            if len(wrong) == 0:  # a check crossed a bend itself
                break
            steps = shorter * bases.lengths[crossed]
            ends = np.concatenate([bases.points[crossed], steps[:, None] * np.eye(new)[wrong]], axis=1)
            slopes = told.slopes.copy()
            slopes[crossed, :, wrong] = (self._ask(ends) - bases.values[crossed]) / steps[:, None]
            told = Told.solved(bases, slopes, scales)
            told.errors[crossed] /= shorter
            moves = self._mixes(witnesses, among)
            if np.all(np.linalg.norm(self._off(witnesses, told, moves), axis=1) <= told.limits(witnesses, moves)):
                return self._with(model, told.found)
        return self._with(model, told.found) if len(wrong) == 0 else None

    def _told(self, bases: Bases, directions: Floats, scales: Floats) -> Told:
        """What steps from every base into ``directions`` tell."""
        moves = bases.lengths[:, None, None] * directions
        ends = np.concatenate([np.repeat(bases.points, len(directions), axis=0), moves.reshape(-1, directions.shape[1])], axis=1)
        slopes = (self._ask(ends).reshape(len(moves), len(directions), -1) - bases.values[:, None]) / bases.lengths[:, None, None]
        return Told.solved(bases, slopes.transpose(0, 2, 1), scales)

    def _off(self, bases: Bases, told: Told, moves: Floats) -> Floats:
        """What answers at ``moves (n, new)`` from the bases have beyond those foretold ``(n, outputs)``."""
        predicted = bases.values + np.einsum("cou,ui,ci->co", bases.rows, told.found, moves)
        return np.asarray(self._ask(np.concatenate([bases.points, moves], axis=1)) - predicted)

    def _mixes(self, bases: Bases, among: Floats) -> Floats:
        """A step from each base into a random mix of directions."""
        shares = among * self.rng.choice([-1.0, 1.0], size=(len(bases.lengths), len(among)))
        shares *= self.rng.uniform(0.5, 1.5, size=shares.shape)
        return np.asarray(shares * (bases.lengths / np.linalg.norm(shares, axis=1))[:, None])

    def _bases(self, model: Hinges, points: Floats, values: Floats, share: float) -> Bases:
        noise = self.questions.noise(self._points(points))
        return Bases(points, values, self._lengths(model, points, share), self._rows(model, points), noise, noise)

    def _ask(self, ends: Floats) -> Floats:
        answers = self.questions.ask(self._points(ends))
        self.asked.append((ends, ends, answers))
        return answers

    def _points(self, coordinates: Floats) -> Floats:
        return np.asarray(self.origin + coordinates @ self.basis[: coordinates.shape[1]])

    def _fitted(self, model: Hinges) -> tuple[Hinges, NormalEquations]:
        """The model after a fit to all that was asked where it is known."""
        known = model.normal.shape[1]
        points, references = (
            np.concatenate([np.pad(part[i], ((0, 0), (0, known - part[i].shape[1]))) for part in self.asked]) for i in range(2)
        )
        answers = np.concatenate([part[2] for part in self.asked])
        return fit(model, points, references, answers, self.questions.noise(self._points(points)), chosen=self.chosen)

    def _rows(self, model: Hinges, points: Floats) -> Floats:
        """What the new component of every bend, and of the linear part, adds to the slope at ``points``."""
        outputs = model.out.shape[1]
        active = (model.before(points) > 0).astype(np.float64)
        if self.chosen is not None:
            return np.asarray((active - self.chosen)[:, None, :] * model.out.T)
        linear = np.broadcast_to(np.eye(outputs), (len(points), outputs, outputs))
        return np.concatenate([active[:, None, :] * model.out.T, linear], axis=2)

    def _scales(self, model: Hinges) -> Floats:
        """Sizes to expect of what is unknown of a direction, ``(unknowns,)``."""
        sizes = np.linalg.norm(model.normal, axis=1)
        linear = model.out.shape[1] if self.chosen is None else 0
        return np.concatenate([sizes, np.full(linear, np.median(sizes))])

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
        Student's t with that many degrees of freedom, whatever the network. Biases that grow with the whole normal make it less.
        """
        known, room = model.normal.shape[1], self._room(model, points)
        if known > 1:  # the nearest matter; on a line the tails are long, and all do
            room = np.partition(room, min(RELU.nearest, model.neurons) - 1, axis=1)[:, : RELU.nearest]
        low, high = np.full(len(points), -80.0), np.log(np.maximum(room.max(axis=1), 1e-300))
        for _ in range(48):
            middle = (low + high) / 2
            much = stdtr(known, -room / np.exp(middle)[:, None]).sum(axis=1) > share
            low, high = np.where(much, low, middle), np.where(much, middle, high)
        return np.asarray(np.minimum(np.exp(low), self.farthest - np.linalg.norm(points, axis=1)))

    def _room(self, model: Hinges, points: Floats) -> Floats:
        """How far each bend is ``(n, neurons)``, in root mean squares of the components of its normal.

        A bend of which little is known beside the others may point elsewhere: then it is taken for less faint than it looks.
        """
        sizes = np.linalg.norm(model.normal, axis=1) / np.sqrt(model.normal.shape[1])
        if model.normal.shape[1] > 1:
            usual = float(np.median(sizes))
            sizes = np.where(sizes > RELU.faintest * usual, np.maximum(sizes, RELU.elsewhere * usual), sizes)
        return np.asarray(np.abs(model.before(points)) / sizes)

    def _pool(self, model: Hinges, places: Floats) -> Floats:
        """Random points as far out as the bends are, and the places on the line, which have every bend on either side."""
        neurons, known = model.normal.shape
        distances = np.abs(model.shift) / np.linalg.norm(model.normal, axis=1) * np.sqrt(known)
        count = min(RELU.candidates * (neurons + 10), RELU.pool_largest)
        radii = np.maximum(self.rng.choice(distances, size=count), 0.5 * np.median(distances)) * self.rng.uniform(
            0.5, 1.5, size=count
        )
        points = self.rng.normal(size=(count, known))
        points *= (np.minimum(radii, 0.9 * self.farthest) / np.linalg.norm(points, axis=1))[:, None]
        return np.concatenate([points, np.pad(places, ((0, 0), (0, known - 1)))])
