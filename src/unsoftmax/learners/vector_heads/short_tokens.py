"""Scores at every position: long keys beside many short tokens, which weigh almost like zeros, show all their scores at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.vector_heads.answers import Answers, orthonormal, unit
from unsoftmax.learners.vector_heads.demixing import Totals
from unsoftmax.learners.vector_heads.scores import (
    SCORE,
    Biases,
    Keys,
    ScoreMatrices,
    best_keys,
    column_range,
    demand,
    key_groups,
    longest_step,
    read_biases,
    score_errors,
)
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase

LADDER_KEY = 2.0**12  # length of keys while the size of the scores is found
SHORT = 0.1  # tokens are at most this part of the keys; then what they do to the weights settles within PASSES
PASSES = 24
SOLVES = 40
SMALLEST = 1e-9  # weight, while the estimate of W is so bad that some come out negative
MOST_BIAS = 3.0  # c·u of the keys in the span of c, which see all of c


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """What is known before the scores: ``b``, ``V (heads, width, outputs)``, ``c (heads, width)``, and if the layer is causal."""

    totals: Totals
    V: Floats
    c: Floats
    causal: bool


def read_matrices_everywhere(
    answers: Answers, totals: Totals, V: Floats, offset: float | None, rng: np.random.Generator, *, size: int, causal: bool
) -> ScoreMatrices:
    """W and c: about ``8 + ceil(width / g)`` queries; with c ``ceil(width / g)`` more, and ``ceil(heads / g)`` for its span.

    Long keys saturate through c, so they are taken orthogonal to every ``c_h``. The few directions left are read with keys as
    long as c allows; beside those the other tokens are not quite short, and what they do is taken into account in a few passes.
    """
    heads, width, _ = V.shape
    tries = 50 if width <= 16 else 10 if width <= 64 else 2
    biases = Biases.none(longest_step(answers, offset), heads, width)
    if offset is not None:
        phase(answers.oracle, "biases")
        biases = read_biases(answers, totals, best_keys(V, width, size, rng, tries), biases.length)
    step, c = biases.length, biases.c
    layer = Layer(totals=totals, V=V, c=c, causal=causal)
    across = span(c)
    away = np.linalg.svd(across.T if len(across) else np.zeros((width, 1)))[0][:, len(across) :]
    sheets, product = [], SCORE
    phase(answers.oracle, "scales")
    if away.shape[1]:
        sets = (key_groups(V, orthonormal(rng, away.shape[1], away.shape[1]) @ away.T, size) for _ in range(tries))
        keys = min(sets, key=lambda found: float(found.amplification.max()))
        product = moderate_product(answers, layer, keys, LADDER_KEY, rng)
        phase(answers.oracle, "scores")
        sheets.append(ask_sheet(answers, layer, keys, key_length(answers, c, product), product, rng))
    if len(across):
        phase(answers.oracle, "rows")
        keys = key_groups(V, across, size)
        step = min(step, MOST_BIAS / float(np.abs(across @ c.T).max()))
        if not sheets:
            product = moderate_product(answers, layer, keys, step, rng)
        sheets.append(ask_sheet(answers, layer, keys, step, min(product, SHORT * step**2), rng))
    W, noise, largest, residual = settle(answers, layer, sheets)
    ranges = [column_range(block, error * np.sqrt(width)) for block, error in zip(W, largest, strict=True)]
    W = np.stack([basis @ (basis.T @ block) for basis, block in zip(ranges, W, strict=True)])
    ranks = tuple(basis.shape[1] for basis in ranges)
    return ScoreMatrices(W=W, biases=biases, ranks=ranks, residual=residual, noise=noise)


def settle(answers: Answers, layer: Layer, sheets: list[Sheet]) -> tuple[Floats, Floats, Floats, float]:
    """W, the typical and the largest error of its entries ``(heads,)``, and the unexplained part, from all sheets.

    Each pass takes what the short tokens do from the last estimate.
    """
    W = np.zeros((len(layer.V), answers.width, answers.width))
    parts = [Part(W, np.zeros(len(W)), np.zeros(len(W)), 0.0) for _ in sheets]
    for number in range(PASSES):
        for i, sheet in enumerate(sheets):
            if number <= 3 or sheet.shortness >= 1e-4:  # else settled long ago
                parts[i] = solve_sheet(answers, layer, sheet, W)
        last, W = W, np.sum([part.W for part in parts], axis=0)
        if np.abs(W - last).max() <= 1e-14 * np.abs(W).max():
            break
    typical = np.linalg.norm([part.error for part in parts], axis=0) / answers.width
    return W, typical, np.max([part.largest for part in parts], axis=0), max(part.unexplained for part in parts)


def span(rows: Floats) -> Floats:
    """Orthonormal rows that span the rows of a matrix."""
    _, spread, basis = np.linalg.svd(rows, full_matrices=False)
    found: Floats = basis[spread > 1e-9 * spread[0]] if spread[0] > 0 else basis[:0]
    return found


def key_length(answers: Answers, c: Floats, product: float) -> float:
    """Length of keys: what short tokens disturb vanishes with its fourth power, the rounding of ``c·u`` grows with it."""
    largest = float(np.linalg.norm(c, axis=1).max())
    longest = 2.0**24 * np.sqrt(product)
    return float(min(longest, (product / (answers.floor.relative * largest)) ** 0.25) if largest > 0 else longest)


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """Answers ``told (groups, n, outputs)``, per key length, at short tokens ``x (n, width)``, the first of them zero."""

    keys: Keys
    length: float
    copies: int
    x: Floats
    told: Floats

    @property
    def product(self) -> float:
        """Key length times token length."""
        return self.length * float(np.linalg.norm(self.x[-1]))

    @property
    def shortness(self) -> float:
        """Token length against key length."""
        return float(np.linalg.norm(self.x[-1])) / self.length


def ask_short(answers: Answers, layer: Layer, keys: Keys, length: float, x: Floats) -> Sheet:
    """Ask keys of ``length``, a group per query, beside short tokens ``x (n, width)``; keys come first and in copies."""
    groups, size, width = keys.U.shape
    copies = max(1, len(x) // (2 * size))
    sequences = np.empty((groups, size * copies + len(x), width))
    sequences[:, : size * copies] = np.repeat(keys.U * length, copies, axis=1)
    sequences[:, size * copies :] = x
    told = (answers.everywhere(sequences)[:, size * copies :] - layer.totals.b) / length
    return Sheet(keys=keys, length=length, copies=copies, x=x, told=told)


def sheet_weights(layer: Layer, sheet: Sheet, W: Floats) -> tuple[Floats | None, Floats, float]:
    """Scores ``(heads, keys, n)``, the weights behind them, and the unexplained part; W is an estimate for the short tokens."""
    groups, size, _ = sheet.keys.U.shape
    heads, n = len(W), len(sheet.x)
    own = (sheet.x @ W.transpose(0, 2, 1) + layer.c[:, None]) @ sheet.x.T
    if own.max() > 4:  # these tokens are not short
        return None, np.zeros(0), np.inf
    own = np.exp(own)
    if layer.causal:
        own *= np.tri(n)
    count = own.sum(axis=2)
    value = ((own / count[:, :, None]) @ (sheet.x @ layer.V) / sheet.length).transpose(1, 0, 2)
    told, rest = sheet.told, np.full((groups, n, heads), np.inf)
    for _ in range(SOLVES):  # the short tokens' value needs their weight, which the last solve gives
        weights = np.einsum("gkm,gpm->gpk", sheet.keys.solvers, told, optimize=True)
        p = weights.reshape(groups, n, heads, size)
        last, rest = rest, 1 - p.sum(axis=3)
        if np.abs(rest - last).max() < 1e-15:
            break
        told = sheet.told - np.einsum("gph,phm->gpm", rest, value, optimize=True)
    off = float(np.abs(told - np.einsum("gmk,gpk->gpm", sheet.keys.mixers, weights, optimize=True)).max() / np.abs(told).max())
    if (p <= 0).any() or (rest <= 0).any():
        if not W.any():
            return None, p, off
        p, rest = np.maximum(p, SMALLEST), np.maximum(rest, SMALLEST)  # the estimate of W is not yet good enough
    z = np.log(p / rest[..., None]) + np.log(count.T / sheet.copies)[None, :, :, None]
    return z.transpose(2, 0, 3, 1).reshape(heads, groups * size, n), p, off


def moderate_product(answers: Answers, layer: Layer, keys: Keys, length: float, rng: np.random.Generator) -> float:
    """The product of key length and token length at which scores are moderate: 8 queries."""
    one = Keys(U=keys.U[:1], solvers=keys.solvers[:1], mixers=keys.mixers[:1])
    directions = unit(rng, 6, answers.width)
    x = np.concatenate([np.zeros((1, answers.width)), directions, -directions])
    none = np.zeros((len(layer.V), answers.width, answers.width))
    found = []
    for product in 2.0 ** -np.arange(-24.0, 40.0, 8.0):
        z = sheet_weights(layer, ask_short(answers, layer, one, length, x * (product / length)), none)[0]
        size = np.inf if z is None else float(np.abs(z[:, :, 1:] - z[:, :, :1]).max())
        if size < 6:
            found.append(float(product / max(size / 2, 2.0**-8)))  # two at the most: typical scores are a third of that
    if not found:
        demand(None)
    return found[0]


def ask_sheet(answers: Answers, layer: Layer, keys: Keys, length: float, product: float, rng: np.random.Generator) -> Sheet:
    """All keys beside a zero and a short token for every direction: one query per group; shorter ones where a weight vanishes."""
    directions = orthonormal(rng, answers.width, answers.width)
    none = np.zeros((len(layer.V), answers.width, answers.width))
    for _ in range(4):
        x = np.concatenate([np.zeros((1, answers.width)), directions * (product / length)])
        sheet = ask_short(answers, layer, keys, length, x)
        if sheet_weights(layer, sheet, none)[0] is not None:
            return sheet
        product /= 4
    demand(None)
    raise AssertionError


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """``U^T U W_h`` for the keys' directions U, its error and the largest of an entry ``(heads,)``, and the unexplained part."""

    W: Floats
    error: Floats
    largest: Floats
    unexplained: float


