"""Targets inside and outside the family as plain NumPy callables, at random sizes; shared by tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Target = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Exhibit:
    """One target: ``family`` is what a right diagnosis says, or "outside"; ``word`` is what its reason should mention."""

    name: str
    family: str
    target: Target
    width: int
    heads: int | None = None
    word: str = ""

    @property
    def inside(self) -> bool:
        return self.family != "outside"

    def __call__(self, X: Floats) -> Floats:
        return self.target(X)


def weights(s: Floats) -> Floats:
    s = s - s.max(axis=-1, keepdims=True)
    e = np.exp(s)
    return e / e.sum(axis=-1, keepdims=True)


def norm(x: Floats, centre: bool = True) -> Floats:
    if centre:
        x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def gelu(x: Floats) -> Floats:
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


class Parts:
    """Random parameters of one exhibit, all from one generator; ``cast`` makes them float32 where asked."""

    def __init__(self, rng: np.random.Generator, width: int, dtype: Any = np.float64) -> None:
        self.rng, self.d, self.dtype = rng, width, dtype

    def array(self, *shape: int, scale: float = 1.0) -> Floats:
        return (scale * self.rng.normal(size=shape)).astype(self.dtype)

    def scores(self, rank: int | None = None) -> Floats:
        r = rank or self.d
        return self.array(self.d, r) @ self.array(r, self.d) / self.dtype(np.sqrt(r * self.d))

    def head(self, outputs: int | None, bias: bool, rank: int | None = None) -> Callable[[Floats], Floats]:
        """One head, answering with (batch,) or (batch, outputs) at the last position, or at all positions for outputs < 0."""
        W, c = self.scores(rank), self.array(self.d) * self.dtype(0.5 * bias)
        V = self.array(self.d, abs(outputs or 1))
        b = self.array(abs(outputs or 1)) * self.dtype(bias)

        def answer(X: Floats, causal: bool = False) -> Floats:
            X = X.astype(self.dtype)
            Q = X if (outputs or 0) < 0 else X[:, -1:]
            s = (Q @ W.T + c) @ X.transpose(0, 2, 1)
            if causal:
                s[:, ~np.tri(X.shape[1], dtype=bool)] = -np.inf
            y = weights(s) @ X @ V + b
            return y if (outputs or 0) < 0 else (y[:, 0] if outputs else y[:, 0, 0])

        return answer

    def network(self, inputs: int, outputs: int | None, kind: str = "relu") -> Callable[[Floats], Floats]:
        hidden = int(self.rng.integers(2, 3 * self.d + 6))
        B, beta = self.array(hidden, inputs, scale=1 / np.sqrt(inputs)), self.array(hidden)
        A, c = self.array(outputs or 1, hidden, scale=1 / np.sqrt(hidden)), self.array(outputs or 1)
        act = {"relu": lambda z: np.maximum(z, 0), "gelu": gelu, "tanh": np.tanh, "silu": lambda z: z / (1 + np.exp(-z))}[kind]

        def answer(x: Floats) -> Floats:
            y = act(x @ B.T + beta) @ A.T + c
            return y if outputs else y[..., 0]

        return answer


# ---------------------------------------------------------------------------------------------------------------- inside


def one_head(p: Parts, outputs: int | None = None, rank: int | None = None) -> Target:
    return p.head(outputs, bias=bool(p.rng.integers(2)), rank=rank)


def low_rank(p: Parts) -> Target:
    return one_head(p, rank=max(1, p.d // 4))


def one_head_vector(p: Parts) -> Target:
    return one_head(p, outputs=int(p.rng.integers(2, 9)))


def one_head_everywhere(p: Parts) -> Target:
    head, causal = p.head(-int(p.rng.integers(1, 6)), bias=True), bool(p.rng.integers(2))
    return lambda X: head(X, causal=causal)


def mean_of_values(p: Parts) -> Target:
    v = p.array(p.d)
    return lambda X: (X.astype(p.dtype) @ v).mean(axis=1)


def key_only(p: Parts) -> Target:
    v, c = p.array(p.d), p.array(p.d)
    return lambda X: (weights(X.astype(p.dtype) @ c) * (X.astype(p.dtype) @ v)).sum(axis=1)


def int8_weights(p: Parts) -> Target:
    W = np.round(p.scores() * 32).clip(-127, 127) / 32
    v = np.round(p.array(p.d) * 32) / 32

    def answer(X: Floats) -> Floats:
        X = X.astype(p.dtype)
        return ((weights((X @ (W @ X[:, -1, :, None]))[..., 0])) * (X @ v)).sum(axis=1)

    return answer


def sum_of_heads(p: Parts, heads: int, outputs: int | None) -> Target:
    bias = bool(p.rng.integers(2))
    parts = [p.head(outputs, bias) for _ in range(heads)]
    return lambda X: sum((h(X) for h in parts[1:]), parts[0](X))


def heads_scalar(p: Parts) -> tuple[Target, int]:
    heads = int(p.rng.integers(2, 5))
    return sum_of_heads(p, heads, None), heads


def heads_vector(p: Parts) -> tuple[Target, int]:
    heads = int(p.rng.integers(2, max(2, min(8, p.d)) + 1))
    return sum_of_heads(p, heads, heads + int(p.rng.integers(1, 5))), heads


def heads_everywhere(p: Parts) -> tuple[Target, int]:
    heads = min(4, p.d)
    return sum_of_heads(p, heads, -(heads + 3)), heads


def behind(p: Parts, kind: str, residual: bool = False, heads: int = 1) -> Target:
    inner = [p.head(p.d, bias=True) for _ in range(heads)]
    net = p.network(p.d, None if p.rng.integers(2) else int(p.rng.integers(2, 5)), kind)
    mix = p.array(p.d, p.d, scale=1 / np.sqrt(p.d))

    def answer(X: Floats) -> Floats:
        z = sum((h(X) for h in inner[1:]), inner[0](X)) @ mix
        return net(z + X[:, -1].astype(p.dtype) if residual else z)

    return answer


def behind_gelu(p: Parts) -> Target:
    return behind(p, "gelu")


def behind_tanh(p: Parts) -> Target:
    return behind(p, "tanh")


def relu_transformer(p: Parts) -> Target:
    return behind(p, "relu")


def relu_residual(p: Parts) -> Target:
    return behind(p, "relu", residual=True)


def mean_then_relu(p: Parts) -> Target:
    net = p.network(p.d, None)
    return lambda X: net(X.astype(p.dtype).mean(axis=1))


def relu_network(p: Parts) -> Target:
    net = p.network(p.d, None if p.rng.integers(2) else 3)
    return lambda X: net(X[:, -1].astype(p.dtype))


def relu_network_one_token(p: Parts) -> Target:
    net = p.network(p.d, None)

    def answer(X: Floats) -> Floats:
        if X.shape[1] != 1:
            raise ValueError("one token only")
        return net(X[:, 0].astype(p.dtype))

    return answer


def first_token_network(p: Parts) -> Target:
    net = p.network(p.d, None)
    return lambda X: net(X[:, 0].astype(p.dtype))


# --------------------------------------------------------------------------------------------------------------- outside


def attention_like(
    p: Parts,
    score: Callable[[Floats, Floats], Floats] | None = None,
    before: Callable[[Floats], Floats] = lambda X: X,
    share: Callable[[Floats], Floats] = weights,
    outputs: int | None = None,
) -> Target:
    """``V^T sum_i share(score(X, x_N))_i x_i`` after ``before`` has been applied to the tokens."""
    W, V = p.scores(), p.array(p.d, outputs or 1)

    def bilinear(X: Floats, x: Floats) -> Floats:
        return (X @ (W @ x[:, :, None]))[..., 0]

    rule = score or bilinear

    def answer(X: Floats) -> Floats:
        Z = before(X.astype(p.dtype)).astype(p.dtype)
        a = share(rule(Z, Z[:, -1]))
        y = (a[:, None] @ Z @ V)[:, 0]
        return y if outputs else y[:, 0]

    return answer


def positions_added(p: Parts) -> Target:
    table = p.array(1024, p.d, scale=0.5)
    return attention_like(p, before=lambda X: X + table[: X.shape[1]])


def sinusoids_added(p: Parts) -> Target:
    angles = np.arange(1024)[:, None] / 10000 ** (np.arange(p.d) / p.d)
    return attention_like(p, before=lambda X: X + np.sin(angles + np.pi / 2 * (np.arange(p.d) % 2))[: X.shape[1]])


def rope(p: Parts) -> Target:
    half = max(1, p.d // 2)
    K, Q = p.array(p.d, 2 * half, scale=p.d**-0.5), p.array(p.d, 2 * half, scale=p.d**-0.25)
    speed = 10000.0 ** (-np.arange(half) / half)

    def turn(z: Floats, n: Floats) -> Floats:
        angle = n[:, None] * speed
        a, b = z[..., :half], z[..., half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)

    def score(X: Floats, x: Floats) -> Floats:
        n = np.arange(X.shape[1], dtype=float)
        return (turn(X @ K, n) @ turn(x[:, None] @ Q, n[-1:]).transpose(0, 2, 1))[..., 0]

    return attention_like(p, score)


def biased(p: Parts, bias: Callable[[int], Floats]) -> Target:
    W = p.scores()
    return attention_like(p, lambda X, x: (X @ (W @ x[:, :, None]))[..., 0] + bias(X.shape[1]))


def alibi(p: Parts) -> Target:
    slope = float(2.0 ** -p.rng.integers(1, 5))
    return biased(p, lambda n: slope * np.arange(n))


def relative_bias(p: Parts) -> Target:
    table = p.array(2048)
    return biased(p, lambda n: table[:n][::-1])


def window(p: Parts) -> Target:
    reach = int(p.rng.integers(2, 33))
    return biased(p, lambda n: np.where(np.arange(n) < n - reach, -np.inf, 0.0))


def self_bias(p: Parts) -> Target:
    return biased(p, lambda n: np.where(np.arange(n) == n - 1, 1.0, 0.0))


def soft_cap(p: Parts) -> Target:
    W, cap = p.scores(), float(p.rng.choice([5, 20, 30, 50]))
    return attention_like(p, lambda X, x: cap * np.tanh((X @ (W @ x[:, :, None]))[..., 0] / cap))


def norm_before(p: Parts) -> Target:
    return attention_like(p, before=norm, outputs=None if p.rng.integers(2) else 3)


def norm_before_residual(p: Parts) -> Target:
    inner, r = attention_like(p, before=norm), p.array(p.d)
    return lambda X: inner(X) + X[:, -1].astype(p.dtype) @ r


def rms_before(p: Parts) -> Target:
    return attention_like(p, before=lambda X: norm(X, centre=False))


def norm_then_relu(p: Parts) -> Target:
    inner, net = attention_like(p, before=norm, outputs=p.d), p.network(p.d, None)
    return lambda X: net(inner(X))


def qk_norm(p: Parts) -> Target:
    K, Q, gain = p.array(p.d, p.d), p.array(p.d, p.d), float(np.sqrt(p.d) + 1)
    unit = lambda z: z / np.sqrt((z * z).sum(axis=-1, keepdims=True) + 1e-12)  # noqa: E731
    return attention_like(p, lambda X, x: gain * (unit(X @ K) @ unit(x[:, None] @ Q).transpose(0, 2, 1))[..., 0])


def sink(p: Parts) -> Target:
    W, level = p.scores(), float(p.rng.normal())

    def share(s: Floats) -> Floats:
        return weights(np.concatenate([np.full((len(s), 1), level), s], axis=1))[:, 1:]

    return attention_like(p, lambda X, x: (X @ (W @ x[:, :, None]))[..., 0], share=share)


def zero_attn(p: Parts) -> Target:
    return attention_like(p, share=lambda s: weights(np.concatenate([np.zeros((len(s), 1)), s], axis=1))[:, 1:])


def prefix(p: Parts) -> Target:
    tokens = p.array(1, 2, p.d)
    return attention_like(p, before=lambda X: np.concatenate([np.repeat(tokens, len(X), axis=0), X], axis=1))


def dropout(p: Parts) -> Target:
    coin, rate = np.random.default_rng(p.rng.integers(2**32)), float(p.rng.choice([0.02, 0.1, 0.3]))
    return attention_like(p, share=lambda s: weights(s) * (coin.random(s.shape) >= rate) / (1 - rate))


def recurrent(p: Parts) -> Target:
    A, B, v = p.array(p.d, p.d, scale=0.7 / np.sqrt(p.d)), p.array(p.d, p.d, scale=1 / np.sqrt(p.d)), p.array(p.d)

    def answer(X: Floats) -> Floats:
        h = np.zeros((len(X), p.d), dtype=p.dtype)
        for n in range(X.shape[1]):
            h = np.tanh(h @ A + X[:, n].astype(p.dtype) @ B)
        return h @ v

    return answer


def linear_recurrent(p: Parts) -> Target:
    decay, v = (1 / (1 + np.exp(-p.array(p.d)))).astype(p.dtype), p.array(p.d)

    def answer(X: Floats) -> Floats:
        h = np.zeros((len(X), p.d), dtype=p.dtype)
        for n in range(X.shape[1]):
            h = decay * h + X[:, n].astype(p.dtype)
        return h @ v

    return answer


def moving_average(p: Parts) -> Target:
    rate, v = float(p.rng.uniform(0.2, 0.8)), p.array(p.d)

    def answer(X: Floats) -> Floats:
        h = X[:, 0].astype(p.dtype) @ v
        for n in range(1, X.shape[1]):
            h = (1 - rate) * h + rate * (X[:, n].astype(p.dtype) @ v)
        return h

    return answer


def top_k(p: Parts) -> Target:
    keep = int(p.rng.integers(1, 5))

    def share(s: Floats) -> Floats:
        if s.shape[1] > keep:
            s = np.where(s >= np.sort(s, axis=1)[:, -keep][:, None], s, -np.inf)
        return weights(s)

    return attention_like(p, share=share)


def sparsemax(p: Parts) -> Target:
    def share(s: Floats) -> Floats:
        z = -np.sort(-s, axis=1)
        total = np.cumsum(z, axis=1) - 1
        count = np.arange(1, s.shape[1] + 1)
        k = (z - total / count > 0).sum(axis=1)
        return np.maximum(s - (total[np.arange(len(s)), k - 1] / k)[:, None], 0)

    return attention_like(p, share=share)


def hard_attention(p: Parts) -> Target:
    return attention_like(
        p, share=lambda s: (s == s.max(axis=1, keepdims=True)) / (s == s.max(axis=1, keepdims=True)).sum(1, keepdims=True)
    )


def linear_attention(p: Parts) -> Target:
    return attention_like(p, share=lambda s: s)


def kernel_attention(p: Parts) -> Target:
    K, Q = p.array(p.d, p.d, scale=p.d**-0.5), p.array(p.d, p.d, scale=p.d**-0.5)
    up = lambda z: np.where(z > 0, z + 1, np.exp(np.minimum(z, 0)))  # noqa: E731
    return attention_like(
        p,
        lambda X, x: (up(X @ K) @ up(x[:, None] @ Q).transpose(0, 2, 1))[..., 0],
        share=lambda s: s / s.sum(axis=1, keepdims=True),
    )


def distance_attention(p: Parts) -> Target:
    K, Q = p.array(p.d, p.d, scale=p.d**-0.5), p.array(p.d, p.d, scale=p.d**-0.5)
    return attention_like(p, lambda X, x: -0.5 * ((X @ K - x[:, None] @ Q) ** 2).sum(axis=-1))


def distance_then_relu(p: Parts) -> Target:
    K, Q = p.array(p.d, p.d, scale=p.d**-0.5), p.array(p.d, p.d, scale=p.d**-0.5)
    inner = attention_like(p, lambda X, x: -0.5 * ((X @ K - x[:, None] @ Q) ** 2).sum(axis=-1), outputs=p.d)
    net = p.network(p.d, None)
    return lambda X: net(inner(X))


def sigmoid_attention(p: Parts) -> Target:
    return attention_like(p, share=lambda s: 1 / (1 + np.exp(-np.clip(s, -500, 500))))


def length_temperature(p: Parts) -> Target:
    return attention_like(p, share=lambda s: weights(s * np.log(s.shape[1] + 1.0)))


def additive_scores(p: Parts) -> Target:
    K, Q, w = p.array(p.d, p.d, scale=p.d**-0.5), p.array(p.d, p.d, scale=p.d**-0.5), p.array(p.d)
    return attention_like(p, lambda X, x: np.tanh(X @ K + x[:, None] @ Q) @ w)


def residual_head(p: Parts) -> Target:
    inner, r = p.head(None, bias=True), p.array(p.d)
    return lambda X: inner(X) + X[:, -1].astype(p.dtype) @ r


def gated_head(p: Parts) -> Target:
    inner, r = p.head(None, bias=True), p.array(p.d)
    return lambda X: inner(X) / (1 + np.exp(-X[:, -1].astype(p.dtype) @ r))


def two_layers(p: Parts) -> Target:
    first, last = p.head(-p.d, bias=True), p.head(None, bias=True)
    mix = p.array(p.d, p.d, scale=1 / np.sqrt(p.d))
    return lambda X: last(first(X) @ mix)


def two_layers_residual(p: Parts) -> Target:
    first, last = p.head(-p.d, bias=True), p.head(None, bias=True)
    mix = p.array(p.d, p.d, scale=1 / np.sqrt(p.d))
    return lambda X: last(X.astype(p.dtype) + first(X) @ mix)


def pooled_attention(p: Parts) -> Target:
    inner = p.head(-1, bias=True)
    return lambda X: inner(X).mean(axis=1)[:, 0]


def max_pooling(p: Parts) -> Target:
    v = p.array(p.d)
    return lambda X: (X.astype(p.dtype) @ v).max(axis=1)


def sum_pooling(p: Parts) -> Target:
    v = p.array(p.d)
    return lambda X: (X.astype(p.dtype) @ v).sum(axis=1)


def relu_then_mean(p: Parts) -> Target:
    net = p.network(p.d, None)
    return lambda X: net(X.astype(p.dtype)).mean(axis=1)


def two_heads_then_gelu(p: Parts) -> Target:
    return behind(p, "gelu", heads=2)


def two_heads_then_relu(p: Parts) -> Target:
    return behind(p, "relu", heads=2)


def gelu_residual(p: Parts) -> Target:
    return behind(p, "gelu", residual=True)


def cap_then_relu(p: Parts) -> Target:
    W, cap, net = p.scores(), float(p.rng.choice([5, 20, 50])), p.network(p.d, None)
    inner = attention_like(p, lambda X, x: cap * np.tanh((X @ (W @ x[:, :, None]))[..., 0] / cap), outputs=p.d)
    return lambda X: net(inner(X))


def value_network(p: Parts) -> Target:
    W, net = p.scores(), p.network(p.d, None, "gelu")

    def answer(X: Floats) -> Floats:
        X = X.astype(p.dtype)
        return (weights((X @ (W @ X[:, -1, :, None]))[..., 0]) * net(X)).sum(axis=1)

    return answer


def constant(p: Parts) -> Target:
    value = p.array(1)
    return lambda X: np.repeat(value, len(X))


def affine_of_last(p: Parts) -> Target:
    v = p.array(p.d)
    return lambda X: X[:, -1].astype(p.dtype) @ v + p.dtype(0.5)


def smooth_network(p: Parts) -> Target:
    net = p.network(p.d, None, "tanh" if p.rng.integers(2) else "gelu")
    return lambda X: net(X[:, -1].astype(p.dtype))


def step_network(p: Parts) -> Target:
    B, beta, a = p.array(4 * p.d, p.d), p.array(4 * p.d), p.array(4 * p.d)
    return lambda X: (X[:, -1].astype(p.dtype) @ B.T + beta > 0) @ a


def whole_numbers(p: Parts) -> Target:
    inner = p.head(5, bias=True)
    return lambda X: inner(X).argmax(axis=1)


def int8_activations(p: Parts) -> Target:
    inner = p.head(None, bias=True)
    return lambda X: inner(np.round(X * 16).clip(-127, 127) / 16)


def squared(p: Parts) -> Target:
    v = p.array(p.d)
    return lambda X: ((X.astype(p.dtype) @ v) ** 2).mean(axis=1)


class Swapped:
    """The weights change after ``after`` sequences."""

    def __init__(self, p: Parts, after: int = 60) -> None:
        self.models, self.after, self.asked = (p.head(None, bias=True), p.head(None, bias=True)), after, 0

    def __call__(self, X: Floats) -> Floats:
        rows = [self.models[self.asked + i >= self.after](X[i : i + 1])[0] for i in range(len(X))]
        self.asked += len(X)
        return np.array(rows)


def swapped(p: Parts) -> Target:
    return Swapped(p, int(p.rng.integers(20, 80)))


INSIDE: dict[str, tuple[str, Callable[[Parts], Any], int | None]] = {
    "one head": ("attention", one_head, 1),
    "one head, low rank": ("attention", low_rank, 1),
    "one head, vector": ("attention", one_head_vector, 1),
    "one head, all positions": ("attention", one_head_everywhere, 1),
    "mean of values (W = 0)": ("attention", mean_of_values, 1),
    "key-only scores (W = 0)": ("attention", key_only, 1),
    "one head, int8 weights": ("attention", int8_weights, 1),
    "2-4 heads, scalar": ("attention", heads_scalar, None),
    "2-8 heads, vector": ("attention", heads_vector, None),
    "4 heads, all positions": ("attention", heads_everywhere, None),
    "behind GELU": ("attention-behind-network", behind_gelu, 1),
    "behind tanh": ("attention-behind-network", behind_tanh, 1),
    "ReLU Transformer": ("transformer", relu_transformer, 1),
    "ReLU Transformer, residual": ("transformer", relu_residual, 1),
    "mean, then ReLU": ("transformer", mean_then_relu, 1),
    "ReLU network": ("ffn", relu_network, None),
    "ReLU network, one token only": ("ffn", relu_network_one_token, None),
    "ReLU network, first token": ("ffn", first_token_network, None),
}

OUTSIDE: dict[str, tuple[Callable[[Parts], Target], str]] = {
    "positions added": (positions_added, "position"),
    "sinusoids added": (sinusoids_added, "position"),
    "RoPE": (rope, "RoPE"),
    "ALiBi": (alibi, "position"),
    "relative bias": (relative_bias, "position"),
    "sliding window": (window, "window"),
    "self bias": (self_bias, ""),
    "soft-cap": (soft_cap, "soft-cap"),
    "LayerNorm before": (norm_before, "Norm"),
    "LayerNorm before, residual": (norm_before_residual, "Norm"),
    "RMSNorm before": (rms_before, "Norm"),
    "LayerNorm before, then ReLU": (norm_then_relu, "Norm"),
    "QK-norm": (qk_norm, "QK-norm"),
    "sink": (sink, "sink"),
    "zero-attn": (zero_attn, "sink"),
    "prefix tokens": (prefix, "sink"),
    "dropout": (dropout, "dropout"),
    "recurrent": (recurrent, "recurrent"),
    "linear recurrent": (linear_recurrent, "recurrent"),
    "moving average": (moving_average, "recurrent"),
    "top-k": (top_k, ""),
    "sparsemax": (sparsemax, ""),
    "hard attention": (hard_attention, ""),
    "linear attention": (linear_attention, "linear"),
    "kernel attention": (kernel_attention, ""),
    "distance attention": (distance_attention, ""),
    "distance, then ReLU": (distance_then_relu, ""),
    "sigmoid attention": (sigmoid_attention, "sigmoid"),
    "length temperature": (length_temperature, ""),
    "additive scores": (additive_scores, ""),
    "residual head": (residual_head, "residual"),
    "gated head": (gated_head, ""),
    "two layers": (two_layers, ""),
    "two layers, residual": (two_layers_residual, ""),
    "pooled attention": (pooled_attention, ""),
    "max pooling": (max_pooling, ""),
    "sum pooling": (sum_pooling, ""),
    "ReLU, then mean": (relu_then_mean, ""),
    "two heads, then GELU": (two_heads_then_gelu, ""),
    "two heads, then ReLU": (two_heads_then_relu, ""),
    "GELU with residual": (gelu_residual, ""),
    "soft-cap, then ReLU": (cap_then_relu, ""),
    "network on the values": (value_network, ""),
    "constant": (constant, "constant"),
    "affine map of the last token": (affine_of_last, "last token"),
    "smooth network": (smooth_network, "smooth"),
    "step network": (step_network, ""),
    "class labels": (whole_numbers, ""),
    "int8 activations": (int8_activations, ""),
    "squared values": (squared, ""),
    "weights swapped half-way": (swapped, "changed"),
}


def exhibit(name: str, seed: int, *, width: int | None = None, answers: str = "float64") -> Exhibit:
    """The exhibit ``name`` drawn from ``seed``; ``answers`` is "float64", "float32" or "6 decimals"."""
    rng = np.random.default_rng([seed, *name.encode()])
    d = width or int(rng.integers(2, 25)) * 2
    p = Parts(rng, d, np.float32 if answers == "float32" else np.float64)
    heads: int | None = None
    if name in INSIDE:
        family, make, heads = INSIDE[name]
        made = make(p)
        target, heads = made if isinstance(made, tuple) else (made, heads)
        word = ""
    else:
        family = "outside"
        make_outside, word = OUTSIDE[name]
        target = make_outside(p)
    if answers == "6 decimals":
        inner = target
        target = lambda X: np.round(np.asarray(inner(X), dtype=np.float64), 6)  # noqa: E731
    if answers == "float32":
        deep = target
        target = lambda X: np.asarray(deep(X), dtype=np.float32)  # noqa: E731
    return Exhibit(name, family, target, d, heads, word)
