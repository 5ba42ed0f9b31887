"""ReLU networks from their answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import LinAlgError

from unsoftmax.errors import NotInFamilyError
from unsoftmax.ffn.design import LARGEST, choose_points
from unsoftmax.ffn.gradients import CrowdedCellError
from unsoftmax.ffn.hinges import Hinges, NormalEquations, balanced, fit, fixed_pattern, merge_parallel
from unsoftmax.ffn.line import Line
from unsoftmax.ffn.orientation import active_sides, flipped
from unsoftmax.ffn.questions import Questions
from unsoftmax.models import FFN, Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned

ATTEMPTS = 6  # lines tried before the target is refused; each adds what the ones before missed
CHECKS = 12  # fresh points that the finished network must answer
ACCEPT = 1e-9  # error accepted there, relative to the spread of the answers; rounding leaves 1e-12 to 1e-11
GOAL = 2e-11  # predicted standard error, relative to the spread, at which no more random points are asked
SEEN = 1e11  # distance at which to look, in units of (coarseness of the answers) / (their slope): leaves 11 digits
CORNER = 1e-3  # share of a leg taken by the pair of probes that finds its first slope
DOUBT = 1e-8  # error of a rough model, relative to the numbers inside it, when a second line looks for what it lacks
FAINT = 1e-9  # bends weaker than this share of the median are rounding, unless dropping them shows


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A network that passed its check."""

    hinges: Hinges
    system: NormalEquations | None
    length: float  # distance from the origin within which half of the bends on a line lie
    spread: float  # standard deviation of the answers at that distance
    error: float  # largest error at the checks, relative to the spread
    reach: float  # bends were searched up to this distance


