"""Scores: many tokens per question, one linear solve for all heads' weights, log-odds, and low rank by rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.vector_heads.answers import Answers, orthonormal, unit
from unsoftmax.learners.vector_heads.demixing import Totals
from unsoftmax.learners.vector_heads.weighted import Sheet, weighted_columns
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase

SCORE = 0.4  # typical score of the strongest head; larger ones lose digits in small weights
MOST_BIAS = 4.0  # largest c·u of a key step
COARSE_SCORE = 0.7  # with coarse answers the signal matters more, but a strong head must not saturate
SAMPLED = 12  # groups of keys that tell it; a strong head is often strong in few directions
COARSE_BIAS = 0.8  # its typical c·u: what c takes of its room is lost to W, but shorter steps lose digits in all heads
LONGEST_KEY = 2.0**6  # length of keys, in float32, against that of keys and last tokens of one length
CLIFF = 1e-6  # a drop of the spectrum counts as its end only below this part of the largest value


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """Groups of key steps ``(groups, size, width)`` and, for each group, the solver of all heads' weights from one answer.

    Attributes:
        U: the steps, on a grid so that ``x + u`` is exact.
        solvers: ``(groups, heads * size, outputs)``: pseudo-inverses of the stacked ``V_h^T u_i``.
        mixers: ``(groups, outputs, heads * size)``: the stacks themselves.
    """

    U: Floats
    solvers: Floats
    mixers: Floats

    @property
    def copies(self) -> int:
        """Copies of the last token: balances the errors of its weight and of the keys' weights."""
        return max(1, round(float(np.sqrt(self.U.shape[1]))))

    @property
    def amplification(self) -> Floats:
        """How much each head's weights amplify an error of the answers, ``(heads,)``; keys of length one."""
        heads = self.solvers.shape[1] // self.U.shape[1]
        norms = np.linalg.norm(self.solvers, axis=2).max(axis=0).reshape(heads, -1)
        return np.asarray(norms.max(axis=1))


