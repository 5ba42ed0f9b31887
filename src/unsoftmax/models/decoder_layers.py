"""What decoders are made of: layers of heads behind rotary or learned positions, and gated MLPs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.attention import Attention, frozen_array
from unsoftmax.models.base import Floats, Places, jittered

PARTS = ("query", "key", "value", "out")
GATED = ("gate", "up", "down")


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """One head of a decoder's layer, by its number."""

    layer: Layer
    number: int

    @property
    def V(self) -> Floats:
        """``(width, width)``: a token ``p`` adds ``p @ V``."""
        return np.asarray(self.layer.V[self.number])

    def scores(self, offset: float) -> Floats:
        """``W (width, width)`` of tokens so many places apart: a key ``p`` has the score ``p @ W @ x``, and ``p @ c`` by itself."""
        return np.asarray(self.layer.scores(offset)[self.number])


class Layer(Protocol):
    """The heads of one layer on bare normalised tokens, gains and biases of the norm folded in."""

    @property
    def width(self) -> int:
        """Length of a token."""

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads."""

    @property
    def groups(self) -> int:
        """How many keys and values the heads share."""

    @property
    def rank(self) -> int:
        """Rank of the scores."""

    @property
    def base(self) -> float | None:
        """Of the rotary frequencies; None where scores do not turn with the distance."""

    @property
    def V(self) -> Floats:
        """Values ``(heads, width, width)``: a token ``p`` adds ``p @ V[h]``."""

    @property
    def c(self) -> Floats:
        """``(heads, width)``: scores that keys have by themselves, ``p @ c[h]``."""

    @property
    def free(self) -> int:
        """Parameters, gauges taken off."""

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by name."""

    def scores(self, offset: float) -> Floats:
        """``W (heads, width, width)`` of tokens so many places apart."""

    def profile(self, distances: Floats) -> tuple[Floats, Floats]:
        """Scores of tokens so many places apart, each ``(heads, distances)``: their mean where the two tokens are equal, and their
        root mean square where they are not, over all normalised tokens."""

    def attended(self, seen: Floats, asked: int, zeros: int) -> Floats:
        """What the heads add at the last ``asked`` of normalised tokens ``(batch, length, width)`` behind ``zeros`` zero tokens."""

    def limited(self, seen: Floats, zeros: Floats) -> Floats:
        """The same at the last token, ``(batch, width)``, behind ``zeros (batch,)`` zero tokens."""

    def shaken(self, relative: float, rng: np.random.Generator) -> Layer:
        """The layer with every score off by about this share of itself."""


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
class DecoderLayer:
    """Heads whose scores turn with the distance (RoPE), without biases; query heads share keys and values in groups.

    Args:
        query: ``(heads, rank, width)``.
        key: ``(groups, rank, width)``; the heads of a group stand side by side, as in grouped-query attention.
        value: ``(groups, value_rank, width)``.
        out: ``(heads, width, value_rank)``.
        base: of the rotary frequencies.
    """

    query: Floats
    key: Floats
    value: Floats
    out: Floats
    base: float

    def __init__(self, query: ArrayLike, key: ArrayLike, value: ArrayLike, out: ArrayLike, base: float = 10000.0) -> None:
        blocks = {name: frozen_array(a, name, (3,)) for name, a in zip(PARTS, (query, key, value, out), strict=True)}
        heads, rank, width = blocks["query"].shape
        groups, inner = blocks["key"].shape[0], blocks["value"].shape[1]
        wanted = {"key": (groups, rank, width), "value": (groups, inner, width), "out": (heads, width, inner)}
        for name, shape in wanted.items():
            if blocks[name].shape != shape:
                raise ValueError(f"{name} has shape {blocks[name].shape}; with query {blocks['query'].shape} it must be {shape}.")
        if heads % groups or rank % 2:
            raise ValueError(f"There are {heads} heads of rank {rank} in {groups} groups; groups are equal and ranks even.")
        if not base > 1:
            raise ValueError(f"base is {base!r}; the base of rotary frequencies exceeds one.")
        for name, block in blocks.items():
            object.__setattr__(self, name, block)
        object.__setattr__(self, "base", float(base))

    @property
    def width(self) -> int:
        """Length of a token."""
        return int(self.query.shape[2])

    @property
    def heads(self) -> tuple[Head, ...]:
        """The query heads."""
        return tuple(Head(self, h) for h in range(len(self.query)))

    @property
    def groups(self) -> int:
        """How many keys and values there are."""
        return len(self.key)

    @property
    def rank(self) -> int:
        """Rank of the scores: twice the number of rotary frequencies."""
        return int(self.query.shape[1])

    @property
    def group(self) -> Places:
        """Which keys and values each head has."""
        return np.arange(len(self.query)) // (len(self.query) // len(self.key))

    @property
    def V(self) -> Floats:
        """Values ``(heads, width, width)``: a token ``p`` adds ``p @ V[h]``."""
        return np.asarray(np.einsum("hri,hor->hio", self.value[self.group], self.out))

    @property
    def c(self) -> Floats:
        """Without biases no key has a score by itself."""
        return np.zeros((len(self.query), self.width))

    @property
    def free(self) -> int:
        """Parameters without one complex number per frequency, and a matrix between values and output."""
        return sum(block.size for block in self.blocks.values()) - self.groups * (self.rank + int(self.value.shape[1]) ** 2)

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by name."""
        return {name: getattr(self, name) for name in PARTS}

    def scores(self, offset: float) -> Floats:
        """``W (heads, width, width)`` of tokens so many places apart: the score of a key ``p`` is ``p @ W[h] @ x``."""
        turned = rotated(np.swapaxes(self.query, 1, 2), np.array(float(offset)), self.base)
        return np.asarray(np.einsum("hri,hjr->hij", self.key[self.group], turned) / np.sqrt(self.rank))

    def profile(self, distances: Floats) -> tuple[Floats, Floats]:
        """The trace and the Frobenius norm of ``W``, at every distance."""
        keys = self.key[self.group]
        inner, outer = keys @ np.swapaxes(keys, 1, 2), np.einsum("hri,hsi->hrs", keys, self.query)
        square = self.query @ np.swapaxes(self.query, 1, 2)
        turn = np.stack([rotated(np.eye(self.rank), np.array(float(at)), self.base).T for at in distances])
        equal = np.einsum("hrs,nrs->hn", outer, turn, optimize=True)
        spread = np.einsum("hrs,nrt,htu,nsu->hn", inner, turn, square, turn, optimize=True)
        return np.asarray(equal / np.sqrt(self.rank)), np.sqrt(np.maximum(spread, 0.0) / self.rank)

    def attended(self, seen: Floats, asked: int, zeros: int) -> Floats:
        """What the heads add at the last ``asked`` positions; ``zeros`` tokens that are zero stand in front."""
        batch, length, width = seen.shape
        places = np.arange(length, dtype=np.float64)
        queries = rotated(np.einsum("bni,hri->bhnr", seen[:, length - asked :], self.query), places[length - asked :], self.base)
        keys = rotated(np.einsum("bni,hri->bhnr", seen, self.key), places, self.base)[:, self.group]
        values = np.einsum("bni,hri->bhnr", seen, self.value)[:, self.group]
        scores = queries @ np.swapaxes(keys, 2, 3) / np.sqrt(self.rank)
        scores = np.where(places[None, :] <= places[length - asked :, None], scores, -np.inf)
        top = np.maximum(scores.max(-1, keepdims=True), 0.0 if zeros else -np.inf)
        weights = np.exp(scores - top)
        weights /= weights.sum(-1, keepdims=True) + zeros * np.exp(-top)
        return np.asarray(np.einsum("bhnr,hor->bno", weights @ values, self.out)).reshape(batch, asked, width)

    def limited(self, seen: Floats, zeros: Floats) -> Floats:
        """What the heads add at the last token."""
        length = seen.shape[1]
        offsets = np.arange(length - 1, -1, -1, dtype=np.float64)
        keys = np.einsum("bni,hri->hbnr", seen, self.key)[self.group]
        queries = np.einsum("bi,hri->hbr", seen[:, -1], self.query)
        turned = rotated(np.repeat(queries[:, :, None], length, axis=2), offsets, self.base)
        raised = np.exp(np.einsum("hbnr,hbnr->hbn", keys, turned) / np.sqrt(self.rank))
        shares = raised / (raised.sum(-1) + zeros)[:, :, None]
        mixed = np.einsum("hbn,bni->hbi", shares, seen)
        return np.asarray(np.einsum("hbi,hri,hor->bo", mixed, self.value[self.group], self.out, optimize=True))

    def shaken(self, relative: float, rng: np.random.Generator) -> DecoderLayer:
        """The layer with every score off by about this share of itself."""
        return DecoderLayer(jittered(self.query, relative, rng), self.key, self.value, self.out, self.base)


@dataclass(frozen=True, eq=False)
class BiasedLayer:
    """Heads whose scores do not turn with the distance, biases and all, as behind learned positions (GPT-2).

    Args:
        attention: the heads, ``V (heads, width, width)``.
    """

    attention: Attention
    base: None = None

    @property
    def width(self) -> int:
        """Length of a token."""
        return self.attention.width

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads."""
        return tuple(Head(self, h) for h in range(self.attention.heads))

    @property
    def groups(self) -> int:
        """Every head has keys and values of its own, as far as answers tell."""
        return self.attention.heads

    @property
    def rank(self) -> int:
        """Rank of the scores."""
        return int(np.linalg.matrix_rank(self.attention.W, rtol=1e-6).max())

    @property
    def V(self) -> Floats:
        """Values ``(heads, width, width)``."""
        assert self.attention.V is not None
        return self.attention.V

    @property
    def c(self) -> Floats:
        """``(heads, width)``: scores that keys have by themselves."""
        return self.attention.c

    @property
    def free(self) -> int:
        """Of ``W`` and ``V`` at their rank, and ``c``."""
        rank = self.rank
        return self.attention.heads * (2 * rank * (2 * self.width - rank) + rank)

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by name."""
        return self.attention.blocks

    def scores(self, offset: float) -> Floats:
        """``W (heads, width, width)``, whatever the distance."""
        return self.attention.W

    def profile(self, distances: Floats) -> tuple[Floats, Floats]:
        """The trace and the Frobenius norm of ``W``, the same at every distance."""
        equal, spread = np.trace(self.attention.W, axis1=1, axis2=2), np.linalg.norm(self.attention.W, axis=(1, 2))
        return np.repeat(equal[:, None], len(distances), axis=1), np.repeat(spread[:, None], len(distances), axis=1)

    def attended(self, seen: Floats, asked: int, zeros: int) -> Floats:
        """What the heads add at the last ``asked`` positions; zero tokens are tokens like others here."""
        assert not zeros  # with biases they do not stay zero
        return self.attention(seen)[:, None] if asked == 1 else self.attention(seen, "all", causal=True)[:, -asked:]

    def limited(self, seen: Floats, zeros: Floats) -> Floats:
        """What the heads add at the last token, constants aside."""
        if np.any(zeros):
            raise ValueError("Zero tokens in front of a decoder with biases do not stay zero.")
        return self.attention(seen) - self.attention.b

    def shaken(self, relative: float, rng: np.random.Generator) -> BiasedLayer:
        """The layer with every score off by about this share of itself."""
        return BiasedLayer(self.attention.shaken(relative, rng))


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

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by name."""
        return {name: getattr(self, name) for name in GATED}
