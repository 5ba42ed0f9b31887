"""Scores: many tokens per question, one linear solve for all heads' weights, log-odds, and low rank by rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from array_api_compat import array_namespace, device

from unsoftmax.learners.vector_heads.answers import Answers, unit
from unsoftmax.learners.vector_heads.asked import Asked, Scores, ask_scores, demand, read_scores
from unsoftmax.learners.vector_heads.demixing import Totals
from unsoftmax.learners.vector_heads.keys import Keys, grouped, spread_keys
from unsoftmax.learners.vector_heads.loose import tightened
from unsoftmax.learners.vector_heads.mixtures import LowRank, pinned
from unsoftmax.learners.vector_heads.ranges import ill, stacked
from unsoftmax.learners.vector_heads.settings import SEVERAL
from unsoftmax.learners.vector_heads.slices import slices_for
from unsoftmax.learners.vector_heads.spectra import spectra
from unsoftmax.learners.vector_heads.values import Values, group_size
from unsoftmax.learners.vector_heads.weighted import Sheet, weighted_columns
from unsoftmax.linalg import left_inverse, on_host
from unsoftmax.models import Floats
from unsoftmax.models.matrices import Matrices
from unsoftmax.oracles.base import phase

SCORE = 0.4  # typical score of the strongest head; larger ones lose digits in small weights
MOST_BIAS = 4.0  # largest c·u of a key step
COARSE_SCORE = 0.7  # with coarse answers the signal matters more, but a strong head must not saturate
COARSE_BIAS = 0.8  # its typical c·u: what c takes of its room is lost to W, but shorter steps lose digits in all heads


@dataclass(frozen=True, slots=True, eq=False)
class Biases:
    """Steps of ``length``, at which ``c·u`` is moderate, what they tell of ``c (heads, width)``, and its error, ``(heads,)``.

    ``asked`` holds the answers that told it.
    """

    length: float
    c: Floats
    errors: Floats
    asked: Asked | None = None

    @classmethod
    def of(cls, answers: Answers, keys: Keys, asked: Asked) -> Biases:
        """From answers to all keys before a zero token."""
        told = demand(asked.scores(answers, keys))
        errors = on_host(array_namespace(told.errors).linalg.vector_norm(told.errors[:, :, 0], axis=1))
        return cls(asked.length, (keys.inverse @ told.z)[:, :, 0], errors, asked)

    def again(self, answers: Answers, keys: Keys) -> Biases:
        """The same answers read once more, where there are any."""
        return self if self.asked is None else Biases.of(answers, keys, self.asked)

    @classmethod
    def none(cls, answers: Answers, length: float, heads: int) -> Biases:
        """No biases: steps of any length will do."""
        return cls(length, answers.there(np.zeros((heads, answers.width))), np.zeros(heads))


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMatrices:
    """``W`` of all heads, ``biases``, the rank of each W, and how well the answers were explained.

    ``noise (heads,)`` is the error of the entries of each W that the rounding of the answers leads to.
    """

    W: Matrices
    values: Values
    biases: Biases
    ranks: tuple[int, ...]
    residual: float
    noise: Floats

    @property
    def c(self) -> Floats | None:
        """``(heads, width)``; None where there is none."""
        return self.biases.c if bool((self.biases.c != 0).any()) else None

    @property
    def errors(self) -> Floats:
        """Relative error of each W and c, ``(heads,)``, that rounding alone leads to: an estimate; errors of V add to it.

        That of c is relative to the largest c: a head beside it may have none.
        """
        xp, size = array_namespace(self.biases.c), np.maximum(self.W.sizes, 1e-300)
        largest = max(float(xp.max(xp.linalg.vector_norm(self.biases.c, axis=1))), 1e-300)
        return np.asarray(np.maximum(self.noise * self.W.shape[1] / size, on_host(self.biases.errors) / largest))


def keys_for(answers: Answers, values: Values, U: Floats, across: Floats | None = None) -> tuple[Keys, int]:
    """Keys near the steps ``U (n, width)``, and how many a question takes at most.

    Fewer where ranges nearly depend on each other or a head is faint, so that its weights would be lost, a third where
    answers are coarse.
    """
    exact = (SEVERAL.fewer, 0.75, 0.5) if values.loose is not None else (1.0, SEVERAL.fewer, 0.75, 0.5)
    for part in (0.3,) if answers.coarse else exact:
        size = group_size(values.outputs, values.heads, min(values.ranks), part)
        keys = spread_keys(values, grouped(U, size), across=across)
        lost = answers.floor.relative * float(keys.alone.max()) * float(values.sizes.max()) / np.sqrt(answers.width)
        if 4 * lost < ill(answers):
            break
    return keys, size


def read_matrices(
    answers: Answers,
    totals: Totals,
    values: Values,
    strength: float,
    offset: float | None,
    rng: np.random.Generator,
    *,
    rank: int,
) -> ScoreMatrices:
    """Read W and c: columns ``W_h x + c_h`` until their rank is known, then only as many rows as that rank needs.

    Price: ``k * ceil(width / g) + (width - k) * ceil(rank / g)`` with ``k`` a few more than the rank
    (``k = width`` at full rank), and ``ceil(width / g)`` more with c.

    Args:
        answers: the target.
        totals: what one token tells.
        values: of the heads.
        strength: typical score of the strongest head for two tokens of length one.
        offset: typical ``c·u`` for a step of length one; None without c.
        rng: randomness.
        rank: guess of the rank of W, from the values.
    """
    heads, width = values.heads, answers.width
    keys, size = keys_for(answers, values, answers.rotation(rng))
    xp, length = array_namespace(keys.U), longest_step(answers, offset)
    if answers.bits <= 24:  # last tokens must not vanish beside the keys: 64 times the length at which both would be as long
        length = min(length, 64 * float(np.sqrt(COARSE_SCORE / strength)))
    phase(answers.oracle, "columns")
    biases = Biases.none(answers, length, heads) if offset is None else read_biases(answers, totals, keys, length)
    length, c = biases.length, biases.c
    if answers.coarse:
        x_length = strongest_length(answers, totals, keys, length, COARSE_SCORE / (length * strength), c, rng)
    else:
        x_length = moderate_length(answers, totals, keys, length, SCORE / (length * strength), rng)
    x = xp.round(answers.rotation(rng) * (x_length / (step := grain(answers, length, x_length)))) * step
    loose = 0 if values.loose is None else len(values.loose)
    inverse, noise, residual, wanted = keys.inverse, np.zeros(heads), 0.0, columns_for(rank, answers)
    columns = xp.zeros((heads, width, 0), dtype=x.dtype, device=device(x))
    read: list[Scores] = []
    while columns.shape[2] < width:
        if -(-rank // size) >= len(keys.U):
            wanted = width
        asked = ask_scores(answers, totals, keys, length, x[columns.shape[2] : min(wanted, width)])
        if values.loose is not None:
            keys = tightened(keys, asked.told)
            biases, values = biases.again(answers, keys), keys.values
            c = biases.c
        told = demand(asked.scores(answers, keys))
        read.append(told)
        columns = xp.concat([columns, inverse @ told.z - c[:, :, None]], axis=2)
        noise, residual = np.maximum(noise, told.noise), max(residual, told.residual)
        ranges = column_ranges(list(columns), noise * np.sqrt(width))
        rank = max(basis.shape[1] for basis in ranges)
        if columns_for(rank, answers) <= wanted:
            break
        wanted = 2 * wanted
    within = [basis.T @ block for basis, block in zip(ranges, columns, strict=True)]
    if columns.shape[2] < width:
        phase(answers.oracle, "rows")
        most = group_size(values.outputs, heads, min(values.ranks))
        if not (width - columns.shape[2] > 4 * SEVERAL.mixtures * loose > 0 and -(-rank // most) < -(-rank // size)):
            most = size
        few = rows_for(rank, most, answers)
        row_keys = spread_keys(values, grouped(answers.rotation(rng)[:few], most), ranges, turns=8)
        ask = partial(ask_scores, answers, totals, row_keys, length)
        if most > size:
            told = pinned(answers, ask, row_keys, x, LowRank(ranges, within, c), loose, step, rng)
        else:
            told = demand(ask(x[columns.shape[2] :]).scores(answers, row_keys))
        residual = max(residual, told.residual)
        part = sheet(row_keys, c, [told])
        inverses = [left_inverse(part.U @ basis) for basis in ranges]
        noise = np.maximum(noise, told.noise * [spread_of(inverse) for inverse in inverses])
        within = [xp.concat([w, inverse @ z], axis=1) for w, inverse, z in zip(within, inverses, part.z, strict=True)]
        if answers.coarse:
            ranges, within = weighted_columns(sheet(keys, c, read), part, ranges, within)
    turned = xp.linalg.inv(x).T
    W = Matrices.product(stacked(ranges), stacked([w @ turned for w in within]))
    ranks = tuple(basis.shape[1] for basis in ranges)
    return ScoreMatrices(W=W, values=values, biases=biases, ranks=ranks, residual=residual, noise=noise / x_length)


def spread_of(inverse: Floats) -> float:
    """How much larger errors are behind an inverse ``(rank, keys)`` than those of single keys."""
    xp = array_namespace(inverse)
    return max(1.0, float(xp.linalg.matrix_norm(inverse, ord="fro")) / float(np.sqrt(max(1, len(inverse)))))


def sheet(keys: Keys, c: Floats, read: list[Scores]) -> Sheet:
    """All scores of a set of keys, without their bias."""
    xp = array_namespace(keys.U)
    z, errors = (xp.concat([getattr(scores, name) for scores in read], axis=2) for name in ("z", "errors"))
    return Sheet(U=keys.flat, z=z - (c @ keys.flat.T)[:, :, None], errors=errors)


def moderate_length(answers: Answers, totals: Totals, keys: Keys, length: float, guess: float, rng: np.random.Generator) -> float:
    """Length of last tokens at which scores are moderate; the guess rests on one direction, so two fresh ones check it."""
    for _ in range(6):
        told = read_scores(answers, totals, keys.one(0), length, answers.there(unit(rng, 2, answers.width) * guess))
        if told is not None and float(abs(told.z).max()) * length < 4:
            break
        guess /= 4
    return guess


def strongest_length(
    answers: Answers, totals: Totals, keys: Keys, length: float, guess: float, c: Floats, rng: np.random.Generator
) -> float:
    """Length of last tokens at which the strongest head, without its bias, scores as coarse answers want: 24 queries a try.

    Its largest scores are some five times the typical one, and coarse answers lose a small weight altogether; in shorter tokens
    all heads lose digits. The guess rests on one direction, in which the strongest head may not show; twelve groups of keys tell.
    """
    xp = array_namespace(c)
    for _ in range(6):
        moved = []
        for group in range(min(len(keys.U), 12)):
            one = keys.one(group)
            told = read_scores(answers, totals, one, length, answers.there(unit(rng, 2, answers.width) * guess))
            if told is None:
                break
            moved.append((told.z - (c @ one.flat.T)[:, :, None]).reshape(len(c), -1))
        if told is None:
            guess /= 4
            continue
        typical = float(xp.max(xp.sqrt(xp.mean(xp.concat(moved, axis=1) ** 2, axis=1))))
        factor = COARSE_SCORE / (length * typical + 1e-300)
        guess *= min(4.0, factor)
        if 0.5 <= factor <= 2.0:
            break
    return guess


def columns_for(rank: int, answers: Answers) -> int:
    """Columns that show a rank and give its range; twice as many where answers are coarse."""
    return max(rank + 2, 2 * rank) if answers.coarse else slices_for(rank)


def rows_for(rank: int, size: int, answers: Answers) -> int:
    """Keys that tell the rows of a rank: what costs no further question, twice as many where answers are coarse."""
    if answers.coarse:
        return min(answers.width, -(-max(rank + 2, 2 * rank) // size) * size)
    return min(answers.width, -(-rank // size) * size, rank + 2 + rank // 4)


def longest_step(answers: Answers, offset: float | None) -> float:
    """Length of key steps: as long as c allows, so that the constant and the last token add little error."""
    longest = 2.0**10 if answers.max_norm is None else answers.max_norm / 2
    return longest if offset is None else min(longest, float(2.0 ** np.floor(-np.log2(max(offset, 2.0**-10)))))


def grain(answers: Answers, length: float, x_length: float) -> float:
    """Grid of last tokens on which ``x + u`` is exact in the target's arithmetic."""
    return float(2.0 ** (np.ceil(np.log2(max(length, x_length))) + 2 - answers.bits))


