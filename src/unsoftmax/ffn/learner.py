"""ReLU networks from their answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import LinAlgError

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError
from unsoftmax.ffn.design import LARGEST, choose_points
from unsoftmax.ffn.hinges import Hinges, NormalEquations, balanced, fit, fixed_pattern, merge_parallel
from unsoftmax.ffn.line import Line
from unsoftmax.ffn.orientation import active_sides, flipped
from unsoftmax.ffn.questions import Questions
from unsoftmax.models import FFN, Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned

ATTEMPTS = 4  # lines tried before the target is refused; each adds what the ones before missed
CHECKS = 12  # fresh points that the finished network must answer
ACCEPT = 1e-9  # error accepted there, relative to the spread of the answers; rounding leaves 1e-12 to 1e-11
GOAL = 2e-11  # predicted standard error, relative to the spread, at which no more random points are asked
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
            "kinks": (int(3.8 * neurons) + 7, int(6.5 * neurons) + 21),
            "gradients": (min(cells, neurons + 1) * width // (1 if outputs == 1 else 2), int(1.6 * cells * width) + 8),
            "random points": (int(0.1 * parameters), int(0.6 * parameters) + 8),
            "check": (CHECKS, CHECKS),
        }
        return [(name, bounds, bounds) for name, bounds in ranges.items()]

    def find(self, questions: Questions, *, rng: np.random.Generator) -> Found:
        """Learn the network as bends and a linear part, ask the checks and refuse what fails them."""
        width = questions.width
        scale = self._scale(width)
        model: Hinges | None = None
        doubt, deviation, size = 0.0, np.inf, 1.0
        for attempt in range(ATTEMPTS):
            line = self._line(width, scale, doubt, rng)
            part = line.run(questions, model, rng=rng)
            if part.neurons + (0 if model is None else model.neurons) == 0:
                return self._affine(questions, part, scale, line.reach, rng)
            model = part if model is None else merge_parallel(model.plus(part), 1e-6)
            questions.offset, questions.slope = model.sizes()
            model = _without_faint(model)
            length = self._length(model)
            phase(questions.oracle, "random points")
            points = self._telling_points(questions, model, length, attempt, rng)
            answers = questions.ask(points)
            errors = np.linalg.norm(answers - model(points), axis=1)
            near = np.linalg.norm(points, axis=1) <= 2 * length
            size = float(np.linalg.norm(np.std(answers[near] if near.sum() > 3 else answers, axis=0))) or 1.0
            relative = errors / (questions.offset + questions.slope * np.linalg.norm(points, axis=1))
            if errors[near].max(initial=0.0) <= 1e-3 * size:
                try:
                    polished, system, _ = self._polish(questions, model, float(np.median(relative)))
                except LinAlgError:
                    continue
                deviation = self._check(questions, polished, length, size, rng)
                if deviation <= 1.0:
                    return Found(polished, system, length, size, deviation * ACCEPT, line.reach)
            doubt = 10 * float(np.median(relative))
        raise NotInFamilyError(
            f"After {ATTEMPTS} lines and {len(questions.points)} questions the best ReLU network found ({0 if model is None else model.neurons} "
            f"neurons) still misses fresh answers by {deviation * ACCEPT:.1e} of their spread. The target is not a one-layer ReLU network, or two "
            "of its neurons are too close together for the precision of the answers.",
            evidence={"deviation": float(deviation * ACCEPT), "neurons": 0 if model is None else model.neurons},
            model=None if model is None else to_network(model),
        )

    def _scale(self, width: int) -> float:
        """Distance at which to look: near the origin, farther out where the answers are coarse, within the bound."""
        scale = float(np.sqrt(width))
        if self.floor.absolute > 0:  # steps may grow with the distance, the rounding of the answers does not
            scale = max(scale, min(1e6, 1e11 * self.floor.absolute))
        return scale if self.max_norm is None else min(scale, 0.5 * self.max_norm)

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

    def _length(self, model: Hinges) -> float:
        """Median distance at which a random line through the origin meets the bends."""
        norms = np.linalg.norm(model.normal, axis=1)
        distances = np.abs(model.shift) / np.maximum(norms, 1e-300) * np.sqrt(model.normal.shape[1])
        length = max(float(np.median(distances)), 0.5 * self._scale(model.normal.shape[1]))
        return length if self.max_norm is None else min(length, 0.5 * self.max_norm)

    def _telling_points(self, questions: Questions, model: Hinges, length: float, attempt: int, rng: np.random.Generator) -> Floats:
        """Random points, as many and such as bring the predicted error down to the goal."""
        neurons, outputs = model.out.shape
        parameters = (neurons * (questions.width + 1 + outputs) + outputs) / outputs
        least = max(8, int(0.03 * parameters))
        allowed = 1.38 * parameters + (2.5 if outputs == 1 else 5.3) * neurons - len(questions.points) - CHECKS
        most = max(
            least, int(min(max(allowed, 0.1 * parameters), 0.6 * parameters) if self.extra is None else self.extra * parameters)
        )
        if attempt:
            least = most = 24
        unknowns = model.shift.size * (questions.width + 1) + outputs * (questions.width + 1)
        if unknowns > LARGEST or attempt:
            return self._spread_points(model, length, most if attempt else int(0.3 * parameters), rng)
        polished, system, misfit = self._polish(questions, model, 1e-11)
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

    def _polish(self, questions: Questions, model: Hinges, doubt: float) -> tuple[Hinges, NormalEquations, float]:
        """Fit to every answer whose activation pattern is beyond doubt; also the error per degree of freedom, in expected ones."""
        points, references, answers = questions.points, questions.references, questions.answers
        before = np.abs(model.before(references))
        sizes = np.linalg.norm(model.normal, axis=1) * np.linalg.norm(references, axis=1)[:, None] + np.abs(model.shift)
        certain = np.all(before >= max(1e-9, 30 * doubt) * sizes, axis=1)
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
        return float((errors / (ACCEPT * size * (1 + distances / length) + 100 * questions.noise(points))).max())

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
