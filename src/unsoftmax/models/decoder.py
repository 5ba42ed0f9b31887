"""Decoder language models: embeddings in, logits out, through norms, causal attention, MLPs and a final norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.evidence import Evidence
from unsoftmax.models.anatomy import Anatomy, Part, counted, norm_name
from unsoftmax.models.attention import Attention, check_sequences, frozen_array
from unsoftmax.models.base import Floats, Places, Sizes
from unsoftmax.models.decoder_layers import GATED, BiasedLayer, DecoderLayer, GatedMLP, Head, Layer, rotated
from unsoftmax.models.stack import MLP, Activation, Norm, normalised, random_stack

__all__ = ["BiasedLayer", "Decoder", "DecoderLayer", "GatedMLP", "Head", "Layer", "random_decoder", "random_gpt", "rotated"]


@dataclass(frozen=True, eq=False, init=False)
class Decoder:
    """A causal decoder ``h <- h + attention(n(h))``, ``h <- h + mlp(n(h))``, answered with ``unembedding @ n(h) + bias``.

    ``n`` is a bare norm; all gains are folded into the matrices. Either every score turns with the distance (RoPE) and nothing has
    a bias, as in Llama, or a table of positions is added to the tokens, as in GPT-2.

    Args:
        layers: the heads of each layer, first layer first.
        unembedding: ``(vocabulary, width)``, the final norm's gain folded in.
        epsilon: number under the norms' roots; None where it is not known.
        mlps: one per layer, or None where they are not known: then the decoder cannot be called, but ``limit`` can.
        norm: ``"rms"`` or ``"layer"``.
        bias: ``(vocabulary,)``, added to the logits; None for nothing.
        positions: ``(length, width)``, added to the tokens by their place; None for nothing.
        log: whether answers are log-probabilities instead of logits.
    """

    layers: tuple[Layer, ...]
    unembedding: Floats
    epsilon: float | None
    mlps: tuple[GatedMLP | MLP, ...] | None
    norm: Norm
    bias: Floats | None
    positions: Floats | None
    log: bool

    def __init__(
        self,
        layers: Sequence[Layer],
        unembedding: ArrayLike,
        epsilon: float | None = 1e-5,
        mlps: Sequence[GatedMLP | MLP] | None = None,
        *,
        norm: Norm = "rms",
        bias: ArrayLike | None = None,
        positions: ArrayLike | None = None,
        log: bool = False,
    ) -> None:
        blocks, networks = tuple(layers), None if mlps is None else tuple(mlps)
        table = frozen_array(unembedding, "unembedding", (2,))
        if not blocks:
            raise ValueError("A decoder needs at least one layer.")
        for i, layer in enumerate(blocks):
            if layer.width != table.shape[1]:
                raise ValueError(f"layers[{i}] has width {layer.width}; the unembedding has width {table.shape[1]}.")
        if networks is not None and len(networks) != len(blocks):
            raise ValueError(f"Got {len(blocks)} layers and {len(networks)} MLPs; they pair up.")
        if epsilon is not None and not epsilon > 0:
            raise ValueError(f"epsilon is {epsilon!r}; it is positive or None.")
        if len({layer.base for layer in blocks}) > 1:
            raise ValueError("The layers have different rotary bases; a decoder has one.")
        shift = None if bias is None else frozen_array(bias, "bias", (1,))
        places = None if positions is None else frozen_array(positions, "positions", (2,))
        if (shift is not None and len(shift) != len(table)) or (places is not None and places.shape[1] != table.shape[1]):
            raise ValueError(f"bias or positions do not fit an unembedding of shape {table.shape}.")
        names = ("layers", "unembedding", "epsilon", "mlps", "norm", "bias", "positions", "log")
        for name, value in zip(names, (blocks, table, epsilon, networks, norm, shift, places, bool(log)), strict=True):
            object.__setattr__(self, name, value)

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return int(self.unembedding.shape[1])

    @property
    def outputs(self) -> int:
        """Size of the vocabulary."""
        return int(self.unembedding.shape[0])

    @property
    def U(self) -> Floats:
        """The unembedding ``(vocabulary, width)`` with the final gain."""
        return self.unembedding

    @property
    def base(self) -> float | None:
        """Of the rotary frequencies; None where scores do not turn with the distance."""
        return self.layers[0].base

    @property
    def heads(self) -> int:
        """Query heads of all layers together."""
        return sum(len(layer.heads) for layer in self.layers)

    @property
    def complete(self) -> bool:
        """Whether the whole function is known."""
        return self.mlps is not None and self.epsilon is not None

    def __call__(self, sequences: ArrayLike, positions: Literal["last", "all"] = "last") -> Floats:
        """Answer ``(batch, length, width)`` with logits ``(batch, vocabulary)`` of the last position, or of all of them."""
        tokens = check_sequences(sequences, self.width)
        if self.mlps is None or self.epsilon is None:
            raise ValueError("This decoder holds its attention only (mlps or epsilon is None), so it cannot answer; see `limit`.")
        if positions not in ("last", "all"):
            raise ValueError(f"positions is {positions!r}; it must be 'last' or 'all'.")
        zeros = 0
        if self.base is not None:  # without biases zero tokens in front stay zero in every layer
            zeros = min(int(np.argmax(np.append(tokens.any(axis=(0, 2)), True))), tokens.shape[1] - 1)
        hidden = tokens[:, zeros:]
        if self.positions is not None:
            if tokens.shape[1] > len(self.positions):
                raise ValueError(f"Got {tokens.shape[1]} tokens; this decoder has {len(self.positions)} positions.")
            hidden = hidden + self.positions[: tokens.shape[1]]
        for i, (layer, mlp) in enumerate(zip(self.layers, self.mlps, strict=True)):
            last = i + 1 == len(self.layers) and positions == "last"
            seen = normalised(hidden, self.norm, self.epsilon)
            hidden = hidden[:, -1:] if last else hidden
            hidden = hidden + layer.attended(seen, hidden.shape[1], zeros)
            hidden = hidden + mlp(normalised(hidden, self.norm, self.epsilon))
        logits = normalised(hidden, self.norm, self.epsilon) @ self.unembedding.T
        if self.bias is not None:
            logits = logits + self.bias
        if positions == "all":
            logits = np.concatenate([np.zeros((len(logits), zeros, self.outputs)), logits], axis=1)
        if self.log:
            top = logits.max(-1, keepdims=True)
            logits = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
        return np.asarray(logits if positions == "all" else logits[:, -1])

    def limit(self, tokens: Floats, zeros: int | Floats = 0) -> Floats:
        """What all heads together add at the last of very long tokens ``(batch, length, width)``, ``(batch, width)``.

        ``zeros`` tokens that are zero stand in front of them. Very long tokens act by their direction alone, in every layer.
        """
        seen = normalised(tokens, self.norm, 0.0)
        count = np.broadcast_to(np.asarray(zeros, dtype=np.float64), (len(seen),))
        return np.asarray(sum(layer.limited(seen, count) for layer in self.layers))

    @property
    def token_sizes(self) -> Floats:
        """Norms make every size alike."""
        return np.array([0.3, 1.0, 3.0])

    @property
    def attentions(self) -> tuple[Any, ...]:
        """Heads whose scores turn with the distance are no layer of heads."""
        return ()

    @property
    def matrices(self) -> tuple[Floats, ...]:
        """The unembedding, and the MLPs where they are known."""
        return (self.unembedding, *(block for mlp in self.mlps or () for block in mlp.blocks.values() if block.ndim == 2))

    @property
    def anatomy(self) -> Anatomy:
        """Positions, blocks of heads and MLPs, each behind a norm, a final norm and the unembedding."""
        norm = norm_name(self.norm)
        before = (
            () if self.positions is None else (Part("positions", f"{len(self.positions)} vectors, one shared shift free", True),)
        )
        networks = [Part("MLP", "not known", False)] * len(self.layers)
        if self.mlps is not None:
            networks = [Part("MLP", counted(len(next(iter(mlp.blocks.values()))), "neuron"), True) for mlp in self.mlps]
        blocks = [(_heads_part(layer), network) for layer, network in zip(self.layers, networks, strict=True)]
        table = Part("unembedding", f"U, {self.outputs} by {self.width}" + ("" if self.bias is None else ", with bias"), True)
        behind = (Part(f"final {norm}", "its gain is part of U", True), table)
        names = [
            f"MLP of layer {i + 1}, {name}"
            for i, mlp in enumerate(self.mlps or ())
            for name, block in mlp.blocks.items()
            if block.ndim == 2
        ]
        return Anatomy(norm, before, tuple(blocks), behind, self.layers, ("Unembedding U", *names))

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by the names under which they are saved."""
        named = {"unembedding": self.unembedding, "bias": self.bias, "positions": self.positions}
        for part, name in ((self.layers, ""), (self.mlps or (), "mlp.")):
            named |= {f"layers.{i}.{name}{key}": block for i, one in enumerate(part) for key, block in one.blocks.items()}
        return {name: block for name, block in named.items() if block is not None}

    @property
    def settings(self) -> dict[str, str]:
        """Norm, base and epsilon where they are known, the kind of answers, activations."""
        found = {"norm": self.norm, "base": self.base, "epsilon": self.epsilon, "log": int(self.log)}
        told = {name: str(value) for name, value in found.items() if value is not None}
        activations = [str(getattr(mlp, "activation", "")) for mlp in self.mlps or ()]
        return {**told, "activation": ",".join(activations)} if any(activations) else told

    @classmethod
    def from_blocks(cls, blocks: dict[str, Floats], settings: dict[str, str]) -> Decoder:
        """The inverse of ``blocks`` and ``settings``."""
        layers: list[Layer] = []
        mlps: list[GatedMLP | MLP] = []
        activations = settings.get("activation", "").split(",")
        while parts := _under(f"layers.{len(layers)}.", blocks):
            network = _under("mlp.", parts)
            if "query" in parts:
                layers.append(DecoderLayer(parts["query"], parts["key"], parts["value"], parts["out"], float(settings["base"])))
            else:
                layers.append(BiasedLayer(Attention.from_blocks(parts, settings)))
            if "gate" in network:
                mlps.append(GatedMLP(*(network[name] for name in GATED)))
            elif network:
                mlps.append(MLP(**network, activation=cast(Activation, activations[len(mlps)])))
        return cls(
            layers,
            blocks["unembedding"],
            float(settings["epsilon"]) if "epsilon" in settings else None,
            mlps or None,
            norm=cast(Norm, settings.get("norm", "rms")),
            bias=blocks.get("bias"),
            positions=blocks.get("positions"),
            log=settings.get("log") == "1",
        )

    @property
    def can_answer(self) -> bool:
        """Whether MLPs and epsilon are known too."""
        return self.complete

    @property
    def takes_sequences(self) -> bool:
        """It is called on sequences."""
        return True

    def respond(self, sequences: Floats) -> Floats:
        """Answers ``(batch, vocabulary)`` at the last position."""
        return self(sequences)

    def answer(self, sequences: Floats) -> Floats:
        """Answers at the last position; without MLPs, what the heads add to the hidden state of very long tokens."""
        return self(sequences) if self.complete else self.limit(sequences)

    def answer_at(self, sequences: Floats, *, causal: bool) -> tuple[Places, Floats]:
        """Every position of a whole decoder, the last one of its attention alone, and the answers there."""
        if self.complete:
            return np.arange(sequences.shape[1]), self(sequences, "all")
        return np.array([sequences.shape[1] - 1]), self.limit(sequences)[:, None]

    def on_device(self, like: Floats) -> None:
        """There is no form for devices."""

    def within(self, bounds: Any, rng: np.random.Generator) -> None:
        """There are no error bars for decoders."""

    def shaken(self, relative: float, rng: np.random.Generator) -> Decoder:
        """The decoder with every score off by about this share of itself."""
        layers = [layer.shaken(relative, rng) for layer in self.layers]
        return Decoder(
            layers,
            self.unembedding,
            self.epsilon,
            self.mlps,
            norm=self.norm,
            bias=self.bias,
            positions=self.positions,
            log=self.log,
        )

    def sizes(self, ranks: tuple[int, ...] | None) -> Sizes:
        """Layers, heads, groups, ranks and the free parameters of the attention, gauges taken off."""
        more = {
            "groups": [layer.groups for layer in self.layers],
            "norm": self.norm,
            "rotary_base": self.base,
            "positions": None if self.positions is None else len(self.positions),
            "epsilon": self.epsilon,
        }
        return Sizes(
            parameters=sum(layer.free for layer in self.layers),
            heads=self.heads,
            rank=max(layer.rank for layer in self.layers),
            layers=len(self.layers),
            more=Evidence(more),
        )

    def save(self, path: str | Path) -> None:
        """Write the parameters to a safetensors file."""
        from unsoftmax.models.files import save_model

        save_model(self, path)


