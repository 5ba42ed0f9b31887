"""Foreign bodies and ordinary users of a fifth sort for ``benchmarks/hunt.py hostile ordinary``, drawn up to make it fail.

Heads of 2 to 8 numbers, one number or several, some with c and b. ``hostile`` adds something of strength ``effect``, 1e-9 to 1;
``ordinary`` is a head as users have it, which should be recovered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from truth import Drawn, softmax

import unsoftmax as us

Floats = np.ndarray


class Head:
    """One head, its pieces for a batch of sequences, and what else a foreign body may need."""

    def __init__(self, effect: float, rng: np.random.Generator) -> None:
        self.effect, self.rng, self.width = effect, rng, int(rng.integers(2, 9))
        outputs = int(rng.choice([0, 0, 0, 2, 3]))
        self.shape = (outputs,) if outputs else ()
        self.W, self.other_W = rng.normal(size=(2, self.width, self.width)) / np.sqrt(self.width)
        self.V, self.other_V = rng.normal(size=(2, self.width, *self.shape))
        self.c = rng.normal(size=self.width) if rng.random() < 0.25 else None
        self.b = rng.normal(size=self.shape) * 10.0 ** rng.choice([0, 0, 3]) if rng.random() < 0.25 else None
        self.u, self.t = rng.normal(size=(2, self.width))
        half = rng.normal(size=self.W.shape) / np.sqrt(self.width)
        self.A, self.cut = (half + half.T) / 2, int(rng.integers(2, 40))
        self.asked, self.seen = 0, dict[bytes, int]()

    @property
    def model(self) -> us.Attention:
        return us.Attention(self.W[None], self.V[None], None if self.c is None else self.c[None], self.b)

    def scores(self, X: Floats) -> Floats:
        plain = np.einsum("bnd,de,be->bn", X, self.W, X[:, -1])
        return plain if self.c is None else plain + X @ self.c

    def answer(self, X: Floats, scores: Floats | None = None, values: Floats | None = None) -> Floats:
        weights = softmax(self.scores(X) if scores is None else scores)
        mixed = np.einsum("bn,bn...->b...", weights, X @ self.V if values is None else values)
        return mixed if self.b is None else mixed + self.b

    def other(self, X: Floats) -> Floats:
        return np.einsum("bn,bn...->b...", softmax(np.einsum("bnd,de,be->bn", X, self.other_W, X[:, -1])), X @ self.other_V)

    def along(self, numbers: Floats) -> Floats:
        """Numbers, one for each row, along every output."""
        return numbers[..., None] if self.shape else numbers

    def where(self, here: Floats, X: Floats) -> Floats:
        """The head, and a share of another one where that is so."""
        return self.answer(X) + self.effect * self.along(np.asarray(here, dtype=float)) * self.other(X)

    def beside(self, X: Floats, numbers: Floats) -> Floats:
        """Scores with a share of others."""
        return self.answer(X, self.scores(X) + self.effect * numbers)


def repeated(h: Head, X: Floats) -> Floats:
    """Another answer when a question comes again."""
    again = np.zeros(len(X))
    for row, sequence in enumerate(X):
        again[row] = sequence.tobytes() in h.seen
        h.seen[sequence.tobytes()] = 1
    return h.where(again, X)


def slowly(h: Head, X: Floats) -> Floats:
    """Weights that grow with every sequence asked."""
    h.asked += len(X)
    return h.answer(X) * (1 + h.effect * h.asked / 1000)


def once_in_a_while(h: Head, X: Floats) -> Floats:
    """Another answer in one call of so many."""
    h.asked += 1
    return h.where(np.full(len(X), h.asked % h.cut == 0), X)


def deduplicated(h: Head, X: Floats) -> Floats:
    """Equal tokens count once."""
    scores = h.scores(X)
    for row, tokens in enumerate(X):
        last = len(tokens) - 1 - np.unique(tokens[::-1], axis=0, return_index=True)[1]
        scores[row, np.setdiff1d(np.arange(len(tokens)), last)] -= 30.0 * h.effect
    return h.answer(X, scores)


def turned(h: Head, X: Floats) -> Floats:
    """Keys turned in their first plane, by their distance."""
    back = np.arange(X.shape[1])[::-1] * h.effect
    keys = X.copy()
    keys[..., 0], keys[..., 1] = (
        X[..., 0] * np.cos(back) - X[..., 1] * np.sin(back),
        X[..., 0] * np.sin(back) + X[..., 1] * np.cos(back),
    )
    return h.answer(X, np.einsum("bnd,de,be->bn", keys, h.W, X[:, -1]))


def prime(n: int) -> bool:
    return n > 1 and all(n % k for k in range(2, int(n**0.5) + 1))


def of_before(X: Floats) -> Floats:
    """The token before each; none before the first."""
    return np.concatenate([0 * X[:, :1], X[:, :-1]], axis=1)


BODIES: dict[str, Callable[[Head, Floats], Floats]] = {
    # scores
    "keys squared": lambda h, X: h.beside(X, np.einsum("bnd,de,bne->bn", X, h.A, X)),
    "queries squared": lambda h, X: h.beside(X, (X @ h.u) * ((X[:, -1] @ h.t) ** 2)[:, None]),
    "scores squared": lambda h, X: h.beside(X, h.scores(X) ** 2),
    "scores without sign": lambda h, X: h.beside(X, np.abs(h.scores(X))),
    "temperature by query": lambda h, X: h.answer(X, h.scores(X) * (1 + h.effect * np.tanh(X[:, -1] @ h.u))[:, None]),
    "temperature by length of query": lambda h, X: h.answer(
        X, h.scores(X) * (1 + h.effect * np.log1p(np.linalg.norm(X[:, -1], axis=1)))[:, None]
    ),
    "scores with the first token": lambda h, X: h.beside(X, np.einsum("bnd,de,be->bn", X, h.A, X[:, 0])),
    "scores with the mean token": lambda h, X: h.beside(X, np.einsum("bnd,de,be->bn", X, h.A, X.mean(axis=1))),
    "keys with the token before": lambda h, X: h.beside(X, np.einsum("bnd,de,be->bn", of_before(X), h.W, X[:, -1])),
    "every other position": lambda h, X: h.beside(X, np.arange(X.shape[1]) % 2),
    "turned keys": turned,
    # values and weights
    "values squared": lambda h, X: h.answer(X, values=X @ h.V + h.effect * h.along((X**2).sum(axis=2))),
    "values with the query": lambda h, X: h.answer(
        X, values=X @ h.V + h.effect * h.along(np.einsum("bnd,de,be->bn", X, h.A, X[:, -1]))
    ),
    "values beyond a threshold": lambda h, X: h.answer(X, values=X @ h.V + h.effect * h.along(np.maximum(X @ h.u - 2, 0))),
    "median": lambda h, X: h.answer(X) + h.effect * (np.median(X @ h.V, axis=1) - h.answer(X)),
    "mean taken off": lambda h, X: h.answer(X - h.effect * X.mean(axis=1, keepdims=True)),
    "equal tokens count once": deduplicated,
    # tokens that few questions hold
    "tokens far along a direction": lambda h, X: h.where((X @ h.u > 3 * np.linalg.norm(h.u)).any(axis=1), X),
    "tokens of one length": lambda h, X: h.where(
        np.abs(np.linalg.norm(X[:, -1], axis=1) - np.sqrt(h.width)) < 0.2 * np.sqrt(h.width), X
    ),
    "whole numbers": lambda h, X: h.where((np.round(X) == X).any(axis=(1, 2)), X),
    "natural sizes alone": lambda h, X: h.where(
        (np.linalg.norm(X, axis=2).max(axis=1) > 0.5) & (np.linalg.norm(X, axis=2).max(axis=1) < 6 * np.sqrt(h.width)), X
    ),
    "one half of queries": lambda h, X: h.where(X[:, -1, 0] > 0, X),
    # lengths
    "a single length": lambda h, X: h.where(np.full(len(X), X.shape[1] == h.cut), X),
    "prime lengths": lambda h, X: h.where(np.full(len(X), prime(X.shape[1])), X),
    "beyond 200 tokens": lambda h, X: h.where(np.full(len(X), X.shape[1] > 200), X),
    # memory
    "repeated questions": repeated,
    "slowly changing": slowly,
    "one call in many": once_in_a_while,
    "mean of the batch taken off": lambda h, X: h.answer(X) - h.effect * h.answer(X).mean(axis=0),
    # answers in short numbers
    "float32, longer sequences": lambda h, X: h.where(np.full(len(X), X.shape[1] > h.cut), X).astype(np.float32),
    "four decimals, longer sequences": lambda h, X: np.round(h.where(np.full(len(X), X.shape[1] > h.cut), X), 4),
}


def hostile(kind: str, effect: float, rng: np.random.Generator) -> Drawn:
    """A head with this foreign body."""
    head = Head(effect, rng)
    return head.width, head.model, lambda X: BODIES[kind](head, X)


def in_batches(head: Head) -> Callable[[Floats], Floats]:
    most = int(head.rng.choice([1, 3, 16]))

    def target(X: Floats) -> Floats:
        if len(X) > most:
            raise RuntimeError(f"a batch of {len(X)}, where {most} is the most")
        return head.answer(X)

    return target


def in_place(head: Head) -> Callable[[Floats], Floats]:
    def target(X: Floats) -> Floats:
        answers = head.answer(X)
        X -= X.mean(axis=1, keepdims=True)
        return answers

    return target


def no_longer_than(head: Head, most: int = 8) -> Callable[[Floats], Floats]:
    def target(X: Floats) -> Floats:
        if X.shape[1] > most:
            raise ValueError(f"{X.shape[1]} tokens, where {most} are the most")
        return head.answer(X)

    return target


def overflowing(head: Head, number: type = np.float64) -> Callable[[Floats], Floats]:
    """A softmax written down without taking off the largest score."""
    blocks = [None if block is None else np.asarray(block, number) for block in (head.W, head.V, head.c, head.b)]
    W, V, c, b = blocks

    def target(X: Floats) -> Floats:
        X = X.astype(number)
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.exp(np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T) + (0 if c is None else X @ c))
            weights /= weights.sum(axis=1, keepdims=True)
        answers = np.einsum("bn,bn...->b...", weights, X @ V)
        return answers if b is None else answers + b

    return target


def with_gradients(head: Head) -> Callable[[Floats], Any]:
    import torch

    return lambda X: torch.tensor(head.answer(X), requires_grad=True)


def scaled(scores: float = 1.0, values: float = 1.0, constant: float | None = None) -> Callable[[Head], Callable[[Floats], Floats]]:
    def made(head: Head) -> Callable[[Floats], Floats]:
        head.W, head.V, head.c = scores * head.W, values * head.V, None
        if constant is not None:
            head.b = np.full(head.shape, constant)
        return head.answer

    return made


def shaped(W: Callable[[Floats], Floats]) -> Callable[[Head], Callable[[Floats], Floats]]:
    def made(head: Head) -> Callable[[Floats], Floats]:
        head.W = W(head.W)
        return head.answer

    return made


ORDINARY: dict[str, Callable[[Head], Callable[[Floats], Any]]] = {
    "lists": lambda head: lambda X: head.answer(X).tolist(),
    "columns first": lambda head: lambda X: np.asfortranarray(head.answer(X)),
    "float32 arrays": lambda head: lambda X: head.answer(X).astype(np.float32),
    "tensors with gradients": with_gradients,
    "limited batches": in_batches,
    "work in place": in_place,
    "at most 8 tokens": no_longer_than,
    "softmax that overflows": overflowing,
    "the same in float32": lambda head: overflowing(head, np.float32),
    "W 1e-6": scaled(scores=1e-6),
    "W 1e3": scaled(scores=1e3),
    "V 1e-8": scaled(values=1e-8),
    "b 1e4": scaled(constant=1e4),
    "b 1e9": scaled(constant=1e9),
    "orthogonal W": shaped(lambda W: np.linalg.qr(W)[0]),
    "nilpotent W": shaped(lambda W: np.triu(W, 1)),
    "equal columns": shaped(lambda W: np.repeat(W[:, :1], len(W), axis=1)),
    "whole numbers in W": shaped(lambda W: np.rint(2 * W) + np.diag(np.arange(len(W)) == 0)),
    "antisymmetric W": shaped(lambda W: W - W.T),
}


def ordinary(kind: str, rng: np.random.Generator) -> tuple[int, us.Attention, Callable[[Floats], Any]]:
    """A head as users have it; its model is what the target computes."""
    head = Head(0.0, rng)
    target = ORDINARY[kind](head)
    return head.width, head.model, target
