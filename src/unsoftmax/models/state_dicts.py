"""State dicts in safetensors files: attention layers of PyTorch, BERT and GPT-2, one of them chosen by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from unsoftmax.errors import FileFormatError
from unsoftmax.models.attention import Attention
from unsoftmax.models.base import Floats
from unsoftmax.models.torch_layouts import LAYOUTS, MARKS, attention_from_torch

HALF = {"BF16", "F8_E4M3", "F8_E5M2"}  # dtypes that NumPy has no name for


def is_state_dict(path: str | Path) -> bool:
    """Whether a safetensors file or folder holds attention layers of another library; False where nothing can be read."""
    names = names_in(path)
    return any(f".{name}".endswith(f".{mark}") for name in names for marks in MARKS.values() for mark in marks)


def names_in(path: str | Path) -> list[str]:
    """The tensors of a safetensors file or of a folder's, by name; none for files of ours and for what cannot be read."""
    names = []
    for file_path in shards(Path(path)):
        if not file_path.is_file():
            return []
        try:
            with safe_open(str(file_path), framework="numpy") as file:
                if (file.metadata() or {}).get("format") != "unsoftmax":
                    names += list(file.keys())
        except (SafetensorError, OSError, ValueError):
            return []
    return names


def shards(path: Path) -> list[Path]:
    """The safetensors files of a folder; a file is its own."""
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def layers_of(names: list[str]) -> list[str]:
    """The attention layers that these names belong to, without the dot at their end.

    >>> layers_of(["h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight", "h.1.attn.c_attn.weight"])
    ['h.0.attn', 'h.1.attn']
    """
    found = []
    for name in names:
        for layout in LAYOUTS:
            for mark in MARKS[layout]:
                if f".{name}".endswith(f".{mark}"):
                    prefix = name[: -len(mark)].removesuffix(".").removesuffix(".self")
                    found.append("" if prefix == "self" else prefix)
    return list(dict.fromkeys(found))


def read_state_dict(path: str | Path, *, part: str = "", heads: int | None = None) -> Attention:
    """Fold one attention layer of a state dict.

    Args:
        path: the safetensors file, or a folder of them.
        part: the layer's name, or its beginning, such as ``encoder.layer.3.attention``; may be left out where there is one layer.
        heads: how many heads it has; a file of ours or a ``config.json`` beside it may tell.

    Raises:
        FileFormatError: no such layer, several, or tensors missing.
        ValueError: the number of heads is not known.
    """
    tensors = tensors_in(Path(path))
    layers = layers_of(list(tensors))
    chosen = [layer for layer in layers if layer == part or layer.startswith(f"{part}.")] if part else layers
    if len(chosen) != 1:
        listed = ", ".join(layers[:6]) + (" …" if len(layers) > 6 else "")
        what = f"no attention layer {part!r}" if part and not chosen else f"{len(chosen)} attention layers"
        raise FileFormatError(f"{path} holds {what}; choose one of them after #: {listed}.")
    prefix = f"{chosen[0]}." if chosen[0] else ""
    state = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    heads = _told_heads(Path(path)) if heads is None else heads
    if heads is None:
        raise ValueError(f"{path} does not tell how many heads its layer has. Pass --heads (`heads=`).")
    try:
        return attention_from_torch(state, heads=heads)
    except KeyError as error:
        raise FileFormatError(f"The layer {chosen[0] or path} lacks the tensor {error}.") from error


def tensors_in(path: Path) -> dict[str, Floats]:
    """Every tensor of a safetensors file, or of a folder's.

    Raises:
        FileFormatError: it cannot be read.
    """
    if path.is_dir():
        return {name: tensor for shard in shards(path) for name, tensor in tensors_in(shard).items()}
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        with safe_open(str(path), framework="numpy") as file:
            names = list(file.keys())
            kinds = {name: file.get_slice(name).get_dtype() for name in names}
            if not HALF & set(kinds.values()):
                return {name: np.asarray(file.get_tensor(name)) for name in names}
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name).double().numpy() for name in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise FileFormatError(f"{path} is not a safetensors file ({error}).") from error


def _told_heads(path: Path) -> int | None:
    """The number of heads, from the file's own metadata or from a configuration beside it."""
    if path.is_file():
        with safe_open(str(path), framework="numpy") as file:
            told = (file.metadata() or {}).get("heads", "")
        if told.isdigit():
            return int(told)
    config = config_of(path)
    names = ("num_attention_heads", "n_head", "num_heads", "n_heads")
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def config_of(path: Path) -> dict[str, Any]:
    """The ``config.json`` in a folder, or beside a file; empty where there is none that can be read."""
    beside = (path if path.is_dir() else path.parent) / "config.json"
    try:
        config: Any = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
