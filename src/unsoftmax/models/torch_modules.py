"""Models of this package as ``torch.nn.Module``: the same answers, trainable, and fit for pickling."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unsoftmax.models.activations import activation_named
from unsoftmax.models.attention import Attention
from unsoftmax.models.base import Floats
from unsoftmax.models.gated import OPTIONAL, GatedFFN
from unsoftmax.models.network import FFN, Transformer


class TorchAttention(torch.nn.Module):
    """Scores ``x_i·W[h]·x_N + c[h]·x_i``, answers ``b + sum_h sum_i softmax(s)_i V[h]^T x_i``.

    Args:
        model: the weights.
        positions: ``"last"`` or ``"all"``, what ``forward`` answers unless told otherwise.
        causal: whether a position sees only itself and earlier ones, where all are answered.
    """

    def __init__(self, model: Attention, positions: str = "last", causal: bool = False) -> None:
        super().__init__()
        for name in ("W", "V", "c", "b"):
            self.register_parameter(name, torch.nn.Parameter(torch.tensor(np.array(getattr(model, name)))))
        self.width = model.width
        self.positions, self.causal = positions, causal
        self._kept = {"c": model.has_c, "b": model.has_b}

    @property
    def attention(self) -> Attention:
        """The parameters as they stand, as a model of this package."""
        arrays = {name: _array(getattr(self, name)) for name in ("W", "V", "c", "b")}
        kept = {name: arrays[name] for name in ("c", "b") if arrays[name].any() or self._kept[name]}
        return Attention(W=arrays["W"], V=arrays["V"], **kept)

    def forward(self, sequences: Any, positions: str | None = None, causal: bool | None = None) -> Any:
        """Map ``(batch, length, width)`` to the answers."""
        everywhere = (positions or self.positions) == "all"
        queries = sequences if everywhere else sequences[:, -1:]
        scores = torch.einsum("bid,hde,bje->bhji", sequences, self.W, queries)
        scores = scores + torch.einsum("bid,hd->bhi", sequences, self.c)[:, :, None]
        if everywhere and (self.causal if causal is None else causal):
            length = sequences.shape[1]
            mask = torch.ones(length, length, dtype=torch.bool, device=sequences.device).triu(1)
            scores = scores.masked_fill(mask, -torch.inf)
        mixed = torch.einsum("bhji,bid->bhjd", scores.softmax(-1), sequences)
        answers = self.b + torch.einsum("bhjd,hd...->bj...", mixed, self.V)  # type: ignore[operator]  # a parameter
        return answers if everywhere else answers[:, 0]


class TorchFFN(torch.nn.Module):
    """A network on vectors ``(…, width)``; on sequences it answers at every position, or at the last one."""

    def __init__(self, model: FFN, positions: str = "all") -> None:
        super().__init__()
        layers = []
        for weight, bias in zip(model.weights, model.biases, strict=True):
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
            linear.weight.data.copy_(torch.tensor(np.array(weight)))
            linear.bias.data.copy_(torch.tensor(np.array(bias)))
            layers.append(linear)
        self.layers = torch.nn.ModuleList(layers)
        self.skip = None if model.skip is None else torch.nn.Parameter(torch.tensor(np.array(model.skip)))
        self.width, self.activation = model.width, model.activation
        self.positions = positions

    @property
    def network(self) -> FFN:
        """The parameters as they stand, as a model of this package."""
        skip = None if self.skip is None else _array(self.skip)
        held = [(layer.weight, layer.bias) for layer in self.layers if isinstance(layer, torch.nn.Linear)]
        return FFN([_array(weight) for weight, _ in held], [_array(bias) for _, bias in held], skip, self.activation)

    def forward(self, points: Any) -> Any:
        """Map ``(…, width)`` to ``(…, outputs)``; of sequences the last token, where positions is "last"."""
        given = points[:, -1] if points.ndim == 3 and self.positions == "last" else points
        hidden, bend = given, activation_named(self.activation).torch(torch)
        for i, layer in enumerate(self.layers):
            hidden = layer(bend(hidden) if i else hidden)
        return hidden if self.skip is None else hidden + given @ self.skip.T


class TorchGatedFFN(torch.nn.Module):
    """A gated network on vectors ``(…, width)``; on sequences it answers at every position."""

    def __init__(self, model: GatedFFN) -> None:
        super().__init__()
        for name in ("gate", "up", "down", *OPTIONAL):
            part = getattr(model, name)
            self.register_parameter(name, None if part is None else torch.nn.Parameter(torch.tensor(np.array(part))))
        self.width, self.activation = model.width, model.activation

    @property
    def network(self) -> GatedFFN:
        """The parameters as they stand, as a model of this package."""
        parts = {name: getattr(self, name) for name in ("gate", "up", "down", *OPTIONAL)}
        held = {name: None if part is None else _array(part) for name, part in parts.items()}
        return GatedFFN(**held, activation=self.activation)  # type: ignore[arg-type]  # the matrices are never None

    def forward(self, points: Any) -> Any:
        """Map ``(…, width)`` to ``(…, outputs)``."""
        linear: Any = torch.nn.functional.linear
        gates = activation_named(self.activation).torch(torch)(linear(points, self.gate, self.gate_bias))
        answers = linear(gates * linear(points, self.up, self.up_bias), self.down, self.down_bias)
        return answers if self.skip is None else answers + points @ self.skip.T


class TorchTransformer(torch.nn.Module):
    """One attention head and a network, gated or not, at every position: ``ffn(residual * x_N + attention(X))``."""

    def __init__(self, model: Transformer, positions: str = "last", causal: bool = False) -> None:
        super().__init__()
        self.heads = TorchAttention(model.attention, positions, causal)
        self.ffn = model.ffn.to_torch()
        self.residual = model.residual
        self.width = model.width

    @property
    def transformer(self) -> Transformer:
        """The parameters as they stand, as a model of this package."""
        return Transformer(self.heads.attention, self.ffn.network, residual=self.residual)

    def forward(self, sequences: Any, positions: str | None = None, causal: bool | None = None) -> Any:
        """Map ``(batch, length, width)`` to ``(batch, outputs)``, everywhere to ``(batch, length, outputs)``."""
        everywhere = (positions or self.heads.positions) == "all"
        mixed = self.heads(sequences, positions, causal)
        return self.ffn(mixed + (sequences if everywhere else sequences[:, -1]) if self.residual else mixed)


def _array(value: torch.Tensor) -> Floats:
    return np.asarray(value.detach().cpu().double().numpy())
