"""Checkpoints from Python files: any torch module of the user's."""

from __future__ import annotations

from typing import Any

from unsoftmax.deployment.checkpoint import Checkpoint


def module_checkpoint(text: str) -> Checkpoint:
    """``FILE.py:NAME`` with a torch module as a checkpoint.

    Raises:
        ValueError: the name is no torch module.
    """
    from unsoftmax.cli.targets import open_target
    from unsoftmax.oracles.torch_module import TorchOracle

    inner = open_target(text).inner
    if not isinstance(inner, TorchOracle) or not hasattr(inner.module, "named_parameters"):
        raise ValueError(f"{text} is no torch module; weights that are compared must be a module whose tensors have names.")
    return checkpoint_of(inner.module, name=text, width=inner.width)


def checkpoint_of(module: Any, *, name: str = "module", width: int | None = None, heads: int | None = None) -> Checkpoint:
    """A torch module as a checkpoint, asked in the way that ``TorchOracle`` asks it."""
    from unsoftmax.oracles.torch_module import TorchOracle, way_to_call

    oracle = TorchOracle(module, width=width)

    def call(asked: Any, tokens: Any) -> Any:
        return way_to_call(asked)(tokens)

    return Checkpoint(module, name=name, width=oracle.width, call=call, heads=heads)
