"""ReLU networks from their answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from unsoftmax.errors import NotInFamilyError, TooNoisyError, tried
from unsoftmax.learners.ffn.depth import bends_found_again
from unsoftmax.learners.ffn.design import choose_points
from unsoftmax.learners.ffn.fit import fit
from unsoftmax.learners.ffn.forms import Found, canonical_network, to_network
from unsoftmax.learners.ffn.gradients import CrowdedCellError
from unsoftmax.learners.ffn.hinges import Hinges, beyond_doubt, fixed_pattern, merge_parallel
from unsoftmax.learners.ffn.kinks import nearness
from unsoftmax.learners.ffn.normal_equations import NormalEquations
from unsoftmax.learners.ffn.orientation import tied_sides
from unsoftmax.learners.ffn.places import Places
from unsoftmax.learners.ffn.questions import Answered, Questions
from unsoftmax.learners.ffn.rough import find_roughly
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned

WAY_OUT = "Such a network is not learned; attention in front of it can be (family `attention-behind-network`)."
AMBIGUITY = (
    "equal up to the order of the neurons and a positive factor per neuron (here every neuron's output weights have length 1); "
    "neurons on one hyperplane count as one, and a neuron that never bends within reach is part of the linear skip or absent"
)


@dataclass(frozen=True, slots=True)
class FFNLearner:
    """Recover ``A relu(B x + b) + c`` (+ a linear skip) from one-token answers, biases, width and number of neurons unknown.

    One random line meets every neuron's hyperplane once; the bends on it (3.7 to 5 questions each) name the neurons. Short steps
    beside the line give one more component of their normals, long ones from places in that plane all others (one question per
    weight), and a least-squares fit to all answers and some random points takes back the digits that steps lost. Coarse answers are
    asked far out, around a corner instead of along a line, and gradients between the bends.

    Price, with ``P = m (d + 1 + p) + p``: up to 4 for the scale, ``8 + 3.7..5 m`` for the bends (``3.2 m`` with several outputs),
    ``(d - 1) (m + 1)`` for the normals (``(d - 1) m`` where the slopes on the line tell the active sides of up to 28 neurons;
    with ``p`` outputs ``(d - 1) (m / p + 1)``) and up to ``m / p`` to know the plane better, at least 4 random points and at most
    ``0.6 P / p`` (``1.5 P / p`` for coarse answers) and 3 to 9 checks: ``1.1 P`` to ``1.3 P`` in all for one output. Where steps
    disagree, gradients are told between the bends instead (``(m + 1) d``). Where a line leaves the answers unexplained, 24
    questions follow its bends along their hyperplanes: those of a deeper network end or change there.

    Assumes: every hyperplane crosses the probed region; a neuron that bends only farther out is invisible, and said to be.

    Args:
        floor: how coarse the answers are.
        max_norm: no point longer than this is asked.
        max_neurons: refuse a target with more bends on one line.
        caution: expected number of steps per gradient that cross a bend and are repeated; less costs digits.
        extra: random points as a share of ``P / outputs``; None asks as many as the predicted error calls for.
        through_origin: the network has no biases; saves a question per cell.
        accept: error accepted at the checks, relative to the spread of the answers.
        checks: fresh points that the finished network must answer; fewer where it foretold more than the least random points.
        seen: points and answers that are known already.

    >>> from unsoftmax.models import FFN
    >>> from unsoftmax.oracles.local import CallableOracle
    >>> network = FFN([[[3.0, 4.0]], [[2.0]]], [[1.0], [0.5]])
    >>> learned = FFNLearner().run(CallableOracle(lambda X: network(X[:, 0]), width=2), rng=np.random.default_rng(0))
    >>> np.round(learned.model.weights[0], 9)
    array([[6., 8.]])
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    max_neurons: int = 2048
    caution: float = 0.5
    extra: float | None = None
    through_origin: bool = False
    accept: float = RELU.accept
    checks: int = RELU.checks
    seen: Answered | None = None

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the network; the answers may be scalars or vectors."""
        questions = Questions(oracle, floor=self.floor, max_norm=self.max_norm, seen=self.seen)
        found = self.find(questions, rng=rng)
        network, notes = canonical_network(found)
        evidence = {
            "neurons": found.hinges.neurons,
            "reach": found.reach,
            "check_error": found.error,
            "skip": network.skip is not None,
        }
        return Learned(model=network, ambiguity=AMBIGUITY, notes=notes, evidence=evidence)

    def price(self, width: int, neurons: int, outputs: int = 1) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """Queries and tokens by phase, each as (low, high); every query is one token. Holds for exact answers."""
        cells = neurons + 1 if outputs == 1 else min(neurons + 1, int(1.34 * neurons / outputs) + 3)
        fewest = max(1, neurons) if outputs == 1 else (cells + 1) // 2
        parameters = (neurons * (width + 1 + outputs) + outputs) / outputs
        across = max(1, width - self.through_origin)
        ranges = {
            "scale": (0, 4),
            "kinks": (int((3.5 if outputs == 1 else 2.5) * neurons) + 6, int(8 * neurons) + 34),
            "gradients": (fewest * max(1, width - 1), int(1.8 * cells * across) + 16),
            "random points": (4, int(0.6 * parameters) + 8),
            "check": (min(RELU.least_checks, self.checks), self.checks),
        }
        return [(name, bounds, bounds) for name, bounds in ranges.items()]

    def find(self, questions: Questions, *, rng: np.random.Generator) -> Found:
        """Learn the network as bends and a linear part, ask the checks and refuse what fails them."""
        width = questions.width
        places = Places(self.max_norm, self.caution, self.max_neurons)
        scale = places.scale(questions, rng)
        coarse = scale > np.sqrt(width)
        if self.floor.relative > RELU.rough and not coarse:
            return find_roughly(questions, places, rng)
        rough = coarse or self.floor.relative > RELU.rough
        model: Hinges | None = None
        best: Hinges | None = None
        doubt, deviation = 0.0, np.inf
        for attempt in range(RELU.attempts):
            line = places.line(width, scale, 0.0 if model is None else doubt, rng)
            lift = attempt == 0 and self.max_norm is None and not (rough or self.through_origin)  # long steps take room
            line = replace(line, through_origin=self.through_origin, lift=lift)
            known = model
            if coarse and known is None:
                part = tried(partial(places.around_corner, questions, scale, rng), CrowdedCellError)
            else:
                part = tried(partial(line.run, questions, known, rng=rng), CrowdedCellError)
            if isinstance(part, CrowdedCellError):
                model = None
                continue
            if part.neurons + (0 if known is None else known.neurons) == 0:
                return self._affine(questions, places, part, scale, line.reach, rng)
            model = _without_faint(part if known is None else merge_parallel(known.plus(part), nearness(self.floor.relative)))
            questions.offset, questions.slope = model.sizes()
            best, length = model, places.length(model, scale)
            phase(questions.oracle, "random points")
            if attempt and not rough:
                points = places.random(model, length, 24, rng)
            else:
                points = self._telling(questions, places, model, length, rough, rng)
            answers = questions.ask(points)
            errors = np.linalg.norm(answers - model(points), axis=1)
            near = np.linalg.norm(points, axis=1) <= 2 * length
            spread = _spread(answers, near, questions.noise(points))
            if errors[near].max(initial=0.0) <= (1e-2 if rough else 1e-3) * spread:
                relative = errors / (questions.offset + questions.slope * np.linalg.norm(points, axis=1))
                margins = (1e-3, 1e-5, 1e-8) if rough or attempt else (max(1e-9, 30 * float(np.median(relative))),)
                polished = self._polished(questions, model, margins, doubtful=rough)
                if polished is not None:
                    foretold = self._foretold(model, points, answers, spread, length)
                    fresh = (
                        self.checks if rough else min(self.checks, max(RELU.least_checks, self.checks + RELU.foretold - foretold))
                    )
                    deviation = self._check(questions, places, polished[0], length, spread, rng, fresh)
                    if deviation <= 1.0:
                        if rough:
                            references, certain = self._patterns(questions, polished[0], margins[-1], doubtful=True)
                            questions.settle(certain, references)
                        return Found(*polished, length, spread, deviation * self.accept, line.reach)
            elif not rough:
                _refuse_depth(*bends_found_again(questions, places, model, length, rng), len(questions.points), model)
                if not questions.beside:  # of a network told by long steps all is wrong where some is
                    model = None
            if known is not None and part.neurons == 0:  # nothing to add and yet wrong: begin again
                model = None
            doubt = RELU.doubt + 1e3 * self.floor.absolute / spread + 1e2 * self.floor.relative * rough
        neurons = 0 if best is None else best.neurons
        miss = "" if np.isinf(deviation) else f" by {deviation * self.accept:.1e} of their spread"
        # exact answers prove the family wrong, coarse ones may only be too coarse
        refusal = TooNoisyError if self.floor.relative > RELU.rough or self.floor.absolute > 0 else NotInFamilyError
        raise refusal(
            f"After {RELU.attempts} lines and {len(questions.points)} questions the best ReLU network found ({neurons} neurons) "
            f"still misses fresh answers{miss}. The target is not a ReLU network with one hidden layer, or some of its neurons "
            f"are too close together or too faint for the precision of the answers. {WAY_OUT}",
            evidence={"deviation": float(deviation * self.accept), "neurons": neurons},
            model=None if best is None else to_network(best),
        )

    def _telling(
        self, questions: Questions, places: Places, model: Hinges, length: float, coarse: bool, rng: np.random.Generator
    ) -> Floats:
        """Random points, as many and such as bring the predicted error down to the goal."""
        neurons, outputs = model.out.shape
        parameters = (neurons * (questions.width + 1 + outputs) + outputs) / outputs
        least = max(4, int(0.02 * parameters))
        allowed = 1.28 * parameters + (7.0 if outputs == 1 else 5.3) * neurons - len(questions.points) - self.checks
        if neurons <= questions.width:  # answers of few neurons vary little: an error weighs more against their spread
            allowed += 0.4 * parameters
        least_share = 0.6 if questions.beside else 0.1  # short steps lose digits that only such points take back
        usual = 1.5 * parameters if coarse else min(max(allowed, least_share * parameters), 0.6 * parameters)
        most = max(least, int(usual if self.extra is None else self.extra * parameters))
        if (neurons + outputs) * (questions.width + 1) > RELU.design_largest:
            share = RELU.undesigned_beside if questions.beside else RELU.undesigned
            return places.random(model, length, int(share * parameters), rng)
        try:
            polished, system, misfit = self._polish(questions, model, 1e-3 if coarse else 1e-9, doubtful=coarse)
        except LinAlgError:
            return places.random(model, length, most, rng)
        pool = places.random(polished, length, min(3 * most, 2000), rng)
        near = np.linalg.norm(pool, axis=1) <= 2 * length
        spread = float(np.sqrt(np.mean(np.var(polished(pool[near]), axis=0))))  # of one output
        goal = RELU.goal * spread + self.floor.absolute
        if misfit > RELU.wrong and not coarse:  # more points tell no more than that
            return pool[: max(least, RELU.few)]
        picks = choose_points(polished, system, pool, questions.noise(pool), goal / max(misfit, 0.005), most, rng=rng)
        return pool[picks] if len(picks) >= least else np.concatenate([pool[picks], pool[: least - len(picks)]])

    def _polished(
        self, questions: Questions, model: Hinges, margins: tuple[float, ...], *, doubtful: bool
    ) -> tuple[Hinges, NormalEquations] | None:
        """The model after fits that each tell the activation patterns of more answers; None where they are singular."""
        polished, system = model, None
        try:
            for margin in margins:
                polished, system, _ = self._polish(questions, polished, margin, doubtful=doubtful)
            merged = merge_parallel(polished, nearness(self.floor.relative)) if doubtful else polished
            if merged.neurons < polished.neurons:  # bends that were read twice have found together
                polished, system, _ = self._polish(questions, merged, margins[-1], doubtful=doubtful)
        except LinAlgError:
            return None
        return None if system is None else (polished, system)

    def _polish(
        self, questions: Questions, model: Hinges, margin: float, *, doubtful: bool
    ) -> tuple[Hinges, NormalEquations, float]:
        """Fit to every answer whose activation pattern is beyond doubt; also the error per degree of freedom, in expected ones."""
        references, certain = self._patterns(questions, model, margin, doubtful=doubtful)
        points, references, answers = questions.points[certain], references[certain], questions.answers[certain]
        if len(points) == 0:
            raise LinAlgError("no answer has an activation pattern beyond doubt")
        noise = questions.noise(points)
        chosen = tied_sides(model) if answers.shape[1] == 1 and not doubtful else None
        polished, system = fit(model, points, references, answers, noise, chosen=chosen)
        residual = (answers - fixed_pattern(polished, points, references)) / noise[:, None]
        freedom = max(1, residual.size - len(system.scales))
        return polished, system, float(np.linalg.norm(residual) / np.sqrt(freedom))

    def _patterns(self, questions: Questions, model: Hinges, margin: float, *, doubtful: bool) -> tuple[Floats, NDArray[np.bool_]]:
        """For every answer a point ``(asked, width)`` with its activation pattern, and whether that is beyond doubt ``(asked,)``.

        Where lines may have been read wrongly (``doubtful``), a point's own pattern goes before that of its reference, and
        answers far from the model are doubted: they were given in another linear piece than thought.
        """
        points, references = questions.points, questions.references
        if not doubtful:
            return references, beyond_doubt(model, references, margin)
        references = np.where(beyond_doubt(model, points, margin)[:, None], points, references)
        errors = np.linalg.norm(questions.answers - fixed_pattern(model, points, references), axis=1)
        sizes = np.maximum(questions.offset + questions.slope * np.linalg.norm(points, axis=1), 1e-300)
        near = errors <= RELU.outlier * (questions.noise(points) + float(np.median(errors / sizes)) * sizes)
        return references, beyond_doubt(model, references, margin) & near

    def _foretold(self, model: Hinges, points: Floats, answers: Floats, spread: float, length: float) -> int:
        """How many answers a model foretold roughly: those at random points, and those that were there before it."""
        if self.seen is not None:
            points, answers = np.concatenate([points, self.seen[0]]), np.concatenate([answers, self.seen[1]])
        errors = np.linalg.norm(answers - model(points), axis=1)
        return int(np.sum(errors <= 1e-3 * spread * (1 + np.linalg.norm(points, axis=1) / length)))

    def _check(
        self,
        questions: Questions,
        places: Places,
        model: Hinges,
        length: float,
        spread: float,
        rng: np.random.Generator,
        count: int,
    ) -> float:
        """Largest error at ``count`` fresh points at three distances, in units of what is accepted there."""
        phase(questions.oracle, "check")
        points = places.at(np.resize([0.5 * length, length, 4 * length], count), questions.width, rng)
        errors = np.linalg.norm(questions.ask(points) - model(points), axis=1)
        distances = np.linalg.norm(points, axis=1)
        return float((errors / (self.accept * spread * (1 + distances / length) + 300 * questions.noise(points))).max())

    def _affine(
        self, questions: Questions, places: Places, part: Hinges, scale: float, reach: float, rng: np.random.Generator
    ) -> Found:
        """No bend on the whole line: the target must be affine."""
        questions.offset, questions.slope = part.sizes()
        spread = max(float(np.linalg.norm(part.linear)) * scale, float(np.linalg.norm(part.constant)), 1e-300)
        deviation = self._check(questions, places, part, scale, spread, rng, self.checks)
        if deviation > 1:
            raise NotInFamilyError(
                "The target does not bend on a random line, yet it is not affine. It is not a ReLU network, or its bends lie out "
                "of reach; allow longer tokens (`max_norm`).",
                model=to_network(part),
                evidence={"deviation": deviation * self.accept},
            )
        return Found(part, None, scale, spread, deviation * self.accept, reach)


def _spread(answers: Floats, near: NDArray[np.bool_], noise: Floats) -> float:
    """Standard deviation of the answers that are ``near``, or of all where those are few or lie where the network is constant."""
    spread = float(np.linalg.norm(np.std(answers[near], axis=0))) if near.sum() > 3 else 0.0
    if spread <= RELU.quiet * noise.max():
        spread = float(np.linalg.norm(np.std(answers, axis=0)))
    return spread or 1.0


def _refuse_depth(again: int, looks: int, asked: int, model: Hinges) -> None:
    """Refuse a target whose bends mostly end or change along their hyperplanes."""
    if looks < RELU.least_looks or again >= 0.5 * looks:
        return
    raise NotInFamilyError(
        f"{asked} one-token answers: {looks} bends of the target were followed along their hyperplanes, and only {again} of them "
        "were still the same elsewhere. The target is piecewise linear but no ReLU network with one hidden layer: further hidden "
        f"layers, or another function of that kind. {WAY_OUT}",
        evidence={"bends_followed": looks, "bends_found_again": again, "neurons": model.neurons},
        model=to_network(model),
    )


def _without_faint(model: Hinges) -> Hinges:
    """Drop bends that are rounding: they would only blur the fit. A real one this faint leaves no trace in any answer."""
    strengths = np.linalg.norm(model.normal, axis=1)
    return model.keep(np.flatnonzero(strengths > RELU.faint * np.median(strengths)))
