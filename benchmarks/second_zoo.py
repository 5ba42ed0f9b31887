"""A second zoo for ``benchmarks/diagnose.py``, drawn by laws that share nothing with tests/zoo.py but the families.

Widths 2 to 64, log-uniform and odd ones too; weights normal, uniform, heavy-tailed or sparse, their scale over a decade; heads
given by low-rank queries and keys as in PyTorch, with or without biases, shared keys, a temperature, all positions, causal or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Target = Callable[[Array], Any]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda z: np.maximum(z, 0),
    "gelu": lambda z: 0.5 * z * (1 + np.tanh(0.7978845608 * (z + 0.044715 * z**3))),
    "tanh": np.tanh,
    "silu": lambda z: z / (1 + np.exp(-np.clip(z, -60, None))),
    "softplus": lambda z: np.logaddexp(0, z),
    "sigmoid": lambda z: 1 / (1 + np.exp(-np.clip(z, -60, 60))),
}


@dataclass
class Creature:
    """One target; ``facts`` are statements that a right diagnosis makes, by the names of its fields."""

    name: str
    family: str
    target: Target
    width: int
    heads: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def inside(self) -> bool:
        return self.family != "outside"


def softmax(s: Array) -> Array:
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(X: Array, centre: bool = True) -> Array:
    X = X - X.mean(axis=-1, keepdims=True) if centre else X
    return X / np.sqrt((X * X).mean(axis=-1, keepdims=True) + 1e-5)


class Draw:
    """Random parameters in one number type."""

    def __init__(self, rng: np.random.Generator, dtype: Any) -> None:
        self.rng, self.dtype = rng, dtype
        self.d = int(np.round(2.0 ** rng.uniform(1, 6)))
        self.law = str(rng.choice(["normal", "uniform", "heavy", "sparse"] if self.d >= 8 else ["normal", "uniform", "heavy"]))
        self.gain = float(2.0 ** rng.uniform(-1.5, 1.5))  # of scores

    def coin(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def pick(self, *things: Any) -> Any:
        return things[int(self.rng.integers(len(things)))]

    def array(self, *shape: int, scale: float = 1.0) -> Array:
        """Entries of unit variance under the law of this creature."""
        if self.law == "uniform":
            raw = self.rng.uniform(-1.732, 1.732, size=shape)
        elif self.law == "heavy":
            raw = self.rng.standard_t(4, size=shape) / 1.414
        elif self.law == "sparse":
            raw = self.rng.normal(size=shape) * (self.rng.random(shape) < 0.6) / 0.775
        else:
            raw = self.rng.normal(size=shape)
        return np.asarray(scale * raw, dtype=self.dtype)

    def dense(self, *shape: int, scale: float = 1.0) -> Array:
        """Normal entries, none of them zero: biases that are there shall be there."""
        return np.asarray(scale * self.rng.normal(size=shape), dtype=self.dtype)

    def number(self, value: float) -> Any:
        return self.dtype(value)


@dataclass
class Rule:
    """What sets a layer apart from plain softmax attention."""

    before: Callable[[Array], Array] = lambda X: X
    turn: Callable[[Array], Array] = lambda Z: Z  # of queries and keys, (batch, length, rank)
    bend: Callable[[Array], Array] = lambda s: s  # of scores
    shift: Callable[[int, int], Array] | None = None  # added to scores: (queries, keys)
    share: Callable[[Array], Array] = softmax
    shared_keys: bool = False


def layer(
    D: Draw,
    heads: int,
    outputs: int | None,
    rule: Rule | None = None,
    *,
    everywhere: bool = False,
    causal: bool = False,
    **more: Any,
) -> Target:
    """Attention with queries and keys of low rank; ``more``: ``biases`` of queries and output (default: a coin each), ``rank``."""
    rule = rule or Rule()
    d = D.d
    rank = int(more.get("rank") or D.rng.integers(1, d + 1))
    m = outputs or 1
    strength = D.gain / np.sqrt(d)
    Q = [D.array(d, rank, scale=np.sqrt(strength)) for _ in range(heads)]
    K = [D.array(d, rank, scale=np.sqrt(strength)) for _ in range(heads)]
    if rule.shared_keys:
        K = [K[0]] * heads
    bq, bv = (more[name] if name in more else D.coin() for name in ("bias", "constant"))
    q0 = [D.dense(rank, scale=0.5 * bq) for _ in range(heads)]
    V = [D.array(d, m) for _ in range(heads)]
    b = D.dense(m, scale=bv)
    root = D.number(np.sqrt(rank))

    def answer(X: Array) -> Array:
        Z = rule.before(X.astype(D.dtype)).astype(D.dtype)
        y = b
        for h in range(heads):
            q, k = rule.turn(Z @ Q[h] + q0[h]), rule.turn(Z @ K[h])
            q = q if everywhere else q[:, -1:]
            s = rule.bend(q @ k.transpose(0, 2, 1) / root)
            if rule.shift is not None:
                s = s + rule.shift(q.shape[1], k.shape[1]).astype(D.dtype)
            if causal:
                s = np.where(np.tri(s.shape[1], dtype=bool), s, -np.inf).astype(D.dtype)
            y = y + rule.share(s) @ Z @ V[h]
        if everywhere:
            return y
        return y[:, 0] if outputs else y[:, 0, 0]

    return answer


def network(D: Draw, inputs: int, outputs: int | None, kind: str, depth: int = 1, biases: bool = True) -> Callable[[Array], Array]:
    """``depth`` hidden layers of any width; works on the last axis."""
    sizes = [inputs] + [int(D.rng.integers(3, 2 * D.d + 8)) for _ in range(depth)] + [outputs or 1]
    W = [D.array(b, a, scale=1.3 / np.sqrt(a)) for a, b in pairwise(sizes)]
    beta = [D.dense(b, scale=0.7 * biases) for b in sizes[1:]]
    act = ACTIVATIONS[kind]

    def answer(x: Array) -> Array:
        for A, a in zip(W[:-1], beta[:-1], strict=True):
            x = act(x @ A.T + a)
        x = x @ W[-1].T + beta[-1]
        return x if outputs else x[..., 0]

    return answer


def outputs_of(D: Draw) -> int | None:
    return None if D.coin() else int(D.rng.integers(2, 7))


# ---------------------------------------------------------------------------------------------------------------- inside


def plain(D: Draw, heads: int, outputs: int | None, **more: Any) -> tuple[Target, dict[str, Any]]:
    bias, constant = D.coin(), D.coin()
    facts: dict[str, Any] = {"bias": bias, "constant": constant, "causal": None}
    facts["answers"] = "all positions" if more.get("everywhere") else ("vector" if outputs else "scalar")
    facts["outputs"] = outputs
    if more.get("everywhere"):
        facts["causal"] = more["causal"] = more.get("causal", D.coin())
    return layer(D, heads, outputs, bias=bias, constant=constant, **more), facts


def head_scalar(D: Draw) -> Any:
    return (*plain(D, 1, None), 1)


def head_vector(D: Draw) -> Any:
    return (*plain(D, 1, int(D.rng.integers(1, 2 * D.d + 2))), 1)


def head_everywhere(D: Draw) -> Any:
    return (*plain(D, 1, int(D.rng.integers(1, D.d + 1)), everywhere=True), 1)


def heads_scalar(D: Draw) -> Any:
    D.d = max(D.d, 3)
    H = int(D.rng.integers(2, 5))
    return (*plain(D, H, None, rank=int(D.rng.integers((D.d + 1) // 2, D.d + 1))), H)


def heads_vector(D: Draw) -> Any:
    D.d = max(D.d, 4)
    H = int(D.rng.integers(2, min(8, D.d) + 1))
    return (*plain(D, H, int(D.rng.integers(H, D.d + 1)), rank=-(-D.d // H)), H)


def heads_everywhere(D: Draw) -> Any:
    D.d = max(D.d, 4)
    H = int(D.rng.integers(2, min(6, D.d) + 1))
    return (*plain(D, H, D.d, rank=max(1, D.d // H), everywhere=True), H)


def shared_keys(D: Draw) -> Any:
    D.d = max(D.d, 4)
    H = int(D.rng.integers(2, min(5, D.d) + 1))
    return (*plain(D, H, D.d, rank=max(2, D.d // 2), rule=Rule(shared_keys=True)), H)


def torch_layer(D: Draw) -> Any:
    import torch

    H = int(D.rng.choice([h for h in (1, 2, 3, 4, 6, 8) if h <= D.d]))
    D.d = max(1, D.d // H) * H
    torch.manual_seed(int(D.rng.integers(2**31)))
    biases = D.coin()
    module = torch.nn.MultiheadAttention(D.d, H, bias=biases, batch_first=True).to(
        torch.float32 if D.dtype == np.float32 else torch.float64
    )
    if biases:  # they start at zero
        torch.nn.init.normal_(module.in_proj_bias, std=0.3)
        torch.nn.init.normal_(module.out_proj.bias, std=0.3)
    return module.eval(), {"answers": "all positions", "causal": False, "outputs": D.d, "bias": biases, "constant": biases}, H


def differential(D: Draw) -> Any:
    """Softmax minus a part of another softmax over the same values: two heads."""
    D.d = max(D.d, 3)
    d, share = D.d, D.number(D.rng.uniform(0.3, 0.8))
    W, V = [D.array(d, d, scale=D.gain / d) for _ in range(2)], D.array(d)

    def answer(X: Array) -> Array:
        X = X.astype(D.dtype)
        a, b = (softmax((X @ (M @ X[:, -1, :, None]))[..., 0]) for M in W)
        return ((a - share * b) * (X @ V)).sum(axis=1)

    return answer, {"answers": "scalar", "bias": False, "constant": False}, 2


def through(D: Draw, kind: str, residual: bool = False, depth: int = 1, heads: int = 1, rule: Rule | None = None) -> Any:
    outputs = outputs_of(D)
    bias = D.coin()
    inner = layer(D, heads, D.d, rule, bias=bias, constant=False)
    mix = D.array(D.d, D.d, scale=1 / np.sqrt(D.d))
    net = network(D, D.d, outputs, kind, depth)

    def answer(X: Array) -> Array:
        z = inner(X) @ mix
        return net(z + X[:, -1].astype(D.dtype) if residual else z)

    return (
        answer,
        {"answers": "vector" if outputs else "scalar", "outputs": outputs, "bias": bias, "constant": True, "residual": residual},
        1,
    )


def behind_one(D: Draw) -> Any:
    target, facts, heads = through(D, D.pick("gelu", "tanh", "silu", "softplus", "sigmoid"))
    return target, {**facts, "residual": None}, heads


def behind_deep(D: Draw) -> Any:
    target, facts, heads = through(D, D.pick("gelu", "tanh", "silu"), depth=int(D.rng.integers(2, 4)))
    return target, {**facts, "residual": None}, heads


def class_probabilities(D: Draw) -> Any:
    m = int(D.rng.integers(2, 6))
    inner = layer(D, 1, m, bias=False)
    return lambda X: softmax(inner(X)), {"answers": "vector", "outputs": m}, 1


def probability(D: Draw) -> Any:
    inner = layer(D, 1, None)
    return lambda X: ACTIVATIONS["sigmoid"](inner(X) / D.number(np.sqrt(D.d))), {"answers": "scalar"}, 1


def norm_after(D: Draw) -> Any:
    D.d = max(D.d, 3)
    inner, r = layer(D, 1, D.d), D.array(D.d)
    return lambda X: layer_norm(inner(X)) @ r, {"answers": "scalar"}, 1


def relu_transformer(D: Draw) -> Any:
    return through(D, "relu")


def relu_residual(D: Draw) -> Any:
    return through(D, "relu", residual=True)


def relu_last(D: Draw) -> Any:
    outputs = outputs_of(D)
    net = network(D, D.d, outputs, "relu")
    return lambda X: net(X[:, -1].astype(D.dtype)), {"answers": "vector" if outputs else "scalar", "outputs": outputs}, None


def relu_first(D: Draw) -> Any:
    net = network(D, D.d, None, "relu")
    return lambda X: net(X[:, 0].astype(D.dtype)), {"answers": "scalar"}, None


def relu_alone(D: Draw) -> Any:
    net = network(D, D.d, None, "relu")

    def answer(X: Array) -> Array:
        if X.shape[1] != 1:
            raise ValueError(f"{X.shape[1]} tokens, but this network takes one")
        return net(X[:, 0].astype(D.dtype))

    return answer, {"answers": "scalar"}, None


def relu_tokenwise(D: Draw) -> Any:
    """A network in PyTorch that is applied to every token."""
    import torch

    torch.manual_seed(int(D.rng.integers(2**31)))
    module = torch.nn.Sequential(torch.nn.Linear(D.d, 2 * D.d + 3), torch.nn.ReLU(), torch.nn.Linear(2 * D.d + 3, 2))
    return (
        module.to(torch.float32 if D.dtype == np.float32 else torch.float64).eval(),
        {"answers": "all positions", "outputs": 2},
        None,
    )


INSIDE: dict[str, tuple[str, Callable[[Draw], Any]]] = {
    "head, scalar": ("attention", head_scalar),
    "head, vector": ("attention", head_vector),
    "head, all positions": ("attention", head_everywhere),
    "2-4 heads, scalar": ("attention", heads_scalar),
    "2-8 heads, vector": ("attention", heads_vector),
    "2-6 heads, all positions": ("attention", heads_everywhere),
    "heads that share keys": ("attention", shared_keys),
    "torch MultiheadAttention": ("attention", torch_layer),
    "differential attention": ("attention", differential),
    "behind a smooth network": ("attention-behind-network", behind_one),
    "behind a deep smooth network": ("attention-behind-network", behind_deep),
    "class probabilities": ("attention-behind-network", class_probabilities),
    "probability": ("attention-behind-network", probability),
    "LayerNorm after": ("attention-behind-network", norm_after),
    "ReLU Transformer": ("transformer", relu_transformer),
    "ReLU Transformer, residual": ("transformer", relu_residual),
    "ReLU network, last token": ("ffn", relu_last),
    "ReLU network, first token": ("ffn", relu_first),
    "ReLU network, one token": ("ffn", relu_alone),
    "ReLU network, every token": ("ffn", relu_tokenwise),
}


# --------------------------------------------------------------------------------------------------------------- outside


def odd_layer(D: Draw, rule: Rule, **more: Any) -> Target:
    """A layer with a special rule, one or several heads, scalar, vector or all positions."""
    heads = int(more.pop("heads", 0) or D.pick(1, 1, 2, 4))
    masked = more.pop("masked", True)  # a mask of minus infinity means something to a softmax only
    everywhere = D.coin(0.3)
    causal = everywhere and masked and D.coin()
    return layer(D, heads, D.pick(2, D.d) if everywhere else outputs_of(D), rule, everywhere=everywhere, causal=causal, **more)


def learned_positions(D: Draw) -> Target:
    table = D.array(1024, D.d, scale=float(2.0 ** D.rng.uniform(-4, 1)))
    return odd_layer(D, Rule(before=lambda X: X + table[: X.shape[1]]))


def sinusoids(D: Draw) -> Target:
    half = -(-D.d // 2)
    angle = np.arange(1024)[:, None] * 10000.0 ** (-np.arange(half) / half)
    table = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(1024, -1)[:, : D.d].astype(D.dtype)
    return odd_layer(D, Rule(before=lambda X: X * D.number(np.sqrt(D.d)) + table[: X.shape[1]]))


def rotary(D: Draw) -> Target:
    base = float(D.pick(100.0, 10000.0, 500000.0))

    def turn(Z: Array) -> Array:
        pairs = Z.shape[-1] // 2
        if not pairs:
            return Z
        angle = np.arange(Z.shape[1])[:, None] * base ** (-np.arange(pairs) / pairs)
        a, b, rest = Z[..., 0 : 2 * pairs : 2], Z[..., 1 : 2 * pairs : 2], Z[..., 2 * pairs :]
        turned = [a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle), rest]
        return np.concatenate(turned, axis=-1).astype(D.dtype)

    return odd_layer(D, Rule(turn=turn), rank=2 * int(D.rng.integers(1, max(2, D.d // 2 + 1))))


def alibi(D: Draw) -> Target:
    slope = float(2.0 ** -D.rng.uniform(0, 8))
    return odd_layer(D, Rule(shift=lambda q, k: -slope * np.abs(np.arange(k - q, k)[:, None] - np.arange(k))))


def bucket_bias(D: Draw) -> Target:
    table = D.rng.normal(size=32) * 0.5
    return odd_layer(D, Rule(shift=lambda q, k: table[np.minimum(31, np.abs(np.arange(k - q, k)[:, None] - np.arange(k)))]))


def sliding_window(D: Draw) -> Target:
    reach = int(np.round(2.0 ** D.rng.uniform(1, 6.5)))
    return odd_layer(
        D, Rule(shift=lambda q, k: np.where(np.abs(np.arange(k - q, k)[:, None] - np.arange(k)) < reach, 0.0, -np.inf))
    )


def capped(D: Draw) -> Target:
    cap = float(D.pick(2.0, 10.0, 30.0, 50.0))
    return odd_layer(D, Rule(bend=lambda s: D.number(cap) * np.tanh(s / D.number(cap))))


def norm_first(D: Draw) -> Target:
    D.d = max(D.d, 4)
    gain, shift = 1 + D.array(D.d, scale=0.2), D.array(D.d, scale=0.2)
    return odd_layer(D, Rule(before=lambda X: layer_norm(X) * gain + shift))


def rms_first(D: Draw) -> Target:
    gain = 1 + D.array(D.d, scale=0.2)
    return odd_layer(D, Rule(before=lambda X: layer_norm(X, centre=False) * gain))


def norm_first_block(D: Draw) -> Target:
    """x + attention(norm(x)), then x + network(norm(x)), as in GPT-2."""
    D.d = max(D.d, 4)
    centre = D.coin()
    inner = layer(D, D.pick(1, 2), D.d, Rule(before=lambda X: layer_norm(X, centre=centre)))
    net, r = network(D, D.d, D.d, D.pick("relu", "gelu")), D.array(D.d)
    short = D.coin()

    def answer(X: Array) -> Array:
        z = X[:, -1].astype(D.dtype) + inner(X)
        z = z + net(layer_norm(z))
        return z @ r if short else z

    return answer


def encoder_layer(D: Draw) -> Target:
    """PyTorch's own layer: residuals and norms around attention and network."""
    import torch

    heads = D.pick(1, 2)
    D.d = max(4, D.d + D.d % 2)
    torch.manual_seed(int(D.rng.integers(2**31)))
    module = torch.nn.TransformerEncoderLayer(
        D.d, heads, 2 * D.d, dropout=0.0, activation=D.pick("relu", "gelu"), norm_first=D.coin(), batch_first=True
    )
    return module.to(torch.float32 if D.dtype == np.float32 else torch.float64).eval()


