"""Adapters to targets, and wrappers around them that nest."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.oracles.base import LastPosition, Oracle, Wrapper, phase
from unsoftmax.oracles.drift import Watched
from unsoftmax.oracles.journal import Journal, Journaled
from unsoftmax.oracles.local import CallableOracle
from unsoftmax.oracles.meter import Budgeted, Count, Metered
from unsoftmax.oracles.noise import Cast, Clipped, Lengthened, LowPrecision, Noisy, Rounded, Thresholded, TopOnly
from unsoftmax.oracles.replay import Recorded, ReplayOracle
from unsoftmax.oracles.several import Several
from unsoftmax.oracles.tokens import Tokens

if TYPE_CHECKING:
    from unsoftmax.oracles.grpc_v2 import GrpcOracle
    from unsoftmax.oracles.http import HttpOracle
    from unsoftmax.oracles.onnx_file import OnnxOracle
    from unsoftmax.oracles.torch_module import TorchOracle

__all__ = [
    "Budgeted",
    "CallableOracle",
    "Cast",
    "Clipped",
    "Count",
    "GrpcOracle",
    "HttpOracle",
    "Journal",
    "Journaled",
    "LastPosition",
    "Lengthened",
    "LowPrecision",
    "Metered",
    "Noisy",
    "OnnxOracle",
    "Oracle",
    "Recorded",
    "ReplayOracle",
    "Rounded",
    "Several",
    "Thresholded",
    "Tokens",
    "TopOnly",
    "TorchOracle",
    "Watched",
    "Wrapper",
    "as_oracle",
    "phase",
]

# these reach for a network stack or an optional package: imported on first use
_LATER = {"GrpcOracle": "grpc_v2", "HttpOracle": "http", "OnnxOracle": "onnx_file", "TorchOracle": "torch_module"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"unsoftmax.oracles.{_LATER[name]}"), name)
    raise AttributeError(f"module 'unsoftmax.oracles' has no attribute {name!r}")
