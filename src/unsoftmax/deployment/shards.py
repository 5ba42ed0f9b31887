"""A folder of weights, looked at before anything is loaded: sound files, an index that stays inside, sizes that agree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unsoftmax.deployment.checkpoint import LAYER
from unsoftmax.deployment.settings import SETTINGS
from unsoftmax.errors import FileFormatError
from unsoftmax.oracles.text import plain

SAFE = "model.safetensors"
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")

Shapes = dict[str, tuple[Path, tuple[int, ...]]]
"""Tensors by name: the file that holds each, and its shape."""


def checked_shards(folder: Path) -> Shapes:
    """Open every safetensors file once, so that a corrupt one is named; and every shard that an index names must be there."""
    from safetensors import SafetensorError, safe_open

    found: Shapes = {}
    for path in sorted(folder.glob("*.safetensors")):
        if not path.is_file():
            raise FileFormatError(f"The shard {path} is no file, or a link to none. Copy it again.")
        try:
            with safe_open(str(path), framework="numpy") as file:
                found |= {name: (path, tuple(file.get_slice(name).get_shape())) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise FileFormatError(f"The shard {path} is corrupt ({plain(error, 120)}). Copy it again.") from error
    _check_index(folder)
    return found


def _check_index(folder: Path) -> None:
    index = folder / f"{SAFE}.index.json"
    if not index.is_file():
        return
    try:
        shards = sorted(map(str, json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise FileFormatError(f"{index} is no index of shards ({plain(error, 120)}).") from error
    for name in shards:
        if Path(name).name != name:
            raise FileFormatError(f"{index} names {plain(name, 80)!r}, which lies outside of the folder. It is not opened.")
        if not (folder / name).is_file() or Path(name).suffix != ".safetensors":
            raise FileFormatError(f"{index} names {plain(name, 80)}, which is no shard in {folder}. Copy the missing shards.")


def check_sizes(folder: Path, config: Mapping[str, Any], shapes: Shapes) -> None:
    """Compare the configuration's width and depth with what the files hold."""
    setting, width = next(((key, config[key]) for key in WIDTHS if isinstance(config.get(key), int)), ("", None))
    if width is not None and not any(key in config for key in SETTINGS.factored):
        for name, (path, shape) in shapes.items():
            if f".{name}".endswith(tuple(f".{table}" for table in SETTINGS.tables)) and len(shape) == 2 and shape[1] != width:
                raise FileFormatError(
                    f"{folder / 'config.json'} says that tokens have width {width} ({setting}), but {path.name} holds {name} for "
                    f"width {shape[1]}. Configuration and weights are of different models."
                )
    depth = next((config[key] for key in SETTINGS.depths if isinstance(config.get(key), int)), 0)
    held = len({layer[1] for name in shapes if (layer := LAYER.search(name))})
    if held and depth > SETTINGS.absurd * held:
        raise FileFormatError(f"{folder / 'config.json'} says that there are {depth} layers, but the files hold {held}.")


def other_shapes(kind: Any, folder: Path, shapes: Shapes) -> str:
    """Tensors whose shape in the files is not what the configuration makes of them, in words; nothing is built in memory."""
    import torch

    with torch.device("meta"):
        wanted = kind(kind.config_class.from_pretrained(str(folder), local_files_only=True)).state_dict()
    apart = [
        f"{name} {'x'.join(map(str, shape))} in {path.name}, {'x'.join(map(str, wanted[name].shape))} by config.json"
        for name, (path, shape) in shapes.items()
        if name in wanted and tuple(wanted[name].shape) != shape
    ]
    return "; ".join(apart[:3]) + (" …" if len(apart) > 3 else "")


def brings_code(config: Any) -> bool:
    """Whether a configuration names code of its own, at any depth."""
    inner = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    return (isinstance(config, dict) and "auto_map" in config) or any(brings_code(value) for value in inner)


def first_not_finite(module: Any) -> str | None:
    """The first tensor that holds NaN or infinity."""
    return next((name for name, p in module.named_parameters() if p.is_floating_point() and not bool(p.isfinite().all())), None)
