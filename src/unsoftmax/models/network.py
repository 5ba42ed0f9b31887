"""Feed-forward networks and the one-layer Transformer that ends in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.activations import activation_named
from unsoftmax.models.attention import Attention, check_sequences, frozen_array
from unsoftmax.models.base import Floats, Places, Sizes, answered_at
from unsoftmax.models.gated import GatedFFN


@dataclass(frozen=True, eq=False, init=False)
class FFN:
    """A network ``A_k relu(… relu(A_0 x + b_0) …) + b_k``, plus an optional linear ``skip``; or another bend than ``relu``.

    Args:
        weights: matrices ``(out, in)`` as in ``torch.nn.Linear``, first layer first.
        biases: vectors ``(out,)``, one per layer.
        skip: matrix ``(outputs, width)`` added as ``skip @ x``.
        activation: one of ``unsoftmax.models.activations.NAMES``, such as "gelu" (with the error function), or "tanh".

    >>> FFN([[[1.0], [-1.0]], [[1.0, 1.0]]], [[0.0, 0.0], [0.5]])([[-3.0], [2.0]])
    array([3.5, 2.5])
    """

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    skip: Floats | None = None
    activation: str = "relu"

    def __init__(
        self,
        weights: Sequence[ArrayLike],
        biases: Sequence[ArrayLike],
        skip: ArrayLike | None = None,
        activation: str = "relu",
    ) -> None:
        layers = tuple(frozen_array(w, f"weights[{i}]", (2,)) for i, w in enumerate(weights))
        shifts = tuple(frozen_array(b, f"biases[{i}]", (1,)) for i, b in enumerate(biases))
        if not layers or len(layers) != len(shifts):
            raise ValueError(f"Got {len(layers)} weight matrices and {len(shifts)} bias vectors; they pair up, at least one.")
        for i, (layer, shift) in enumerate(zip(layers, shifts, strict=True)):
            if shift.shape != layer.shape[:1]:
                raise ValueError(f"biases[{i}] has shape {shift.shape}; weights[{i}] {layer.shape} needs {layer.shape[:1]}.")
            if i and layer.shape[1] != layers[i - 1].shape[0]:
                raise ValueError(f"weights[{i}] {layer.shape} does not take the {layers[i - 1].shape[0]} numbers before it.")
        bridge = None if skip is None else frozen_array(skip, "skip", (2,))
        if bridge is not None and bridge.shape != (layers[-1].shape[0], layers[0].shape[1]):
            raise ValueError(f"skip has shape {bridge.shape}; it must be {(layers[-1].shape[0], layers[0].shape[1])}.")
        object.__setattr__(self, "weights", layers)
        object.__setattr__(self, "biases", shifts)
        object.__setattr__(self, "skip", bridge)
        object.__setattr__(self, "activation", activation_named(activation).name)

    @property
    def width(self) -> int:
        """Length of an input vector."""
        return int(self.weights[0].shape[1])

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return int(self.weights[-1].shape[0])

    def __call__(self, points: ArrayLike) -> Floats:
        """Map ``(batch, in)`` to ``(batch, outputs)``, or to ``(batch,)`` where there is one output."""
        x = np.asarray(points, dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != self.width:
            raise ValueError(f"Points have shape {x.shape}; they must be (batch, {self.width}).")
        bend = activation_named(self.activation).value
        hidden = x
        for i, (layer, shift) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = (bend(hidden) if i else hidden) @ layer.T + shift
        if self.skip is not None:
            hidden = hidden + x @ self.skip.T
        return hidden[:, 0] if self.outputs == 1 else hidden

    @property
    def token_sizes(self) -> Floats:
        """Ordinary sizes, and those that reach the bends."""
        return np.concatenate([[0.25, 1.0, 4.0], self.bends])

    @property
    def bends(self) -> Floats:
        """Near, middle and far distances of the neurons' hyperplanes from the origin: tokens of such sizes cross them."""
        lengths = np.linalg.norm(self.weights[0], axis=1)
        live = lengths > 0
        if not live.any():
            return np.ones(1)
        distances = np.abs(self.biases[0][live]) / lengths[live]
        return np.asarray(np.maximum(np.quantile(distances, [0.25, 0.5, 0.9]), 1e-3 * distances.max() + 1e-12))

    @property
    def neurons(self) -> int:
        """Number of neurons in the first layer."""
        return len(self.biases[0])

    def behind(self, matrix: Floats, shift: Floats) -> FFN:
        """The network of ``matrix @ x + shift``, as one of ``x``."""
        biases = [self.biases[0] + self.weights[0] @ shift, *self.biases[1:]]
        if self.skip is not None:
            biases[-1] = biases[-1] + self.skip @ shift
        skip = None if self.skip is None else self.skip @ matrix
        return FFN([self.weights[0] @ matrix, *self.weights[1:]], biases, skip, self.activation)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """No heads."""
        return ()

    @property
    def matrices(self) -> tuple[Floats, ...]:
        """The weights, layer by layer."""
        return self.weights

    @property
    def anatomy(self) -> None:
        """Too few parts for a picture of them."""

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by the names under which they are saved."""
        blocks = {f"ffn.weights.{i}": layer for i, layer in enumerate(self.weights)}
        blocks |= {f"ffn.biases.{i}": shift for i, shift in enumerate(self.biases)}
        return blocks if self.skip is None else {**blocks, "ffn.skip": self.skip}

    @property
    def settings(self) -> dict[str, str]:
        """The activation, where it is not ReLU."""
        return {} if self.activation == "relu" else {"activation": self.activation}

    @classmethod
    def from_blocks(cls, blocks: dict[str, Floats], settings: dict[str, str]) -> FFN:
        """The inverse of ``blocks`` and ``settings``."""
        layers = range(sum(name.startswith("ffn.weights.") for name in blocks))
        weights, biases = ([blocks[f"ffn.{part}.{i}"] for i in layers] for part in ("weights", "biases"))
        return cls(weights, biases, blocks.get("ffn.skip"), settings.get("activation", "relu"))

    @property
    def takes_sequences(self) -> bool:
        """It is called on points."""
        return False

    @property
    def can_answer(self) -> bool:
        """Always."""
        return True

    def respond(self, sequences: Floats) -> Floats:
        """Answers to the last tokens."""
        return self(sequences[:, -1])

    def answer(self, sequences: Floats) -> Floats:
        """Answers ``(batch, outputs)`` to the last tokens."""
        return self(sequences[:, -1]).reshape(len(sequences), -1)

    def answer_at(self, sequences: Floats, *, causal: bool) -> tuple[Places, Floats]:
        """A few positions, and the answers there."""
        return answered_at(self, sequences, causal)

    def on_device(self, like: Floats) -> None:
        """There is no form for devices."""

    def shaken(self, relative: float, rng: np.random.Generator) -> FFN:
        """The network itself: it has no scores."""
        return self

    @property
    def freedom(self) -> int:
        """The number of free parameters."""
        return sum(w.size for w in self.weights) + sum(b.size for b in self.biases)

    def within(self, bounds: Any, rng: np.random.Generator) -> None:
        """Networks come without error bars."""

    def sizes(self, ranks: tuple[int, ...] | None) -> Sizes:
        """Neurons and the number of free parameters."""
        return Sizes(parameters=self.freedom, neurons=self.neurons)

    def to_torch(self) -> Any:
        """A ``torch.nn.Module`` in float64 with the same answers, on vectors and at every token of a sequence (extra ``torch``)."""
        from unsoftmax.models.torch_layouts import torch_modules

        return torch_modules().TorchFFN(self)

    def save(self, path: str | Path) -> None:
        """Write the parameters to a safetensors file."""
        from unsoftmax.models.files import save_model

        save_model(self, path)


@dataclass(frozen=True, eq=False)
class Transformer:
    """Attention, then a network at every position: ``ffn(residual * x_N + attention(X))``.

    Args:
        attention: one head, or several without residual; ``V`` is ``(heads, width, width)``, and in canonical form without residual
            adds up to the identity.
        ffn: the network, from ``width`` numbers to the answers; it may be a gated one.
        residual: whether the last token is added to the attention's output.
    """

    attention: Attention
    ffn: FFN | GatedFFN
    residual: bool = False

    def __post_init__(self) -> None:
        width = self.attention.width
        if self.attention.V is None or self.attention.V.shape[1:] != (width, width):
            shape = None if self.attention.V is None else self.attention.V.shape
            raise ValueError(f"The attention's V has shape {shape}; a Transformer needs {(len(self.attention.W), width, width)}.")
        if self.residual and len(self.attention.W) > 1:
            raise ValueError(f"A Transformer with residual has one head; this attention has {len(self.attention.W)}.")
        if self.ffn.width != width:
            raise ValueError(f"The network takes {self.ffn.width} numbers; the attention hands over {width}.")
        object.__setattr__(self, "residual", bool(self.residual))

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self.attention.width

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.ffn.outputs

    def __call__(self, sequences: ArrayLike) -> Floats:
        """Answer ``(batch, length, width)`` with ``(batch,)``, or ``(batch, outputs)`` where there are several."""
        X = check_sequences(sequences, self.width)
        mixed = self.attention(X)
        return self.ffn(mixed + X[:, -1] if self.residual else mixed)

    @property
    def token_sizes(self) -> Floats:
        """Sizes at which the scores show, and those that reach the bends of the network."""
        return np.concatenate([self.attention.token_sizes, self.ffn.bends])

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The one layer of heads."""
        return (self.attention,)

    @property
    def matrices(self) -> tuple[Floats, ...]:
        """The weights of the network, layer by layer."""
        return self.ffn.matrices

    @property
    def anatomy(self) -> None:
        """Too few parts for a picture of them."""

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by the names under which they are saved."""
        return {**self.attention.blocks, **self.ffn.blocks}

    @property
    def settings(self) -> dict[str, str]:
        """Whether the last token is added, and the activation."""
        return {"residual": str(self.residual).lower(), **self.ffn.settings}

    @classmethod
    def from_blocks(cls, blocks: dict[str, Floats], settings: dict[str, str]) -> Transformer:
        """The inverse of ``blocks`` and ``settings``."""
        network = GatedFFN if "gated.gate" in blocks else FFN
        attention, ffn = Attention.from_blocks(blocks, settings), network.from_blocks(blocks, settings)
        return cls(attention, ffn, residual=settings.get("residual") == "true")

    @property
    def takes_sequences(self) -> bool:
        """It is called on sequences."""
        return True

    @property
    def can_answer(self) -> bool:
        """Always."""
        return True

    def respond(self, sequences: Floats) -> Floats:
        """Answers to whole sequences."""
        return self(sequences)

    def answer(self, sequences: Floats) -> Floats:
        """Answers ``(batch, outputs)`` at the last position."""
        return self(sequences).reshape(len(sequences), -1)

    def answer_at(self, sequences: Floats, *, causal: bool) -> tuple[Places, Floats]:
        """A few positions, and the answers there."""
        return answered_at(self, sequences, causal)

    def on_device(self, like: Floats) -> None:
        """There is no form for devices."""

    def shaken(self, relative: float, rng: np.random.Generator) -> Transformer:
        """The Transformer with every score off by about this share of itself."""
        return Transformer(self.attention.shaken(relative, rng), self.ffn, self.residual)

    def within(self, bounds: Any, rng: np.random.Generator) -> Transformer | None:
        """Another Transformer whose head lies within its error bars; the network comes without any."""
        if bounds is None or bounds.W is None:
            return None
        head = self.attention
        W = head.W + np.asarray(bounds.W) / 2 * rng.normal(size=head.W.shape)
        c = head.c if bounds.c is None else head.c + np.asarray(bounds.c) / 2 * rng.normal(size=np.shape(head.c))
        return Transformer(Attention(W, head.V, c, head.b), self.ffn, self.residual)

    def sizes(self, ranks: tuple[int, ...] | None) -> Sizes:
        """Heads, ranks, neurons and the number of free parameters."""
        d, heads = self.width, len(self.attention.W)
        known = ranks or (d,) * heads
        scores = sum(r * (2 * d - r) for r in known) + d * heads * self.attention.has_c
        parameters = scores + self.ffn.freedom + d * d * (self.residual + heads - 1)
        return Sizes(parameters=parameters, heads=heads, rank=max(known), ranks=known, neurons=self.ffn.neurons)

    def to_torch(self, *, positions: Literal["last", "all"] = "last", causal: bool = False) -> Any:
        """A ``torch.nn.Module`` in float64 with the same answers, at the last position or at all (needs the extra ``torch``)."""
        from unsoftmax.models.torch_layouts import torch_modules

        return torch_modules().TorchTransformer(self, positions, causal)

    def save(self, path: str | Path) -> None:
        """Write the parameters to a safetensors file."""
        from unsoftmax.models.files import save_model

        save_model(self, path)