def solve_sheet(answers: Answers, layer: Layer, sheet: Sheet, W: Floats) -> Part:
    """What the keys of a sheet see of W."""
    z, p, off = sheet_weights(layer, sheet, W)
    if z is None:
        demand(None)
        raise AssertionError
    directions = sheet.x[1:] * (sheet.length / sheet.product)
    rows = (z[:, :, 1:] - z[:, :, :1]) @ directions / sheet.product
    solved = np.linalg.pinv(sheet.keys.U.reshape(-1, answers.width)) @ rows
    floor = answers.floor.of(float(np.abs(sheet.told).max()))
    errors = floor * score_errors(sheet.keys, p, np.maximum(1 - p.sum(axis=3, keepdims=True), SMALLEST))
    # long keys see nothing of c, but each product in c·u is rounded
    rounding = answers.floor.relative * sheet.length * np.linalg.norm(layer.c, axis=1) / np.sqrt(answers.width)
    apart = np.sqrt(np.sum(errors[:, :, 1:] ** 2 + errors[:, :, :1] ** 2, axis=(1, 2)))
    largest = 2 * floor * sheet.keys.amplification * float(np.median(1 / p))
    return Part(solved, (apart + rounding * answers.width) / sheet.product, (largest + rounding) / sheet.product, off)