def _heads_part(layer: Layer) -> Part:
    """The heads of one layer in a picture."""
    count = len(layer.heads)
    if layer.base is None:
        return Part("attention", f"{counted(count, 'head')}: W, V and c", True)
    shared = "" if layer.groups == count else f" on {counted(layer.groups, 'key')}"
    return Part("attention", f"{counted(count, 'head')}{shared}, rank {layer.rank}, RoPE", True)


def random_decoder(
    layers: int,
    heads: int,
    width: int,
    rank: int,
    rng: np.random.Generator,
    *,
    groups: int | None = None,
    vocabulary: int | None = None,
    hidden: int | None = None,
    strength: float = 1.0,
    base: float = 10000.0,
    log: bool = False,
) -> Decoder:
    """A decoder with random gains and gated MLPs, scores of size ``strength``; a target for demonstrations and tests."""
    groups, hidden = heads if groups is None else groups, 2 * width if hidden is None else hidden
    vocabulary = 2 * width if vocabulary is None else vocabulary

    def gain() -> Floats:
        return np.asarray(1 + 0.2 * rng.normal(size=width))

    blocks, networks = [], []
    for _ in range(layers):
        before, behind = gain(), gain()
        query, key, value = (rng.normal(size=(n, rank, width)) / np.sqrt(width) * before for n in (heads, groups, groups))
        out = rng.normal(size=(heads, width, rank)) / np.sqrt(heads * rank)
        blocks.append(DecoderLayer(strength * query, key, value, out, base))
        gate, up = (rng.normal(size=(hidden, width)) / np.sqrt(width) * behind for _ in range(2))
        networks.append(GatedMLP(gate, up, rng.normal(size=(width, hidden)) / np.sqrt(hidden)))
    table = rng.normal(size=(vocabulary, width)) / np.sqrt(width) * gain()
    return Decoder(blocks, table, 1e-5, networks, log=log)


def random_gpt(
    layers: int,
    heads: int,
    width: int,
    rank: int,
    rng: np.random.Generator,
    *,
    places: int = 64,
    vocabulary: int | None = None,
    strength: float = 1.0,
    norm: Norm = "layer",
    log: bool = False,
) -> Decoder:
    """A decoder with learned positions, LayerNorm and biases everywhere; a target for demonstrations and tests."""
    stack = random_stack(layers, heads, width, rank, rng, norm=norm, strength=strength)
    table = rng.normal(size=(vocabulary or 2 * width, width)) / np.sqrt(width) * (1 + 0.2 * rng.normal(size=width))
    bias, positions = table @ (0.3 * rng.normal(size=width)), 0.5 * rng.normal(size=(places, width))
    blocks = [BiasedLayer(layer) for layer in stack.layers]
    return Decoder(blocks, table, stack.epsilon, stack.mlps, norm=norm, bias=bias, positions=positions, log=log)


def _under(start: str, blocks: dict[str, Floats]) -> dict[str, Floats]:
    return {name.removeprefix(start): block for name, block in blocks.items() if name.startswith(start)}
