"""Reading one head's scores off its answers.

A sequence ``[P_1 … P_n, X … X]`` (keys, then copies of the last token) has the answer ``b + sum_i a_i V^T P_i + a_0 V^T X``.
With the values V known the weights follow by a linear solve, and ``log(a_i / a_0) = (P_i - X)·W·X + c·(P_i - X)``: one
product with W for every key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lu_factor, lu_solve

from unsoftmax.linalg import log_odds
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Floor

Indices = NDArray[np.intp]

BATCH_NUMBERS = 2**21  # numbers in one call: 16 MiB of probes at a time
BATCH_SEQUENCES = 4096
SATURATED = 8.0  # a score beyond this has lost four digits; it is asked again with a shorter token
RETRIES = 8


@dataclass(frozen=True, eq=False)
class Values:
    """What a token is worth: ``V (width, outputs)`` and ``b (outputs,)``, reduced to the directions that can be used.

    Attributes:
        V: as measured.
        b: the constant.
        directions: ``(width, usable)`` orthonormal left singular vectors of V, strongest first.
        worth: ``(width, usable)``: value of a token along ``readout``.
        readout: ``(outputs, usable)`` right singular vectors: what of an answer is looked at.
    """

    V: Floats
    b: Floats
    directions: Floats
    worth: Floats
    readout: Floats

    @classmethod
    def of(cls, V: Floats, b: Floats, floor: Floor) -> Values:
        """Decompose V; directions that are weaker than the cutoff cannot carry a score through the rounding."""
        U, sizes, Vt = np.linalg.svd(V, full_matrices=False)
        if V.shape[1] == 1:  # no rotation, so that a scalar answer is used as it is
            return cls(V, b, U[:, :1] * np.sign(Vt[0, 0]), V, np.ones((1, 1)))
        usable = max(1, int(np.sum(sizes > max(1e-6, 256 * floor.relative) * sizes[0])))
        return cls(V, b, U[:, :usable], U[:, :usable] * sizes[:usable], Vt[:usable].T)

    @property
    def usable(self) -> int:
        """How many keys one answer can tell apart."""
        return int(self.worth.shape[1])

    def read(self, answers: Floats) -> Floats:
        """Answers ``(batch, …)`` without the constant, along the readout: ``(batch, usable)``."""
        return np.asarray((answers.reshape(len(answers), -1) - self.b) @ self.readout)


@dataclass(frozen=True, eq=False)
class ScoreReader:
    """Asks for products ``(p_i - ratio x_j)·W·x_j`` of unit-sized keys ``p_i`` and last tokens ``x_j``.

    Attributes:
        key_size: the keys sent are ``key_size * p_i``.
        token_size: the last tokens sent are ``token_size * x_j``. Where nothing forbids it the ratio of the two is tiny,
            so that the last token's own value and score vanish beside the key's.
        c: query bias ``(width,)``.
    """

    oracle: Oracle
    values: Values
    key_size: float
    token_size: float
    c: Floats

    @property
    def ratio(self) -> float:
        """Size of the last tokens against the keys."""
        return self.token_size / self.key_size

    @property
    def gain(self) -> float:
        """Score per unit of product."""
        return self.token_size * self.key_size

    @property
    def samples(self) -> tuple[int, int]:
        """Keys and tokens that give a first idea of the size of the scores in one or two queries."""
        return max(2, self.values.usable), 1

    def resized(self, factor: float) -> ScoreReader:
        """The same reader with last tokens ``factor`` times as long."""
        return replace(self, token_size=self.token_size * factor)

    def keys(self, functionals: Floats) -> Floats:
        """Tilt orthonormal ``functionals (n, width)`` towards the values, so that every key changes the answer.

        Scalar answers: each key is flipped so that its own value is positive and tilted by 1/sqrt(width) of the value
        direction; no key can cancel. Vector answers: the keys of one query are tilted to one value direction each.
        The tilt strengths match the size that random functionals have along the value directions.
        """
        n, width = functionals.shape
        usable = self.values.usable
        if usable == 1:
            own = functionals @ self.values.directions
            return np.asarray(functionals * np.where(own >= 0, 1.0, -1.0) + self.values.directions.T / np.sqrt(width))
        return np.asarray(functionals + 2 * np.sqrt(usable / width) * self.values.directions.T[np.arange(n) % usable])

    def price(self, keys: int, tokens: int) -> int:
        """Queries that ``products`` asks if nothing saturates."""
        return -(-keys // self.values.usable) * tokens

    def products(self, keys: Floats, tokens: Floats, retries: int = RETRIES) -> tuple[Floats, Floats]:
        """Products ``(n, k)`` of ``keys (n, width)`` with ``tokens (k, width)``, and the ratio at which each was read.

        Scores that saturate are asked again with shorter tokens; what still does after ``retries`` may be ``±inf``.
        """
        n, usable = len(keys), self.values.usable
        full = n - n % usable
        parts = [keys[:full].reshape(full // usable, usable, keys.shape[1]), keys[None, full:]]
        read = [self._all_pairs(groups, tokens, retries) for groups in parts if groups.size]
        return np.concatenate([r[0] for r in read]), np.concatenate([r[1] for r in read])

    def _all_pairs(self, groups: Floats, tokens: Floats, retries: int) -> tuple[Floats, Floats]:
        g, n, width = groups.shape
        which_group, which_token = np.tile(np.arange(g), len(tokens)), np.repeat(np.arange(len(tokens)), g)
        products = np.empty((len(which_group), n))
        factor = np.ones(len(which_group))
        size = max(1, min(BATCH_SEQUENCES, BATCH_NUMBERS // ((n + _copies(n)) * width)))
        for at in range(0, len(which_group), size):
            here = slice(at, at + size)
            products[here] = self._ask(groups, tokens, which_group[here], which_token[here], factor[here])
        for _ in range(retries):
            scores = np.abs(products * factor[:, None]).max(axis=1) * self.gain
            bad = np.flatnonzero(scores > SATURATED)
            if not bad.size:
                break
            factor[bad] *= np.where(np.isfinite(scores[bad]), 1.0 / np.minimum(scores[bad], 64.0), 1 / 64)
            for at in range(0, len(bad), size):
                here = bad[at : at + size]
                products[here] = self._ask(groups, tokens, which_group[here], which_token[here], factor[here])
        shape = (len(tokens), g * n)
        return products.reshape(shape).T, np.repeat(self.ratio * factor, n).reshape(shape).T

    def _ask(self, groups: Floats, tokens: Floats, which_group: Indices, which_token: Indices, factor: Floats) -> Floats:
        """One call: pairs of a group of keys ``(n, width)`` and a last token; products ``(pairs, n)``."""
        n, copies = groups.shape[1], _copies(groups.shape[1])
        sequences = np.empty((len(which_group), n + copies, groups.shape[2]))
        np.multiply(groups[which_group], self.key_size, out=sequences[:, :n])
        size = self.token_size * factor
        sequences[:, n:] = (size[:, None] * tokens[which_token])[:, None]
        answers = self.values.read(self.oracle(sequences))
        worth = self.key_size * (groups @ self.values.worth)[which_group]
        own = size[:, None] * (tokens @ self.values.worth)[which_token]
        shift = self.key_size * (groups @ self.c)[which_group] - (size * (tokens @ self.c)[which_token])[:, None]
        scores = log_weights(worth, own, answers) + np.log(copies) - shift
        return np.asarray(scores / (self.key_size * size)[:, None])


def log_weights(worth: Floats, own: Floats, answers: Floats) -> Floats:
    """Log weight of each key against the last token: ``(pairs, n)`` from worths ``(pairs, n, u)``, ``(pairs, u)`` and answers."""
    if answers.shape[1] == 1:
        return log_odds(answers, own, worth[..., 0])
    systems = (worth - own[:, None]).swapaxes(-1, -2)
    excess = (answers - own)[..., None]
    if systems.shape[1] != systems.shape[2]:
        q, systems = np.linalg.qr(systems)
        excess = q.swapaxes(-1, -2) @ excess
    weights = np.linalg.solve(systems, excess)[..., 0]
    rest = 1.0 - weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.maximum(weights, 0.0)) - np.log(np.maximum(rest, 0.0))
    return np.asarray(np.where(np.isnan(logs), np.inf, logs))  # neither this key nor the last token has any weight: saturated


def _copies(keys: int) -> int:
    """Copies of the last token beside so many keys: balances its weight against theirs."""
    return max(1, round(float(np.sqrt(keys))))


class Frame:
    """As many independent keys as there are unknowns: turns products into vectors."""

    def __init__(self, keys: Floats) -> None:
        self.keys = keys
        self._factors = lu_factor(keys)

    def vectors(self, tokens: Floats, products: Floats, ratios: Floats) -> Floats:
        """``w_j (r, k)`` with ``(keys - ratios_j x_j^T) w_j = products_j``; ``tokens (r, k)`` in the frame's coordinates."""
        plain = lu_solve(self._factors, products)
        plain += lu_solve(self._factors, products - self.keys @ plain)
        lift = lu_solve(self._factors, ratios)
        along = np.einsum("rk,rk->k", tokens, plain) / (1.0 - np.einsum("rk,rk->k", tokens, lift))
        return np.asarray(plain + lift * along)