def sink_logit(D: Draw) -> Target:
    level = float(D.rng.uniform(-3, 2))

    def share(s: Array) -> Array:
        return softmax(np.concatenate([s, np.full((*s.shape[:-1], 1), level, dtype=s.dtype)], axis=-1))[..., :-1]

    return odd_layer(D, Rule(share=share))


def register_tokens(D: Draw) -> Target:
    tokens = D.array(1, int(D.rng.integers(1, 5)), D.d)
    rule = Rule(before=lambda X: np.concatenate([np.repeat(tokens, len(X), axis=0), X], axis=1))
    return layer(D, D.pick(1, 2), outputs_of(D), rule)


def sink_then_network(D: Draw) -> Target:
    tokens = D.array(1, 1, D.d)
    rule = Rule(before=lambda X: np.concatenate([np.repeat(tokens, len(X), axis=0), X], axis=1))
    target: Target = through(D, D.pick("relu", "gelu", "tanh"), rule=rule)[0]
    return target


def dropout(D: Draw) -> Target:
    chance, rate = np.random.default_rng(D.rng.integers(2**32)), float(D.rng.uniform(0.02, 0.5))
    place = D.pick("weights", "tokens", "answer")

    def mask(z: Array) -> Array:
        return z * ((chance.random(z.shape) >= rate) / (1 - rate)).astype(D.dtype)

    if place == "weights":
        return layer(D, 1, None, Rule(share=lambda s: mask(softmax(s))))
    if place == "tokens":
        return layer(D, 1, None, Rule(before=mask))
    inner, net = layer(D, 1, D.d), network(D, D.d, None, "relu")
    return lambda X: net(mask(inner(X)))


