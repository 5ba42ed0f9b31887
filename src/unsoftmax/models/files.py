"""Models to safetensors files and back. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from unsoftmax.errors import FileFormatError
from unsoftmax.models.attention import Attention
from unsoftmax.models.base import Floats, Model
from unsoftmax.models.decoder import Decoder
from unsoftmax.models.gated import GatedFFN
from unsoftmax.models.network import FFN, Transformer
from unsoftmax.models.stack import Stack

GROUP = "unsoftmax.models"
SCORE_FORM = "x_i.W[h].x_N + c[h].x_i"
Build = Callable[[dict[str, Floats], dict[str, str]], Model]
KINDS: dict[str, Build] = {
    "attention": Attention.from_blocks,
    "ffn": FFN.from_blocks,
    "gatedffn": GatedFFN.from_blocks,
    "transformer": Transformer.from_blocks,
    "stack": Stack.from_blocks,
    "decoder": Decoder.from_blocks,
}


def save_model(model: Model, path: str | Path) -> None:
    """Write ``model`` to ``path``; the metadata names its kind and the score form.

    Raises:
        OSError: the file cannot be written.
    """
    metadata = {"format": "unsoftmax", "kind": type(model).__name__.lower(), "score": SCORE_FORM, **model.settings}
    try:
        save_file({name: np.array(value, order="C") for name, value in model.blocks.items()}, str(path), metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written ({error}).") from error
    if Path(path).is_file():
        _sort_header(Path(path))


def _sort_header(path: Path) -> None:
    """Order the header by name, in place: the writer's own order is another one each time, and the same model is the same file."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        ordered = json.dumps(header, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(ordered) <= length, "the same names and numbers, without spaces"
        file.seek(8)
        file.write(ordered.ljust(length))


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
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:  # numbers NumPy has no type for
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
    """The model of the kind that the metadata names, or that the tensors show."""
    kind = metadata.get("kind")
    if kind is None:
        heads, network = "attention.W" in tensors, "ffn.weights.0" in tensors
        kind = "transformer" if heads and network else "attention" if heads else "ffn"
    if kind in KINDS:
        return KINDS[kind](tensors, metadata)
    for entry in entry_points(group=GROUP, name=kind):  # models of other packages
        build: Build = entry.load().from_blocks
        return build(tensors, metadata)
    raise ValueError(f"its kind is {kind!r}, which is none of {', '.join(KINDS)}")
