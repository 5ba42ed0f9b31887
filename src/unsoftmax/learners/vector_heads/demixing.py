"""One-token answers, and saturated pairs: how many heads there are and what each adds for one direction."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
from array_api_compat import array_namespace, device

from unsoftmax.errors import NotInFamilyError, Sign
from unsoftmax.learners.vector_heads.answers import Answers, unit
from unsoftmax.learners.vector_heads.half_circle import BINARY_SLACK, AskSums, patterns_on_half_circle
from unsoftmax.linalg import on_host
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase

MOST_SEARCHED = 20  # heads up to which 2**heads patterns are searched; more are told apart by further questions
MARGIN = 6  # sums beyond their rank, without which the rank is not trusted


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """What one token alone tells: ``b (outputs,)`` and ``total (width, outputs)``, the sum of all values."""

    b: Floats
    total: Floats

    def of(self, tokens: Floats) -> Floats:
        """Answers to one-token sequences ``(n, width)``."""
        answers: Floats = self.b + tokens @ self.total
        return answers


def one_token(answers: Answers, b: Floats, rng: np.random.Generator) -> Totals:
    """Read the sum of the values from ``width + 1`` one-token answers, given the constant; refuse if they are not affine.

    8 more where they are nothing but rounding.
    """
    phase(answers.oracle, "values")
    width, length = answers.width, answers.reach * 2.0**-8
    check = answers.there(answers.grid(unit(rng, 1, width) * length, length))
    xp = array_namespace(check)

    def build(start: int, stop: int) -> Floats:
        axes = length * xp.eye(min(stop, width) - start, width, k=start, dtype=check.dtype, device=device(check))
        tokens: Floats = axes if stop <= width else xp.concat([axes, check])
        return tokens[:, None]

    told = answers.stream(build, width + 1, 1)
    found = Totals(b=b, total=(told[:-1] - b) / length)
    size = float(xp.max(xp.abs(told)))
    error = float(xp.max(xp.abs(found.of(check) - told[-1:])))
    if error > _allowed(answers, size):  # values that cancel leave rounding that only they can be measured by
        # values show where the heads choose different tokens, which the more there are they do the more often
        longer = answers.there(answers.grid(unit(rng, 64, width).reshape(8, 8, width) * length, length))
        size = max(size, float(xp.max(xp.abs(answers.last(longer) - b))))
    if error > _allowed(answers, size):
        raise NotInFamilyError(
            f"One-token answers are not affine: a check is off by {error:.2g}, answers are of size {size:.2g}. "
            "Something other than attention acts on the tokens (a normalisation, positions, a network); run `unsoftmax diagnose`.",
            evidence={"affine_error": error, "answer_size": size},
        )
    return found


def _allowed(answers: Answers, size: float) -> float:
    """Rounding of sums of ``width`` terms that make up answers of ``size``."""
    return float(64 * np.sqrt(answers.width) * answers.floor.of(size))


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """The base direction ``u (width,)`` and what each head adds for it, ``parts (heads, outputs)``: ``V_h^T u``.

    ``around (width - 1, width)`` are orthonormal directions across it. The parts, few numbers, are on the host. ``sums`` are what
    told them, where more of these would tell heads apart that pass for one.
    """

    u: Floats
    parts: Floats
    around: Floats
    sums: Sums | None = None

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.parts)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Saturated pairs ``[x + u; x]`` of one direction: ``told (1 + pairs, outputs)``, the first of all heads together.

    Every head looks fully at one of the two tokens, so that an answer less ``f([x])`` adds up ``V_h^T u`` of those that look at
    ``x + u``. ``around`` are orthonormal directions across ``u``.
    """

    answers: Answers
    totals: Totals
    u: Floats
    around: Floats
    told: Floats

    @classmethod
    def of(cls, answers: Answers, totals: Totals, rng: np.random.Generator) -> Sums:
        """A fresh direction; what all heads add for it is known."""
        rotation = answers.rotation(rng)
        u = answers.grid(rotation[0] * answers.reach, answers.reach)
        return cls(answers, totals, u, rotation[1:], on_host(u @ totals.total)[None])

    def ask(self, directions: Floats) -> Floats:
        """The sums for last tokens in these directions."""
        answers, length = self.answers, self.answers.reach
        x = answers.grid(answers.there(directions * length * answers.contrast), length)
        return on_host(answers.last(array_namespace(x).stack([x + self.u, x], axis=1)) - self.totals.of(x))

    def more(self, count: int, rng: np.random.Generator) -> Sums:
        """The same with so many more pairs."""
        return replace(self, told=np.concatenate([self.told, self.ask(unit(rng, count, self.answers.width))]))