@dataclass(frozen=True, slots=True)
class FFNLearner:
    """Recover ``A relu(B x + b) + c`` (+ a linear skip) from one-token answers, biases, width and number of neurons unknown.

    One random line meets every neuron's hyperplane once; the bends on it (4.2 to 5.5 questions each) name the neurons, one-sided
    gradients between them (one question per weight) give their normals, and a least-squares fit to all answers and some random points
    takes back the digits that short steps lost.

    Price: ``7 + 4.2..5.5 m`` for the bends, ``(m + 1) d`` for the gradients (with ``p`` outputs about ``(1.33 m / p + 1) d``) plus about a tenth
    for steps that crossed a bend, up to ``0.6 P / p`` random points and 12 checks: ``1.4 P + 2.5 m`` in all, ``P = m (d + 1 + p) + p``.

    Assumes: every hyperplane crosses the probed region; a neuron that bends only farther out is invisible, and said to be.

    Args:
        floor: how coarse the answers are.
        max_norm: no point longer than this is asked.
        max_neurons: refuse a target with more bends on one line.
        caution: expected number of steps per gradient that cross a bend and are repeated; less costs digits.
        extra: random points as a share of ``P / outputs``; None fills up to the price above.
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    max_neurons: int = 2048
    caution: float = 0.5
    extra: float | None = None

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the network; the answers may be scalars or vectors."""
        questions = Questions(oracle, floor=self.floor, max_norm=self.max_norm)
        found = self.find(questions, rng=rng)
        network, notes = canonical_network(found)
        return Learned(
            model=network,
            ambiguity=(
                "equal up to the order of the neurons and a positive factor per neuron (here every neuron's output weights have length 1); "
                "neurons on one hyperplane count as one, and neurons that never bend within reach are part of the linear skip or absent"
            ),
            notes=notes,
            evidence={
                "neurons": found.hinges.neurons,
                "reach": found.reach,
                "check_error": found.error,
                "skip": network.skip is not None,
            },
        )

    def price(self, width: int, neurons: int, outputs: int = 1) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """Queries and tokens by phase, each as (low, high); every query is one token."""
        cells = neurons + 1 if outputs == 1 else int(1.34 * neurons / max(1, outputs)) + 2
        parameters = (neurons * (width + 1 + outputs) + outputs) / outputs
        ranges = {
            "scale": (4, 4),
            "kinks": (int(3.8 * neurons) + 7, int(6.5 * neurons) + 21),
            "gradients": (min(cells, neurons + 1) * width // (1 if outputs == 1 else 2), int(1.6 * cells * width) + 8),
            "random points": (int(0.1 * parameters), int(0.6 * parameters) + 8),
            "check": (CHECKS, CHECKS),
        }
        return [(name, bounds, bounds) for name, bounds in ranges.items()]

    def find(self, questions: Questions, *, rng: np.random.Generator) -> Found:
        """Learn the network as bends and a linear part, ask the checks and refuse what fails them."""
        width = questions.width
        scale = self._scale(questions, rng)
        coarse = scale > np.sqrt(width)
        model: Hinges | None = None
        doubt, deviation, size = 0.0, np.inf, 1.0
        best: Hinges | None = None
        for attempt in range(ATTEMPTS):
            line = self._line(width, scale, 0.0 if model is None else doubt, rng)
            known = model
            try:
                if coarse and known is None:
                    part = self._around_corner(questions, scale, rng)
                else:
                    part = line.run(questions, known, rng=rng)
            except CrowdedCellError:
                model = None
                continue
            if part.neurons + (0 if model is None else model.neurons) == 0:
                return self._affine(questions, part, scale, line.reach, rng)
            model = part if model is None else merge_parallel(model.plus(part), 1e-6)
            questions.offset, questions.slope = model.sizes()
            model = _without_faint(model)
            best = model
            length = self._length(model, scale)
            phase(questions.oracle, "random points")
            points = self._telling_points(questions, model, length, attempt, coarse, rng)
            answers = questions.ask(points)
            errors = np.linalg.norm(answers - model(points), axis=1)
            near = np.linalg.norm(points, axis=1) <= 2 * length
            size = float(np.linalg.norm(np.std(answers[near] if near.sum() > 3 else answers, axis=0))) or 1.0
            relative = errors / (questions.offset + questions.slope * np.linalg.norm(points, axis=1))
            if errors[near].max(initial=0.0) <= (1e-2 if coarse else 1e-3) * size:
                margins = (1e-3, 1e-5, 1e-8) if coarse or attempt else (max(1e-9, 30 * float(np.median(relative))),)
                try:
                    polished = model
                    for margin in margins:  # each fit tells the activation patterns of more answers
                        polished, system, _ = self._polish(questions, polished, margin)
                except LinAlgError:
                    continue
                deviation = self._check(questions, polished, length, size, rng)
                if deviation <= 1.0:
                    return Found(polished, system, length, size, deviation * ACCEPT, line.reach)
            if known is not None and part.neurons == 0:  # nothing to add and yet wrong: begin again
                model = None
            doubt = DOUBT + 1e3 * self.floor.absolute / size
        neurons = 0 if best is None else best.neurons
        raise NotInFamilyError(
            f"After {ATTEMPTS} lines and {len(questions.points)} questions the best ReLU network found ({neurons} neurons) still misses "
            f"fresh answers{'' if np.isinf(deviation) else f' by {deviation * ACCEPT:.1e} of their spread'}. The target is not a ReLU network "
            "with one hidden layer, or two of its neurons are too close together for the precision of the answers.",
            evidence={"deviation": float(deviation * ACCEPT), "neurons": neurons},
            model=None if best is None else to_network(best),
        )

    def _scale(self, questions: Questions, rng: np.random.Generator) -> float:
        """Distance at which to look: near the origin, farther out where the answers are coarse, within the bound.

        Steps and answers grow with the distance, the rounding of the answers and of a constant in them does not: what is lost near the
        origin to either is seen from farther away.
        """
        phase(questions.oracle, "scale")
        width = questions.width
        near = float(np.sqrt(width))
        bound = np.inf if self.max_norm is None else 0.95 * self.max_norm
        far = min(1e3 * near, bound)
        rays = rng.normal(size=(3, width))
        rays *= far / np.linalg.norm(rays, axis=1, keepdims=True)
        answers = questions.ask(np.concatenate([np.zeros((1, width)), rays]))
        slope = float(np.linalg.norm(answers[1:] - answers[0], axis=1).max()) / far
        coarse = self.floor.absolute + 2.0**-52 * float(np.linalg.norm(answers[0]))
        wanted = min(1e6, SEEN * coarse / slope) if slope > 0 else 0.0
        if wanted > near:
            return min(wanted, bound)
        return min(near, 0.05 * bound)  # a line farther out than that misses hyperplanes near the origin

    def _line(self, width: int, scale: float, doubt: float, rng: np.random.Generator) -> Line:
        origin = rng.normal(size=width)
        origin *= scale / np.linalg.norm(origin)
        direction = rng.normal(size=width)
        direction /= np.linalg.norm(direction)
        reach = 1e5 * scale
        if self.max_norm is not None:
            along = abs(float(origin @ direction))
            reach = min(reach, float(np.sqrt(along**2 + (0.999 * self.max_norm) ** 2 - scale**2)) - along)
        return Line(origin, direction, reach, scale, self.caution, self.max_neurons, doubt)

    def _around_corner(self, questions: Questions, radius: float, rng: np.random.Generator) -> Hinges:
        """All neurons from the two legs ``-a -> b -> a`` of a right angle at distance ``radius``.

        A hyperplane that passes near the origin separates ``a`` from ``-a`` and so crosses the path once, wherever it points; unlike on a
        straight line no bend is far away, and the bends lie as far apart as the radius allows, which is what coarse answers need.
        """
        a, b = (radius * np.linalg.qr(rng.normal(size=(questions.width, 2)))[0].T) if questions.width > 1 else (None, None)
        if a is None or b is None:
            return self._line(1, radius, 0.0, rng).run(questions, None, rng=rng)
        legs = []
        for start, stop in ((-a, b), (b, a)):
            direction = (stop - start) / np.linalg.norm(stop - start)
            line = Line((start + stop) / 2, direction, radius / np.sqrt(2), radius, self.caution, self.max_neurons, ends=CORNER)
            legs.append(line.run(questions, None, rng=rng))
        first, second = flipped(legs[0], np.ones(legs[0].neurons, dtype=bool)), legs[1]  # both idle at the corner
        planes = [np.concatenate([leg.normal, leg.shift[:, None]], axis=1) for leg in (first, second)]
        planes = [rows / np.linalg.norm(rows[:, :-1], axis=1, keepdims=True) for rows in planes]
        apart = np.linalg.norm(planes[1][:, None] - planes[0][None], axis=2)
        new = np.all(apart > 1e-3 * np.linalg.norm(planes[1], axis=1)[:, None], axis=1)  # one that cuts the corner is met twice
        both = first.plus(second.keep(new))
        return replace(both, linear=(first.linear + second.linear) / 2, constant=(first.constant + second.constant) / 2)

    def _length(self, model: Hinges, scale: float) -> float:
        """Median distance at which a random line through the origin meets the bends."""
        norms = np.linalg.norm(model.normal, axis=1)
        distances = np.abs(model.shift) / np.maximum(norms, 1e-300) * np.sqrt(model.normal.shape[1])
        length = max(float(np.median(distances)), 0.5 * scale)
        return length if self.max_norm is None else min(length, 0.5 * self.max_norm)

    def _telling_points(
        self, questions: Questions, model: Hinges, length: float, attempt: int, coarse: bool, rng: np.random.Generator
    ) -> Floats:
        """Random points, as many and such as bring the predicted error down to the goal."""
        neurons, outputs = model.out.shape
        parameters = (neurons * (questions.width + 1 + outputs) + outputs) / outputs
        least = max(8, int(0.03 * parameters))
        allowed = 1.28 * parameters + (7.0 if outputs == 1 else 5.3) * neurons - len(questions.points) - CHECKS
        usual = 1.5 * parameters if coarse else min(max(allowed, 0.1 * parameters), 0.6 * parameters)
        most = max(least, int(usual if self.extra is None else self.extra * parameters))
        if attempt:
            least = most = 24
        unknowns = model.shift.size * (questions.width + 1) + outputs * (questions.width + 1)
        if unknowns > LARGEST or attempt:
            return self._spread_points(model, length, most if attempt else int(0.3 * parameters), rng)
        polished, system, misfit = self._polish(questions, model, 1e-9)
        pool = self._spread_points(polished, length, min(3 * most, 2000), rng)
        near = np.linalg.norm(pool, axis=1) <= 2 * length
        size = float(np.linalg.norm(np.std(polished(pool[near]), axis=0))) or 1.0
        goal = GOAL * size + self.floor.absolute
        picks, _ = choose_points(polished, system, pool, questions.noise(pool), goal / max(misfit, 0.005), most, rng=rng)
        return pool[picks] if len(picks) >= least else np.concatenate([pool[picks], pool[: least - len(picks)]])

    def _spread_points(self, model: Hinges, length: float, count: int, rng: np.random.Generator) -> Floats:
        """Random points whose distances follow those of the hyperplanes, so that each is met from both sides."""
        width = model.normal.shape[1]
        distances = np.abs(model.shift) / np.maximum(np.linalg.norm(model.normal, axis=1), 1e-300) * np.sqrt(width)
        radii = np.clip(rng.choice(distances, size=count), 0.5 * length, 8 * length) * rng.uniform(0.5, 1.5, size=count)
        points = rng.normal(size=(count, width))
        points *= (radii / np.linalg.norm(points, axis=1))[:, None]
        return self._bounded(points)

    def _bounded(self, points: Floats) -> Floats:
        if self.max_norm is not None:
            norms = np.linalg.norm(points, axis=1, keepdims=True)
            points = points * np.minimum(1.0, 0.999 * self.max_norm / norms)
        return points

    def _polish(self, questions: Questions, model: Hinges, margin: float) -> tuple[Hinges, NormalEquations, float]:
        """Fit to every answer whose activation pattern is beyond doubt; also the error per degree of freedom, in expected ones."""
        points, references, answers = questions.points, questions.references, questions.answers
        before = np.abs(model.before(references))
        sizes = np.linalg.norm(model.normal, axis=1) * np.linalg.norm(references, axis=1)[:, None] + np.abs(model.shift)
        certain = np.all(before >= margin * sizes, axis=1)
        points, references, answers = points[certain], references[certain], answers[certain]
        noise = questions.noise(points)
        polished, system = fit(model, points, references, answers, noise)
        residual = (answers - fixed_pattern(polished, points, references)) / noise[:, None]
        freedom = max(1, residual.size - len(system.scales))
        return polished, system, float(np.linalg.norm(residual) / np.sqrt(freedom))

    def _check(self, questions: Questions, model: Hinges, length: float, size: float, rng: np.random.Generator) -> float:
        """Largest error at fresh points at three distances, in units of what is accepted there."""
        phase(questions.oracle, "check")
        width = questions.width
        points = rng.normal(size=(CHECKS, width))
        radii = np.repeat([0.5 * length, length, 4 * length], CHECKS // 3)
        points = self._bounded(points * (radii / np.linalg.norm(points, axis=1))[:, None])
        errors = np.linalg.norm(questions.ask(points) - model(points), axis=1)
        distances = np.linalg.norm(points, axis=1)
        return float((errors / (ACCEPT * size * (1 + distances / length) + 300 * questions.noise(points))).max())

    def _affine(self, questions: Questions, part: Hinges, scale: float, reach: float, rng: np.random.Generator) -> Found:
        """No bend on the whole line: the target must be affine."""
        questions.offset, questions.slope = part.sizes()
        size = max(float(np.linalg.norm(part.linear)) * scale, float(np.linalg.norm(part.constant)), 1e-300)
        deviation = self._check(questions, part, scale, size, rng)
        if deviation > 1:
            raise NotInFamilyError(
                "The target does not bend on a random line, yet it is not affine. It is not a ReLU network, or its bends lie out of reach; "
                "allow longer tokens (`max_norm`).",
                model=to_network(part),
                evidence={"deviation": deviation * ACCEPT},
            )
        return Found(part, None, scale, size, deviation * ACCEPT, reach)


def _without_faint(model: Hinges) -> Hinges:
    """Drop bends that are rounding: they would only blur the fit. A real one this faint is seen by the check."""
    strengths = np.linalg.norm(model.normal, axis=1)
    return model.keep(strengths > 1e-5 * FAINT * np.median(strengths))


def to_network(hinges: Hinges) -> FFN:
    """The function as a network with a linear skip where its linear part is not zero; strongest neurons first."""
    skip = hinges.linear if np.any(hinges.linear) else None
    if hinges.neurons == 0:
        return FFN([hinges.linear], [hinges.constant])
    order = np.argsort(-np.linalg.norm(hinges.normal, axis=1), kind="stable")
    return FFN([hinges.normal[order], hinges.out[order].T], [hinges.shift[order], hinges.constant], skip)


def canonical_network(found: Found) -> tuple[FFN, tuple[str, ...]]:
    """The network without a linear skip if it can be written so, and sentences about the choice."""
    hinges = found.hinges
    if found.system is None:
        return to_network(hinges), ("The target is affine: no neuron bends within reach.",)
    choice = active_sides(hinges, error=max(1e-8, 1e2 * found.error))
    far = f"Bends were searched up to {found.reach:.1e} from the origin; a neuron that bends only farther out is not seen."
    if choice is None:
        note = "The linear skip stands for neurons whose active side the answers do not tell apart, or for a true skip; the function is exact."
        return to_network(hinges), (far, note)
    turned = flipped(balanced(hinges, found.system, choice), choice)
    return to_network(replace(turned, linear=np.zeros_like(turned.linear))), (far,)