def read_biases(answers: Answers, totals: Totals, keys: Keys, length: float) -> Biases:
    """The step length at which ``c·u`` is moderate for all keys, and ``c``, from last tokens 0.

    The first group of keys, a question a time, tells about how long steps may be.
    """
    xp, longest, zero = array_namespace(keys.U), longest_step(answers, None), 0 * keys.flat[:1]
    for _ in range(0 if answers.coarse else 24):
        first = read_scores(answers, totals, keys.one(0), length, zero)
        largest = np.inf if first is None else float(xp.max(xp.abs(first.z)))
        if first is not None and largest * length < 5 * MOST_BIAS:  # a weight of one reads as 36
            # the largest c·u of some thousand keys is 3.5 of its deviations: few keys show the largest badly, one both
            typical = float(xp.max(xp.sqrt(xp.mean(first.z**2, axis=(1, 2)))))
            length = min(longest, MOST_BIAS / (max(3 * largest, 5 * typical) + 1e-300))
            break
        length /= 16
    for _ in range(8):
        asked = ask_scores(answers, totals, keys, length, zero)
        told = asked.scores(answers, keys)
        if told is None:
            length /= 4
            continue
        if answers.coarse:
            factor = COARSE_BIAS / (length * float(xp.max(xp.sqrt(xp.mean(told.z**2, axis=(1, 2))))) + 1e-300)
            fine = factor > 0.8 and min(length * factor, longest) < 1.2 * length
        else:
            factor, fine = 0.5, float(xp.max(xp.abs(told.z))) * length < MOST_BIAS
        if fine:
            return Biases.of(answers, keys, asked)
        length = min(length * factor, longest)
    demand(None)
    raise AssertionError


def column_ranges(blocks: Sequence[Floats], noise: Floats) -> list[Floats]:
    """Orthonormal columns that span those of each block as far as its error allows to tell."""
    return [basis[:, : rank_of(spread, error)] for (spread, basis), error in zip(spectra(blocks), noise, strict=True)]


def rank_of(spread: Floats, noise: float) -> int:
    """How many singular values stand out of the error, or before a cliff."""
    rank = int((spread > 8 * noise).sum())
    drops = spread[:-1] / np.maximum(spread[1:], 1e-300)
    drops[spread[1:] > 1e-6 * spread[0]] = 0.0  # a decaying spectrum is no cliff
    if len(drops) and drops[:rank].max(initial=0.0) > 1e3:  # the error estimate was too small: the cliff shows the rank
        rank = int(drops[:rank].argmax()) + 1
    return rank
