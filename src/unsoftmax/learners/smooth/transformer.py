"""One-layer Transformers: attention, then a network of smooth neurons, with or without residual."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.smooth.forms import AMBIGUITY, to_network
from unsoftmax.learners.smooth.joint import JointFit
from unsoftmax.learners.smooth.learner import SmoothNetworkLearner
from unsoftmax.learners.smooth.paths import SMOOTH
from unsoftmax.learners.transformer.model import Sequences
from unsoftmax.learners.transformer.reading import Known, read_scores
from unsoftmax.learners.transformer.shared import ambiguity, ask_random, public_transformer, token_sizes
from unsoftmax.learners.transformer.values import FarProbes, has_residual, read_mix
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned


@dataclass(frozen=True, slots=True)
class SmoothTransformerLearner:
    """Recover ``network(residual * x_N + V^T sum_i a_i x_i)`` with softmax weights ``a`` and a smooth network, all unknown.

    The one-token target is a smooth network and is learned first. Then ``[x + u; x]`` shows that network at
    ``x + sigmoid(u·(W x + c)) u``: one question per entry of W, inverted along a monotone path. Far out, where every score is
    huge, the same question tells whether there is a residual path and what the values do. At last every parameter is fitted to
    every answer.

    Price: that of ``SmoothNetworkLearner`` with fewer random points, 8 for the residual (``+ d (d + 1) / p`` if there is one),
    ``r (2 d - r)`` for W of rank r plus a dozen, 3 or ``d`` for the query bias, up to ``16 + 0.5 P`` sequences
    for the fit (fewer where that would make more than ``2.09 P`` in all) and 16 for the check.

    Args:
        floor: how coarse the answers are.
        max_norm: no token longer than this is asked.
        max_neurons: refuse a target with more bends on one line.
        checks: fresh sequences, of 2, 3, 5 and 8 tokens, that the finished model must answer.
        accept: error accepted there, relative to the spread of the answers.
        bias: scores that a query bias must reach, after the fit, to be one.
        many: sequences for the fit, as a share of ``P / outputs``.
        room: questions per parameter, in all, that they may fill (one output).
        extra: random points for the network alone, as a share of ``P / outputs``: sequences tell as much.
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    max_neurons: int = 2048
    checks: int = 16
    accept: float = 1e-8
    bias: float = 1e-7
    many: float = 0.5
    room: float = 2.09
    extra: float = 0.12

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the Transformer; the answers may be scalars or vectors."""
        found = SmoothNetworkLearner(self.floor, self.max_norm, self.max_neurons, extra=self.extra).find(oracle, rng=rng)
        sequences = Sequences(oracle, floor=self.floor, max_norm=self.max_norm)
        width, network = oracle.width, found.curves
        phase(oracle, "residual")
        probes = FarProbes(sequences, network, found.length)
        residual = bool(has_residual(probes, rng))  # if no score saturates, none is assumed and the final check decides
        mix = read_mix(probes, rng) if residual else np.eye(width)
        phase(oracle, "scores")
        known = Known(network, found.length, found.spread, found.error)
        model, left, bias = read_scores(sequences, known, mix, rng, SMOOTH)
        phase(oracle, "fit")
        sizes = token_sizes(model.W, found.length)
        asked = len(found.answers.points) + sequences.asked
        ask_random(sequences, sizes, self._fit_count(network.out.shape, width, residual, bias, asked), rng, keep=True)
        joint = JointFit(found.answers, sequences, left, bias, residual, bool(network.linear.any()))
        fitted, misfit = joint.run(model)
        if (
            bias and np.linalg.norm(fitted.c) * found.length <= self.bias
        ):  # it was an error of the values, which the fit has taken back
            bias = False
            fitted, misfit = replace(joint, bias=False).run(replace(fitted, c=np.zeros(width)))
        phase(oracle, "check")
        deviation = 0.0
        for X, answers in ask_random(sequences, sizes, self.checks // 4, rng, keep=False):
            deviation = max(deviation, float(np.linalg.norm(answers - fitted(X), axis=1).max()) / found.spread)
        transformer = public_transformer(to_network(fitted.network), fitted, bias=bias, residual=residual)
        evidence = {
            "neurons": network.neurons,
            "activation": network.phi.name,
            "rank": width if left is None else left.shape[1],
            "residual": residual,
            "query_bias": bias,
            "check_error": deviation,
            "misfit": misfit,
        }
        if not deviation <= self.accept + 100 * self.floor.absolute / found.spread:
            raise NotInFamilyError(
                f"On one token the target is a network of {network.neurons} {network.phi.name} neurons, but one softmax head in "
                f"front of it ({'with' if residual else 'without'} residual) misses fresh sequences by {deviation:.1e} of their "
                "spread. The target may have several heads, positions, or another way to mix its tokens; `unsoftmax diagnose` "
                "tells which.",
                evidence=evidence,
                model=transformer,
            )
        return Learned(model=transformer, ambiguity=ambiguity(AMBIGUITY, residual), evidence=evidence)

    def _fit_count(self, shape: tuple[int, ...], width: int, residual: bool, bias: bool, asked: int) -> int:
        """Sequences of each length for the fit: a share of the parameters, fewer where the steps before took many questions."""
        (neurons, outputs), scores = shape, width * (width * (1 + residual) + bias)
        parameters = (neurons * (width + 1 + outputs) + outputs + scores) / outputs
        usual = self.checks // 4 + max(width // (1 if residual else 2), int(self.many * parameters) // 4)
        room = (int(self.room * parameters) - asked - self.checks) // 4
        return max(usual // 6, min(usual, room)) if outputs == 1 else usual

    def price(
        self, width: int, neurons: int, outputs: int = 1, rank: int | None = None
    ) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """Queries and tokens by phase, each as (low, high)."""
        known = width if rank is None else rank
        scores = (known * (2 * width - known) + 6, int(1.2 * known * (2 * width - known)) + 2 * width + 60)
        values = (8, 8 + 2 * width * (width + 3) // outputs + 4 * width)
        count = [4 * self._fit_count((neurons, outputs), width, bool(end), bool(end), 0) for end in (0, 1)]
        fits = (2 * self.checks, max(count) + 8 + self.checks)
        phases = SmoothNetworkLearner(extra=self.extra).price(width, neurons, outputs)
        phases += [("residual", values, (2 * values[0], 2 * values[1])), ("scores", scores, (2 * scores[0], 2 * scores[1]))]
        return [*phases, ("fit", fits, (18 * fits[0] // 4, 18 * fits[1] // 4))]
