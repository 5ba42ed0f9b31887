"""Pre-norm residual stacks: blocks ``h + attention(norm h)``, then ``h + mlp(norm h)``, and the norms that they may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf

from unsoftmax.evidence import Evidence
from unsoftmax.models.activations import activation_named
from unsoftmax.models.anatomy import Anatomy, Part, counted, norm_name
from unsoftmax.models.attention import Attention, check_sequences, frozen_array
from unsoftmax.models.base import Floats, Places, Sizes, answered_at
from unsoftmax.models.decoder_layers import BiasedLayer

Norm = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "silu", "gelu_tanh"]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)


def normalised(tokens: Floats, norm: Norm, epsilon: float) -> Floats:
    """Bare norm of tokens along the last axis, no gain and no bias: root mean square one, and mean zero for ``"layer"``.

    >>> normalised(np.array([3.0, -3.0, 0.0, 0.0]), "rms", 0.0) * 3 / 2**0.5
    array([ 3., -3.,  0.,  0.])
    """
    centred = tokens - tokens.mean(-1, keepdims=True) if norm == "layer" else tokens
    return np.asarray(centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + epsilon))


def activated(x: Floats, activation: Activation) -> Floats:
    """The activation of every entry."""
    if activation == "relu":
        return np.maximum(x, 0.0)
    if activation == "silu":
        return np.asarray(x / (1 + np.exp(-x)))
    if activation == "gelu_tanh":
        return activation_named(activation).value(x)
    return np.asarray(0.5 * x * (1 + erf(x / np.sqrt(2.0))))


@dataclass(frozen=True, eq=False, init=False)
class MLP:
    """``second act(first x + first_bias) + second_bias`` on normalised tokens, gains and biases of the norm folded in.

    Args:
        first: matrix ``(hidden, width)`` as in ``torch.nn.Linear``.
        first_bias: vector ``(hidden,)``.
        second: matrix ``(width, hidden)``.
        second_bias: vector ``(width,)``.
        activation: ``"relu"``, ``"gelu"`` (exact), ``"gelu_tanh"`` (as in GPT-2) or ``"silu"``.
    """

    first: Floats
    first_bias: Floats
    second: Floats
    second_bias: Floats
    activation: Activation

    def __init__(
        self,
        first: ArrayLike,
        first_bias: ArrayLike,
        second: ArrayLike,
        second_bias: ArrayLike,
        activation: Activation = "gelu",
    ) -> None:
        blocks = {
            "first": frozen_array(first, "first", (2,)),
            "first_bias": frozen_array(first_bias, "first_bias", (1,)),
            "second": frozen_array(second, "second", (2,)),
            "second_bias": frozen_array(second_bias, "second_bias", (1,)),
        }
        hidden, width = blocks["first"].shape
        wanted = {"first": (hidden, width), "first_bias": (hidden,), "second": (width, hidden), "second_bias": (width,)}
        for name, block in blocks.items():
            if block.shape != wanted[name]:
                raise ValueError(f"{name} has shape {block.shape}; with first {(hidden, width)} it must be {wanted[name]}.")
            object.__setattr__(self, name, block)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is {activation!r}; it must be one of {', '.join(ACTIVATIONS)}.")
        object.__setattr__(self, "activation", activation)

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by name."""
        return {name: getattr(self, name) for name in ("first", "first_bias", "second", "second_bias")}

    def __call__(self, points: Floats) -> Floats:
        """Map normalised tokens ``(..., width)`` to ``(..., width)``."""
        return np.asarray(activated(points @ self.first.T + self.first_bias, self.activation) @ self.second.T + self.second_bias)


