"""Reading one head's scores off its answers.

A sequence ``[P_1 … P_n, X … X]`` (keys, then copies of the last token) has the answer ``b + sum_i a_i V^T P_i + a_0 V^T X``.
With the values V known the weights follow by a linear solve, and ``log(a_i / a_0) = (P_i - X)·W·X + c·(P_i - X)``: one
product with W for every key.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.linalg import log_odds
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Floor

BATCH_NUMBERS = 2**21  # numbers in one call: 16 MiB of probes at a time
BATCH_SEQUENCES = 4096
SATURATED = 8.0  # a score beyond this has lost four digits; it is asked again with a shorter token
RETRIES = 8
UNSHARED = 3  # references to a buffer that only its owner, a local name and the call that counts them hold


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
        longest: bound on ``token_size``.
    """

    oracle: Oracle
    values: Values
    key_size: float
    token_size: float
    c: Floats
    longest: float = np.inf
    scratch: dict[int, _Prepared] = field(default_factory=dict, repr=False)

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
        """The same reader with last tokens ``factor`` times as long, as far as they may be."""
        return replace(self, token_size=min(self.token_size * factor, self.longest))

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

    def frame(self, functionals: Floats) -> Frame:
        """The frame of the keys of a whole rotation; its inverse is a rotation and, for scalar answers, one correction."""
        keys = self.keys(functionals)
        if self.values.usable > 1:
            return Frame(keys)
        tilt = self.values.directions[:, 0] / np.sqrt(len(functionals))
        return Frame(keys, (keys - tilt).T, tilt)  # what was flipped and not yet tilted is orthonormal

    def price(self, keys: int, tokens: int) -> int:
        """Queries that ``products`` asks if nothing saturates."""
        return -(-keys // self.values.usable) * tokens

    def products(self, keys: Floats, tokens: Floats, retries: int = RETRIES) -> tuple[Floats, Floats]:
        """Products ``(n, k)`` of ``keys (n, width)`` with ``tokens (k, width)``, and the ratio at which each was read.

        Scores that saturate are asked again with shorter tokens, ``retries`` times at most; without retries they are ``±inf``.
        """
        n, usable = len(keys), self.values.usable
        if n % usable == 0 or n < usable:
            return self._all_pairs(self._prepared(keys), tokens, retries)
        full = n - n % usable
        read = [self._all_pairs(self._prepared(part), tokens, retries) for part in (keys[:full], keys[full:])]
        return np.concatenate([r[0] for r in read]), np.concatenate([r[1] for r in read])

    def _prepared(self, keys: Floats) -> _Prepared:
        """The keys in groups as they are sent; kept, because the same frame is asked for column after column."""
        known = self.scratch.get(0)
        if known is None or known.keys is not keys or known.size != self.key_size:
            groups = self.key_size * keys.reshape(-1, min(len(keys), self.values.usable), keys.shape[1])
            known = self.scratch[0] = _Prepared(keys, self.key_size, groups, groups @ self.values.worth, groups @ self.c)
        return known

    def _all_pairs(self, keys: _Prepared, tokens: Floats, retries: int) -> tuple[Floats, Floats]:
        g, n, width = keys.groups.shape
        products = np.empty((len(tokens), g, n))
        factor = np.ones((len(tokens), g))
        size = max(1, min(BATCH_SEQUENCES, BATCH_NUMBERS // ((n + copies(n)) * width)))
        step = max(1, size // g)
        for at in range(0, len(tokens), step):
            for first in range(0, g, size):
                here = slice(at, at + step), slice(first, first + size)
                some = tokens[here[0], None]  # the sequences get no name here, so that their buffer is free again after the call
                products[here] = self._ask(
                    keys.sequences(len(some), step, here[1], copies(n)), some, keys.worth[None, here[1]], keys.bias[None, here[1]]
                )
        for _ in range(retries):
            scores = np.abs(products).max(axis=2) * factor * self.gain
            bad = np.nonzero(scores > SATURATED)
            if not bad[0].size:
                break
            factor[bad] *= np.where(np.isfinite(scores[bad]), 1.0 / np.minimum(scores[bad], 64.0), 1 / 64)
            for at in range(0, len(bad[0]), size):
                token, group = bad[0][at : at + size], bad[1][at : at + size]
                shrink = factor[token, group][:, None]
                sequences = np.empty((len(token), 1, n + copies(n), width))
                sequences[:, 0, :n] = keys.groups[group]
                asked = self._ask(sequences, (tokens[token] * shrink)[:, None], keys.worth[group, None], keys.bias[group, None])
                products[token, group] = asked[:, 0] / shrink
        refuse_saturated(products, retries)
        ratios = np.repeat(self.ratio * factor, n, axis=1)
        return products.reshape(len(tokens), g * n).T, ratios.T

    def _ask(self, sequences: Floats, tokens: Floats, worth: Floats, bias: Floats) -> Floats:
        """One call: sequences ``(k, g, length, width)`` that hold their keys, tokens ``(k, 1, width)``; products ``(k, g, n)``."""
        k, g, length, width = sequences.shape
        n = worth.shape[2]
        sent = self.token_size * tokens
        sequences[:, :, n:] = sent[:, :, None]
        answers = self.values.read(self.oracle(sequences.reshape(k * g, length, width))).reshape(k, g, -1)
        own = np.broadcast_to(sent @ self.values.worth, (k, g, answers.shape[2]))
        scores = log_weights(np.broadcast_to(worth, (k, g, n, answers.shape[2])), own, answers) + np.log(length - n)
        return np.asarray((scores - bias + (sent @ self.c)[..., None]) / self.gain)


@dataclass(eq=False)
class _Prepared:
    """Keys as they are sent, with their worths, and a buffer of sequences that already hold them."""

    keys: Floats
    size: float
    groups: Floats
    worth: Floats
    bias: Floats
    buffer: Floats | None = None

    def sequences(self, tokens: int, most: int, which: slice, times: int) -> Floats:
        """``(tokens, groups, n + times, width)`` with the keys in place; ``most`` tokens are ever asked for.

        The last buffer serves again if nobody kept a reference to it and its keys are as they were: a target may store or change
        what it is given.
        """
        some = self.groups[which]
        n = some.shape[1]
        shape = (most, len(some), n + times, some.shape[2])
        buffer = self.buffer
        free = buffer is not None and buffer.shape == shape and which.start == 0 and sys.getrefcount(buffer) == UNSHARED
        if free and buffer is not None and np.array_equal(buffer[0, [0, -1], :n], some[[0, -1]]):
            return buffer[:tokens]
        buffer = np.empty(shape)
        buffer[:, :, :n] = some
        self.buffer = buffer if which.start == 0 else None
        return buffer[:tokens]


def log_weights(worth: Floats, own: Floats, answers: Floats) -> Floats:
    """Log weight of each key against the last token: ``(…, n)`` from worths ``(…, n, u)``, ``(…, u)`` and answers ``(…, u)``."""
    if answers.shape[-1] == 1:
        return log_odds(answers, own, worth[..., 0])
    systems = (worth - own[..., None, :]).swapaxes(-1, -2)
    excess = (answers - own)[..., None]
    if systems.shape[-2] != systems.shape[-1]:
        q, systems = np.linalg.qr(systems)
        excess = q.swapaxes(-1, -2) @ excess
    weights = np.linalg.solve(systems, excess)[..., 0]
    rest = 1.0 - weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.maximum(weights, 0.0)) - np.log(np.maximum(rest, 0.0))
    return np.asarray(np.where(np.isnan(logs), np.inf, logs))  # neither this key nor the last token has any weight: saturated


def refuse_saturated(products: Floats, retries: int) -> None:
    """Stop where scores still saturate after so many retries: no bilinear score does that."""
    if retries and not np.isfinite(products).all():
        raise NotInFamilyError(
            f"Some scores saturate the softmax even with last tokens {retries} times shortened; bilinear scores do not. "
            "The target is not a softmax head of this family."
        )


def copies(keys: int) -> int:
    """Copies of the last token beside so many keys: balances its weight against theirs."""
    return max(1, round(float(np.sqrt(keys))))


class Frame:
    """As many independent keys as there are unknowns: turns products into vectors.

    Args:
        keys: ``(r, r)``, one key per row.
        turned: inverse of the keys before their tilt; None inverts the keys themselves.
        tilt: vector that was added to every key, ``(r,)``.
    """

    def __init__(self, keys: Floats, turned: Floats | None = None, tilt: Floats | None = None) -> None:
        self.keys = keys
        self._turned = np.linalg.inv(keys) if turned is None else turned
        self._tilt = np.zeros(len(keys)) if tilt is None else tilt
        self._sums = self._turned.sum(axis=1)
        self._ones = self._solve(np.ones((len(keys), 1)))

    def _solve(self, right: Floats) -> Floats:
        """``keys^-1 right``, to the rounding in ``turned``."""
        plain = self._turned @ right
        return np.asarray(plain - np.outer(self._sums, (self._tilt @ plain) / (1.0 + self._tilt @ self._sums)))

    def vectors(self, tokens: Floats, products: Floats, ratios: Floats) -> Floats:
        """``w_j (r, k)`` with ``(keys - ratios_j x_j^T) w_j = products_j``; ``tokens (r, k)`` in the frame's coordinates."""
        plain = self._solve(products)
        lift = self._ones * ratios[:1] if np.all(ratios == ratios[0]) else self._solve(ratios)
        along = np.einsum("rk,rk->k", tokens, plain) / (1.0 - np.einsum("rk,rk->k", tokens, lift))
        return np.asarray(plain + lift * along)

    def refined(self, tokens: Floats, products: Floats, ratios: Floats) -> Floats:
        """As ``vectors``, with one step of iterative refinement: free of the rounding in the inverse."""
        found = self.vectors(tokens, products, ratios)
        left = products - self.keys @ found + ratios * np.einsum("rk,rk->k", tokens, found)
        return found + self.vectors(tokens, left, ratios)
