"""From whatever a caller hands over to an oracle."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np

from unsoftmax.models import FFN, Attention, Stack, Transformer
from unsoftmax.oracles.base import Oracle, Wrapper
from unsoftmax.oracles.local import CallableOracle


def as_oracle(target: Any, width: int | None = None) -> Oracle:
    """An oracle for a model of ours, a torch module, any callable on arrays, or an oracle itself.

    Raises:
        ValueError: the target is not callable, or its width is unknown.
    """
    if isinstance(target, Wrapper) or type(target).__module__.startswith("unsoftmax.oracles"):
        if width is not None and width != target.width:
            raise ValueError(f"width={width} was given, but the target says that its width is {target.width}. Leave `width` out.")
        return target  # type: ignore[no-any-return]  # every class of that room is an oracle
    if isinstance(target, FFN):
        network = target
        return CallableOracle(lambda sequences: network(sequences[:, -1]), width=target.width if width is None else width)
    if isinstance(target, Attention) and target.V is None:
        raise ValueError("The target holds W and c only (its values were not learned), so it answers nothing.")
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
        return identity_of(target.target)
    if isinstance(target, Attention | FFN | Stack | Transformer):
        return f"{type(target).__name__}:{_digest(target)}"
    kind = target if hasattr(target, "__qualname__") else type(target)
    return f"{kind.__module__}.{kind.__qualname__}"


def _digest(model: Attention | FFN | Stack | Transformer) -> str:
    state = hashlib.sha256()
    if isinstance(model, Stack):
        for name, block in sorted(model.blocks.items()):
            state.update(name.encode() + np.ascontiguousarray(block).tobytes())
        return state.hexdigest()[:16]
    parts: list[Attention | FFN] = [model.attention, model.ffn] if isinstance(model, Transformer) else [model]
    for part in parts:
        arrays = [part.W, part.V, part.c, part.b] if isinstance(part, Attention) else [*part.weights, *part.biases, part.skip]
        for array in arrays:
            state.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:16]
