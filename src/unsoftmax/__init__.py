"""Recover attention models exactly from their answers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unsoftmax.version import __version__ as __version__

if TYPE_CHECKING:
    from unsoftmax import errors, oracles
    from unsoftmax.auditing import audit
    from unsoftmax.diagnosing import diagnose
    from unsoftmax.driver import recover
    from unsoftmax.learners.from_examples import learn_from_examples
    from unsoftmax.models import FFN, Attention, Decoder, GatedFFN, Stack, Transformer, load
    from unsoftmax.opening import open
    from unsoftmax.plans import plan
    from unsoftmax.results import Recovery, Status
    from unsoftmax.symmetry import canonical, distance, identifiability, witness
    from unsoftmax.verification import verify

__all__ = [
    "FFN",
    "Attention",
    "Decoder",
    "GatedFFN",
    "Recovery",
    "Stack",
    "Status",
    "Transformer",
    "audit",
    "canonical",
    "diagnose",
    "distance",
    "errors",
    "identifiability",
    "learn_from_examples",
    "load",
    "open",
    "oracles",
    "plan",
    "recover",
    "verify",
    "witness",
]

# imported on first use: a command that only prints its help should not load SciPy
_ROOMS = {
    "unsoftmax.auditing": ("audit",),
    "unsoftmax.diagnosing": ("diagnose",),
    "unsoftmax.driver": ("recover",),
    "unsoftmax.learners.from_examples": ("learn_from_examples",),
    "unsoftmax.models": ("FFN", "Attention", "Decoder", "GatedFFN", "Stack", "Transformer", "load"),
    "unsoftmax.opening": ("open",),
    "unsoftmax.plans": ("plan",),
    "unsoftmax.results": ("Recovery", "Status"),
    "unsoftmax.symmetry": ("canonical", "distance", "identifiability", "witness"),
    "unsoftmax.verification": ("verify",),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("errors", "oracles"):
        return importlib.import_module(f"unsoftmax.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'unsoftmax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
