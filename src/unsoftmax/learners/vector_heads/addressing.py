"""Last tokens that switch one head on and all others off, and the sizes at which scores are moderate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from array_api_compat import array_namespace

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.vector_heads.answers import Answers
from unsoftmax.learners.vector_heads.demixing import Mixture, Totals
from unsoftmax.learners.vector_heads.settings import SEVERAL
from unsoftmax.linalg import on_host, orthonormal
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase

READABLE = 8.0  # a log-odds up to here is known to a percent even in float32


@dataclass(frozen=True, slots=True, eq=False)
class Steering:
    """Scores of the base direction, per unit length: ``u·W_h·D^T (heads, directions)`` and ``u·c_h (heads,)``.

    Attributes:
        D: orthonormal directions of the last token, ``(directions, width)``.
        slopes: ``u·W_h·D_j`` for the base direction ``u`` of length one.
        offsets: ``u·c_h``.
    """

    D: Floats
    slopes: Floats
    offsets: Floats

    @property
    def strength(self) -> float:
        """Typical score of the strongest head for tokens of length one."""
        return float(np.sqrt((self.slopes**2).mean(axis=1)).max())

    @property
    def step(self) -> float:
        """How far one may leave the base direction before a switch fails: 8 standard deviations of what a random step does."""
        x = np.linalg.pinv(self.slopes) @ (np.linalg.norm(self.slopes, axis=1) * (2 * np.eye(len(self.slopes)) - 1)).T
        return float(min(0.3, np.sqrt(len(self.D)) / (8 * np.linalg.norm(x, axis=0).max())))

    def switches(self) -> Floats:
        """Last tokens of length one, ``(heads, width)``: the h-th turns head h on and the others off."""
        strengths = np.linalg.norm(self.slopes, axis=1)
        wanted = (2 * np.eye(len(strengths)) - 1) * strengths
        x = (np.linalg.pinv(self.slopes) @ wanted.T).T @ self.D
        scaled: Floats = x / np.linalg.norm(x, axis=1, keepdims=True)
        return scaled

    def all_on(self) -> Floats:
        """A last token of length one, ``(width,)``, that turns every head on."""
        x = np.linalg.pinv(self.slopes) @ np.linalg.norm(self.slopes, axis=1) @ self.D
        scaled: Floats = x / np.linalg.norm(x)
        return scaled


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs ``[x + factor * u; x]`` of the base direction, read as one score per head."""

    answers: Answers
    totals: Totals
    mixture: Mixture
    solve: Floats  # what tells the heads' shares of an answer, for a base direction of length one
    beside: list[float] = field(
        default_factory=list
    )  # what is left of answers beside such shares and rounding, of the largest part

    @classmethod
    def of(cls, answers: Answers, totals: Totals, mixture: Mixture) -> Pairs:
        """Of the base direction of a mixture."""
        return cls(answers, totals, mixture, np.asarray(np.linalg.pinv(mixture.parts / answers.reach), dtype=np.float64))

    def log_odds(self, factors: Floats, x: Floats) -> Floats:
        """Scores ``(n, heads)``; infinite where a head is saturated as far as the answers can tell."""
        lengths = factors[:, None] * self.answers.reach
        tokens, sizes = self.answers.there(x), self.answers.there(factors)[:, None]
        pairs = array_namespace(tokens).stack([tokens + self.mixture.u * sizes, tokens], axis=1)
        alone = on_host(self.totals.of(tokens))
        told = on_host(self.answers.last(pairs)) - alone
        parts = self.mixture.parts / self.answers.reach
        share, largest = told / lengths @ self.solve, np.abs(parts).max()
        inside = (
            2.0 ** (4 - self.answers.bits) * np.linalg.norm(x, axis=1).max() * largest
        )  # of tokens that are much longer than steps
        rounding = (256 * self.answers.eps(float(np.abs(told).max() + np.abs(alone).max())) + inside) / lengths
        self.beside.append(float(np.max(np.abs(told / lengths - share @ parts) - rounding) / largest))
        noise = 256 * self.answers.eps(float(np.abs(told).max())) * np.linalg.norm(self.solve) * largest
        clipped = np.clip(share, 1e-300, 1 - 1e-16)
        z = np.log(clipped) - np.log1p(-clipped)
        z[np.minimum(share, 1 - share) < noise] = np.inf
        return np.asarray(z)