def key_groups(V: Floats, U: Floats, size: int) -> Keys:
    """Arrange steps ``(n, width)`` in groups of ``size``; the last group is filled up with the first steps."""
    groups = -(-len(U) // size)
    size = -(-len(U) // groups)
    grouped = U[np.arange(groups * size) % len(U)].reshape(groups, size, -1)
    mixers = np.einsum("gnd,hdm->gmhn", grouped, V, optimize=True).reshape(groups, V.shape[2], -1)
    return Keys(U=grouped, solvers=np.linalg.pinv(mixers), mixers=mixers)


def best_keys(V: Floats, count: int, size: int, rng: np.random.Generator, tries: int, ranges: Sequence[Floats] = ()) -> Keys:
    """The best conditioned of ``tries`` random orthonormal key sets, which also see the ``ranges (width, rank)`` well."""
    best, least = None, np.inf
    for _ in range(tries):
        keys = key_groups(V, orthonormal(rng, count, V.shape[1]), size)
        loss = float(np.log(keys.amplification).max())
        flat = keys.U.reshape(-1, V.shape[1])
        loss += max((-float(np.log(np.linalg.svd(flat @ basis, compute_uv=False)[-1] + 1e-300)) for basis in ranges), default=0.0)
        if loss < least:
            best, least = keys, loss
    assert best is not None
    return best


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Scores ``z (heads, keys, last tokens)`` per unit step, their ``errors``, those of a whole head, and what is unexplained."""

    z: Floats
    errors: Floats
    noise: Floats
    residual: float


def read_scores(answers: Answers, totals: Totals, keys: Keys, length: float, x: Floats) -> Scores | None:
    """Scores ``u·(W_h x + c_h)`` of all key steps (``length`` times the unit steps) at all last tokens ``x (n, width)``.

    One query per group and last token. None where a weight is not positive: the tokens are too long, or a head was missed.
    """
    groups, size, _ = keys.U.shape
    copies = keys.copies

    def build(start: int, stop: int) -> Floats:
        number = np.arange(start, stop)
        last = x[number // groups]
        sequences = np.repeat(last[:, None], size + copies, axis=1)
        sequences[:, :size] += length * keys.U[number % groups]
        return sequences

    told = answers.stream(build, len(x) * groups, size + copies).reshape(len(x), groups, -1) - totals.of(x)[:, None]
    magnitude = float(np.abs(told).max() + np.abs(totals.of(x)).max())
    weights = np.einsum("gkm,xgm->gxk", keys.solvers, told / length, optimize=True)
    unexplained = told / length - np.einsum("gmk,gxk->xgm", keys.mixers, weights, optimize=True)
    heads = weights.shape[2] // size
    p = weights.reshape(groups, len(x), heads, size)
    rest = 1 - p.sum(axis=3, keepdims=True)
    if (p <= 0).any() or (rest <= 0).any():
        return None
    z = (np.log(p / rest) + np.log(copies)).transpose(2, 0, 3, 1).reshape(heads, groups * size, len(x))
    error = answers.floor.of(magnitude) / length
    errors = error * score_errors(keys, p, rest)
    noise = error * keys.amplification * 2 * float(np.median(1 / p))
    return Scores(
        z=z / length,
        errors=errors / length,
        noise=noise / length,
        residual=float(np.abs(unexplained).max() * length / magnitude),
    )


def score_errors(keys: Keys, p: Floats, rest: Floats) -> Floats:
    """Errors ``(heads, keys, n)`` of log-odds for an error 1 of each output, from the weights ``p (groups, n, heads, size)``.

    ``rest (groups, n, heads, 1)`` is the weight of the last token, or of all short ones.
    """
    groups, n, heads, size = p.shape
    alone = np.linalg.norm(keys.solvers, axis=2).reshape(groups, 1, heads, size) / p
    together = np.linalg.norm(keys.solvers.reshape(groups, heads, size, -1).sum(axis=2), axis=2)[:, None, :, None] / rest
    return np.asarray(np.sqrt(alone**2 + together**2).transpose(2, 0, 3, 1).reshape(heads, groups * size, n))


@dataclass(frozen=True, slots=True, eq=False)
class Biases:
    """Steps of ``length``, at which ``c·u`` is moderate, what they tell of ``c (heads, width)``, and its error, ``(heads,)``."""

    length: float
    c: Floats
    errors: Floats

    @classmethod
    def none(cls, length: float, heads: int, width: int) -> Biases:
        """No biases: steps of any length will do."""
        return cls(length, np.zeros((heads, width)), np.zeros(heads))


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMatrices:
    """``W (heads, width, width)``, ``biases``, the rank of each W, and how well the answers were explained.

    ``noise (heads,)`` is the error of the entries of each W that the rounding of the answers leads to.
    """

    W: Floats
    biases: Biases
    ranks: tuple[int, ...]
    residual: float
    noise: Floats

    @property
    def c(self) -> Floats | None:
        """``(heads, width)``; None where there is none."""
        return self.biases.c if self.biases.c.any() else None

    @property
    def errors(self) -> Floats:
        """Relative error of each W and c, ``(heads,)``, that rounding alone leads to: an estimate; errors of V add to it.

        That of c is relative to the largest c: a head beside it may have none.
        """
        size = np.maximum(np.linalg.norm(self.W, axis=(1, 2)), 1e-300)
        largest = max(float(np.linalg.norm(self.biases.c, axis=1).max()), 1e-300)
        return np.asarray(np.maximum(self.noise * self.W.shape[1] / size, self.biases.errors / largest))


def group_size(outputs: int, heads: int, rank: int, *, coarse: bool = False) -> int:
    """Keys per question: below ``outputs / heads`` and the rank of the values by enough to keep the solve well conditioned."""
    room = min(outputs / heads, rank)
    part = 0.3 if coarse else 0.75 if room >= 8 else 0.5
    return int(max(1, min(40, part * room)))


def read_matrices(
    answers: Answers,
    totals: Totals,
    V: Floats,
    strength: float,
    offset: float | None,
    rng: np.random.Generator,
    *,
    rank: int,
    size: int,
) -> ScoreMatrices:
    """Read W and c: columns ``W_h x + c_h`` until their rank is known, then only as many rows as that rank needs.

    Price: ``k * ceil(width / g) + (width - k) * ceil(rows / g)`` with ``k`` and ``rows`` about 1.25 rank
    (``k = width`` at full rank), and ``ceil(width / g)`` more with c.

    Args:
        answers: the target.
        totals: what one token tells.
        V: values ``(heads, width, outputs)``.
        strength: typical score of the strongest head for two tokens of length one.
        offset: typical ``c·u`` for a step of length one; None without c.
        rng: randomness.
        rank: guess of the rank of W, from the values.
        size: keys per question.
    """
    heads, width, _ = V.shape
    tries = 200 if width <= 16 else 20 if width <= 64 else 3
    keys = best_keys(V, width, size, rng, tries)
    length = longest_step(answers, offset)
    if answers.bits <= 24:  # last tokens must not vanish beside the keys
        length = min(length, LONGEST_KEY * float(np.sqrt(COARSE_SCORE / strength)))
    phase(answers.oracle, "columns")
    biases = Biases.none(length, heads, width) if offset is None else read_biases(answers, totals, keys, length)
    length, c = biases.length, biases.c
    spare = 2.0 if answers.coarse else 1.25
    if answers.coarse:
        x_length = strongest_length(answers, totals, keys, length, COARSE_SCORE / (length * strength), c, rng)
    else:
        x_length = moderate_length(answers, totals, keys, length, SCORE / (length * strength), rng)
    x = np.round(orthonormal(rng, width, width) * x_length / (step := grain(answers, length, x_length))) * step
    columns, noise, residual, wanted = np.zeros((heads, width, 0)), np.zeros(heads), 0.0, columns_for(rank, answers)
    ranges: list[Floats] = []
    read: list[Scores] = []
    part: Sheet | None = None
    while columns.shape[2] < width:
        if wanted + 1.3 * rank >= width:
            wanted = width
        told = demand(read_scores(answers, totals, keys, length, x[columns.shape[2] : wanted]))
        read.append(told)
        columns = np.concatenate([columns, solve_columns(keys, told.z) - c[:, :, None]], axis=2)
        noise, residual = np.maximum(noise, told.noise), max(residual, told.residual)
        ranges = [column_range(block, error * np.sqrt(width)) for block, error in zip(columns, noise, strict=True)]
        rank = max(basis.shape[1] for basis in ranges)
        if columns_for(rank, answers) <= wanted:
            break
        wanted = min(width, 2 * wanted)
    if columns.shape[2] < width:
        phase(answers.oracle, "rows")
        count = min(width, -(-max(rank + 2, int(spare * rank)) // size) * size)
        row_keys = best_keys(V, count, size, rng, tries, ranges)
        told = demand(read_scores(answers, totals, row_keys, length, x[columns.shape[2] :]))
        residual = max(residual, told.residual)
        part = sheet(row_keys, c, [told])
        rest = [basis @ np.linalg.lstsq(part.U @ basis, z, rcond=None)[0] for basis, z in zip(ranges, part.z, strict=True)]
        columns = np.concatenate([columns, np.stack(rest)], axis=2)
    columns = np.stack([basis @ (basis.T @ block) for basis, block in zip(ranges, columns, strict=True)])
    if answers.coarse and part is not None:
        columns = weighted_columns(sheet(keys, c, read), part, columns, ranges)
    solved = np.linalg.solve(x, columns.transpose(2, 0, 1).reshape(width, -1))
    W: Floats = solved.reshape(width, heads, width).transpose(1, 2, 0).astype(np.float64)
    ranks = tuple(basis.shape[1] for basis in ranges)
    return ScoreMatrices(W=W, biases=biases, ranks=ranks, residual=residual, noise=noise / x_length)


def sheet(keys: Keys, c: Floats, read: list[Scores]) -> Sheet:
    """All scores of a set of keys, without their bias."""
    U = keys.U.reshape(-1, keys.U.shape[2])
    z, errors = (np.concatenate([getattr(scores, name) for scores in read], axis=2) for name in ("z", "errors"))
    return Sheet(U=U, z=z - (c @ U.T)[:, :, None], errors=errors)


def moderate_length(answers: Answers, totals: Totals, keys: Keys, length: float, guess: float, rng: np.random.Generator) -> float:
    """Length of last tokens at which scores are moderate; the guess rests on one direction, so two fresh ones check it."""
    one = Keys(U=keys.U[:1], solvers=keys.solvers[:1], mixers=keys.mixers[:1])
    for _ in range(6):
        told = read_scores(answers, totals, one, length, unit(rng, 2, keys.U.shape[2]) * guess)
        if told is not None and np.abs(told.z).max() * length < 4:
            break
        guess /= 4
    return guess


def strongest_length(
    answers: Answers, totals: Totals, keys: Keys, length: float, guess: float, c: Floats, rng: np.random.Generator
) -> float:
    """Length of last tokens at which the strongest head, without its bias, scores as coarse answers want: 24 queries a try.

    Its largest scores are some five times the typical one, and coarse answers lose a small weight altogether; in shorter tokens
    all heads lose digits. The guess rests on one direction, in which the strongest head may not show.
    """
    heads, groups = len(c), range(min(len(keys.U), SAMPLED))
    for _ in range(6):
        moved = np.zeros((heads, 0))
        for group in groups:
            some = slice(group, group + 1)
            one = Keys(U=keys.U[some], solvers=keys.solvers[some], mixers=keys.mixers[some])
            told = read_scores(answers, totals, one, length, unit(rng, 2, keys.U.shape[2]) * guess)
            if told is None:
                break
            moved = np.concatenate([moved, (told.z - (c @ one.U[0].T)[:, :, None]).reshape(heads, -1)], axis=1)
        if told is None:
            guess /= 4
            continue
        factor = COARSE_SCORE / (length * float(np.sqrt(np.mean(moved**2, axis=1)).max()) + 1e-300)
        guess *= min(4.0, factor)
        if 0.5 <= factor <= 2.0:
            break
    return guess


def columns_for(rank: int, answers: Answers) -> int:
    """Columns that show a rank and give its range: barely more than the rank would be badly conditioned."""
    return max(rank + 2, 2 * rank if answers.coarse else 5 * rank // 4)


def longest_step(answers: Answers, offset: float | None) -> float:
    """Length of key steps: as long as c allows, so that the constant and the last token add little error."""
    longest = 2.0**10 if answers.max_norm is None else answers.max_norm / 2
    return longest if offset is None else min(longest, float(2.0 ** np.floor(-np.log2(max(offset, 2.0**-10)))))


def grain(answers: Answers, length: float, x_length: float) -> float:
    """Grid of last tokens on which ``x + u`` is exact in the target's arithmetic."""
    return float(2.0 ** (np.ceil(np.log2(max(length, x_length))) + 2 - answers.bits))


def read_biases(answers: Answers, totals: Totals, keys: Keys, length: float) -> Biases:
    """The step length at which ``c·u`` is moderate for all keys, and ``c``, from last tokens 0."""
    longest = longest_step(answers, None)
    for _ in range(8):
        told = read_scores(answers, totals, keys, length, np.zeros((1, keys.U.shape[2])))
        if told is None:
            length /= 4
            continue
        if answers.coarse:
            factor = COARSE_BIAS / (length * float(np.sqrt(np.mean(told.z**2, axis=(1, 2))).max()) + 1e-300)
            fine = factor > 0.8 and min(length * factor, longest) < 1.2 * length
        else:
            factor, fine = 0.25, np.abs(told.z).max() * length < MOST_BIAS
        if fine:
            return Biases(length, solve_columns(keys, told.z)[:, :, 0], np.linalg.norm(told.errors[:, :, 0], axis=1))
        length = min(length * factor, longest)
    demand(None)
    raise AssertionError


def demand(told: Scores | None) -> Scores:
    """Refuse where weights came out negative."""
    if told is None:
        raise NotInFamilyError(
            "Answers to several keys are no mixture of the heads found: a weight came out negative. "
            "A head was missed, two heads are nearly equal, or the answers are too coarse.",
        )
    return told


def solve_columns(keys: Keys, z: Floats) -> Floats:
    """Columns ``W_h x + c_h``, ``(heads, width, n)``, from the scores ``(heads, keys, n)`` of a full set of steps."""
    flat = keys.U.reshape(-1, keys.U.shape[2])
    heads, count, n = z.shape
    solved = np.linalg.lstsq(flat, z.transpose(1, 0, 2).reshape(count, -1), rcond=None)[0]
    return np.asarray(solved.reshape(-1, heads, n).transpose(1, 0, 2))


def column_range(columns: Floats, noise: float) -> Floats:
    """Orthonormal columns that span ``columns`` as far as their error allows to tell."""
    basis, spread, _ = np.linalg.svd(columns, full_matrices=False)
    rank = int((spread > 8 * noise).sum())
    drops = spread[:-1] / np.maximum(spread[1:], 1e-300)
    drops[spread[1:] > CLIFF * spread[0]] = 0.0  # a decaying spectrum is no cliff
    if len(drops) and drops[:rank].max(initial=0.0) > 1e3:  # the error estimate was too small: the cliff shows the rank
        rank = int(drops[:rank].argmax()) + 1
    found: Floats = basis[:, :rank]
    return found
