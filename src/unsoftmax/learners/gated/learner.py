"""Gated networks of one hidden layer (SwiGLU, GeGLU), from their answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from unsoftmax.errors import NotInFamilyError, RefusalError, tried
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.gated.forms import AMBIGUITY, PARTS, to_gated, without_trifles
from unsoftmax.learners.gated.gates import Gates
from unsoftmax.learners.gated.limit import Limit, quadratic_limit
from unsoftmax.learners.gated.offsets import GateCorners, bent, with_biases
from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.bends import StrangeBendError, activation_of, sharpness
from unsoftmax.learners.smooth.design import telling_points
from unsoftmax.learners.smooth.learner import Found, Unfinished, scattered
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned


@dataclass(frozen=True, slots=True)
class GatedNetworkLearner:
    """Recover ``A (phi(G x + b) * (U x + c)) + a`` (+ a linear skip) with ``phi`` SiLU, GELU or softplus, all of it unknown.

    Seen from very far (``y(T x) / T^2`` with ``T = 2^100``) such a network is a sum of products of a ReLU and a linear form,
    which is piecewise quadratic. The bends on one half circle name the gates, and steps off its plane from the cells between
    them tell every gate's direction and what it lets through. Farther in, answers beyond all bends tell the biases; a few
    across one hyperplane name the activation, one near each tells how sharply its gate bends, and a fit to all answers takes
    back the digits that were lost.

    Price, with ``P = m (2 d + 1 + p) + p``: 4 for the scale, about ``7 m + 2 (d - 2) (m + 1)`` and a tenth for the gates,
    ``0.1 P / p`` and 16 for the check of the limit; then ``2 m / p + d + 1`` for the biases, 7 for the activation, ``m`` for the
    sharpness, ``0.3 P / p`` random points and 12 checks.

    Assumes: no bound on the length of tokens, or one above ``2^36 sqrt(d)``; answers in float64; gates of different directions.

    Args:
        floor: how coarse the answers are.
        max_norm: no token longer than this is asked.
        extra: random points as a share of ``P / outputs``, P without biases.
        room: questions per parameter, in all, that they may fill (one output).
        fewest: random points that are asked in any case.
        reach: distance from a hyperplane at which its gate is taken to be straight, at first.
        further: by how much farther the next attempt.
        attempts: so many.

    >>> from unsoftmax.models import GatedFFN
    >>> from unsoftmax.oracles.local import CallableOracle
    >>> gated = GatedFFN([[3.0, 4.0], [0.0, 1.0]], [[1.0, -1.0], [2.0, 1.0]], [[2.0, -1.0]], down_bias=[0.5])
    >>> learned = GatedNetworkLearner().run(CallableOracle(gated.respond, width=2), rng=np.random.default_rng(0))
    >>> learned.model.activation, np.round(learned.model.gate, 9) + 0.0
    ('silu', array([[3., 4.],
           [0., 1.]]))
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    extra: float = 0.6
    room: float = 2.7
    fewest: float = 0.2
    reach: float = 64.0
    further: float = 16.0
    attempts: int = 3

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the network; the answers may be scalars or vectors."""
        found = self.find(oracle, rng=rng)
        gates = found.network
        model = to_gated(gates)
        evidence = {
            "neurons": gates.neurons,
            "activation": gates.phi.name,
            "gated": True,
            "skip": model.skip is not None,
            "check_error": found.error,
            "misfit": found.misfit,
        }
        return Learned(model=model, ambiguity=AMBIGUITY, evidence=evidence)

    def find(self, oracle: Oracle, *, rng: np.random.Generator) -> Found[Gates]:
        """Learn the network as gates and a linear part, ask the checks and refuse what fails them."""
        limit = quadratic_limit(oracle, floor=self.floor, max_norm=self.max_norm, rng=rng)
        questions = Questions(oracle, floor=self.floor, max_norm=self.max_norm)
        refusal: RefusalError | None = None
        for attempt in range(self.attempts):
            found = tried(partial(self._near, limit, questions, self.reach * self.further**attempt, rng), Unfinished)
            if not isinstance(found, Unfinished):
                return found
            refusal = found.refusal
        assert refusal is not None
        raise refusal

    def price(self, width: int, neurons: int, outputs: int = 1) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """Queries and tokens by phase, each as (low, high); every query is one token. Holds for exact answers."""
        parameters = (neurons * (2 * width + 1 + outputs) + outputs) / outputs
        near, far = max(BENDS.least, int(self.extra * parameters)), int(0.1 * parameters)
        steps = 2 * max(0, width - 2) * (neurons + 1)
        biases = (2 * neurons + outputs * (width + 1)) // outputs
        ranges = {
            "scale": (4, 4),
            "gates": (5 * neurons + steps, 2 * (11 * neurons + 2 * steps) + 64),
            "random points": (2 * BENDS.least, near + 2 * far + 2 * neurons + 32),
            "offsets": (biases // 2, 2 * biases + 8),
            "activation": (7, 56),
            "sharpness": (neurons, 4 * neurons),
            "check": (BENDS.checks, 2 * BENDS.checks),
        }
        return [(name, bounds, bounds) for name, bounds in ranges.items()]

    def _near(self, limit: Limit, questions: Questions, reach: float, rng: np.random.Generator) -> Found[Gates]:
        """The network from its limit.

        Raises:
            Unfinished: it does not explain the answers; from farther out it may.
        """
        corners = with_biases(GateCorners.of(limit.gates, reach, rng), questions, rng)
        farthest = float(np.abs(corners.gates.shift).max())
        if not farthest <= reach / 2:
            words = f"Hyperplanes of gates lie {farthest:.1e} from the origin, too far to be told from answers {reach:.1e} away."
            raise Unfinished(NotInFamilyError(words, evidence={"distance": farthest}))
        strengths = np.linalg.norm(corners.gates.up, axis=1) * corners.margins
        try:
            bend = activation_of(corners, questions, [int(j) for j in np.argsort(-strengths)])
        except StrangeBendError as refusal:
            raise Unfinished(refusal) from refusal
        if not bend.phi.even:
            raise NotInFamilyError(
                f"The gates bend as {bend.phi.name} does, which differs from its mirror image by more than a straight line: such "
                "gates are not learned.",
                evidence={"activation": bend.phi.name},
            )
        sharp, _ = sharpness(corners, questions, bend.phi, bend.sharp)
        gates = bent(corners, bend.phi, sharp)
        everything = gates.free(*PARTS)
        phase(questions.oracle, "random points")
        parameters = (everything.sum() - gates.linear.size - 2 * gates.neurons) / len(gates.constant)
        asked = len(limit.answers.points) + len(questions.points) + BENDS.checks
        left = self.room * parameters - asked if len(gates.constant) == 1 else np.inf
        count = int(max(BENDS.least, np.clip(left, self.fewest * parameters, self.extra * parameters)))
        pool = scattered(gates.lengths(), BENDS.pool * count, questions.width, rng)
        questions.ask(telling_points(gates, self._joined(limit, questions), pool, count, everything, rng))
        answers = self._joined(limit, questions)
        fitted, misfit = answers.fit(gates, everything)
        if not misfit <= BENDS.unexplained:
            raise Unfinished(_refusal(fitted, misfit, None))
        fitted = without_trifles(fitted, misfit, answers)
        return self._checked(fitted, misfit, limit, questions, rng)

    def _joined(self, limit: Limit, questions: Questions) -> Answers:
        """All answers, from near and far."""
        points, answers = limit.answers.points, limit.answers.answers
        return Answers(np.concatenate([points, questions.points]), np.concatenate([answers, questions.answers]), self.floor)

    def _checked(self, gates: Gates, misfit: float, limit: Limit, questions: Questions, rng: np.random.Generator) -> Found[Gates]:
        """The network, if it answers fresh points at three distances; fitted to their answers as well."""
        phase(questions.oracle, "check")
        length, width = float(np.median(gates.lengths())), questions.width
        points = scattered(np.array([0.5, 1.0, 4.0]) * length, BENDS.checks, width, rng)
        told = questions.ask(points)
        usual = gates.sizes(scattered(np.full(1, length), BENDS.spread, width, rng))
        spread = float(np.linalg.norm(np.std(gates(scattered(np.full(1, length), BENDS.spread, width, rng)), axis=0))) or 1.0
        grown = np.maximum(gates.sizes(points) / float(np.median(usual)), 1.0)
        error = float((np.linalg.norm(told - gates(points), axis=1) / grown).max() / spread)
        if not error <= BENDS.accept + 300 * self.floor.absolute / spread:
            raise Unfinished(_refusal(gates, misfit, error))
        free = gates.free(*(name for name in PARTS if getattr(gates, name).any()))
        answers = self._joined(limit, questions)
        fitted, misfit = answers.fit(gates, free)
        if not misfit <= BENDS.unexplained:
            raise Unfinished(_refusal(fitted, misfit, None))
        return Found(fitted, free, answers, length, spread, error, misfit)


def _refusal(gates: Gates, misfit: float, error: float | None) -> NotInFamilyError:
    miss = "leave its answers unexplained" if error is None else f"miss fresh answers by {error:.1e} of their spread"
    return NotInFamilyError(
        f"Seen from very far the target is a network of {gates.neurons} gates, but {gates.phi.name} in their places {miss} "
        f"({misfit:.1e} times the rounding). Some gates may bend otherwise than the first ones.",
        evidence={"activation": gates.phi.name, "neurons": gates.neurons, "misfit": misfit, "check_error": error},
        model=to_gated(gates),
    )
