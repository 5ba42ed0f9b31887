"""From whatever a caller hands over to an oracle."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np

from unsoftmax.models import Model
from unsoftmax.models.base import is_model
from unsoftmax.oracles.base import Oracle, Wrapper
from unsoftmax.oracles.local import CallableOracle, checked_width


def as_oracle(target: Any, width: int | None = None) -> Oracle:
    """An oracle for a model of ours, a torch module, any callable on arrays, or an oracle itself.

    Raises:
        ValueError: the target is not callable, or its width is unknown.
    """
    if isinstance(target, Wrapper) or type(target).__module__.startswith("unsoftmax.oracles"):
        if width is not None and width != target.width:
            raise ValueError(f"width={width} was given, but the target says that its width is {target.width}. Leave `width` out.")
        return target  # type: ignore[no-any-return]  # every class of that room is an oracle
    if is_model(target):
        if not target.can_answer:
            raise ValueError("Parts of the target were not learned (the values of a head, MLPs of layers), so it answers nothing.")
        return CallableOracle(target if target.takes_sequences else target.respond, width=checked_width(target, width))
    if not callable(target):
        raise ValueError(
            f"The target, of type {type(target).__name__}, cannot be called. Give a function of arrays (batch, length, width), "
            "a torch module, or an oracle from unsoftmax.oracles."
        )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.nn.Module):
        from unsoftmax.oracles.torch_module import TorchOracle

        return TorchOracle(target, width=width)
    return CallableOracle(target, width=width)


def identity_of(target: Any) -> str:
    """What a journal knows a target by: as it says itself, a digest of a model's parameters, or its qualified name."""
    if isinstance(target, Wrapper) and "identity" not in dir(type(target)):
        settings = ", ".join(f"{k}={v!r}" for k, v in sorted(vars(target).items()) if isinstance(v, bool | int | float | str))
        return f"{type(target).__name__}({identity_of(target.inner)}, {settings})"
    told = getattr(target, "identity", None)
    if isinstance(told, str):
        return told
    if isinstance(target, CallableOracle):
        holder = getattr(target.target, "__self__", None)
        return identity_of(holder if is_model(holder) else target.target)
    if is_model(target):
        return f"{type(target).__name__}:{_digest(target)}"
    kind = target if hasattr(target, "__qualname__") else type(target)
    return f"{kind.__module__}.{kind.__qualname__}"


def _digest(model: Model) -> str:
    state = hashlib.sha256(repr(sorted(model.settings.items())).encode())
    for name, block in sorted(model.blocks.items()):
        state.update(name.encode() + np.ascontiguousarray(block).tobytes())
    return state.hexdigest()[:16]
