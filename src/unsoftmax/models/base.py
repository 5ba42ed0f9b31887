"""What the rest of the house asks of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from array_api_compat import device
from numpy.typing import NDArray

from unsoftmax.evidence import Evidence
from unsoftmax.models.kinds import array_namespace

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

EVERY = 8  # positions of a sequence that a model without a form of its own for all of them is asked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a report counts in a model; None where it has no such thing.

    Attributes:
        parameters: numbers that are free, gauges taken off.
        heads: of all layers together.
        rank: the largest of the ``ranks``.
        ranks: of each head's score matrix.
        neurons: of the network.
        layers: of a stack or decoder.
        more: what models of one kind alone have, for the report.
    """

    parameters: int
    heads: int | None = None
    rank: int | None = None
    ranks: tuple[int, ...] | None = None
    neurons: int | None = None
    layers: int | None = None
    more: Evidence = field(default_factory=Evidence)

    def record(self) -> dict[str, Any]:
        """As plain data for JSON, without what the model lacks."""
        named = {name: getattr(self, name) for name in ("layers", "heads", "rank", "neurons", "parameters")}
        named["ranks"] = None if self.ranks is None else list(self.ranks)
        return {name: value for name, value in named.items() if value is not None} | dict(self.more)


class Forward(Protocol):
    """The forward pass of a model on a device."""

    def many(self, groups: Sequence[tuple[Floats, NDArray[np.bool_] | None]]) -> list[Floats]:
        """Answers to batches of padded sequences, each with which of its tokens are none; None says that all are some."""

    def moved(self, relative: float, rng: np.random.Generator, like: Floats) -> Callable[[Floats], tuple[Floats, Floats, float]]:
        """Where the model is ``shaken``: answers ``(batch, outputs)`` but for a constant, how far they move, the largest score."""


class Model(Protocol):
    """Parameters that answer sequences of tokens."""

    @property
    def width(self) -> int:
        """Length of a token vector."""

    @property
    def outputs(self) -> int | None:
        """Length of a vector answer; None where the model tells scalars only as such."""

    @property
    def token_sizes(self) -> Floats:
        """Root mean square entries of tokens at which the parts of the model show in its answers."""

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by the names under which they are saved; those that the model lacks are left out."""

    @property
    def settings(self) -> dict[str, str]:
        """What a file must say beside the parameters to read the model back."""

    @property
    def attentions(self) -> tuple[Any, ...]:
        """Its layers of heads, each as an ``Attention``, first layer first."""

    @property
    def matrices(self) -> tuple[Floats, ...]:
        """The weight matrices of its networks, for pictures."""

    @property
    def anatomy(self) -> Any:
        """The parts of a deep model as an ``Anatomy``, for pictures; None where there are but one or two."""

    @property
    def can_answer(self) -> bool:
        """Whether everything that an answer takes is known."""

    @property
    def takes_sequences(self) -> bool:
        """Whether the model itself can be called on ``(batch, length, width)``; else ``respond`` is."""

    def respond(self, sequences: Floats) -> Floats:
        """Answers to ``(batch, length, width)`` in the model's own shape, ``(batch,)`` or ``(batch, outputs)``."""

    def answer(self, sequences: Floats) -> Floats:
        """Answers ``(batch, outputs)`` to ``(batch, length, width)``, at the last position."""

    def answer_at(self, sequences: Floats, *, causal: bool) -> tuple[Places, Floats]:
        """Positions, and the answers there ``(batch, positions, outputs)``."""

    def on_device(self, like: Floats) -> Forward | None:
        """The forward pass on the device of ``like``; None without one."""

    def shaken(self, relative: float, rng: np.random.Generator) -> Any:
        """The model with every score off by about this share of itself, as rounding inside a target would have it."""

    def within(self, bounds: Any, rng: np.random.Generator) -> Any:
        """A model drawn within error bars (``unsoftmax.results.Bounds``) of this one; None where bars do not apply."""

    def sizes(self, ranks: tuple[int, ...] | None) -> Sizes:
        """Heads, ranks, neurons and the number of free parameters, for reports."""

    def save(self, path: str | Path) -> None:
        """Write the parameters to a safetensors file."""