def torch_recurrent(D: Draw) -> Target:
    import torch

    torch.manual_seed(int(D.rng.integers(2**31)))
    hidden = int(D.rng.integers(2, D.d + 4))
    dtype = torch.float32 if D.dtype == np.float32 else torch.float64
    kind = D.pick("GRU", "LSTM", "RNN", "RNN relu")
    core = (
        torch.nn.RNN(D.d, hidden, nonlinearity="relu", batch_first=True)
        if kind == "RNN relu"
        else getattr(torch.nn, kind)(D.d, hidden, batch_first=True)
    )
    core, read = core.to(dtype), torch.nn.Linear(hidden, 1).to(dtype)

    def answer(X: Array) -> Array:
        with torch.no_grad():
            return read(core(torch.as_tensor(X, dtype=dtype))[0][:, -1])[:, 0].numpy()

    return answer


def state_space(D: Draw) -> Target:
    """A gated linear recurrence, its forgetting chosen by the token."""
    G, U, v = D.array(D.d, D.d, scale=1 / np.sqrt(D.d)), D.array(D.d, D.d, scale=1 / np.sqrt(D.d)), D.array(D.d)

    def answer(X: Array) -> Array:
        h = np.zeros((len(X), D.d), dtype=D.dtype)
        for x in X.astype(D.dtype).transpose(1, 0, 2):
            keep = ACTIVATIONS["sigmoid"](x @ G)
            h = keep * h + (1 - keep) * (x @ U)
        return h @ v

    return answer