def has_biases(pairs: Pairs) -> bool:
    """Whether there is a c: without one both tokens weigh one half at the greatest length. 1 query."""
    parts = pairs.mixture.parts
    first = pairs.log_odds(np.ones(1), np.zeros((1, pairs.answers.width)))
    flat = 1e3 * pairs.answers.eps(float(np.abs(parts).max())) * np.linalg.cond(parts)
    return not (np.abs(first) < flat).all()


def read_offsets(pairs: Pairs) -> Floats:
    """``u·c_h`` per unit length, ``(heads,)``, all zero if there is no c: 1 query, 4 with c."""
    answers = pairs.answers
    if not has_biases(pairs):
        return np.zeros(pairs.mixture.heads)
    zero = np.zeros((1, answers.width))
    factor, z = readable(lambda factor: pairs.log_odds(np.array([factor]), zero)[0], READABLE)
    return np.where(np.abs(z) < READABLE, z, 0.0) / (factor * answers.reach)


def steer(answers: Answers, totals: Totals, mixture: Mixture, rng: np.random.Generator) -> Steering | None:
    """Measure the scores of the base direction at moderate size: 7 queries and ``steps_for`` (3 less without c).

    None where answers are no sums of the heads' parts: two of these pass for one.
    """
    phase(answers.oracle, "scales")
    width, length = answers.width, answers.reach
    pairs = Pairs.of(answers, totals, mixture)
    offsets = read_offsets(pairs)
    usual = min(2.0**10 / length, 1.0)  # without c any size will do
    if offsets.any():
        usual = min(float(2.0 ** np.floor(-np.log2(np.abs(offsets).max() * length))), usual)
    D = on_host(orthonormal(width, rng, rows=steps_for(width, mixture.heads), like=answers.like))
    factor, first = readable(lambda part: pairs.log_odds(np.array([usual]), D[:1] * (length * part))[0], READABLE / 2)
    if max(pairs.beside) > SEVERAL.merged:
        return None
    size = length * factor * 2.0 ** np.clip(-np.round(np.log2(np.abs(first - offsets * usual * length).max() + 1e-30)), -8, 8)
    size = float(min(size, length))
    for _ in range(3):
        z = pairs.log_odds(np.full(len(D), usual), D * size)
        if max(pairs.beside) > SEVERAL.merged:
            return None
        if np.isfinite(z).all():
            break
        size /= 8
    if not np.isfinite(z).all():
        raise NotInFamilyError(
            "Scores of the base direction stay saturated at every size of the last token. "
            "The heads' scores differ by more orders of magnitude than the answers can show.",
            evidence={"sizes": [length * 2.0**-56, length]},
        )
    return checked_steering(Steering(D=D, slopes=(z / (usual * length) - offsets).T / size, offsets=offsets))


def steps_for(width: int, heads: int) -> int:
    """Directions in which the last token is moved: more make switches that bear longer steps away from the base."""
    return min(width, 2 * heads + 6 + width // 32)


def checked_steering(steering: Steering) -> Steering:
    """Refuse heads that cannot be switched one by one."""
    spread = np.linalg.svd(steering.slopes / np.linalg.norm(steering.slopes, axis=1, keepdims=True), compute_uv=False)
    if len(spread) < len(steering.slopes) or not spread[-1] > 1e-6 * spread[0]:
        raise NotInFamilyError(
            f"The {len(steering.slopes)} heads cannot be switched one by one: their scores depend on each other. "
            "Heads with proportional W, heads with W = 0, or more heads than the width; "
            "the scalar learner can still tell some of these apart.",
            evidence={"slopes": spread.tolist()},
        )
    return steering


def readable(log_odds: Callable[[float], Floats], most: float) -> tuple[float, Floats]:
    """The largest of eight factors from 1 to ``2**-56`` that leaves all heads' log-odds below ``most``, and these: 3 queries.

    Where none does, the last.
    """
    low, high, found = 0, 7, None
    while low < high:
        rung = (low + high) // 2
        z = log_odds(2.0 ** (-8 * rung))
        if (np.abs(z) < most).all():
            high, found = rung, z
        else:
            low = rung + 1
    factor = 2.0 ** (-8 * low)
    return factor, log_odds(factor) if found is None else found
