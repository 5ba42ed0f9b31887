"""Reading one head's scores off its answers.

A sequence ``[P_1 … P_n, X … X]`` (keys, then copies of the last token) has the answer ``b + sum_i a_i V^T P_i + a_0 V^T X``.
With the values V known the weights follow by a linear solve, and ``log(a_i / a_0) = (P_i - X)·W·X + c·(P_i - X)``: one
product with W for every key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
from array_api_compat import device

from unsoftmax.errors import NotInFamilyError, TargetError
from unsoftmax.learners.one_head.settings import HEAD
from unsoftmax.linalg import alike, array_namespace, log_odds
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, one_commit
from unsoftmax.probes.pairs import BATCH_NUMBERS, FEW, all_pairs
from unsoftmax.results import Floor

Products = list[tuple[Floats, Floats]]  # products of keys with tokens, and the ratios at which they were read
Sees = Callable[[Products], None]


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
        if V.shape[1] == 1:  # no rotation, so that a scalar answer is used as it is
            return cls(V, b, V / np.linalg.norm(V), V, np.ones((1, 1)))
        U, sizes, Vt = np.linalg.svd(V, full_matrices=False)
        cutoff = max(HEAD.faintest, min(0.5, HEAD.worth_asking * floor.relative))
        usable = max(1, int(np.sum(sizes > cutoff * sizes[0])))
        return cls(V, b, U[:, :usable], U[:, :usable] * sizes[:usable], Vt[:usable].T)

    @property
    def usable(self) -> int:
        """How many keys one answer can tell apart."""
        return int(self.worth.shape[1])

    def blur(self, key_size: float) -> float:
        """How many times worse scores are read for the constant that answers carry beside the values of keys of this size."""
        xp = array_namespace(self.worth)
        worth = key_size * float(xp.linalg.vector_norm(self.worth[:, -1])) / float(np.sqrt(len(self.worth)))
        return 1.0 + float(xp.max(xp.abs(self.b))) / worth

    def strongest(self, count: int) -> Values:
        """The same with no more than so many value directions."""
        return replace(self, directions=self.directions[:, :count], worth=self.worth[:, :count], readout=self.readout[:, :count])

    def amplified(self, key_size: float) -> float:
        """Error of a score over the relative one of answers, where keys of this size ask for all directions at once.

        Each of them has its share of the weight, and its value beside the size of answers.
        """
        size = np.sqrt(np.mean(self.b**2) + key_size**2 * np.mean(self.V**2))
        faint = np.sqrt(np.mean(np.sum(self.worth**2, axis=0) ** -1.0))
        return float((self.usable + copies(self.usable)) * faint * size / key_size)

    def moved(self, like: Floats) -> Values:
        """The same as arrays of the kind of ``like``, on its device."""
        return Values(*(alike(getattr(self, field.name), like) for field in fields(self)))

    def read(self, answers: Floats) -> Floats:
        """Answers ``(batch, …)`` without the constant, along the readout: ``(batch, usable)``."""
        return (answers.reshape(len(answers), -1) - self.b) @ self.readout


@dataclass(frozen=True, eq=False)
class _Asked:
    """Answers ``(k, g, u)`` to groups of keys ``(g, n, width)`` before tokens ``(k, width)``, and what was read from them.

    Attributes:
        products: ``(k, g, n)``.
        shrink: ``(k, g)``: factors by which tokens were shortened.
    """

    groups: Floats
    tokens: Floats
    answers: Floats
    products: Floats
    shrink: Floats

    @property
    def columns(self) -> Floats:
        """The products ``(g * n, k)``."""
        return self.products.reshape(len(self.tokens), -1).T

    @property
    def factors(self) -> Floats:
        """The factors ``(g * n, k)`` by which tokens were shortened."""
        factors: Floats = array_namespace(self.shrink).repeat(self.shrink, self.groups.shape[1], axis=1)
        return factors.T


@dataclass(frozen=True, eq=False)
class ScoreReader:
    """Asks for products ``(p_i - ratio x_j)·W·x_j`` of unit-sized keys ``p_i`` and last tokens ``x_j``.

    Attributes:
        key_size: the keys sent are ``key_size * p_i``.
        token_size: the last tokens sent are ``token_size * x_j``. Where nothing forbids it the ratio of the two is tiny,
            so that the last token's own value and score vanish beside the key's.
        c: query bias ``(width,)``; None for none.
        longest: bound on ``token_size``.
        saturated: a score beyond this is asked again with a shorter token.
    """

    oracle: Oracle
    values: Values
    key_size: float
    token_size: float
    c: Floats | None = None
    longest: float = np.inf
    saturated: float = HEAD.saturated

    @property
    def ratio(self) -> float:
        """Size of the last tokens against the keys."""
        return self.token_size / self.key_size

    @property
    def gain(self) -> float:
        """Score per unit of product."""
        return self.token_size * self.key_size

    def moved(self, like: Floats) -> ScoreReader:
        """The same reader with all it builds of the kind of ``like``, on its device."""
        return replace(self, values=self.values.moved(like), c=None if self.c is None else alike(self.c, like))

    @property
    def samples(self) -> tuple[int, int]:
        """Keys and tokens that give a first idea of the size of the scores in one or two queries."""
        return max(2, self.values.usable), 1

    def resized(self, factor: float) -> ScoreReader:
        """The same reader with last tokens ``factor`` times as long, as far as they may be."""
        return replace(self, token_size=min(self.token_size * factor, self.longest))

    def evened(self, keys: int, worst: float = np.inf, patience: int = HEAD.patience) -> ScoreReader:
        """The same reader with no more value directions than so many keys need in as few questions: fainter ones cost digits.

        Up to ``patience`` times as many questions where scores would be read worse than ``worst`` times the answers' own
        relative error.
        """
        fewest = -(-keys // self.values.usable)
        for groups in range(fewest, min(patience * fewest, keys) + 1):
            values = self.values.strongest(-(-keys // groups))
            if values.usable == 1 or worst == np.inf or values.amplified(self.key_size) <= worst:
                break
        return replace(self, values=values)

    def keys(self, functionals: Floats) -> Floats:
        """Tilt orthonormal ``functionals (n, width)`` towards the values, so that every key changes the answer.

        Scalar answers: each key is flipped so that its own value is positive and tilted by 1/sqrt(width) of the value
        direction; no key can cancel. Vector answers: the keys of one query are tilted to one value direction each; a whole
        rotation becomes keys that tell every vector, and in every query each other, as well as the values allow.
        The tilt strengths match the size that random functionals have along the value directions.
        """
        n, width = functionals.shape
        if n == width and self.values.usable > 1:
            return spread_keys(functionals, self.values.directions)
        usable = self.values.usable
        if usable == 1:
            own = functionals @ self.values.directions
            flips: Floats = array_namespace(own).where(own >= 0, 1.0, -1.0)
            return functionals * flips + self.values.directions.T / float(np.sqrt(width))
        return np.asarray(functionals + 2 * np.sqrt(usable / width) * self.values.directions.T[np.arange(n) % usable])

    def frame(self, functionals: Floats) -> Frame:
        """The frame of the keys of a whole rotation; its inverse is a rotation and, for scalar answers, one correction."""
        keys = self.keys(functionals)
        if self.values.usable > 1:
            return Frame(keys)
        tilt = self.values.directions[:, 0] / float(np.sqrt(len(functionals)))
        return Frame(keys, (keys - tilt).T, tilt)  # what was flipped and not yet tilted is orthonormal

    def price(self, keys: int, tokens: int) -> int:
        """Queries that ``products`` asks if nothing saturates."""
        return -(-keys // self.values.usable) * tokens

    def products(self, keys: Floats, tokens: Floats, retries: int = HEAD.retries) -> tuple[Floats, Floats]:
        """Products ``(n, k)`` of ``keys (n, width)`` with ``tokens (k, width)``, and the ratio at which each was read.

        Scores that saturate are asked again with shorter tokens, ``retries`` times at most; without retries they are ``±inf``.
        """
        return self.all_products([(keys, tokens)], retries)[0]

    def all_products(self, pairs: list[tuple[Floats, Floats]], retries: int = HEAD.retries, sees: Sees | None = None) -> Products:
        """``products`` of several keys and tokens; a device is waited for once, when all of them are asked.

        ``sees`` is shown them, on a device before anybody waits, and then once more if some had to be asked again.
        """
        with one_commit(self.oracle):
            asked = [[self._ask(groups, tokens) for groups in self._groups(keys)] for keys, tokens in pairs]
        xp = array_namespace(pairs[0][1])
        largest = xp.max(xp.stack([xp.linalg.vector_norm(part.products, ord=np.inf) for parts in asked for part in parts]))
        read, seen = self._read(asked), False
        if sees is not None and not isinstance(pairs[0][1], np.ndarray):
            sees(read)
            seen = True
        if not float(largest) * self.gain <= self.saturated:  # one look for all that may be wrong
            for part in (part for parts in asked for part in parts):
                self._ask_again(part, retries)
            read, seen = self._read(asked), False
        if sees is not None and not seen:
            sees(read)
        return read

    def _read(self, asked: list[list[_Asked]]) -> Products:
        xp = array_namespace(asked[0][0].tokens)
        return [
            (xp.concat([part.columns for part in parts]), xp.concat([self.ratio * part.factors for part in parts]))
            if len(parts) > 1
            else (parts[0].columns, self.ratio * parts[0].factors)
            for parts in asked
        ]

    def _groups(self, keys: Floats) -> list[Floats]:
        """Keys ``(n, width)`` in groups ``(g, u, width)`` that one query each can tell apart, and a smaller group of the rest."""
        n, usable = len(keys), self.values.usable
        full = n - n % usable
        parts = (keys[:full].reshape(-1, usable, keys.shape[1]), keys[full:][None])
        return [groups for groups in parts if groups.shape[0] * groups.shape[1]]

    def _ask(self, groups: Floats, tokens: Floats) -> _Asked:
        """Ask every key of every group ``(g, n, width)`` with every token ``(k, width)``, and take the products as they come."""
        xp = array_namespace(tokens)
        g, n, _ = groups.shape
        times = copies(n)
        sent = self.key_size * groups
        answers = xp.empty((len(tokens), g, self.values.usable), dtype=tokens.dtype, device=device(tokens))
        cheap, few = getattr(self.oracle, "cheap_calls", False), getattr(self.oracle, "fewest_calls", FEW)
        for which, some, sequences in all_pairs(sent, self.token_size * tokens, times, share=cheap, few=few):
            read = self.values.read(self.oracle(sequences))
            del sequences  # so that their memory can serve again
            answers[which, some] = read if not isinstance(which, slice) else read.reshape(-1, *answers[0, some].shape)
        products = self._products(answers, tokens[:, None], sent[None], times)
        return _Asked(groups, tokens, answers, products, shrink=xp.ones_like(products[:, :, 0]))

    def _ask_again(self, asked: _Asked, retries: int) -> None:
        """Replace the products that saturate."""
        groups, tokens, products, factor = asked.groups, asked.tokens, asked.products, asked.shrink
        xp = array_namespace(tokens)
        if not bool(xp.all(xp.isfinite(asked.answers))):
            raise TargetError(
                "The target answered NaN or infinity. If large inputs overflow inside it, limit them with `max_norm`."
            )
        n = groups.shape[1]
        times = copies(n)
        sent = self.key_size * groups
        for _ in range(retries):
            scores = xp.max(xp.abs(products), axis=2) * factor * self.gain
            bad = xp.nonzero(~(scores <= self.saturated))
            if not len(bad[0]):
                break
            factor[bad] *= xp.where(xp.isfinite(scores[bad]), 1.0 / xp.clip(scores[bad], max=64.0), 1 / 64)
            size = max(1, BATCH_NUMBERS // ((n + times) * tokens.shape[1]))
            for at in range(0, len(bad[0]), size):
                token, group = bad[0][at : at + size], bad[1][at : at + size]
                shrink = factor[token, group][:, None]
                short = tokens[token] * shrink
                read = self.values.read(self.oracle(self._sequences(sent[group], self.token_size * short, times)))
                again = self._products(read[:, None], short[:, None], sent[group][:, None], times)
                products[token, group] = again[:, 0] / shrink
        refuse_saturated(products, retries)

    def _sequences(self, keys: Floats, tokens: Floats, times: int) -> Floats:
        """Keys ``(k, n, width)`` as they are sent, then copies of a token each ``(k, width)``."""
        xp = array_namespace(tokens)
        together: Floats = xp.concat([keys, xp.broadcast_to(tokens[:, None], (len(tokens), times, tokens.shape[1]))], axis=1)
        return together

    def _products(self, answers: Floats, tokens: Floats, keys: Floats, times: int) -> Floats:
        """Products ``(k, g, n)`` from answers ``(k, g, u)`` to tokens ``(k, 1, width)`` after keys ``(k or 1, g, n, width)``."""
        xp = array_namespace(answers)
        sent = self.token_size * tokens
        worth, own = _along(keys, self.values.worth), _along(sent, self.values.worth)
        own = xp.broadcast_to(own, answers.shape)
        k, (g, n) = len(answers), worth.shape[1:3]
        step = max(1, BATCH_NUMBERS // (g * n * answers.shape[2]))  # the systems that give vector weights are large
        parts = []
        for at in range(0, k, step):
            here = slice(at, at + step)
            there = xp.broadcast_to(worth[here] if len(worth) > 1 else worth, (len(answers[here]), g, n, answers.shape[2]))
            parts.append(log_weights(there, own[here], answers[here]))
        scores: Floats = parts[0] if len(parts) == 1 else xp.concat(parts)
        if times > 1:
            scores = scores + float(np.log(times))
        if self.c is not None:
            scores = scores - _along(keys, self.c[:, None])[..., 0] + _along(sent, self.c[:, None])
        return scores / self.gain


@dataclass(frozen=True, eq=False)
class StepReader(ScoreReader):
    """A score reader for vector answers whose keys are steps from the last token: ``[X + P_1 … X + P_n, X … X]``.

    The scores are ``P_i·(W X + c)`` and the values beside the last token's are those of ``P_i``, whatever the token: it may be as
    long as the steps, where keys beside a token as long as they are fall in line with it by chance.
    """

    @property
    def ratio(self) -> float:
        """Nothing of the last token is left in the steps."""
        return 0.0

    def _ask(self, groups: Floats, tokens: Floats) -> _Asked:
        xp = array_namespace(tokens)
        g, n, width = groups.shape
        times = copies(n)
        sent = self.key_size * groups
        step = max(1, BATCH_NUMBERS // (g * (n + times) * width))
        parts = []
        for at in range(0, len(tokens), step):
            last = xp.repeat(self.token_size * tokens[at : at + step], g, axis=0)
            keys = xp.broadcast_to(sent, (len(last) // g, *sent.shape)).reshape(-1, n, width)
            parts.append(self.values.read(self.oracle(self._sequences(keys, last, times))).reshape(-1, g, self.values.usable))
        answers = xp.concat(parts)
        products = self._products(answers, tokens[:, None], sent[None], times)
        return _Asked(groups, tokens, answers, products, shrink=xp.ones_like(products[:, :, 0]))

    def _sequences(self, keys: Floats, tokens: Floats, times: int) -> Floats:
        return super()._sequences(keys + tokens[:, None], tokens, times)

    def _products(self, answers: Floats, tokens: Floats, keys: Floats, times: int) -> Floats:
        own = _along(self.token_size * tokens, self.values.worth)
        return super()._products(answers - own, 0 * tokens, keys, times)


def _along(vectors: Floats, directions: Floats) -> Floats:
    """Vectors ``(…, width)`` along directions ``(width, u)``; one product of matrices, where many small ones take longer."""
    along: Floats = vectors.reshape(-1, vectors.shape[-1]) @ directions
    return along.reshape(*vectors.shape[:-1], -1)


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


def spread_keys(rotation: Floats, directions: Floats) -> Floats:
    """Keys ``(width, width)`` from a random rotation, to be asked in groups of ``u`` along ``directions (width, u)``.

    The value parts of each group are a rotation of their own, and what they leave of all keys is spread orthonormally: neither a
    group nor the whole can come out nearly singular by chance, and no key is special.
    """
    width, usable = directions.shape
    inside = np.empty((width, usable))
    for at in range(0, width, usable):
        left, _, right = np.linalg.svd(rotation[at : at + usable] @ directions, full_matrices=False)
        inside[at : at + usable] = left @ right
    if usable == width:
        return np.asarray(inside @ directions.T)
    beside = np.linalg.qr(directions, mode="complete")[0][:, usable:]
    across = np.linalg.qr(inside, mode="complete")[0][:, usable:]
    mixed = np.linalg.svd(across.T @ rotation @ beside)
    return np.asarray(inside @ directions.T + across @ (mixed[0] @ mixed[2]) @ beside.T)


def refuse_saturated(products: Floats, retries: int) -> None:
    """Stop where scores still saturate after so many retries: no bilinear score does that."""
    xp = array_namespace(products)
    if retries and not bool(xp.all(xp.isfinite(products))):
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
        xp = array_namespace(keys)
        self.keys = keys
        self._turned = xp.linalg.inv(keys) if turned is None else turned
        self._tilt = 0.0 * keys[0] if tilt is None else tilt
        self._sums = xp.sum(self._turned, axis=1)
        self._ones = self._solve(xp.ones_like(keys[:, :1]))

    def _solve(self, right: Floats) -> Floats:
        """``keys^-1 right``, to the rounding in ``turned``."""
        plain: Floats = self._turned @ right
        plain -= self._sums[:, None] * ((self._tilt @ plain) / (1.0 + self._tilt @ self._sums))
        return plain

    def vectors(self, tokens: Floats, products: Floats, ratios: Floats) -> Floats:
        """``w_j (r, k)`` with ``(keys - ratios_j x_j^T) w_j = products_j``; ``tokens (r, k)`` in the frame's coordinates."""
        xp = array_namespace(products)
        plain = self._solve(products)
        even = isinstance(ratios, np.ndarray) and bool(np.all(ratios == ratios[0]))  # a device would be waited for
        lift = self._ones * ratios[:1] if even else self._solve(ratios)
        along: Floats = xp.sum(tokens * plain, axis=0) / (1.0 - xp.sum(tokens * lift, axis=0))
        return plain + lift * along

    def refined(self, tokens: Floats, products: Floats, ratios: Floats) -> Floats:
        """As ``vectors``, with one step of iterative refinement: free of the rounding in the inverse."""
        found = self.vectors(tokens, products, ratios)
        own: Floats = array_namespace(found).sum(tokens * found, axis=0)
        left = products - self.keys @ found + ratios * own
        return found + self.vectors(tokens, left, ratios)
