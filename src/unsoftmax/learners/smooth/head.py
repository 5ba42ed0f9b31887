"""One softmax head in front of a network that is known from its answers to one token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.smooth.joint import JointFit, Kind
from unsoftmax.learners.smooth.learner import Found
from unsoftmax.learners.smooth.paths import SMOOTH
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.learners.transformer.model import Sequences
from unsoftmax.learners.transformer.reading import Known, read_scores
from unsoftmax.learners.transformer.shared import ambiguity, ask_random, public_transformer, token_sizes
from unsoftmax.learners.transformer.values import FarProbes, has_residual, read_mix
from unsoftmax.models import FFN, GatedFFN
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned


@dataclass(frozen=True, slots=True)
class Amounts:
    """How many sequences the fit of a whole Transformer takes, and how its check is judged.

    Attributes:
        checks: fresh sequences, of 2, 3, 5 and 8 tokens, that the finished model must answer.
        accept: error accepted there, relative to the spread of the answers.
        bias: scores that a query bias must reach, after the fit, to be one.
        many: sequences for the fit, as a share of ``P / outputs``.
        room: questions per parameter, in all, that they may fill (one output).
    """

    checks: int = 16
    accept: float = 1e-8
    bias: float = 1e-7
    many: float = 0.5
    room: float = 2.09

    def fit(self, network: int, outputs: int, width: int, residual: bool, bias: bool, asked: int) -> int:
        """Sequences of each length for the fit of a network of so many parameters: a share of all parameters, fewer where the
        steps before took many questions."""
        parameters = (network + width * (width * (1 + residual) + bias)) / outputs
        usual = self.checks // 4 + max(width // (1 if residual else 2), int(self.many * parameters) // 4)
        room = (int(self.room * parameters) - asked - self.checks) // 4
        return max(1, usual // (6 if residual else 8), min(usual, room)) if outputs == 1 else usual

    def price(self, network: int, outputs: int, width: int, rank: int | None) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """Queries and tokens by phase beyond those of the network, each as (low, high)."""
        known = width if rank is None else rank
        scores = (known * (2 * width - known) + 6, int(1.2 * known * (2 * width - known)) + 2 * width + 60)
        values = (8, 8 + 2 * width * (width + 3) // outputs + 4 * width)
        count = [4 * self.fit(network, outputs, width, bool(end), bool(end), 0) for end in (0, 1)]
        fits = (2 * self.checks, max(count) + 8 + self.checks)
        return [
            ("residual", values, (2 * values[0], 2 * values[1])),
            ("scores", scores, (2 * scores[0], 2 * scores[1])),
            ("fit", fits, (18 * fits[0] // 4, 18 * fits[1] // 4)),
        ]


@dataclass(frozen=True, slots=True, eq=False)
class HeadInFront(Generic[Kind]):
    """Learns ``network(residual * x_N + V^T sum_i a_i x_i)`` with softmax weights ``a`` in front of a network that was found.

    ``[x + u; x]`` shows that network at ``x + sigmoid(u·(W x + c)) u``: one question per entry of W, inverted along a monotone
    path. Far out, where every score is huge, the same question tells whether there is a residual path and what the values do. At
    last every parameter is fitted to every answer.

    Args:
        found: the target on one token.
        public: its network in the form that is handed out.
        ambiguity: what cannot be known of the neurons.
        amounts: of sequences.
        floor: how coarse the answers are.
        max_norm: no token longer than this is asked.
        notes: on the network, for the report.
    """

    found: Found[Kind]
    public: Callable[[Kind], FFN | GatedFFN]
    ambiguity: str
    amounts: Amounts
    floor: Floor
    max_norm: float | None
    notes: tuple[str, ...] = ()

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the head and fit the whole."""
        found, amounts = self.found, self.amounts
        sequences = Sequences(oracle, floor=self.floor, max_norm=self.max_norm)
        width, network = oracle.width, found.network
        phase(oracle, "residual")
        probes = FarProbes(sequences, network, found.length)
        residual = bool(has_residual(probes, rng))  # if no score saturates, none is assumed and the final check decides
        mix = read_mix(probes, rng) if residual else np.eye(width)
        phase(oracle, "scores")
        known = Known(network, found.length, found.spread, found.error)
        model, left, bias = read_scores(sequences, known, mix, rng, SMOOTH)
        phase(oracle, "fit")
        sizes = token_sizes(model.W, found.length)
        own = network.derivatives(np.zeros((1, width)), np.ones(1), found.free).shape[1]
        asked = len(found.answers.points) + sequences.asked
        count = amounts.fit(own, network.out.shape[1], width, residual, bias, asked)
        ask_random(sequences, sizes, count, rng, keep=True)
        joint = JointFit(found.answers, sequences, left, bias, residual, found.free)
        fitted, misfit = joint.run(model)
        if bias and np.linalg.norm(fitted.c) * found.length <= amounts.bias:  # an error of the values, which the fit has taken back
            bias = False
            fitted, misfit = replace(joint, bias=False).run(replace(fitted, c=np.zeros(width)))
        phase(oracle, "check")
        deviation = 0.0
        for X, answers in ask_random(sequences, sizes, amounts.checks // 4, rng, keep=False):
            deviation = max(deviation, float(np.linalg.norm(answers - fitted(X), axis=1).max()) / found.spread)
        transformer = public_transformer(self.public(fitted.network), fitted, bias=bias, residual=residual)
        evidence = {
            "neurons": network.neurons,
            "activation": network.phi.name,
            "rank": width if left is None else left.shape[1],
            "residual": residual,
            "query_bias": bias,
            "check_error": deviation,
            "misfit": misfit,
        }
        if not (deviation <= amounts.accept + 100 * self.floor.absolute / found.spread and misfit <= BENDS.unexplained):
            raise NotInFamilyError(
                f"On one token the target is a network of {network.neurons} {network.phi.name} neurons, but one softmax head in "
                f"front of it ({'with' if residual else 'without'} residual) misses fresh sequences by {deviation:.1e} of their "
                f"spread ({misfit:.1e} times the rounding in the fit). The target may have several "
                "heads, positions, or another way to mix its tokens; `unsoftmax diagnose` tells which.",
                evidence=evidence,
                model=transformer,
            )
        return Learned(model=transformer, ambiguity=ambiguity(self.ambiguity, residual), evidence=evidence, notes=self.notes)
