"""Gated networks of one hidden layer: SwiGLU, GeGLU and their kin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.models.activations import activation_named
from unsoftmax.models.attention import frozen_array
from unsoftmax.models.base import Floats, Plain, Sizes

OPTIONAL = ("gate_bias", "up_bias", "down_bias", "skip")


@dataclass(frozen=True, eq=False, init=False)
class GatedFFN(Plain):
    """A network ``down (phi(gate x + gate_bias) * (up x + up_bias)) + down_bias``, plus an optional linear ``skip``.

    Args:
        gate: matrix ``(neurons, width)`` of the gates, as in ``torch.nn.Linear``.
        up: matrix ``(neurons, width)`` of what they let through.
        down: matrix ``(outputs, neurons)``.
        gate_bias: ``(neurons,)``.
        up_bias: ``(neurons,)``.
        down_bias: ``(outputs,)``.
        skip: matrix ``(outputs, width)`` added as ``skip @ x``.
        activation: of the gates: "silu" (SwiGLU), "gelu" or "gelu_tanh" (GeGLU), or another that ``FFN`` knows.

    >>> GatedFFN([[2.0]], [[1.0]], [[3.0]], activation="relu")([[-1.0], [2.0]])
    array([ 0., 24.])
    """

    gate: Floats
    up: Floats
    down: Floats
    gate_bias: Floats | None = None
    up_bias: Floats | None = None
    down_bias: Floats | None = None
    skip: Floats | None = None
    activation: str = "silu"

    def __init__(
        self,
        gate: ArrayLike,
        up: ArrayLike,
        down: ArrayLike,
        gate_bias: ArrayLike | None = None,
        up_bias: ArrayLike | None = None,
        down_bias: ArrayLike | None = None,
        skip: ArrayLike | None = None,
        activation: str = "silu",
    ) -> None:
        matrices = [frozen_array(value, name, (2,)) for value, name in ((gate, "gate"), (up, "up"), (down, "down"))]
        neurons, width = matrices[0].shape
        outputs = len(matrices[2])
        wanted = {"gate_bias": (neurons,), "up_bias": (neurons,), "down_bias": (outputs,), "skip": (outputs, width)}
        if matrices[1].shape != (neurons, width) or matrices[2].shape != (outputs, neurons):
            raise ValueError(
                f"gate has shape {matrices[0].shape}, up {matrices[1].shape} and down {matrices[2].shape}; they must be "
                f"(neurons, width) twice and (outputs, neurons)."
            )
        for name, value in zip(("gate", "up", "down"), matrices, strict=True):
            object.__setattr__(self, name, value)
        for name, part in zip(OPTIONAL, (gate_bias, up_bias, down_bias, skip), strict=True):
            block = None if part is None else frozen_array(part, name, (len(wanted[name]),))
            if block is not None and block.shape != wanted[name]:
                raise ValueError(f"{name} has shape {block.shape}; it must be {wanted[name]}.")
            object.__setattr__(self, name, block)
        object.__setattr__(self, "activation", activation_named(activation).name)

    @property
    def width(self) -> int:
        """Length of an input vector."""
        return int(self.gate.shape[1])

    @property
    def outputs(self) -> int:  # type: ignore[override]  # a plain attribute in models without a number of their own
        """Number of outputs."""
        return len(self.down)

    def __call__(self, points: ArrayLike) -> Floats:
        """Map ``(batch, in)`` to ``(batch, outputs)``, or to ``(batch,)`` where there is one output."""
        x = np.asarray(points, dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != self.width:
            raise ValueError(f"Points have shape {x.shape}; they must be (batch, {self.width}).")
        gates = activation_named(self.activation).value(x @ self.gate.T + _or_zero(self.gate_bias))
        answers = (gates * (x @ self.up.T + _or_zero(self.up_bias))) @ self.down.T + _or_zero(self.down_bias)
        if self.skip is not None:
            answers = answers + x @ self.skip.T
        return np.asarray(answers[:, 0] if self.outputs == 1 else answers)

    def respond(self, sequences: Floats) -> Floats:
        """Answers to the last tokens."""
        return self(sequences[:, -1])

    def answer(self, sequences: Floats) -> Floats:
        """Answers ``(batch, outputs)`` to the last tokens."""
        return self(sequences[:, -1]).reshape(len(sequences), -1)

    @property
    def token_sizes(self) -> Floats:
        """Ordinary sizes, and those that reach the bends of the gates."""
        return np.concatenate([[0.25, 1.0, 4.0], self.bends])

    @property
    def bends(self) -> Floats:
        """Middle and far distances of the gates' hyperplanes from the origin; none where they all pass through it."""
        lengths = np.linalg.norm(self.gate, axis=1)
        live = lengths > 0
        if self.gate_bias is None or not live.any():
            return np.zeros(0)
        distances = np.abs(self.gate_bias[live]) / lengths[live]
        return np.asarray(np.maximum(np.quantile(distances, [0.5, 0.9]), 1e-12))

    @property
    def neurons(self) -> int:
        """Number of gates."""
        return len(self.gate)

    def behind(self, matrix: Floats, shift: Floats) -> GatedFFN:
        """The network of ``matrix @ x + shift``, as one of ``x``."""

        def moved(rows: Floats, bias: Floats | None) -> Floats | None:
            return bias if bias is None and not shift.any() else _or_zero(bias) + rows @ shift

        return GatedFFN(
            self.gate @ matrix,
            self.up @ matrix,
            self.down,
            moved(self.gate, self.gate_bias),
            moved(self.up, self.up_bias),
            self.down_bias if self.skip is None else moved(self.skip, self.down_bias),
            None if self.skip is None else self.skip @ matrix,
            self.activation,
        )

    @property
    def matrices(self) -> tuple[Floats, ...]:
        """Gates, what they let through, and the output weights."""
        return (self.gate, self.up, self.down)

    @property
    def blocks(self) -> dict[str, Floats]:
        """The parameters by the names under which they are saved."""
        blocks = {f"gated.{name}": getattr(self, name) for name in ("gate", "up", "down")}
        optional = {name: getattr(self, name) for name in OPTIONAL}
        return blocks | {f"gated.{name}": block for name, block in optional.items() if block is not None}

    @property
    def settings(self) -> dict[str, str]:
        """The activation of the gates."""
        return {"activation": self.activation}

    @classmethod
    def from_blocks(cls, blocks: dict[str, Floats], settings: dict[str, str]) -> GatedFFN:
        """The inverse of ``blocks`` and ``settings``."""
        gate, up, down = (blocks[f"gated.{name}"] for name in ("gate", "up", "down"))
        gate_bias, up_bias, down_bias, skip = (blocks.get(f"gated.{name}") for name in OPTIONAL)
        return cls(gate, up, down, gate_bias, up_bias, down_bias, skip, settings.get("activation", "silu"))

    @property
    def freedom(self) -> int:
        """The number of free parameters: all, less one factor per gate that ``up`` and ``down`` share."""
        return sum(block.size for block in self.blocks.values()) - len(self.gate)

    def sizes(self, ranks: tuple[int, ...] | None) -> Sizes:
        """Gates and the number of free parameters."""
        return Sizes(parameters=self.freedom, neurons=self.neurons)

    def to_torch(self) -> Any:
        """A ``torch.nn.Module`` in float64 with the same answers, on vectors and at every token of a sequence (extra ``torch``)."""
        from unsoftmax.models.torch_layouts import torch_modules

        return torch_modules().TorchGatedFFN(self)


def _or_zero(part: Floats | None) -> Floats:
    return np.zeros(1) if part is None else part