@dataclass(frozen=True, eq=False, init=False)
class Stack:
    """A pre-norm stack ``h <- h + attention_l(n(h))``, ``h <- h + mlp_l(n(h))``, answered with the hidden state, no final norm.

    The attention of each block acts on bare normalised tokens: gains and biases of its norm are folded into W, c and V, and with
    ``norm="layer"`` W, c and V carry nothing along the all-ones vector, which such tokens do not have.

    Args:
        layers: the heads of each block, an ``Attention`` with ``V (heads, width, width)``; first block first.
        norm: ``"layer"`` or ``"rms"``.
        epsilon: number added to the mean square under the norm's root; None where it is not known.
        mlps: one ``MLP`` per block, or None where they are not known: then the stack cannot be called.

    >>> head = Attention(W=np.zeros((1, 2, 2)), V=np.eye(2)[None])
    >>> Stack([head], norm="rms", epsilon=0.0, mlps=[MLP([[0.0, 0.0]], [0.0], [[0.0], [0.0]], [0.5, 0.0])])([[[3.0, 3.0]]])
    array([[4.5, 4. ]])
    """

    layers: tuple[Attention, ...]
    norm: Norm
    epsilon: float | None
    mlps: tuple[MLP, ...] | None

    def __init__(
        self,
        layers: Sequence[Attention],
        norm: Norm,
        epsilon: float | None = 1e-5,
        mlps: Sequence[MLP] | None = None,
    ) -> None:
        blocks = tuple(layers)
        if not blocks:
            raise ValueError("A stack needs at least one layer.")
        width = blocks[0].width
        for i, block in enumerate(blocks):
            if block.V is None or block.V.shape != (block.heads, width, width):
                shape = None if block.V is None else block.V.shape
                raise ValueError(
                    f"layers[{i}].V has shape {shape}; in a stack of width {width} it is {(block.heads, width, width)}."
                )
        if norm not in ("layer", "rms"):
            raise ValueError(f"norm is {norm!r}; it must be 'layer' or 'rms'.")
        if epsilon is not None and not 0 <= epsilon < float("inf"):
            raise ValueError(f"epsilon is {epsilon!r}; it must be a number of at least 0, or None.")
        networks = None if mlps is None else tuple(mlps)
        if networks is not None and len(networks) != len(blocks):
            raise ValueError(f"Got {len(blocks)} layers and {len(networks)} MLPs; they pair up.")
        for name, value in (("layers", blocks), ("norm", norm), ("epsilon", epsilon), ("mlps", networks)):
            object.__setattr__(self, name, value)

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self.layers[0].width

    @property
    def outputs(self) -> int:
        """Length of an answer: the hidden state."""
        return self.width

    @property
    def heads(self) -> int:
        """Number of heads in all layers together."""
        return sum(layer.heads for layer in self.layers)

    @property
    def complete(self) -> bool:
        """Whether the whole function is known, so that the stack can be called."""
        return self.mlps is not None and self.epsilon is not None

    def limit(self) -> Attention:
        """All heads of all layers as one layer: how the stack acts on very long tokens, its function of the last token aside."""
        W, V, c = (np.concatenate([getattr(layer, name) for layer in self.layers]) for name in ("W", "V", "c"))
        return Attention(W, V, c)

    def __call__(self, sequences: ArrayLike, positions: Literal["last", "all"] = "last", *, causal: bool = False) -> Floats:
        """Answer ``(batch, length, width)`` with the last hidden state ``(batch, width)``, or with all of them."""
        hidden = check_sequences(sequences, self.width)
        if self.mlps is None or self.epsilon is None:
            raise ValueError("This stack holds its heads only (mlps or epsilon is None), so it cannot answer; see `Stack.limit`.")
        if positions not in ("last", "all"):
            raise ValueError(f"positions is {positions!r}; it must be 'last' or 'all'.")
        for i, (layer, mlp) in enumerate(zip(self.layers, self.mlps, strict=True)):
            seen = normalised(hidden, self.norm, self.epsilon)
            if i + 1 == len(self.layers) and positions == "last":
                hidden = hidden[:, -1] + layer(seen)
            else:
                hidden = hidden + layer(seen, "all", causal=causal)
            hidden = hidden + mlp(normalised(hidden, self.norm, self.epsilon))
        return hidden

    def mlp_values(self, points: ArrayLike) -> Floats:
        """What the constants and the MLP of each layer add at normalised tokens ``(n, width)``: ``(layers, n, width)``.

        Where MLPs are not known, ``unsoftmax.learners.stack.mlp_values`` reads those of earlier layers from the target.
        """
        if self.mlps is None:
            raise ValueError("This stack holds its heads only; `unsoftmax.learners.stack.mlp_values` reads MLPs from a target.")
        tokens = np.asarray(points, dtype=np.float64)
        return np.stack([layer.b + mlp(tokens) for layer, mlp in zip(self.layers, self.mlps, strict=True)])

    @property
    def token_sizes(self) -> Floats:
        """Norms make every size alike; below one, what the layers add outweighs the token."""
        return np.array([0.3, 1.0, 3.0])

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The heads of each layer."""
        return self.layers

    @property
    def matrices(self) -> tuple[Floats, ...]:
        """The weights of the MLPs, where they are known."""
        return () if self.mlps is None else tuple(block for mlp in self.mlps for block in (mlp.first, mlp.second))

    @property
    def anatomy(self) -> Anatomy:
        """Blocks of heads and MLPs, each behind a norm."""
        networks = [Part("MLP", "not known, nor b, nor epsilon", False)] * len(self.layers)
        if self.mlps is not None:
            networks = [Part("MLP", f"{counted(len(mlp.first), 'neuron')}, {mlp.activation}", True) for mlp in self.mlps]
        blocks = [
            (Part("attention", f"{counted(layer.heads, 'head')}: W, V and c", True), network)
            for layer, network in zip(self.layers, networks, strict=True)
        ]
        names = [f"MLP of layer {i + 1}, {way}" for i in range(len(self.mlps or ())) for way in ("inwards", "outwards")]
        answer = Part("answer", "the hidden state", True)
        return Anatomy(norm_name(self.norm), (), tuple(blocks), (answer,), tuple(map(BiasedLayer, self.layers)), tuple(names))

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by the names under which they are saved."""
        named = {f"layers.{i}.{name}": block for i, layer in enumerate(self.layers) for name, block in layer.blocks.items()}
        for i, mlp in enumerate(self.mlps or ()):
            named |= {f"layers.{i}.mlp.{name}": block for name, block in mlp.blocks.items()}
        return named

    @property
    def settings(self) -> dict[str, str]:
        """The norm, its epsilon and the activation of the MLPs, where they are known."""
        found: dict[str, str] = {"norm": self.norm} if self.epsilon is None else {"norm": self.norm, "epsilon": repr(self.epsilon)}
        return found if self.mlps is None else {**found, "activation": ",".join(mlp.activation for mlp in self.mlps)}

    @classmethod
    def from_blocks(cls, blocks: dict[str, Floats], settings: dict[str, str]) -> Stack:
        """The inverse of ``blocks`` and ``settings``."""
        layers: list[Attention] = []
        mlps: list[MLP] = []
        activations = settings["activation"].split(",") if "activation" in settings else []
        while f"layers.{len(layers)}.attention.W" in blocks:
            at = f"layers.{len(layers)}."
            layers.append(Attention.from_blocks({n.removeprefix(at): b for n, b in blocks.items() if n.startswith(at)}, settings))
        for i, activation in enumerate(activations):
            parts = {name: blocks[f"layers.{i}.mlp.{name}"] for name in ("first", "first_bias", "second", "second_bias")}
            mlps.append(MLP(**parts, activation=cast(Activation, activation)))
        epsilon = float(settings["epsilon"]) if "epsilon" in settings else None
        return cls(layers, cast(Norm, settings["norm"]), epsilon, mlps or None)

    @property
    def can_answer(self) -> bool:
        """Whether MLPs and epsilon are known too."""
        return self.complete

    @property
    def takes_sequences(self) -> bool:
        """It is called on sequences."""
        return True

    def respond(self, sequences: Floats) -> Floats:
        """Answers ``(batch, width)`` at the last position."""
        return self(sequences)

    def within(self, bounds: Any, rng: np.random.Generator) -> None:
        """There are no error bars for stacks."""

    def answer(self, sequences: Floats) -> Floats:
        """Answers ``(batch, width)`` at the last position; without MLPs, what the heads add to the answers of very long tokens."""
        if self.complete:
            return self(sequences)
        return self.limit()(normalised(sequences, self.norm, 0.0))

    def answer_at(self, sequences: Floats, *, causal: bool) -> tuple[Places, Floats]:
        """Every position of a whole stack, a few of the heads alone, and the answers there."""
        if self.complete:
            return np.arange(sequences.shape[1]), self(sequences, "all", causal=causal)
        return answered_at(self, sequences, causal)

    def on_device(self, like: Floats) -> None:
        """There is no form for devices."""

    def shaken(self, relative: float, rng: np.random.Generator) -> Stack:
        """The stack with every score off by about this share of itself."""
        return Stack([layer.shaken(relative, rng) for layer in self.layers], self.norm, self.epsilon, self.mlps)

    def sizes(self, ranks: tuple[int, ...] | None) -> Sizes:
        """Layers, heads, ranks and the number of free parameters, of the MLPs and their constants too where they are known."""
        d, known = self.width, ranks or tuple(int(rank) for rank in np.linalg.matrix_rank(self.limit().W, rtol=1e-6))
        e = d - (self.norm == "layer")
        parameters = sum(r * (2 * e - r) + r + r * (e + d - r) for r in known)
        for mlp in self.mlps or ():  # a ReLU neuron is known up to a factor
            parameters += len(mlp.first) * (e + 1 + d - (mlp.activation == "relu")) + d
        return Sizes(
            parameters=parameters,
            heads=self.heads,
            rank=max(known),
            ranks=known,
            layers=len(self.layers),
            more=Evidence({"norm": self.norm}),
        )

    def save(self, path: str | Path) -> None:
        """Write the parameters to a safetensors file."""
        from unsoftmax.models.files import save_model

        save_model(self, path)


