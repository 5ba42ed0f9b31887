"""A third zoo for ``benchmarks/diagnose.py``: what an auditor would write down in PyTorch, widths 2 to 24.

Computed in float64, in float32, or in either by a coin ("natural"); gains of scores over a factor of 40.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from second_zoo import Creature, Target, shown
from torch import Tensor, nn

Module = nn.Module


class Dice:
    """Random choices of one creature, and torch parameters from the same seed."""

    def __init__(self, rng: np.random.Generator, single: bool) -> None:
        self.rng = rng
        self.d = int(rng.integers(2, 25))
        self.dtype = torch.float32 if single else torch.float64
        self.gain = float(10.0 ** rng.uniform(-1.0, 0.6))  # of scores
        torch.manual_seed(int(rng.integers(2**31)))

    def coin(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def pick(self, *things: Any) -> Any:
        return things[int(self.rng.integers(len(things)))]

    def tensor(self, *shape: int, scale: float = 1.0) -> Tensor:
        return torch.as_tensor(scale * self.rng.normal(size=shape), dtype=self.dtype)

    def run(self, forward: Callable[[Tensor], Tensor]) -> Target:
        """A plain function of arrays that computes in the number type of this creature."""

        def answer(X: np.ndarray) -> np.ndarray:
            with torch.no_grad():
                return forward(torch.as_tensor(X, dtype=self.dtype)).numpy()

        return answer


class Layer:
    """Attention written out: separate projections, any number of heads, hooks for what sets a layer apart."""

    def __init__(
        self, D: Dice, heads: int = 1, outputs: int | None = None, rank: int | None = None, width: int | None = None
    ) -> None:
        d = width or D.d
        self.heads, self.outputs, r = heads, outputs, rank or max(1, d // heads)
        size = math.sqrt(D.gain / math.sqrt(d * r))
        self.Q, self.K = D.tensor(heads, d, r, scale=size), D.tensor(heads, d, r, scale=size)
        self.q0 = D.tensor(heads, 1, r, scale=0.5 if D.coin() else 0.0)
        self.V = D.tensor(heads, d, outputs or 1, scale=1 / math.sqrt(d))
        self.b = D.tensor(outputs or 1, scale=1.0 if D.coin() else 0.0)
        self.turn: Callable[[Tensor], Tensor] = lambda z: z
        self.bend: Callable[[Tensor], Tensor] = lambda s: s
        self.weigh: Callable[[Tensor], Tensor] = lambda s: s.softmax(dim=-1)
        self.causal = False

    def everywhere(self, X: Tensor) -> Tensor:
        """Answers ``(batch, length, outputs)``."""
        q, k = self.turn(X[:, None] @ self.Q + self.q0), self.turn(X[:, None] @ self.K)
        s = self.bend(q @ k.transpose(-1, -2))
        if self.causal:
            s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
        return (self.weigh(s) @ (X[:, None] @ self.V)).sum(dim=1) + self.b

    def last(self, X: Tensor) -> Tensor:
        y = self.everywhere(X)[:, -1]
        return y if self.outputs else y[:, 0]


def network(D: Dice, inputs: int, outputs: int, act: Callable[[], Module], depth: int = 1, bias: bool = True) -> nn.Sequential:
    """``Linear`` and activation layers with the default initialisation, times a gain; 8 to 40 hidden units each."""
    parts: list[Module] = []
    for _ in range(depth):
        hidden = int(D.rng.integers(8, 41))
        parts += [nn.Linear(inputs, hidden, bias=bias), act()]
        inputs = hidden
    module = nn.Sequential(*parts, nn.Linear(inputs, outputs)).to(D.dtype).eval()
    with torch.no_grad():
        for p in module.parameters():
            p *= 2.0
    return module


def outputs_of(D: Dice) -> int | None:
    return None if D.coin(0.6) else int(D.rng.integers(1, D.d + 1))


def squeeze(outputs: int | None) -> Callable[[Tensor], Tensor]:
    return (lambda y: y) if outputs else (lambda y: y[..., 0])


# ---------------------------------------------------------------------------------------------------------------- inside


def head(D: Dice) -> Any:
    return D.run(Layer(D, 1, outputs_of(D), rank=int(D.rng.integers(1, D.d + 1))).last), 1


def public_model(D: Dice) -> Any:
    import unsoftmax as us

    d = D.d
    W = D.rng.normal(size=(d, d)) * D.gain / d
    model = us.Attention.single(W=W, v=D.rng.normal(size=d), c=D.rng.normal(size=d) if D.coin() else None)
    return model if D.dtype == torch.float64 else (lambda X: model(X).astype(np.float32)), 1


def every_position(D: Dice) -> Any:
    layer = Layer(D, 1, int(D.rng.integers(1, D.d + 1)))
    layer.causal = D.coin()
    return D.run(layer.everywhere), 1


def several(D: Dice) -> Any:
    D.d = max(D.d, 4)
    H = int(D.rng.integers(2, 4))
    return D.run(Layer(D, H, None if D.coin() else D.d, rank=D.d).last), H


def torch_attention(D: Dice) -> Any:
    H = int(D.pick(1, 2, 4))
    D.d = max(H, D.d // H * H)
    module = nn.MultiheadAttention(D.d, H, batch_first=True, bias=D.coin()).to(D.dtype).eval()
    if D.coin():
        return module, H

    def forward(X: Tensor) -> Tensor:
        mask = ~torch.ones(X.shape[1], X.shape[1], dtype=torch.bool).tril()
        return module(X, X, X, attn_mask=mask, need_weights=False)[0]

    return D.run(forward), H


def pooled_by_query(D: Dice) -> Any:
    """A learned query looks at all tokens."""
    q, out = D.tensor(D.d, scale=3 * D.gain / math.sqrt(D.d)), D.tensor(D.d, outputs_of(D) or 1)
    shape = squeeze(None if out.shape[1] == 1 else 1)
    return D.run(lambda X: shape(((X @ q).softmax(dim=1)[..., None] * X).sum(dim=1) @ out)), 1


SMOOTH = (nn.GELU, nn.Tanh, nn.SiLU, nn.Softplus, nn.ELU, nn.Sigmoid)


def then_network(D: Dice, act: Callable[[], Module], depth: int, pooled: bool = False) -> Any:
    outputs = outputs_of(D)
    net, shape = network(D, D.d, outputs or 1, act, depth), squeeze(outputs)
    if pooled:
        q = D.tensor(D.d, scale=3 * D.gain / math.sqrt(D.d))
        return D.run(lambda X: shape(net(((X @ q).softmax(dim=1)[..., None] * X).sum(dim=1)))), 1
    layer = Layer(D, 1, D.d)
    return D.run(lambda X: shape(net(layer.last(X)))), 1


def then_smooth(D: Dice) -> Any:
    return then_network(D, D.pick(*SMOOTH), D.pick(1, 1, 2))


def pooled_then_smooth(D: Dice) -> Any:
    return then_network(D, D.pick(*SMOOTH), 1, pooled=True)


def then_sigmoid(D: Dice) -> Any:
    layer = Layer(D)
    return D.run(lambda X: layer.last(X).sigmoid()), 1


def then_classes(D: Dice) -> Any:
    layer, logs = Layer(D, 1, int(D.rng.integers(2, 8))), D.coin(0.3)
    return D.run(lambda X: layer.last(X).log_softmax(dim=-1) if logs else layer.last(X).softmax(dim=-1)), 1


def then_relu(D: Dice) -> Any:
    return then_network(D, nn.ReLU, 1)


def pooled_then_relu(D: Dice) -> Any:
    return then_network(D, nn.ReLU, 1, pooled=True)


def block(D: Dice) -> Any:
    """Attention and network, each with the last token added, and no norms."""
    layer, net = Layer(D, 1, D.d), network(D, D.d, D.d, nn.ReLU)
    r = None if D.coin() else D.tensor(D.d)

    def forward(X: Tensor) -> Tensor:
        h = X[:, -1] + layer.last(X)
        y = h + net(h)
        return y if r is None else y @ r

    return D.run(forward), 1


def added_then_relu(D: Dice) -> Any:
    outputs = outputs_of(D)
    layer, net, shape = Layer(D, 1, D.d), network(D, D.d, outputs or 1, nn.ReLU), squeeze(outputs)
    return D.run(lambda X: shape(net(X[:, -1] + layer.last(X)))), 1


def relu_of_last(D: Dice) -> Any:
    outputs = outputs_of(D)
    net, shape = network(D, D.d, outputs or 1, nn.ReLU, bias=D.coin(0.8)), squeeze(outputs)
    return D.run(lambda X: shape(net(X[:, -1]))), None


def relu_module(D: Dice) -> Any:
    return network(D, D.d, D.pick(1, 3), nn.ReLU), None


INSIDE: dict[str, tuple[str, Callable[[Dice], Any]]] = {
    "head": ("attention", head),
    "Attention.single": ("attention", public_model),
    "every position": ("attention", every_position),
    "2-3 heads": ("attention", several),
    "nn.MultiheadAttention": ("attention", torch_attention),
    "pooled by a query": ("attention", pooled_by_query),
    "then smooth network": ("attention-behind-network", then_smooth),
    "pooled, then smooth network": ("attention-behind-network", pooled_then_smooth),
    "then sigmoid": ("attention-behind-network", then_sigmoid),
    "then classes": ("attention-behind-network", then_classes),
    "then ReLU network": ("transformer", then_relu),
    "pooled, then ReLU network": ("transformer", pooled_then_relu),
    "block without norms": ("transformer", block),
    "added, then ReLU network": ("transformer", added_then_relu),
    "ReLU network of the last token": ("ffn", relu_of_last),
    "nn.Sequential with ReLU": ("ffn", relu_module),
}

# --------------------------------------------------------------------------------------------------------------- outside


def odd(D: Dice, **hooks: Any) -> Target:
    """A layer with hooks: the last position or all of them, one or two heads, scalar or vector."""
    layer = Layer(D, D.pick(1, 1, 2), D.pick(None, 3, D.d), rank=D.d + D.d % 2)
    before, anywhere = hooks.pop("before", lambda X: X), hooks.pop("anywhere", True)
    for name, hook in hooks.items():
        setattr(layer, name, hook)
    every = anywhere and bool(layer.outputs) and D.coin(0.3)
    return D.run(lambda X: layer.everywhere(before(X)) if every else layer.last(before(X)))


def learned_positions(D: Dice) -> Target:
    table = D.tensor(600, D.d, scale=float(10.0 ** D.rng.uniform(-1.5, 0.3)))
    return odd(D, before=lambda X: X + table[: X.shape[1]])


def sinusoids(D: Dice) -> Target:
    angle = torch.arange(600, dtype=D.dtype)[:, None] / 10000 ** (torch.arange(D.d, dtype=D.dtype) // 2 * 2 / D.d)
    table = torch.where(torch.arange(D.d) % 2 == 0, angle.sin(), angle.cos())
    return odd(D, before=lambda X: X + table[: X.shape[1]])


def rope(D: Dice) -> Target:
    def turn(z: Tensor) -> Tensor:
        half = z.shape[-1] // 2
        angle = torch.arange(z.shape[-2], dtype=D.dtype)[:, None] * 10000 ** (-torch.arange(half, dtype=D.dtype) / half)
        a, b = z[..., :half], z[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)

    return odd(D, turn=turn)


def offsets(s: Tensor) -> Tensor:
    return torch.arange(s.shape[-1])[None] - torch.arange(s.shape[-2])[:, None]


def alibi(D: Dice) -> Target:
    slope = float(2.0 ** -D.rng.uniform(0.5, 8))
    return odd(D, bend=lambda s: s - slope * offsets(s).abs().to(D.dtype))


def relative_bias(D: Dice) -> Target:
    table = D.tensor(1200, scale=0.5)
    return odd(D, bend=lambda s: s + table[offsets(s) + 600])


def window(D: Dice) -> Target:
    reach = int(D.rng.integers(2, 9))
    return odd(D, bend=lambda s: s.masked_fill(offsets(s).abs() >= reach, -math.inf))


def soft_cap(D: Dice) -> Target:
    cap = float(D.pick(3.0, 10.0, 30.0, 50.0))
    return odd(D, bend=lambda s: cap * torch.tanh(s / cap))


def norm_first(D: Dice) -> Target:
    D.d = max(D.d, 3)
    norm = nn.LayerNorm(D.d).to(D.dtype) if D.coin() else nn.RMSNorm(D.d).to(D.dtype)
    return odd(D, before=norm)


def query_norm(D: Dice) -> Target:
    return odd(D, turn=lambda z: 3 * z / (z.norm(dim=-1, keepdim=True) + 1e-6))


def sink(D: Dice) -> Target:
    extra = float(D.rng.normal())
    return odd(D, weigh=lambda s: torch.cat([s, torch.full_like(s[..., :1], extra)], dim=-1).softmax(dim=-1)[..., :-1])


def prefix(D: Dice) -> Target:
    memory = D.tensor(int(D.rng.integers(1, 4)), D.d, scale=D.pick(0.0, 1.0))
    return odd(D, before=lambda X: torch.cat([memory.expand(len(X), -1, -1), X], dim=1), anywhere=False)


def dropout(D: Dice) -> Target:
    rate = float(D.rng.uniform(0.05, 0.5))
    return odd(D, weigh=lambda s: nn.functional.dropout(s.softmax(dim=-1), rate, training=True))


def recurrent(D: Dice) -> Target:
    kind = D.pick(nn.GRU, nn.LSTM, nn.RNN)
    module, r = kind(D.d, 12, batch_first=True).to(D.dtype), D.tensor(12)
    return D.run(lambda X: module(X)[0][:, -1] @ r)


def deep_set(D: Dice) -> Target:
    inner, outer = network(D, D.d, 10, D.pick(nn.ReLU, nn.Tanh)), network(D, 10, 1, D.pick(nn.ReLU, nn.Tanh))
    pool = D.pick(lambda Z: Z.mean(dim=1), lambda Z: Z.sum(dim=1), lambda Z: Z.amax(dim=1))
    return D.run(lambda X: outer(pool(inner(X)))[:, 0])


def maximum(D: Dice) -> Target:
    A = D.tensor(D.d, D.pick(1, 4))
    return D.run(lambda X: (X @ A).amax(dim=1))


def linear_weights(D: Dice) -> Target:
    return odd(D, weigh=D.pick(lambda s: s, lambda s: s / s.shape[-1], lambda s: (s + 5) / (s + 5).sum(dim=-1, keepdim=True)))


def sigmoid_weights(D: Dice) -> Target:
    return odd(D, weigh=D.pick(torch.sigmoid, lambda s: s.sigmoid() / s.sigmoid().sum(dim=-1, keepdim=True)))


def hard(D: Dice) -> Target:
    return odd(D, weigh=lambda s: nn.functional.one_hot(s.argmax(dim=-1), s.shape[-1]).to(D.dtype))


def top_k(D: Dice) -> Target:
    k = int(D.rng.integers(1, 5))
    return odd(D, bend=lambda s: s.masked_fill(s < s.topk(min(k, s.shape[-1]), dim=-1).values[..., -1:], -math.inf))


def log_length(D: Dice) -> Target:
    return odd(D, bend=lambda s: s * math.log(s.shape[-1] + 1))


def stacked(D: Dice) -> Target:
    a, b, skip = Layer(D, D.pick(1, 2), D.d), Layer(D, 1, outputs_of(D)), D.coin()
    return D.run(lambda X: b.last(a.everywhere(X) + X if skip else a.everywhere(X)))


def encoder_layer(D: Dice) -> Target:
    """As PyTorch has it, with norms before or after, ReLU or GELU; after the attention a norm follows a residual."""
    H = int(D.pick(1, 2))
    D.d = max(4, D.d // H * H)
    module = nn.TransformerEncoderLayer(
        D.d, H, 2 * D.d, dropout=0.0, activation=D.pick("relu", "gelu"), batch_first=True, norm_first=D.coin()
    )
    module = module.to(D.dtype).eval()
    return module if D.coin() else D.run(lambda X: module(X)[:, -1])


def encoder(D: Dice) -> Target:
    D.d = max(4, D.d // 2 * 2)
    module = nn.TransformerEncoder(nn.TransformerEncoderLayer(D.d, 2, 16, 0.0, batch_first=True), 2, enable_nested_tensor=False)
    module = module.to(D.dtype).eval()
    return D.run(lambda X: module(X).mean(dim=1) if D.d % 4 else module(X)[:, -1])


def heads_then_network(D: Dice) -> Target:
    D.d = max(D.d, 3)
    layer, net = Layer(D, int(D.rng.integers(2, 4)), D.d), network(D, D.d, 2, D.pick(nn.ReLU, nn.GELU, nn.Tanh))
    add = D.coin(0.3)
    return D.run(lambda X: net(layer.last(X) + X[:, -1] if add else layer.last(X)))


def added(D: Dice) -> Target:
    layer, r = Layer(D, D.pick(1, 2), D.d), D.tensor(D.d)
    return D.run(lambda X: (layer.last(X) + X[:, -1]) @ r)


def added_then_smooth(D: Dice) -> Target:
    layer, net = Layer(D, 1, D.d), network(D, D.d, D.pick(1, 3), D.pick(nn.GELU, nn.Tanh, nn.SiLU))
    return D.run(lambda X: net(layer.last(X) + X[:, -1]))


def cap_then_network(D: Dice) -> Target:
    cap, layer, net = float(D.pick(3.0, 10.0, 30.0)), Layer(D, 1, D.d), network(D, D.d, 1, D.pick(nn.ReLU, nn.GELU, nn.Tanh))
    layer.bend = lambda s: cap * torch.tanh(s / cap)
    return D.run(lambda X: net(layer.last(X))[:, 0])


def token_network(D: Dice) -> Target:
    net, layer = network(D, D.d, D.d, D.pick(nn.ReLU, nn.GELU, nn.Tanh)), Layer(D, 1, outputs_of(D))
    return D.run(lambda X: layer.last(net(X)))


def first_asks(D: Dice) -> Target:
    """The first token asks instead of the last one."""
    layer = Layer(D, 1, outputs_of(D))
    return D.run(lambda X: layer.last(X.flip(1)))


def mean_of_positions(D: Dice) -> Target:
    layer = Layer(D, 1, D.d)
    return D.run(lambda X: layer.everywhere(X).mean(dim=1))


def convolution(D: Dice) -> Target:
    module = nn.Conv1d(D.d, 5, 3, padding=2).to(D.dtype)
    return D.run(lambda X: module(X.transpose(1, 2)).relu().mean(dim=2))


def gate(D: Dice) -> Target:
    layer, G = Layer(D, 1, D.d), D.tensor(D.d, D.d, scale=1 / math.sqrt(D.d))
    return D.run(lambda X: layer.last(X) * (X[:, -1] @ G).sigmoid())


def smooth_of_last(D: Dice) -> Target:
    net = network(D, D.d, D.pick(1, 3), D.pick(nn.GELU, nn.Tanh, nn.SiLU))
    return D.run(lambda X: net(X[:, -1]))


OUTSIDE: dict[str, Callable[[Dice], Target]] = {
    "learned positions": learned_positions,
    "sinusoids": sinusoids,
    "RoPE, halves": rope,
    "ALiBi": alibi,
    "relative bias": relative_bias,
    "window": window,
    "soft-cap": soft_cap,
    "norm first": norm_first,
    "query-key norm": query_norm,
    "sink": sink,
    "prefix tokens": prefix,
    "dropout": dropout,
    "GRU, LSTM, RNN": recurrent,
    "deep sets": deep_set,
    "maximum": maximum,
    "linear attention": linear_weights,
    "sigmoid attention": sigmoid_weights,
    "hard maximum": hard,
    "top-k": top_k,
    "scores by log length": log_length,
    "two layers": stacked,
    "nn.TransformerEncoderLayer": encoder_layer,
    "nn.TransformerEncoder": encoder,
    "heads, then network": heads_then_network,
    "last token added": added,
    "added, then smooth network": added_then_smooth,
    "soft-cap, then network": cap_then_network,
    "network on each token": token_network,
    "first token asks": first_asks,
    "mean of positions": mean_of_positions,
    "convolution": convolution,
    "gate": gate,
    "smooth network of the last token": smooth_of_last,
}


def creature(name: str, seed: int, *, answers: str = "float64") -> Creature:
    """The creature ``name`` drawn from ``seed``; under ``answers="natural"`` half of them compute in float32."""
    rng = np.random.default_rng([seed, 333, *name.encode()])
    half = bool(rng.random() < 0.5)
    D = Dice(rng, answers == "float32" or (answers == "natural" and half))
    return shown(name, D, INSIDE, OUTSIDE, answers)
