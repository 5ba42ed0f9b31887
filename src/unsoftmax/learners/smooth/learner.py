"""One-hidden-layer networks with smooth activations, from their answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic

import numpy as np

from unsoftmax.errors import NotInFamilyError, RefusalError, TooNoisyError, tried
from unsoftmax.learners.ffn.forms import Found as Limit
from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.learner import FFNLearner
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.learners.smooth.answers import Answers, Network
from unsoftmax.learners.smooth.bends import StrangeBendError, activation_of, curves_of, sharpness
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.design import telling_points
from unsoftmax.learners.smooth.fewest import fewest
from unsoftmax.learners.smooth.forms import AMBIGUITY, to_network, without_skip
from unsoftmax.learners.smooth.limit import relu_limit
from unsoftmax.learners.smooth.offsets import Corners, with_offsets, with_reach
from unsoftmax.learners.smooth.one_output import OneOutput, combined, widened
from unsoftmax.learners.smooth.pairs import Pair, Paired, alike, doubled, fitted_pairs, notes_on_pairs
from unsoftmax.learners.smooth.rough import rough_curves
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.learners.smooth.shared import separated, suspects, with_bends
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned


class Unfinished(Exception):
    """An attempt that did not find the network, with the refusal that it would end in."""

    def __init__(self, refusal: RefusalError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


@dataclass(frozen=True, slots=True, eq=False)
class Far:
    """Points asked from very far and their answers."""

    points: Floats
    answers: Floats

    def joined(self, questions: Questions, floor: Floor) -> Answers:
        """Together with those from near."""
        return Answers(np.concatenate([self.points, questions.points]), np.concatenate([self.answers, questions.answers]), floor)


@dataclass(frozen=True, slots=True, eq=False)
class Found(Generic[Network]):
    """A network that passed its check.

    Attributes:
        network: the function.
        free: which of its parameters a fit moves, in its own words.
        answers: everything asked for it.
        length: distance from the origin within which most neurons bend.
        spread: standard deviation of the answers at that distance.
        error: largest error at the checks, relative to the spread.
        misfit: of all answers, those of the checks among them, in expected errors.
    """

    network: Network
    free: Any
    answers: Answers
    length: float
    spread: float
    error: float
    misfit: float


@dataclass(frozen=True, slots=True)
class SmoothNetworkLearner:
    """Recover ``A phi(B x + b) + c`` (+ a linear skip) with ``phi`` GELU, SiLU, softplus, Mish or ELU, all of it unknown.

    Seen from very far (``y(T x) / T`` with ``T = 2^100``) such a network is a ReLU network without biases, which gives every
    neuron's direction and jump. Moderately far out all neurons are straight: answers there tell where their hyperplanes lie. A
    few answers across one neuron name the activation, one answer near each hyperplane tells how sharply its neuron bends, and a
    fit to all answers takes back the digits that were lost.

    Price, with ``P = m (d + 1 + p) + p``: 4 for the scale, ``10 + 4.2..5.5 m`` for the corners, ``(m + 1) (d - 1)`` for the
    gradients (with ``p`` outputs about ``(1.33 m / p + 1) (d - 1)``) plus about a tenth, ``0.05 P / p`` and 6 for the check of the
    limit; then 4 for the reach, ``(m + p) / p`` for the offsets, 7 for the activation, ``m`` for the sharpness (Mish and ELU:
    ``4 m``), ``0.1..0.5 P / p`` random points and 12 checks.

    Assumes: no bound on the length of tokens, or one above ``2^36 sqrt(d)``; answers in float64. Neurons that share a direction are
    told apart up to three at a time, unless their jumps cancel.

    Args:
        floor: how coarse the answers are.
        max_norm: no token longer than this is asked.
        max_neurons: refuse a target with more bends on one line.
        extra: random points near by, as a share of ``P / outputs``.
        room: questions per parameter, in all, that they may fill (one output), beside those of the corners: six a neuron.
        fewest: random points, as a share of ``P / outputs``, that are asked in any case.
        attempts: each from four times as far out.
        quiet: misfit, in expected errors, beyond which one of them may be two that are almost alike; fits end below 1.
        bends_on: height that a neuron may still have, in widths of its bend, where it is taken to be straight.
        parallel: angle between rows below which a network that does not explain its answers is looked at along another line.
        most_shared: directions that several neurons share; more are not looked into.

    >>> from unsoftmax.models import FFN
    >>> from unsoftmax.oracles.local import CallableOracle
    >>> network = FFN([[[3.0, 4.0], [0.0, 1.0]], [[2.0, -1.0]]], [[1.0, 0.5], [0.5]], activation="gelu")
    >>> oracle = CallableOracle(lambda X: network(X[:, 0]), width=2)
    >>> learned = SmoothNetworkLearner().run(oracle, rng=np.random.default_rng(0))
    >>> learned.model.activation, np.round(learned.model.weights[0], 9) + 0.0
    ('gelu', array([[3., 4.],
           [0., 1.]]))
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    max_neurons: int = 2048
    extra: float = 0.5
    room: float = 1.55
    fewest: float = 0.1
    attempts: int = 3
    quiet: float = 1.0
    bends_on: float = 1e-3
    parallel: float = 0.01
    most_shared: int = 4

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the network; the answers may be scalars or vectors."""
        found = self.find(oracle, rng=rng)
        curves = found.network
        network = to_network(curves)
        evidence = {
            "neurons": curves.neurons,
            "activation": curves.phi.name,
            "skip": network.skip is not None,
            "check_error": found.error,
            "misfit": found.misfit,
        }
        return Learned(model=network, ambiguity=AMBIGUITY, evidence=evidence, notes=notes_on_pairs(curves, found.answers))

    def price(self, width: int, neurons: int, outputs: int = 1) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """Queries and tokens by phase, each as (low, high); every query is one token. Holds for exact answers."""
        parameters = (neurons * (width + 1 + outputs) + outputs) / outputs
        random = max(BENDS.least, int(self.extra * parameters))
        fewest = max(BENDS.least, int(min(self.extra, self.fewest) * parameters))
        afar = max(8, int(0.05 * parameters))
        offsets = -(-(neurons + outputs) // outputs)
        limit = FFNLearner(through_origin=True, checks=BENDS.checks_limit).price(width, neurons, outputs)
        ranges = {name: bounds for name, bounds, _ in limit}
        fewest_checks = ranges["check"][0]
        ranges |= {
            "reach": (4, 12),
            "offsets": (offsets, 2 * offsets),
            "activation": (7, 28),
            "sharpness": (neurons, 5 * neurons),
            "random points": (fewest + max(4, int(0.02 * parameters)), random + 2 * afar),
            "check": (fewest_checks + BENDS.checks, BENDS.checks_limit + 2 * BENDS.checks),
        }
        return [(name, bounds, bounds) for name, bounds in ranges.items()]

    def find(self, oracle: Oracle, *, rng: np.random.Generator) -> Found[Curves]:
        """Learn the network as curves and a linear part, ask the checks and refuse what fails them.

        Rows that are nearly parallel may be told badly by the line on which corners were looked for: then another one is tried.
        """
        limit = self._limit(oracle, rng)
        found = tried(partial(self._found, oracle, *limit, rng), NotInFamilyError)
        if not isinstance(found, NotInFamilyError):
            return found
        if not _nearly_parallel(limit[0].hinges.normal, self.parallel):
            raise found
        return self._found(oracle, *self._limit(oracle, rng), rng)

    def _limit(self, oracle: Oracle, rng: np.random.Generator) -> tuple[Limit, Questions, float]:
        """The network seen from very far, the questions asked for that, and how far."""
        found = relu_limit(oracle, floor=self.floor, max_norm=self.max_norm, max_neurons=self.max_neurons, rng=rng)
        if found[0].hinges.neurons == 0:
            raise NotInFamilyError("Seen from very far the target does not bend.")
        return found

    def _found(self, oracle: Oracle, limit: Limit, afar: Questions, scale: float, rng: np.random.Generator) -> Found[Curves]:
        """The network with these corners."""
        questions = Questions(oracle, floor=self.floor, max_norm=self.max_norm)
        far = Far(afar.points * scale, afar.answers * scale)
        outputs = limit.hinges.out.shape[1]
        if outputs == 1 or self.floor.relative > RELU.rough:
            return self._from_farther(limit.hinges, limit.error, questions, far, self.attempts, rng)
        found = tried(partial(self._from_farther, limit.hinges, limit.error, questions, far, 1, rng), NotInFamilyError)
        if not isinstance(found, NotInFamilyError):
            return found
        mix = rng.normal(size=outputs) / np.sqrt(outputs)
        view = Questions(OneOutput(questions, mix), floor=self.floor, max_norm=self.max_norm)
        seen = replace(far, answers=far.answers @ mix[:, None])
        one = self._from_farther(combined(limit.hinges, mix), limit.error, view, seen, self.attempts, rng)
        curves = widened(one.network, far.joined(questions, self.floor))
        pairs = tuple(pair for pair, opposite in alike(curves) if not opposite)
        checked = tried(
            partial(self._checked, *self._fitted(curves, questions, far, pairs), questions, far, rng, pairs), Unfinished
        )
        if isinstance(checked, Unfinished):
            raise checked.refusal
        return checked

    def _from_farther(
        self, hinges: Hinges, error: float, questions: Questions, far: Far, attempts: int, rng: np.random.Generator
    ) -> Found[Curves]:
        """The network with these corners, in so many attempts, each from farther out."""
        corners = Corners.of(hinges, rng)
        refusal: RefusalError | None = None
        for _ in range(attempts):
            corners = self._placed(corners, questions, error, rng)
            found = tried(partial(self._bent, corners, questions, far, rng), Unfinished)
            if not isinstance(found, Unfinished):
                return found
            refusal = found.refusal
        assert refusal is not None
        raise refusal

    def _placed(self, corners: Corners, questions: Questions, error: float, rng: np.random.Generator) -> Corners:
        """The corners with offsets, read from far enough out that the offsets themselves do not matter."""
        corners = with_offsets(with_reach(corners, questions, error, rng), questions, rng)
        farthest = float(np.abs(corners.offsets).max())
        if farthest > corners.reach / 2:
            corners = with_offsets(replace(corners, reach=8 * farthest), questions, rng)
        return corners

    def _bent(self, corners: Corners, questions: Questions, far: Far, rng: np.random.Generator) -> Found[Curves]:
        """The network from its corners.

        Raises:
            Unfinished: it does not explain the answers; from farther out it may.
        """
        strengths = np.linalg.norm(corners.jumps, axis=1) * np.minimum(corners.margins, 1.0)
        order = [int(j) for j in np.argsort(-strengths)]
        if self.floor.relative > RELU.rough:
            return self._bent_roughly(rough_curves(corners, questions, order), questions, far, rng)
        try:
            bend = activation_of(corners, questions, order)
        except StrangeBendError as refusal:
            raise Unfinished(refusal) from refusal
        phi = bend.phi
        sharp, turned = sharpness(corners, questions, phi, bend.sharp)
        curves = curves_of(corners, phi, sharp, turned)
        self._random(questions, far, curves, rng)
        fitted, misfit, pairs = self._told_apart(*self._fitted(curves, questions, far), questions, far, rng)
        if not misfit <= BENDS.unexplained:
            doubted = suspects(corners, questions, phi, sharp, turned)
            straight = np.abs(phi.value(-sharp * (corners.reach - np.abs(corners.offsets))) - phi.low)
            straight[doubted] = 0.0  # what is told of several bends as of one
            if straight.max() > self.bends_on or not doubted or len(doubted) > self.most_shared:
                raise Unfinished(self._refusal(fitted, misfit, None))
            for j in sorted(doubted, reverse=True):
                curves = with_bends(curves, corners, j, separated(corners, questions, phi, j, rng))
            whole = fewest(*self._fitted(curves, questions, far), (), far.joined(questions, self.floor))[0]
            fitted, misfit, pairs = self._told_apart(*self._fitted(whole, questions, far), questions, far, rng)
        found = self._checked(fitted, misfit, questions, far, rng, pairs)
        if pairs or found.misfit <= max(BENDS.calm, BENDS.as_good * misfit):
            return found
        # fresh answers are missed by more than those before: something is there that few of them tell
        self._more(questions, far, found.network, rng)
        fitted, misfit, pairs = self._told_apart(*self._fitted(found.network, questions, far), questions, far, rng)
        return self._checked(fitted, misfit, questions, far, rng, pairs) if pairs else found

    def _bent_roughly(self, offered: list[Curves], questions: Questions, far: Far, rng: np.random.Generator) -> Found[Curves]:
        """The network of coarse answers: of those ``offered`` the one that a fit to many answers singles out."""
        phase(questions.oracle, "random points")
        neurons, outputs = offered[0].out.shape
        count = int(BENDS.rough_points * (neurons * (questions.width + 1 + outputs) + outputs) / outputs)
        questions.ask(scattered(offered[0].lengths(), count, questions.width, rng))
        fits = sorted((self._fitted(curves, questions, far) for curves in offered), key=lambda fit: fit[1])
        curves, misfit = fits[0]
        if not misfit <= BENDS.rough_fit or any(other < BENDS.bends_apart * misfit for _, other in fits[1:]):
            raise Unfinished(
                TooNoisyError(
                    f"Seen from very far the target is a ReLU network of {neurons} neurons, but {curves.phi.name} neurons in their "
                    f"places miss {count} answers near by by {misfit:.1e} times their precision, or others fit as well. Answers in "
                    "float64 would tell.",
                    evidence={"activation": curves.phi.name, "neurons": neurons, "misfit": misfit},
                )
            )
        return self._checked(curves, misfit, questions, far, rng)

    def _random(self, questions: Questions, far: Far, curves: Curves, rng: np.random.Generator) -> None:
        """Ask the most telling of many random points near the bends; fewer where the corners took many questions."""
        phase(questions.oracle, "random points")
        neurons, outputs = curves.out.shape
        parameters = (neurons * (questions.width + 1 + outputs) + outputs) / outputs
        spent = len(far.points) + len(questions.points) + BENDS.checks
        room = int(self.room * parameters) + 6 * neurons - spent if outputs == 1 else np.inf
        count = int(max(BENDS.least, min(self.extra * parameters, max(room, self.fewest * parameters))))
        pool = scattered(curves.lengths(), BENDS.pool * count, questions.width, rng)
        questions.ask(telling_points(curves, far.joined(questions, self.floor), pool, count, True, rng))

    def _more(self, questions: Questions, far: Far, curves: Curves, rng: np.random.Generator) -> None:
        """Ask further random points that tell most about the network."""
        phase(questions.oracle, "shared directions")
        count = int(np.ceil(BENDS.more * (questions.width + 2) / curves.out.shape[1]))
        pool = scattered(curves.lengths(), BENDS.pool * count, questions.width, rng)
        questions.ask(telling_points(curves, far.joined(questions, self.floor), pool, count, True, rng))

    def _told_apart(
        self, curves: Curves, misfit: float, questions: Questions, far: Far, rng: np.random.Generator
    ) -> tuple[Curves, float, tuple[Pair, ...]]:
        """The fitted network with neurons that are almost duplicates told apart; itself, if that does not explain what it left."""
        pairs: tuple[Pair, ...] = ()
        found, left, answers = curves, misfit, far.joined(questions, self.floor)
        while left > self.quiet and len(pairs) < self.most_shared:
            pair, starts = doubled(found, answers, pairs)
            trial, less = min((fitted_pairs(answers, start, (*pairs, pair), True) for start in starts), key=lambda fit: fit[1])
            if not less <= BENDS.gains * left:
                return curves, misfit, ()
            pairs, found, left = (*pairs, pair), trial, less
        if not pairs or left > self.quiet:
            return curves, misfit, ()
        found, left, pairs = fewest(found, left, pairs, answers)
        if not pairs:
            return *self._fitted(found, questions, far), ()
        phase(questions.oracle, "shared directions")
        count = int(np.ceil(2 * len(pairs) * (questions.width + 2) / found.out.shape[1]))
        pool = scattered(found.lengths(), BENDS.pool * count, questions.width, rng)
        questions.ask(telling_points(Paired(found, pairs), answers, pool, count, True, rng))
        return *self._fitted(found, questions, far, pairs), pairs

    def _fitted(self, curves: Curves, questions: Questions, far: Far, pairs: tuple[Pair, ...] = ()) -> tuple[Curves, float]:
        """All parameters fitted to all answers, without a linear part where there is none; and the misfit in expected errors."""
        answers = far.joined(questions, self.floor)
        fitted, misfit = fitted_pairs(answers, curves, pairs, True)
        if misfit <= BENDS.unexplained:
            error = max(BENDS.skip, 64 * self.floor.relative)
            fitted = without_skip(fitted, lambda model: fitted_pairs(answers, model, pairs, False)[0], error)
        return fitted, misfit

    def _checked(
        self,
        curves: Curves,
        misfit: float,
        questions: Questions,
        far: Far,
        rng: np.random.Generator,
        pairs: tuple[Pair, ...] = (),
    ) -> Found[Curves]:
        """The network, if it answers fresh points at three distances; fitted to their answers as well."""
        phase(questions.oracle, "check")
        length, width = float(np.median(curves.lengths())), questions.width
        points = scattered(np.array([0.5, 1.0, 4.0]) * length, BENDS.checks, width, rng)
        told = questions.ask(points)
        spread = float(np.linalg.norm(np.std(curves(scattered(np.full(1, length), BENDS.spread, width, rng)), axis=0))) or 1.0
        distances = np.linalg.norm(points, axis=1)
        error = float((np.linalg.norm(told - curves(points), axis=1) / (1 + distances / length)).max() / spread)
        coarse = self.floor.relative * float(np.median(curves.sizes(points) / (1 + distances / length)))
        free, answers = bool(curves.linear.any()), far.joined(questions, self.floor)
        fitted, left = fitted_pairs(answers, curves, pairs, free)
        if not max(misfit, left) <= BENDS.unexplained:
            raise Unfinished(self._refusal(fitted, max(misfit, left), None))
        if not error <= BENDS.accept + (300 * self.floor.absolute + 30 * coarse) / spread:
            raise Unfinished(self._refusal(curves, misfit, error))
        return Found(fitted, free, answers, length, spread, error, left)

    def _refusal(self, curves: Curves, misfit: float, error: float | None) -> NotInFamilyError:
        miss = "leave its answers unexplained" if error is None else f"miss fresh answers by {error:.1e} of their spread"
        return NotInFamilyError(
            f"Seen from very far the target is a ReLU network of {curves.neurons} neurons, but {curves.phi.name} neurons in their "
            f"places {miss} ({misfit:.1e} times the rounding). Some neurons may bend otherwise than the first ones, or several "
            "share a direction and cancel. Attention in front of such a network can be learned (family "
            "`attention-behind-network`).",
            evidence={"activation": curves.phi.name, "neurons": curves.neurons, "misfit": misfit, "check_error": error},
            model=to_network(curves),
        )


def _nearly_parallel(rows: Floats, angle: float) -> bool:
    """Whether some two of these rows have directions, the same or opposite, no further apart than that."""
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return bool((np.abs(units @ units.T) - np.eye(len(units))).max() > 1 - angle**2 / 2)


def scattered(lengths: Floats, count: int, width: int, rng: np.random.Generator) -> Floats:
    """Random points whose distances from the origin follow ``lengths``."""
    points = rng.normal(size=(count, width))
    radii = np.resize(lengths, count) * rng.uniform(0.3, 1.5, size=count)
    return np.asarray(points * (radii / np.linalg.norm(points, axis=1))[:, None])