def random_stack(
    layers: int,
    heads: int,
    width: int,
    rank: int,
    rng: np.random.Generator,
    *,
    norm: Norm = "layer",
    hidden: int | None = None,
    strength: float = 1.0,
    activation: Activation = "gelu",
) -> Stack:
    """A stack with random gains, biases and MLPs, scores of size ``strength``; a target for demonstrations and tests."""
    hidden = 4 * width if hidden is None else hidden
    blocks, networks = [], []
    for _ in range(layers):
        gain, shift = 1 + 0.3 * rng.normal(size=width), 0.3 * rng.normal(size=width)
        query, key, value = (rng.normal(size=(heads, rank, width)) / np.sqrt(width) for _ in range(3))
        asked, said = 0.3 * rng.normal(size=(2, heads, rank))
        out = rng.normal(size=(heads, width, rank)) / np.sqrt(heads * rank)
        W = strength * np.einsum("hri,hrj->hij", key, query) / np.sqrt(rank)
        c = strength * np.einsum("hri,hr->hi", key, asked) / np.sqrt(rank) + W @ shift
        V = np.einsum("hri,hor->hio", value, out)
        b = 0.1 * rng.normal(size=width) + np.einsum("hor,hr->o", out, said) + np.einsum("hio,i->o", V, shift)
        W, c, V = gain[:, None] * W * gain, gain * c, gain[:, None] * V
        if norm == "layer":
            W, c, V = _centred(_centred(W, 1), 2), _centred(c, 1), _centred(V, 1)
        blocks.append(Attention(W, V, c, b))
        gain, shift = 1 + 0.3 * rng.normal(size=width), 0.3 * rng.normal(size=width)
        first = rng.normal(size=(hidden, width)) / np.sqrt(width)
        second, ends = rng.normal(size=(width, hidden)) / np.sqrt(hidden), 0.1 * rng.normal(size=width)
        networks.append(MLP(first * gain, 0.3 * rng.normal(size=hidden) + first @ shift, second, ends, activation))
    return Stack(blocks, norm, 1e-5, networks)


def _centred(array: Floats, axis: int) -> Floats:
    return np.asarray(array - array.mean(axis=axis, keepdims=True))