def demix(
    answers: Answers, totals: Totals, rng: np.random.Generator, *, heads: int | None = None, begun: Mixture | None = None
) -> Mixture:
    """Find the heads from saturated pairs, about ``8 + 2 * heads`` queries; about ``12 * heads`` beyond ``MOST_SEARCHED`` heads.

    Heads that looked at the same token in every pair pass for one; what was ``begun`` so is gone on with until there are more.
    """
    phase(answers.oracle, "heads")
    sums, known = (None, 0) if begun is None else (begun.sums, begun.heads)
    asked, many, patterns, rank = 0, False, None, known
    while asked <= 6 * MOST_SEARCHED:
        more = MARGIN if sums is not None and not asked else 2 * MARGIN
        sums = sums if sums is not None and not asked else Sums.of(answers, totals, rng)
        before, rank = len(sums.told), known
        while patterns is None and len(sums.told) <= 4 * MARGIN + 5 * rank:  # then another direction tells the heads apart sooner
            sums = sums.more(more, rng)
            eps = answers.eps(float(np.abs(sums.told).max()))
            rank = sums_rank(sums.told, eps)
            more = 2 if rank <= len(sums.told) - MARGIN else len(sums.told) // 2
            many = rank > MOST_SEARCHED
            if many:
                told, patterns = demix_many(sums.ask, sums.told, eps, answers.width, rng)
                sums = replace(sums, told=told)
                break
            patterns = binary_patterns(sums.told, eps) if rank > known else None
        if patterns is not None and (heads is None or patterns.shape[1] <= heads):
            parts: Floats = np.linalg.lstsq(patterns, sums.told, rcond=None)[0].astype(np.float64)
            return Mixture(u=sums.u, parts=parts, around=sums.around, sums=None if many else sums)
        if many or patterns is not None:
            break
        asked += len(sums.told) - before
    assert sums is not None
    if patterns is not None:
        raise too_many(patterns.shape[1], heads)
    outputs, pairs = sums.told.shape[1], len(sums.told) - 1
    full = "So many outputs tell no more apart: probably more heads than outputs. " if rank == outputs else ""
    raise NotInFamilyError(
        f"Saturated pairs show no consistent number of heads (rank {rank} of {outputs} outputs over {pairs} answers). {full}"
        "Either there are more heads than outputs, heads with dependent values, heads that do not depend on the last token, "
        "or tokens too short to saturate the softmax; the scalar learner can still tell some of these apart.",
        evidence={"answers": pairs, "rank": rank, "outputs": outputs},
    )


def too_many(found: int, heads: int | None) -> NotInFamilyError:
    """More heads than were asked for."""
    return NotInFamilyError(
        f"Found {found} heads, but heads={heads} was asked for. Leave `heads` out, or raise it.",
        evidence={"heads": found},
        signs=(Sign.TOO_MANY,),
    )


def demix_many(ask: AskSums, sums: Floats, eps: float, width: int, rng: np.random.Generator) -> tuple[Floats, Floats | None]:
    """All sums, asked until their rank is below their number, and the patterns behind them, or None."""
    while (rank := sums_rank(sums, eps)) > len(sums) - MARGIN and len(sums) <= sums.shape[1] + MARGIN:
        sums = np.concatenate([sums, ask(unit(rng, max(8, len(sums) // 2), width))])
    if rank > len(sums) - MARGIN:
        return sums, None
    return sums, patterns_on_half_circle(ask, sums, rank, eps, width, rng)


def sums_rank(sums: Floats, eps: float) -> int:
    """Numerical rank of the subset sums, against the rounding of the answers."""
    values = np.linalg.svd(sums, compute_uv=False)
    return int((values > 64 * eps * np.sqrt(len(sums)) * values[0]).sum()) if values[0] > 0 else 0


def binary_patterns(sums: Floats, eps: float) -> Floats | None:
    """The 0/1 matrix ``(answers, heads)`` behind subset sums ``(answers, outputs)``, whose first row sums all heads.

    With ``heads`` pivot rows and the others written as ``T @ pivots``, a head's column satisfies ``rest = T @ pivot part``;
    all ``2**heads`` pivot parts are tried. Returns None unless exactly ``heads`` columns fit, which more answers bring about.
    """
    rank = sums_rank(sums, eps)
    if not 0 < rank <= min(MOST_SEARCHED, len(sums) - MARGIN):
        return None
    order = scipy.linalg.qr(sums.T, mode="r", pivoting=True)[1]
    pivots, rest = order[:rank], order[rank:]
    T = np.linalg.lstsq(sums[pivots].T, sums[rest].T, rcond=None)[0].T
    codes = np.arange(1, 2**rank)
    for row in T:  # row by row, so that the survivors shrink fast
        bits = (codes[:, None] >> np.arange(rank)) & 1
        value = bits @ row
        codes = codes[np.minimum(np.abs(value), np.abs(value - 1)) < BINARY_SLACK]
    bits = (codes[:, None] >> np.arange(rank)) & 1
    columns = np.zeros((len(sums), len(codes)))
    columns[pivots], columns[rest] = bits.T, np.round(T @ bits.T)
    columns = columns[:, columns[0] == 1]
    return columns if columns.shape[1] == rank else None
