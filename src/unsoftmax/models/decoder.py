"""Decoder language models: embeddings in, logits out, through RMSNorm, rotary positions, grouped keys and a final norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.attention import check_sequences, frozen_array
from unsoftmax.models.base import Floats, Places
from unsoftmax.models.stack import normalised

PARTS = ("query", "key", "value", "out")
GATED = ("gate", "up", "down")


@dataclass(frozen=True, eq=False, init=False)
class DecoderLayer:
    """The heads of one layer on bare normalised tokens, gains of the norm folded in; query heads share keys and values in groups.

    Args:
        query: ``(heads, rank, width)``.
        key: ``(groups, rank, width)``; the heads of a group stand side by side, as in grouped-query attention.
        value: ``(groups, value_rank, width)``.
        out: ``(heads, width, value_rank)``.
    """

    query: Floats
    key: Floats
    value: Floats
    out: Floats

    def __init__(self, query: ArrayLike, key: ArrayLike, value: ArrayLike, out: ArrayLike) -> None:
        blocks = {name: frozen_array(a, name, (3,)) for name, a in zip(PARTS, (query, key, value, out), strict=True)}
        heads, rank, width = blocks["query"].shape
        groups, inner = blocks["key"].shape[0], blocks["value"].shape[1]
        wanted = {"key": (groups, rank, width), "value": (groups, inner, width), "out": (heads, width, inner)}
        for name, shape in wanted.items():
            if blocks[name].shape != shape:
                raise ValueError(f"{name} has shape {blocks[name].shape}; with query {blocks['query'].shape} it must be {shape}.")
        if heads % groups or rank % 2:
            raise ValueError(f"There are {heads} heads of rank {rank} in {groups} groups; groups are equal and ranks even.")
        for name, block in blocks.items():
            object.__setattr__(self, name, block)

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return len(self.query)

    @property
    def rank(self) -> int:
        """Rank of the scores: twice the number of rotary frequencies."""
        return int(self.query.shape[1])

    @property
    def group(self) -> Places:
        """Which keys and values each head has."""
        return np.arange(self.heads) // (self.heads // len(self.key))

    @property
    def V(self) -> Floats:
        """Values ``(heads, width, width)``: a token ``p`` adds ``p @ V[h]``."""
        return np.asarray(np.einsum("hri,hor->hio", self.value[self.group], self.out))

    def scores(self, offset: float, base: float) -> Floats:
        """``W (heads, width, width)`` of tokens so many places apart: the score of a key ``p`` is ``p @ W[h] @ x``."""
        turned = rotated(np.swapaxes(self.query, 1, 2), np.array(float(offset)), base)
        return np.asarray(np.einsum("hri,hjr->hij", self.key[self.group], turned) / np.sqrt(self.rank))


@dataclass(frozen=True, eq=False, init=False)
class GatedMLP:
    """``down (silu(gate x) * (up x))`` on normalised tokens, gains folded in; ``gate`` and ``up`` are ``(hidden, width)``."""

    gate: Floats
    up: Floats
    down: Floats

    def __init__(self, gate: ArrayLike, up: ArrayLike, down: ArrayLike) -> None:
        for name, array in zip(GATED, (gate, up, down), strict=True):
            object.__setattr__(self, name, frozen_array(array, name, (2,)))
        if self.gate.shape != self.up.shape or self.down.shape != self.gate.shape[::-1]:
            raise ValueError(f"gate {self.gate.shape}, up {self.up.shape} and down {self.down.shape} do not fit together.")

    def __call__(self, points: Floats) -> Floats:
        """Map normalised tokens ``(..., width)`` to ``(..., width)``."""
        gates = points @ self.gate.T
        return np.asarray((gates / (1 + np.exp(-gates)) * (points @ self.up.T)) @ self.down.T)


def rotated(vectors: Floats, places: Floats, base: float) -> Floats:
    """Turn ``(..., rank)`` by rotary positions ``places``: entries ``f`` and ``f + rank / 2`` by ``place * base^(-2 f / rank)``.

    >>> rotated(np.array([1.0, 0.0]), np.array(np.pi / 2), 10000.0).round(12)
    array([0., 1.])
    """
    half = vectors.shape[-1] // 2
    angles = places[..., None] * base ** (-np.arange(half) / half)
    a, b = vectors[..., :half], vectors[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], axis=-1)


@dataclass(frozen=True, eq=False, init=False)
class Decoder:
    """A causal decoder ``h <- h + attention(n(h))``, ``h <- h + mlp(n(h))``, answered with ``unembedding @ n(h)``.

    ``n`` is RMSNorm, every score turns with the distance (RoPE), nothing has a bias. All gains are folded into the matrices.

    Args:
        layers: the heads of each layer, first layer first.
        unembedding: ``(vocabulary, width)``, the final norm's gain folded in.
        base: of the rotary frequencies.
        epsilon: number under the norms' roots; None where it is not known.
        mlps: one per layer, or None where they are not known: then the decoder cannot be called, but ``limit`` can.
        log: whether answers are log-probabilities instead of logits.
    """

    layers: tuple[DecoderLayer, ...]
    unembedding: Floats
    base: float
    epsilon: float | None
    mlps: tuple[GatedMLP, ...] | None
    log: bool

    def __init__(
        self,
        layers: Sequence[DecoderLayer],
        unembedding: ArrayLike,
        base: float = 10000.0,
        epsilon: float | None = 1e-5,
        mlps: Sequence[GatedMLP] | None = None,
        *,
        log: bool = False,
    ) -> None:
        blocks, networks = tuple(layers), None if mlps is None else tuple(mlps)
        table = frozen_array(unembedding, "unembedding", (2,))
        if not blocks:
            raise ValueError("A decoder needs at least one layer.")
        for i, layer in enumerate(blocks):
            if layer.query.shape[2] != table.shape[1]:
                raise ValueError(f"layers[{i}] has width {layer.query.shape[2]}; the unembedding has width {table.shape[1]}.")
        if networks is not None and len(networks) != len(blocks):
            raise ValueError(f"Got {len(blocks)} layers and {len(networks)} MLPs; they pair up.")
        if not base > 1 or (epsilon is not None and not epsilon > 0):
            raise ValueError(f"base is {base!r} and epsilon {epsilon!r}; the base exceeds one, epsilon is positive or None.")
        values = (blocks, table, float(base), epsilon, networks, bool(log))
        for name, value in zip(("layers", "unembedding", "base", "epsilon", "mlps", "log"), values, strict=True):
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
    def heads(self) -> int:
        """Query heads of all layers together."""
        return sum(layer.heads for layer in self.layers)

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
        zeros = int(np.argmax(np.append(tokens.any(axis=(0, 2)), True)))  # zero tokens in front stay zero in every layer
        zeros = min(zeros, tokens.shape[1] - 1)
        hidden = tokens[:, zeros:]
        for i, (layer, mlp) in enumerate(zip(self.layers, self.mlps, strict=True)):
            last = i + 1 == len(self.layers) and positions == "last"
            seen = normalised(hidden, "rms", self.epsilon)
            hidden = hidden[:, -1:] if last else hidden
            hidden = hidden + self._attended(layer, seen, hidden.shape[1], zeros)
            hidden = hidden + mlp(normalised(hidden, "rms", self.epsilon))
        logits = normalised(hidden, "rms", self.epsilon) @ self.unembedding.T
        if positions == "all":
            logits = np.concatenate([np.zeros((len(logits), zeros, self.outputs)), logits], axis=1)
        if self.log:
            top = logits.max(-1, keepdims=True)
            logits = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
        return np.asarray(logits if positions == "all" else logits[:, -1])

    def _attended(self, layer: DecoderLayer, seen: Floats, asked: int, zeros: int) -> Floats:
        """What the heads of a layer add at the last ``asked`` positions; ``zeros`` tokens that are zero stand in front."""
        batch, length, width = seen.shape
        places = np.arange(length, dtype=np.float64)
        queries = rotated(np.einsum("bni,hri->bhnr", seen[:, length - asked :], layer.query), places[length - asked :], self.base)
        keys = rotated(np.einsum("bni,hri->bhnr", seen, layer.key), places, self.base)[:, layer.group]
        values = np.einsum("bni,hri->bhnr", seen, layer.value)[:, layer.group]
        scores = queries @ np.swapaxes(keys, 2, 3) / np.sqrt(layer.rank)
        scores = np.where(places[None, :] <= places[length - asked :, None], scores, -np.inf)
        top = np.maximum(scores.max(-1, keepdims=True), 0.0 if zeros else -np.inf)
        weights = np.exp(scores - top)
        weights /= weights.sum(-1, keepdims=True) + zeros * np.exp(-top)
        return np.asarray(np.einsum("bhnr,hor->bno", weights @ values, layer.out)).reshape(batch, asked, width)

    def limit(self, tokens: Floats, zeros: int | Floats = 0) -> Floats:
        """What all heads together add at the last of very long tokens ``(batch, length, width)``, ``(batch, width)``.

        ``zeros`` tokens that are zero stand in front of them. Very long tokens act by their direction alone, in every layer.
        """
        seen = normalised(tokens, "rms", 0.0)
        length = seen.shape[1]
        offsets = np.arange(length - 1, -1, -1, dtype=np.float64)
        count = np.broadcast_to(np.asarray(zeros, dtype=np.float64), (len(seen),))[:, None]
        total = np.zeros((len(seen), self.width))
        for layer in self.layers:
            keys = np.einsum("bni,hri->hbnr", seen, layer.key)[layer.group]
            queries = np.einsum("bi,hri->hbr", seen[:, -1], layer.query)
            turned = rotated(np.repeat(queries[:, :, None], length, axis=2), offsets, self.base)
            raised = np.exp(np.einsum("hbnr,hbnr->hbn", keys, turned) / np.sqrt(layer.rank))
            shares = raised / (raised.sum(-1) + count.T)[:, :, None]
            mixed = np.einsum("hbn,bni->hbi", shares, seen)
            total += np.einsum("hbi,hri,hor->bo", mixed, layer.value[layer.group], layer.out, optimize=True)
        return total

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
        return (self.unembedding, *(getattr(mlp, name) for mlp in self.mlps or () for name in GATED))

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by the names under which they are saved."""
        named = {"unembedding": self.unembedding}
        for i, layer in enumerate(self.layers):
            named |= {f"layers.{i}.{name}": getattr(layer, name) for name in PARTS}
        for i, mlp in enumerate(self.mlps or ()):
            named |= {f"layers.{i}.mlp.{name}": getattr(mlp, name) for name in GATED}
        return named

    @property
    def settings(self) -> dict[str, str]:
        """Base, epsilon where it is known, and the kind of answers."""
        found = {"base": repr(self.base), "log": str(int(self.log))}
        return found if self.epsilon is None else {**found, "epsilon": repr(self.epsilon)}

    @classmethod
    def from_blocks(cls, blocks: dict[str, Floats], settings: dict[str, str]) -> Decoder:
        """The inverse of ``blocks`` and ``settings``."""
        count = sum(name.endswith(".query") for name in blocks)
        layers = [DecoderLayer(*(blocks[f"layers.{i}.{name}"] for name in PARTS)) for i in range(count)]
        known = "layers.0.mlp.gate" in blocks
        mlps = [GatedMLP(*(blocks[f"layers.{i}.mlp.{name}"] for name in GATED)) for i in range(count)] if known else None
        epsilon = float(settings["epsilon"]) if "epsilon" in settings else None
        return cls(layers, blocks["unembedding"], float(settings["base"]), epsilon, mlps, log=settings.get("log") == "1")

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
        layers = []
        for layer in self.layers:
            off = 1.0 + relative * rng.normal(size=layer.query.shape)
            layers.append(DecoderLayer(layer.query * off, layer.key, layer.value, layer.out))
        return Decoder(layers, self.unembedding, self.base, self.epsilon, self.mlps, log=self.log)

    def sizes(self, ranks: tuple[int, ...] | None) -> dict[str, Any]:
        """Layers, heads, groups, ranks and the free parameters of the attention, gauges taken off."""
        free = 0
        for layer in self.layers:
            inner = layer.value.shape[1]
            free += sum(getattr(layer, name).size for name in PARTS) - len(layer.key) * (layer.rank + inner**2)
        return {
            "layers": len(self.layers),
            "heads": self.heads,
            "groups": [len(layer.key) for layer in self.layers],
            "rank": max(layer.rank for layer in self.layers),
            "rotary_base": self.base,
            "epsilon": self.epsilon,
            "parameters": free,
        }

    def save(self, path: str | Path) -> None:
        """Write the parameters to a safetensors file."""
        from unsoftmax.models.files import save_model

        save_model(self, path)


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
        blocks.append(DecoderLayer(strength * query, key, value, out))
        gate, up = (rng.normal(size=(hidden, width)) / np.sqrt(width) * behind for _ in range(2))
        networks.append(GatedMLP(gate, up, rng.normal(size=(width, hidden)) / np.sqrt(hidden)))
    table = rng.normal(size=(vocabulary, width)) / np.sqrt(width) * gain()
    return Decoder(blocks, table, base, 1e-5, networks, log=log)