def convolution(D: Draw) -> Target:
    taps, channels = int(D.rng.integers(2, 6)), int(D.rng.integers(2, 9))
    F, v, act = D.array(taps, D.d, channels, scale=1 / np.sqrt(D.d)), D.array(channels), ACTIVATIONS[D.pick("relu", "tanh")]
    pool = D.pick("mean", "max", "last")

    def answer(X: Array) -> Array:
        Z = np.concatenate([np.zeros((len(X), taps - 1, D.d), dtype=D.dtype), X.astype(D.dtype)], axis=1)
        n = X.shape[1]
        Y = act(np.sum([Z[:, t : t + n] @ F[t] for t in range(taps)], axis=0))
        return {"mean": Y.mean(axis=1), "max": Y.max(axis=1), "last": Y[:, -1]}[pool] @ v

    return answer


def concatenated(D: Draw) -> Target:
    """A network on the last few tokens side by side, zeros where there are none."""
    room = int(D.rng.integers(2, 7))
    net = network(D, room * D.d, outputs_of(D), D.pick("relu", "gelu"))

    def answer(X: Array) -> Array:
        Z = np.concatenate([np.zeros((len(X), room, D.d)), X], axis=1)[:, -room:].astype(D.dtype)
        return net(Z.reshape(len(X), -1))

    return answer


