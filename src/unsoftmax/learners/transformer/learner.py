"""One-layer Transformers: attention, then a ReLU network, with or without residual."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from unsoftmax.errors import NotInFamilyError, Sign
from unsoftmax.learners.ffn.forms import Found, canonical_network
from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.learner import FFNLearner
from unsoftmax.learners.ffn.places import distances
from unsoftmax.learners.ffn.questions import Answered, Questions
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.learners.transformer.fit import JointFit
from unsoftmax.learners.transformer.model import Mixture, Sequences
from unsoftmax.learners.transformer.reading import Known, read_scores
from unsoftmax.learners.transformer.settings import TRANSFORMER
from unsoftmax.learners.transformer.shared import ambiguity, ask_random, public_transformer, token_sizes
from unsoftmax.learners.transformer.values import FarProbes, has_residual, read_mix
from unsoftmax.models import Transformer
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Bounds, Floor, Learned

UNTESTED = "No score could be saturated, so a residual path was not looked for; allow longer tokens (`max_norm`). "
AMBIGUITY = "equal up to the order of the neurons and a positive factor per neuron"


class Seen(NamedTuple):
    """What a run found beside its parameters, for the report: sizes, and the error on its own fresh sequences."""

    neurons: int
    rank: int
    residual: bool
    query_bias: bool
    check_error: float


@dataclass(frozen=True, slots=True)
class TransformerLearner:
    """Recover ``network(residual * x_N + V^T sum_i a_i x_i)`` with softmax weights ``a``, all of it unknown, from its answers.

    The one-token target is a ReLU network and is learned first. Then ``[x + u; x]`` shows that network at
    ``x + sigmoid(u·(W x + c)) u``: one question per entry of W, inverted along a monotone path. Far out, where every score is
    huge, the same question tells whether there is a residual path and, if so, what the values do. At last every parameter is
    fitted to every answer.

    Price: that of ``FFNLearner``, 8 for the residual (``+ d (d + 1) / p`` if there is one), ``r (2 d - r)`` for W of rank r plus a
    dozen for its scale and re-asked saturated scores, 3 or ``d`` for the query bias, ``16 + 2 d`` (with residual ``16 + 4 d``)
    sequences of up to 8 tokens for the fit (coarse answers: ``2 d^2 / p`` more) and 16 for the check.

    Assumes: as ``FFNLearner``; with residual, that tokens may be long enough to saturate the attention.

    Args:
        floor: how coarse the answers are.
        max_norm: no token longer than this is asked.
        max_neurons: refuse a target with more bends on one line.
        seen: tokens and answers that are known already.
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    max_neurons: int = 2048
    seen: Answered | None = None

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the Transformer; the answers may be scalars or vectors."""
        questions = Questions(oracle, floor=self.floor, max_norm=self.max_norm, seen=self.seen)
        found = FFNLearner(floor=self.floor, max_norm=self.max_norm, max_neurons=self.max_neurons).find(questions, rng=rng)
        found = _nearer(found, rng)
        sequences = Sequences(oracle, floor=self.floor, max_norm=self.max_norm)
        width = oracle.width
        phase(oracle, "residual")
        probes = FarProbes(sequences, found.hinges, found.length)
        verdict = has_residual(probes, rng)
        residual = bool(verdict)  # if no score saturates, none is assumed and the final check decides
        mix = read_mix(probes, rng) if residual else np.eye(width)
        phase(oracle, "scores")
        known = Known(found.hinges, found.length, found.spread, found.error)
        model, left, bias = read_scores(sequences, known, mix, rng)
        phase(oracle, "fit")
        self._ask_random(sequences, model, found, rng, TRANSFORMER.checks // 4 + width // (1 if residual else 2), keep=True)
        if self.floor.absolute > 0:
            self._ask_stretched(sequences, model, found, rng)
        if self.rough:
            return self._roughly(questions, sequences, model, found, residual, rng)
        fitted = JointFit(questions, sequences, left, bias, residual).run(model)
        if (
            bias and np.linalg.norm(fitted.c) * found.length <= TRANSFORMER.bias
        ):  # it was an error of the values, which the fit has taken back
            bias = False
            fitted = JointFit(questions, sequences, left, bias, residual).run(replace(fitted, c=np.zeros(width)))
        flat = replace(fitted, W=np.zeros((width, width)))
        if _misfit(questions, sequences, flat) <= TRANSFORMER.no_worse * max(_misfit(questions, sequences, fitted), 1.0):
            left = np.zeros((width, 0))
            fitted = JointFit(questions, sequences, left, bias, residual).run(flat)
        phase(oracle, "check")
        deviation = self._ask_random(sequences, fitted, found, rng, TRANSFORMER.checks // 4, keep=False)
        transformer, notes = canonical_transformer(fitted, found, residual, bias)
        rank = width if left is None else left.shape[1]
        seen = Seen(found.hinges.neurons, rank, residual, bias, deviation)
        if not deviation <= TRANSFORMER.accept + 100 * self.floor.absolute / found.spread:
            raise _misses(seen, transformer, tested=verdict is not None)
        return Learned(
            model=transformer, ambiguity=ambiguity(AMBIGUITY, residual), notes=notes, evidence=seen._asdict(), ranks=(rank,)
        )

    @property
    def rough(self) -> bool:
        """Answers of short precision: float32, or float64 that jitters."""
        return self.floor.relative > RELU.rough and self.floor.absolute == 0

    def _roughly(
        self,
        questions: Questions,
        sequences: Sequences,
        model: Mixture[Hinges],
        found: Found,
        residual: bool,
        rng: np.random.Generator,
    ) -> Learned:
        """The same from answers of short precision: all parameters by a fit to many more sequences, W and c with error bars.

        Ranks and a query bias are told by what the bars leave of them, for no reading alone is precise enough.
        """
        width, outputs = len(model.W), found.hinges.out.shape[1]
        self._ask_random(
            sequences, model, found, rng, int(TRANSFORMER.rough_share * width**2 / (4 * min(outputs, 2))) + width, keep=True
        )
        fit = JointFit(questions, sequences, None, True, residual)
        fitted = model
        for _ in range(TRANSFORMER.rough_rounds):
            fitted = fit.run(fitted)
        bars = fit.bars(fitted)
        bias = bars is None or bars.c is None or bool(np.any(np.abs(fitted.c) > TRANSFORMER.doubtful * bars.c))
        if not bias:
            fit = JointFit(questions, sequences, None, False, residual)
            fitted = fit.run(replace(fitted, c=np.zeros(width)))
            bars = fit.bars(fitted)
        phase(sequences.oracle, "check")
        deviation = self._ask_random(sequences, fitted, found, rng, TRANSFORMER.checks // 4, keep=False)
        transformer, notes = canonical_transformer(fitted, found, residual, bias)
        sizes = np.linalg.svd(fitted.W, compute_uv=False)
        rank = width if bars is None else int(np.sum(sizes > TRANSFORMER.doubtful * float(np.linalg.norm(bars.W, 2))))
        seen = Seen(found.hinges.neurons, rank, residual, bias, deviation)
        if not deviation <= TRANSFORMER.rough_accept * self.floor.relative:
            raise _misses(seen, transformer, tested=True)
        bounds = None if bars is None else Bounds(kind="estimated", W=bars.W[None], c=None if bars.c is None else bars.c[None])
        return Learned(
            model=transformer,
            ambiguity=ambiguity(AMBIGUITY, residual),
            bounds=bounds,
            notes=notes,
            evidence=seen._asdict(),
            ranks=(rank,),
        )

    def price(
        self, width: int, neurons: int, outputs: int = 1, rank: int | None = None
    ) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """Queries and tokens by phase, each as (low, high)."""
        known = width if rank is None else rank
        scores = (known * (2 * width - known) + 6, int(1.2 * known * (2 * width - known)) + 2 * width + 60)
        values = (8, 8 + 2 * width * (width + 3) // outputs + 4 * width)
        phases = FFNLearner().price(width, neurons, outputs)
        phases.append(("residual", values, (2 * values[0], 2 * values[1])))
        phases.append(("scores", scores, (2 * scores[0], 2 * scores[1])))
        fits = (TRANSFORMER.checks + 4 * (width // 2), TRANSFORMER.checks + 4 * width)
        phases.append(("fit", fits, (18 * fits[0] // 4, 18 * fits[1] // 4)))
        return [(name, *_added(bounds, tokens)) if name == "check" else (name, bounds, tokens) for name, bounds, tokens in phases]

    def _ask_random(
        self, sequences: Sequences, model: Mixture[Hinges], found: Found, rng: np.random.Generator, count: int, *, keep: bool
    ) -> float:
        """Ask ``count`` random sequences of each of several lengths.

        The model's largest error, relative to the spread of the answers.
        """
        asked = ask_random(sequences, token_sizes(model.W, found.length), count, rng, keep=keep)
        return max(float(np.linalg.norm(answers - model(X), axis=1).max()) for X, answers in asked) / found.spread

    def _ask_stretched(self, sequences: Sequences, model: Mixture[Hinges], found: Found, rng: np.random.Generator) -> None:
        """Ask for the fit sequences of long tokens that end in a short one.

        Scores stay of order 1 while the answers, unlike their rounding, grow with the tokens.
        """
        width = len(model.W)
        count = int(TRANSFORMER.coarse * width**2 / (4 * found.hinges.out.shape[1])) + 1
        size = 1 / np.sqrt(max(float(np.linalg.norm(model.W)), 1e-300))  # per entry, for scores of order 1
        far = 0.3 * (TRANSFORMER.farthest if self.max_norm is None else self.max_norm)
        far = min(far, 1 / max(float(np.linalg.norm(model.c)), 1e-300) * np.sqrt(width))
        stretch = max(1.0, far / (size * np.sqrt(width)))
        for tokens in (2, 3, 5, 8):
            X = rng.normal(size=(count, tokens, width)) * size
            X[:, :-1] *= stretch
            X[:, -1] /= stretch
            sequences.ask(sequences.shorten(X))


def _misses(seen: Seen, model: Transformer, *, tested: bool) -> NotInFamilyError:
    """The refusal of a target that is a ReLU network on one token, and something else on several."""
    return NotInFamilyError(
        f"On one token the target is a ReLU network of {seen.neurons} neurons, but one softmax head in front of it "
        f"({'with' if seen.residual else 'without'} residual, score matrix of rank {seen.rank}) misses fresh "
        f"sequences by {seen.check_error:.1e} of their spread. {'' if tested else UNTESTED}The target may have several "
        "heads, positions, or another way to mix its tokens; `unsoftmax diagnose` tells which.",
        evidence=seen._asdict(),
        model=model,
        signs=(Sign.NETWORK_KNOWN,),
    )


def _misfit(questions: Questions, sequences: Sequences, model: Mixture[Hinges]) -> float:
    """Root mean square of what a model leaves of the answers to sequences, in units of their rounding."""
    gaps = [(y - model(X)) / questions.noise(model.parts(X)[2])[:, None] for X, y in sequences.kept]
    return float(np.sqrt(np.mean(np.concatenate([gap.ravel() for gap in gaps]) ** 2)))


def _added(queries: tuple[int, int], tokens: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The checks of both learners together: points of one token and sequences of 2, 3, 5 and 8."""
    more = TRANSFORMER.checks // 4 * 18
    return (queries[0] + TRANSFORMER.checks, queries[1] + TRANSFORMER.checks), (tokens[0] + more, tokens[1] + more)


def _nearer(found: Found, rng: np.random.Generator) -> Found:
    """The same network looked at from where it bends: coarse answers had it learned from far out, where scores saturate."""
    width = found.hinges.normal.shape[1]
    length = max(float(np.median(distances(found.hinges))), 0.5 * np.sqrt(width)) if found.hinges.neurons else found.length
    if length >= 0.5 * found.length:
        return found
    points = rng.normal(size=(256, width)) * (length / np.sqrt(width))
    spread = float(np.linalg.norm(np.std(found.hinges(points), axis=0))) or found.spread
    return replace(found, length=length, spread=spread, error=found.error * found.spread / spread)


def canonical_transformer(model: Mixture[Hinges], found: Found, residual: bool, bias: bool) -> tuple[Transformer, tuple[str, ...]]:
    """The public model: V is the identity without residual, ``(1 - mix)^-1 mix`` with it."""
    network, notes = canonical_network(replace(found, hinges=model.network))
    return public_transformer(network, model, bias=bias, residual=residual), notes
