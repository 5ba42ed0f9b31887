"""One-hidden-layer networks with smooth activations, from their answers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.ffn.questions import Questions
from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.bends import activation_of, curves_of, sharpness
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.forms import AMBIGUITY, to_network, without_skip
from unsoftmax.learners.smooth.limit import relu_limit
from unsoftmax.learners.smooth.offsets import Corners, with_offsets, with_reach
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned

CHECKS = 12  # fresh points that the finished network must answer
ACCEPT = 1e-9  # error accepted there, relative to the spread of the answers
EXTRA = 0.25  # random points as a share of P / outputs
PATTERN = (
    1e-7  # relative distance from a hyperplane below which an answer from very far is left out of the fit: corners are not smooth
)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A smooth network that passed its check.

    Attributes:
        curves: the function.
        answers: everything asked for it.
        length: distance from the origin within which most neurons bend.
        spread: standard deviation of the answers at that distance.
        error: largest error at the checks, relative to the spread.
    """

    curves: Curves
    answers: Answers
    length: float
    spread: float
    error: float


@dataclass(frozen=True, slots=True)
class SmoothNetworkLearner:
    """Recover ``A phi(B x + b) + c`` (+ a linear skip) with ``phi`` GELU, SiLU, softplus, Mish or ELU, all of it unknown."""

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    max_neurons: int = 2048
    extra: float = EXTRA

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the network; the answers may be scalars or vectors."""
        found = self.find(oracle, rng=rng)
        curves = found.curves
        network = to_network(curves)
        evidence = {
            "neurons": curves.neurons,
            "activation": curves.phi.name,
            "skip": network.skip is not None,
            "check_error": found.error,
        }
        return Learned(model=network, ambiguity=AMBIGUITY, evidence=evidence)

    def find(self, oracle: Oracle, *, rng: np.random.Generator) -> Found:
        """Learn the network as curves and a linear part, ask the checks and refuse what fails them."""
        limit, afar, scale = relu_limit(oracle, floor=self.floor, max_norm=self.max_norm, max_neurons=self.max_neurons, rng=rng)
        if limit.hinges.neurons == 0:
            raise NotInFamilyError("Seen from very far the target does not bend.")
        questions = Questions(oracle, floor=self.floor, max_norm=self.max_norm)
        corners = with_reach(Corners.of(limit.hinges, rng), questions, limit.error, rng)
        corners = with_offsets(corners, questions, rng)
        strengths = np.linalg.norm(corners.jumps, axis=1) * np.minimum(corners.margins, 1.0)
        bend, _, _ = activation_of(corners, questions, [int(j) for j in np.argsort(-strengths)])
        sharp, turned = sharpness(corners, questions, bend.phi, bend.sharp)
        rough = curves_of(corners, bend.phi, sharp, turned)
        return self._finished(rough, questions, afar, scale, rng)

    def _finished(self, rough: Curves, questions: Questions, afar: Questions, scale: float, rng: np.random.Generator) -> Found:
        neurons, outputs = rough.out.shape
        width = questions.width
        parameters = (neurons * (width + 1 + outputs) + outputs) / outputs
        phase(questions.oracle, "random points")
        lengths = rough.lengths()
        count = max(8, int(self.extra * parameters))
        questions.ask(scattered(lengths, count, width, rng))
        answers = Answers(
            np.concatenate([scale * afar.points, questions.points]),
            np.concatenate([scale * afar.answers, questions.answers]),
            self.floor,
        )
        curves, misfit = answers.fit(rough, linear=True)
        curves = without_skip(curves, lambda model: answers.fit(model, linear=False)[0])
        phase(questions.oracle, "check")
        length = float(np.median(lengths))
        fresh = scattered(np.array([0.5, 1.0, 4.0]) * length, CHECKS, width, rng)
        told = questions.ask(fresh)
        near = np.linalg.norm(fresh, axis=1) <= 2 * length
        spread = float(np.linalg.norm(np.std(curves(scattered(np.full(1, length), 256, width, rng)), axis=0))) or 1.0
        error = float((np.linalg.norm(told - curves(fresh), axis=1) / (1 + np.linalg.norm(fresh, axis=1) / length)).max() / spread)
        if not error <= ACCEPT:
            raise NotInFamilyError(
                f"A network of {neurons} {curves.phi.name} neurons misses fresh answers by {error:.1e} of their spread.",
                evidence={"check_error": error, "misfit": misfit, "near": int(near.sum())},
            )
        return Found(curves, answers, length, spread, error)


def scattered(lengths: Floats, count: int, width: int, rng: np.random.Generator) -> Floats:
    """Random points whose distances from the origin follow ``lengths``."""
    points = rng.normal(size=(count, width))
    radii = np.resize(lengths, count) * rng.uniform(0.3, 1.5, size=count)
    return np.asarray(points * (radii / np.linalg.norm(points, axis=1))[:, None])