def fixed_length(D: Draw) -> Target:
    room = int(D.rng.integers(2, 7))
    net = network(D, room * D.d, None, "relu")

    def answer(X: Array) -> Array:
        return net(X.astype(D.dtype).reshape(len(X), room * D.d))

    return answer


def top_few(D: Draw) -> Target:
    keep = int(np.round(2.0 ** D.rng.uniform(0, 7)))

    def share(s: Array) -> Array:
        if s.shape[-1] > keep:
            s = np.where(s >= np.sort(s, axis=-1)[..., -keep, None], s, -np.inf)
        return softmax(s)

    return odd_layer(D, Rule(share=share))


def linear_attention(D: Draw) -> Target:
    return odd_layer(D, Rule(share=lambda s: s if D.law == "normal" else s / s.shape[-1]), masked=False)


def positive_features(D: Draw) -> Target:
    """Linear attention with features elu + 1 or relu, normalised."""
    up = D.pick(lambda Z: np.where(Z > 0, Z + 1, np.exp(np.minimum(Z, 0))), lambda Z: np.maximum(Z, 0) + 0.01)
    return odd_layer(D, Rule(turn=lambda Z: up(Z).astype(D.dtype), share=lambda s: s / s.sum(axis=-1, keepdims=True)), masked=False)