def is_model(target: object) -> bool:
    """Whether something is a model of ours: whatever says how it answers at every position."""
    return hasattr(type(target), "answer_at") and hasattr(type(target), "blocks")


def seen_at(sequences: Floats, position: int, causal: bool) -> Floats:
    """What a layer blind to order answers at its last position as it answers ``sequences`` at ``position``."""
    if causal:
        return sequences[:, : position + 1]
    before, here, after = sequences[:, :position], sequences[:, position : position + 1], sequences[:, position + 1 :]
    return np.concatenate([before, after, here], axis=1)


def answered_at(model: Model, sequences: Floats, causal: bool) -> tuple[Places, Floats]:
    """``Model.answer_at`` by way of the last position, for a few positions."""
    at = np.unique(np.linspace(0, sequences.shape[1] - 1, EVERY).astype(np.intp))
    return at, np.stack([model.answer(seen_at(sequences, int(i), causal)) for i in at], axis=1)


def signs(shape: tuple[int, ...], relative: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """For numbers that are off by this share of themselves: a sign for each row, times the share, and one for each column."""
    return relative * rng.choice([-1.0, 1.0], size=(*shape[:-1], 1)), rng.choice([-1.0, 1.0], size=shape[-1])


def jittered(array: Floats, relative: float, rng: np.random.Generator) -> Floats:
    """Numbers off by this share of themselves, up or down: by a sign for each row times one for each column; where they are."""
    rows, columns = signs(array.shape, relative, rng)
    if isinstance(array, np.ndarray):
        off: Floats = array * (1.0 + rows * columns)
        off.setflags(write=False)  # no copy of it is needed
        return off
    xp = array_namespace(array)
    there = [xp.asarray(some, dtype=array.dtype, device=device(array)) for some in (rows, columns)]
    return array + array * there[0] * there[1]


class Plain:
    """Defaults of a model without heads: a family from outside says ``width``, ``blocks``, ``from_blocks`` and ``answer``."""

    outputs: int | None = None
    can_answer = True
    takes_sequences = False
    anatomy: Any = None

    @property
    def settings(self) -> dict[str, str]:
        """Nothing beside the parameters."""
        return {}

    @property
    def token_sizes(self) -> Floats:
        """Ordinary tokens, shorter and longer ones."""
        return np.array([0.25, 1.0, 4.0])

    @property
    def attentions(self) -> tuple[Any, ...]:
        """No heads."""
        return ()

    @property
    def matrices(self) -> tuple[Floats, ...]:
        """No pictures."""
        return ()

    def respond(self: Any, sequences: Floats) -> Floats:
        """Answers in the shape of a target: plain numbers where there is one output."""
        answers: Floats = self.answer(sequences)
        return answers[:, 0] if self.outputs is None else answers

    def answer_at(self: Any, sequences: Floats, *, causal: bool) -> tuple[Places, Floats]:
        """A few positions, and the answers there."""
        return answered_at(self, sequences, causal)

    def on_device(self, like: Floats) -> None:
        """There is no form for devices."""

    def shaken(self, relative: float, rng: np.random.Generator) -> Any:
        """The model itself: it has no scores."""
        return self

    def within(self, bounds: Any, rng: np.random.Generator) -> None:
        """It comes without error bars."""

    def sizes(self: Any, ranks: tuple[int, ...] | None) -> Sizes:
        """The number of parameters."""
        return Sizes(parameters=sum(block.size for block in self.blocks.values()))

    def save(self: Any, path: str | Path) -> None:
        """Write the parameters to a safetensors file."""
        from unsoftmax.models.files import save_model

        save_model(self, path)
