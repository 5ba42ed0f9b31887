"""Scores at every position: long keys beside many short tokens, which weigh almost like zeros, show all their scores at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from unsoftmax.learners.vector_heads.answers import Answers, unit
from unsoftmax.learners.vector_heads.asked import demand, score_errors, typical_noise
from unsoftmax.learners.vector_heads.demixing import Totals
from unsoftmax.learners.vector_heads.keys import Keys, grouped
from unsoftmax.learners.vector_heads.ranges import stacked
from unsoftmax.learners.vector_heads.scores import (
    MOST_BIAS,
    SCORE,
    Biases,
    ScoreMatrices,
    column_ranges,
    keys_for,
    longest_step,
    read_biases,
)
from unsoftmax.learners.vector_heads.values import Values, group_size
from unsoftmax.linalg import on_host
from unsoftmax.models import Floats
from unsoftmax.models.matrices import Matrices
from unsoftmax.oracles.base import phase

SHORT = 0.1  # tokens are at most this part of the keys; then what they do to the weights settles in a few passes
SMALLEST = 1e-9  # weight, while the estimate of W is so bad that some come out negative


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """What is known before the scores: ``b``, the values, ``c (heads, width)``, and whether the layer is causal."""

    totals: Totals
    values: Values
    c: Floats
    causal: bool

    @property
    def unknown(self) -> Floats:
        """A W that is not known yet."""
        return 0 * self.c[:, :, None] * self.c[:, None]


def read_matrices_everywhere(
    answers: Answers, totals: Totals, values: Values, rng: np.random.Generator, *, biased: bool, causal: bool
) -> ScoreMatrices:
    """W and c: about ``8 + ceil(width / g)`` queries; with c ``ceil(width / g)`` more, and ``ceil(heads / g)`` for its span.

    Long keys saturate through c, so they are taken orthogonal to every ``c_h``. The few directions left are read with keys as
    long as c allows; beside those the other tokens are not quite short, and what they do is taken into account in a few passes.
    """
    width = answers.width
    biases = Biases.none(answers, longest_step(answers, None), values.heads)
    if biased:
        phase(answers.oracle, "biases")
        biases = read_biases(answers, totals, keys_for(answers, values, answers.rotation(rng))[0], biases.length)
    step, c = biases.length, biases.c
    layer = Layer(totals=totals, values=values, c=c, causal=causal)
    across, away = answers.there(span(on_host(c))), answers.rotation(rng)
    xp = array_namespace(c)
    if len(across):
        away = xp.linalg.qr(xp.concat([across.T, away.T], axis=1))[0].T[len(across) :]
    sheets, product = [], SCORE
    phase(answers.oracle, "scales")
    if len(away):
        keys = keys_for(answers, values, away, across)[0]
        product = moderate_product(answers, layer, keys, 2.0**12, rng)
        phase(answers.oracle, "scores")
        sheets.append(ask_sheet(answers, layer, keys, key_length(answers, c, product), product, rng))
    if len(across):
        phase(answers.oracle, "rows")
        keys = Keys.of(values, grouped(across, group_size(values.outputs, values.heads, min(values.ranks), 0.5)))
        step = min(step, MOST_BIAS / float(xp.max(xp.abs(across @ c.T))))
        if not sheets:
            product = moderate_product(answers, layer, keys, step, rng)
        sheets.append(ask_sheet(answers, layer, keys, step, min(product, SHORT * step**2), rng))
    W, noise, largest, residual = settle(answers, layer, sheets)
    ranges = column_ranges(list(W), largest * np.sqrt(width))
    within = [basis.T @ block for basis, block in zip(ranges, W, strict=True)]
    ranks = tuple(basis.shape[1] for basis in ranges)
    return ScoreMatrices(
        W=Matrices.product(stacked(ranges), stacked(within)),
        values=values,
        biases=biases,
        ranks=ranks,
        residual=residual,
        noise=noise,
    )


def settle(answers: Answers, layer: Layer, sheets: list[Sheet]) -> tuple[Floats, Floats, Floats, float]:
    """W, the typical and the largest error of its entries ``(heads,)``, and the unexplained part, from all sheets.

    Each pass takes what the short tokens do from the last estimate.
    """
    W = layer.unknown
    parts = [Part(W, np.zeros(len(W)), np.zeros(len(W)), 0.0) for _ in sheets]
    for number in range(24):
        for i, sheet in enumerate(sheets):
            if number <= 3 or sheet.shortness >= 1e-4:  # else settled long ago
                parts[i] = solve_sheet(answers, layer, sheet, W)
        last, W = W, sum((part.W for part in parts[1:]), parts[0].W)
        if abs(W - last).max() <= 1e-14 * abs(W).max():
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
    largest = float(array_namespace(c).linalg.vector_norm(c, axis=1).max())
    longest = 2.0**24 * np.sqrt(product)
    return float(min(longest, (product / (answers.floor.relative * largest)) ** 0.25) if largest > 0 else longest)


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """Answers ``told (n, groups, outputs)``, per key length, at short tokens ``x (n, width)``, the first of them zero."""

    keys: Keys
    length: float
    copies: int
    x: Floats
    told: Floats

    @property
    def token(self) -> float:
        """Length of a short token."""
        return float(array_namespace(self.x).linalg.vector_norm(self.x[-1]))

    @property
    def product(self) -> float:
        """Key length times token length."""
        return self.length * self.token

    @property
    def shortness(self) -> float:
        """Token length against key length."""
        return self.token / self.length


def ask_short(answers: Answers, layer: Layer, keys: Keys, length: float, x: Floats) -> Sheet:
    """Ask keys of ``length``, a group per query, beside short tokens ``x (n, width)``; keys come first and in copies."""
    xp = array_namespace(x)
    groups, size, _ = keys.U.shape
    copies = max(1, len(x) // (2 * size))
    behind = xp.broadcast_to(x[None], (groups, *x.shape))
    told = answers.everywhere(xp.concat([xp.repeat(keys.U * length, copies, axis=1), behind], axis=1))[:, size * copies :]
    by_token = xp.permute_dims((told - layer.totals.b) / length, (1, 0, 2))
    return Sheet(keys=keys, length=length, copies=copies, x=x, told=by_token)


def sheet_weights(layer: Layer, sheet: Sheet, W: Floats) -> tuple[Floats | None, Floats, float]:
    """Scores ``(heads, keys, n)``, the weights ``(heads, groups, size, n)`` behind them, and the unexplained part.

    W is an estimate for the short tokens.
    """
    xp, values = array_namespace(W), layer.values
    groups, size, _ = sheet.keys.U.shape
    heads, n = len(W), len(sheet.x)
    own = (sheet.x @ W.swapaxes(1, 2) + layer.c[:, None]) @ sheet.x.T
    if float(xp.max(own)) > 4:  # these tokens are not short
        return None, W[:0], np.inf
    own = xp.exp(own)
    if layer.causal:
        own = own * xp.tril(xp.ones((n, n), dtype=own.dtype, device=device(own)))
    count = xp.sum(own, axis=2)
    mixed = (own / count[:, :, None]) @ (sheet.x @ values.left) / sheet.length
    value = xp.permute_dims(mixed if values.right is None else mixed @ values.right, (1, 0, 2))  # (n, heads, outputs)
    told, rest = sheet.told, None
    for _ in range(40):  # the short tokens' value needs their weight, which the last solve gives
        p, off = sheet.keys.weights(told)
        last, rest = rest, 1 - xp.sum(p, axis=2)  # (heads, groups, n)
        if last is not None and float(xp.max(xp.abs(rest - last))) < 1e-15:
            break
        told = sheet.told - xp.permute_dims(rest, (2, 1, 0)) @ value
    assert rest is not None
    off /= float(xp.max(xp.abs(told)))
    if not float(xp.min(p)) > 0 or not float(xp.min(rest)) > 0:
        if not bool((W != 0).any()):
            return None, p, off
        p, rest = (xp.clip(some, min=SMALLEST) for some in (p, rest))  # the estimate of W is not yet good enough
    z = xp.log(p / rest[:, :, None]) + xp.log(count / sheet.copies)[:, None, None]
    return z.reshape(heads, groups * size, n), p, off


def moderate_product(answers: Answers, layer: Layer, keys: Keys, length: float, rng: np.random.Generator) -> float:
    """The product of key length and token length at which scores are moderate: a few queries, 6 at the most."""
    directions = unit(rng, 6, answers.width)
    x = answers.there(np.concatenate([np.zeros((1, answers.width)), directions, -directions]))
    for product in 2.0 ** -np.arange(-24.0, 40.0, 12.0):
        asked = ask_short(answers, layer, keys.one(0), length, x * float(product / length))
        z = sheet_weights(layer, asked, layer.unknown)[0]
        size = np.inf if z is None else float(abs(z[:, :, 1:] - z[:, :, :1]).max())
        if size < 6:
            return float(product / max(size / 2, 2.0**-12))  # two at the most: typical scores are a third of that
    demand(None)
    raise AssertionError


def ask_sheet(answers: Answers, layer: Layer, keys: Keys, length: float, product: float, rng: np.random.Generator) -> Sheet:
    """All keys beside a zero and a short token for every direction: one query per group; shorter ones where a weight vanishes."""
    directions = answers.rotation(rng)
    xp = array_namespace(directions)
    for _ in range(4):
        x = xp.concat([0 * directions[:1], directions * (product / length)])
        sheet = ask_short(answers, layer, keys, length, x)
        if sheet_weights(layer, sheet, layer.unknown)[0] is not None:
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
    xp = array_namespace(W)
    directions = sheet.x[1:] * (sheet.length / sheet.product)
    rows = (z[:, :, 1:] - z[:, :, :1]) @ directions / sheet.product
    flat = sheet.keys.flat
    solved = xp.linalg.pinv(flat) @ rows
    floor = answers.floor.of(float(xp.max(xp.abs(sheet.told))))
    rest = xp.clip(1 - xp.sum(p, axis=2, keepdims=True), min=SMALLEST)
    errors = floor * score_errors(sheet.keys, p, rest)
    # long keys see nothing of c, but each product in c·u is rounded
    sizes = on_host(xp.linalg.vector_norm(layer.c, axis=1))
    rounding = answers.floor.relative * sheet.length * sizes / np.sqrt(answers.width)
    apart = on_host(xp.sqrt(xp.sum(errors[:, :, 1:] ** 2 + errors[:, :, :1] ** 2, axis=(1, 2))))
    largest = floor * typical_noise(sheet.keys, p)
    return Part(solved, (apart + rounding * answers.width) / sheet.product, (largest + rounding) / sheet.product, off)
