"""Models to safetensors files and back. Nothing is ever unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from unsoftmax.errors import FileFormatError
from unsoftmax.models.attention import Attention, Floats
from unsoftmax.models.network import FFN, Model, Transformer

SCORE_FORM = "x_i.W[h].x_N + c[h].x_i"


def save_model(model: Model, path: str | Path) -> None:
    """Write ``model`` to ``path``; the metadata names its kind and the score form.

    Raises:
        OSError: the file cannot be written.
    """
    tensors: dict[str, Floats] = {}
    metadata = {"format": "unsoftmax", "kind": type(model).__name__.lower(), "score": SCORE_FORM}
    if isinstance(model, Transformer):
        metadata["residual"] = str(model.residual).lower()
    attention = model if isinstance(model, Attention) else getattr(model, "attention", None)
    network = model if isinstance(model, FFN) else getattr(model, "ffn", None)
    if attention is not None:
        tensors["attention.W"] = attention.W
        if attention.V is not None:
            tensors["attention.V"] = attention.V
        if attention.has_c:
            tensors["attention.c"] = attention.c
        if attention.has_b:
            tensors["attention.b"] = attention.b
    if network is not None:
        for i, (layer, shift) in enumerate(zip(network.weights, network.biases, strict=True)):
            tensors[f"ffn.weights.{i}"] = layer
            tensors[f"ffn.biases.{i}"] = shift
        if network.skip is not None:
            tensors["ffn.skip"] = network.skip
        metadata["activation"] = network.activation
    try:
        save_file({name: np.array(value, order="C") for name, value in tensors.items()}, str(path), metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written ({error}).") from error


def load(path: str | Path) -> Model:
    """Read a model that ``model.save(path)`` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file is not safetensors, or not a model of ours.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. Give the path of a weights file (`weights.safetensors`).")
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no iteration
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise FileFormatError(
            f"{path} is not a safetensors file ({error}). unsoftmax reads only files written by `model.save` or `recover --out`."
        ) from error
    try:
        return _build(tensors, metadata)
    except (KeyError, ValueError) as error:
        raise FileFormatError(
            f"{path} is a safetensors file but not a model of unsoftmax ({error}; it holds {sorted(tensors)[:6]}). "
            "Expected `attention.W`, `attention.V`, … or `ffn.weights.0`, `ffn.biases.0`, …"
        ) from error


def _build(tensors: dict[str, Any], metadata: dict[str, str]) -> Model:
    attention = network = None
    if "attention.W" in tensors:
        attention = Attention(tensors["attention.W"], *(tensors.get(f"attention.{name}") for name in ("V", "c", "b")))
    if "ffn.weights.0" in tensors:
        layers = sum(name.startswith("ffn.weights.") for name in tensors)
        network = FFN(
            [tensors[f"ffn.weights.{i}"] for i in range(layers)],
            [tensors[f"ffn.biases.{i}"] for i in range(layers)],
            tensors.get("ffn.skip"),
            metadata.get("activation", "relu"),
        )
    if attention is not None and network is not None:
        return Transformer(attention, network, residual=metadata.get("residual") == "true")
    if attention is None and network is None:
        raise KeyError("neither `attention.W` nor `ffn.weights.0`")
    return attention if attention is not None else network  # type: ignore[return-value]  # one of them is there