def sigmoid_weights(D: Draw) -> Target:
    return odd_layer(D, Rule(share=lambda s: ACTIVATIONS["sigmoid"](s) / (1.0 if D.law == "normal" else s.shape[-1])))


def cosine(D: Draw) -> Target:
    def unit(Z: Array) -> Array:
        return Z / np.sqrt((Z * Z).sum(axis=-1, keepdims=True) + 1e-9) * np.float32(3.0)

    return odd_layer(D, Rule(turn=lambda Z: unit(Z).astype(D.dtype)), rank=max(2, D.d // 2))


def length_scaled(D: Draw) -> Target:
    return odd_layer(D, Rule(bend=lambda s: (s * np.log1p(s.shape[-1])).astype(D.dtype)))


def power_weights(D: Draw) -> Target:
    """Weights 1 + s + s^2/2, the second-order stand-in for the exponential."""
    return odd_layer(D, Rule(share=lambda s: (1 + s + s * s / 2) / (1 + s + s * s / 2).sum(axis=-1, keepdims=True)), masked=False)


def with_residual(D: Draw) -> Target:
    inner, outputs = layer(D, D.pick(1, 1, 2, 3), D.d), outputs_of(D)
    r = D.array(D.d, outputs or 1)

    def answer(X: Array) -> Array:
        y = (inner(X) / D.number(D.d) + X[:, -1].astype(D.dtype)) @ r
        return y if outputs else y[:, 0]

    return answer


def gated(D: Draw) -> Target:
    inner, G = layer(D, 1, 3), D.array(D.d, 3, scale=1 / np.sqrt(D.d))
    return lambda X: inner(X) * ACTIVATIONS["sigmoid"](X[:, -1].astype(D.dtype) @ G)


def stacked(D: Draw) -> Target:
    first, second, skip = layer(D, D.pick(1, 2), D.d, everywhere=True), layer(D, D.pick(1, 2), outputs_of(D)), D.coin()
    return lambda X: second(X.astype(D.dtype) * skip + first(X) / D.number(np.sqrt(D.d)))


def heads_then_network(D: Draw) -> Target:
    target: Target = through(D, D.pick("relu", "gelu", "tanh"), heads=int(D.rng.integers(2, 5)), residual=D.coin(0.3))[0]
    return target


def smooth_residual(D: Draw) -> Target:
    D.d = max(D.d, 7)  # more than there are outputs: with as many, W can be read
    target: Target = through(D, D.pick("gelu", "tanh", "silu"), residual=True)[0]
    return target


def cap_then_network(D: Draw) -> Target:
    cap = D.number(D.pick(2.0, 10.0, 30.0))
    target: Target = through(
        D, D.pick("relu", "gelu", "tanh"), rule=Rule(bend=lambda s: cap * np.tanh(s / cap)), residual=D.coin(0.3)
    )[0]
    return target


def norm_then_network(D: Draw) -> Target:
    D.d = max(D.d, 4)
    centre = D.coin()
    target: Target = through(D, D.pick("relu", "gelu"), rule=Rule(before=lambda X: layer_norm(X, centre)), residual=D.coin())[0]
    return target


def positions_then_network(D: Draw) -> Target:
    table = D.array(1024, D.d, scale=0.3)
    target: Target = through(D, D.pick("relu", "gelu"), rule=Rule(before=lambda X: X + table[: X.shape[1]]))[0]
    return target


def tokenwise_then_mean(D: Draw) -> Target:
    net = network(D, D.d, outputs_of(D), D.pick("relu", "gelu", "tanh"))
    return lambda X: net(X.astype(D.dtype)).mean(axis=1)


def tokenwise_then_head(D: Draw) -> Target:
    net, inner = network(D, D.d, D.d, D.pick("relu", "gelu")), layer(D, 1, None)
    return lambda X: inner(net(X.astype(D.dtype)))


def max_of_tokens(D: Draw) -> Target:
    A, v = D.array(D.d, 6), D.array(6)
    return lambda X: (X.astype(D.dtype) @ A).max(axis=1) @ v


def attention_then_mean(D: Draw) -> Target:
    inner = layer(D, D.pick(1, 2), D.d, everywhere=True)
    return lambda X: inner(X).mean(axis=1)


def smooth_last(D: Draw) -> Target:
    net = network(D, D.d, outputs_of(D), D.pick("gelu", "tanh", "silu", "sigmoid"), depth=int(D.rng.integers(1, 3)))
    return lambda X: net(X[:, -1].astype(D.dtype))


def linear_last(D: Draw) -> Target:
    A = D.array(D.d, 3)
    return lambda X: X[:, -1].astype(D.dtype) @ A


def trees(D: Draw) -> Target:
    """Thresholds of single entries, as in decision trees."""
    entry, level, leaf = D.rng.integers(D.d, size=40), D.rng.normal(size=40), D.array(40)
    return lambda X: (X.mean(axis=1)[:, entry] > level) @ leaf


def labels(D: Draw) -> Target:
    inner = layer(D, 1, 4)
    return lambda X: np.eye(4)[inner(X).argmax(axis=1)]


OUTSIDE: dict[str, Callable[[Draw], Target]] = {
    "learned positions": learned_positions,
    "sinusoidal positions": sinusoids,
    "rotary": rotary,
    "ALiBi": alibi,
    "bucketed position bias": bucket_bias,
    "sliding window": sliding_window,
    "soft-cap": capped,
    "LayerNorm first": norm_first,
    "RMSNorm first": rms_first,
    "norm-first block": norm_first_block,
    "torch TransformerEncoderLayer": encoder_layer,
    "sink logit": sink_logit,
    "register tokens": register_tokens,
    "register token, then network": sink_then_network,
    "dropout": dropout,
    "torch recurrent": torch_recurrent,
    "state space": state_space,
    "convolution": convolution,
    "network on concatenation": concatenated,
    "network of fixed length": fixed_length,
    "top-k": top_few,
    "linear attention": linear_attention,
    "positive features": positive_features,
    "sigmoid attention": sigmoid_weights,
    "cosine attention": cosine,
    "scores scaled by length": length_scaled,
    "polynomial weights": power_weights,
    "residual around heads": with_residual,
    "gate by the last token": gated,
    "two layers": stacked,
    "heads, then network": heads_then_network,
    "smooth, residual": smooth_residual,
    "soft-cap, then network": cap_then_network,
    "norm first, then network": norm_then_network,
    "positions, then network": positions_then_network,
    "network per token, then mean": tokenwise_then_mean,
    "network per token, then head": tokenwise_then_head,
    "maximum over tokens": max_of_tokens,
    "attention, then mean": attention_then_mean,
    "smooth network, last token": smooth_last,
    "linear map, last token": linear_last,
    "trees": trees,
    "class labels": labels,
}


def creature(name: str, seed: int, *, answers: str = "float64") -> Creature:
    """The creature ``name`` drawn from ``seed``; ``answers`` is "float64", "float32" or "6 decimals"."""
    rng = np.random.default_rng([seed, 77, *name.encode()])
    D = Draw(rng, np.float32 if answers == "float32" else np.float64)
    return shown(name, D, INSIDE, OUTSIDE, answers)


def shown(name: str, parts: Any, inside: dict[str, Any], outside: dict[str, Any], answers: str) -> Creature:
    """The creature ``name`` of a zoo, made from random ``parts``; makers of insiders tell facts, if any, and heads beside it."""
    heads, facts = None, {}
    if name in inside:
        family, make = inside[name]
        target, *told, heads = make(parts)
        facts = told[0] if told else {}
    else:
        family, target = "outside", outside[name](parts)
    if answers == "6 decimals":
        target = _rounded(target, parts.d)
    return Creature(name, family, target, parts.d, heads, facts)


def _rounded(target: Target, width: int) -> Target:
    from unsoftmax.oracles import as_oracle

    inner = as_oracle(target, width)
    return lambda X: np.round(inner(X), 6)
