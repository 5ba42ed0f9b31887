"""Checkpoints from folders in Hugging Face layout: configuration and safetensors; no code of theirs is run."""

from __future__ import annotations

import json
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np

from unsoftmax.deployment.checkpoint import Checkpoint
from unsoftmax.deployment.shards import WIDTHS, brings_code, check_sizes, checked_shards, first_not_finite, other_shapes
from unsoftmax.errors import FileFormatError, MissingExtraError
from unsoftmax.models import Floats
from unsoftmax.oracles.text import plain

PICKLED = "pytorch_model.bin"
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration as it stands in the folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileFormatError(f"{folder} has no config.json, so it is no folder in Hugging Face layout.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise FileFormatError(f"{path} is no JSON document ({plain(error, 120)}).") from error
    if not isinstance(config, dict):
        raise FileFormatError(f"{path} is no JSON object.")
    return config


def load_module(folder: Path, *, trust_pickle: bool = False) -> Any:
    """The model of a folder as a torch module in the precision of its file.

    Raises:
        FileFormatError: no weights, only pickled ones, a corrupt shard, missing keys, code of its own, unknown architecture.
        MissingExtraError: ``transformers`` is not installed.
    """
    config = read_config(folder)
    if brings_code(config):
        raise FileFormatError(
            f"{folder} brings code of its own (auto_map in config.json), which is never run here. Load it yourself and name it "
            "as FILE.py:NAME."
        )
    if (folder / "adapter_config.json").exists():
        raise FileFormatError(
            f"{folder} holds an adapter (adapter_config.json). Merge it into its model and name the merged folder."
        )
    safe = bool(list(folder.glob("*.safetensors")))
    if not safe:
        _allow_pickle(folder, trust_pickle)
    shapes = checked_shards(folder)
    check_sizes(folder, config, shapes)
    transformers = _transformers()
    kind = _architecture(config, folder, transformers)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        module, told = kind.from_pretrained(
            str(folder),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=safe,
            attn_implementation="eager",
            output_loading_info=True,
            dtype="auto",
        )
    except UnpicklingError as error:
        raise FileFormatError(f"The pickled weights of {folder} hold more than tensors, or none; they are not opened.") from error
    except Exception as error:  # transformers raises nearly anything on a folder that is not what it says
        if "mismatched_sizes" in str(error):
            raise FileFormatError(f"{folder} holds tensors in other shapes: {other_shapes(kind, folder, shapes)}.") from error
        raise FileFormatError(
            f"{folder} cannot be loaded as {kind.__name__} ({type(error).__name__}: {plain(error, 300)})."
        ) from error
    mismatched = [str(entry[0] if isinstance(entry, tuple) else entry) for entry in told.get("mismatched_keys", ())]
    missing = sorted({*map(str, told.get("missing_keys", ())), *mismatched})
    if missing:
        raise FileFormatError(
            f"{folder} lacks {len(missing)} of the tensors that a {kind.__name__} needs, or holds them in other shapes: "
            f"{', '.join(missing[:4])}{' …' if len(missing) > 4 else ''}. They would be random numbers, so nothing is compared."
        )
    broken = first_not_finite(module)
    if broken is not None:
        raise FileFormatError(f"{folder}: the tensor {broken} holds numbers that are not finite. Copy its shard again.")
    return module.eval()


def _architecture(config: dict[str, Any], folder: Path, transformers: Any) -> Any:
    """The class of models that a configuration names, one of those that `transformers` has."""
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FileFormatError(f"{folder / 'config.json'}: architectures must be a list of names.")
    for name in names:
        kind = getattr(transformers, name, None)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            return kind
    if names:
        raise FileFormatError(
            f"transformers {transformers.__version__} knows no architecture {', '.join(map(plain, names))}, as {folder} has."
        )
    if "model_type" not in config:
        raise FileFormatError(f"{folder / 'config.json'} names no architecture and no model_type, so it cannot be built.")
    return transformers.AutoModel


def folder_checkpoint(text: str, *, trust_pickle: bool = False) -> Checkpoint:
    """A folder, or a part of its model after ``#``, as a checkpoint on embeddings."""
    folder, _, part = text.partition("#")
    module = load_module(Path(folder), trust_pickle=trust_pickle)
    config = module.config
    width = _number(config, WIDTHS)
    if width is None:
        raise FileFormatError(f"The configuration of {folder} does not tell the width of its tokens ({', '.join(WIDTHS)}).")
    if part:
        return Checkpoint(part_of(module, part, folder), name=text, width=width, call=_ask_part, heads=_number(config, HEADS))
    return Checkpoint(
        module, name=text, width=width, call=_ask_whole, heads=_number(config, HEADS), vocabulary=_vocabulary(module, width)
    )


def part_of(module: Any, part: str, folder: str) -> Any:
    """A submodule by its name."""
    try:
        return module.get_submodule(part)
    except AttributeError as error:
        names = [name for name, _ in module.named_modules() if name]
        close = [name for name in names if name.endswith(part) or part in name][:4] or names[:6]
        raise FileFormatError(f"{folder} has no part {part!r}; it has {', '.join(close)} …") from error


def _ask_whole(module: Any, tokens: Any) -> Any:
    asked = {"use_cache": False} if hasattr(module.config, "use_cache") else {}
    answer = module(inputs_embeds=tokens, **asked)
    logits = getattr(answer, "logits", None)
    return answer.last_hidden_state if logits is None else logits


def _ask_part(module: Any, tokens: Any) -> Any:
    answer = module(tokens)
    return answer[0] if isinstance(answer, tuple) else answer


def _vocabulary(module: Any, width: int) -> Floats | None:
    try:
        table = module.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):
        return None
    if table.ndim != 2 or table.shape[1] != width:
        return None
    return np.asarray(table.detach().double().numpy())


def _number(config: Any, names: tuple[str, ...]) -> int | None:
    return next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)


def _allow_pickle(folder: Path, trusted: bool) -> None:
    pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if not pickled:
        raise FileFormatError(f"{folder} holds no weights: neither *.safetensors nor {PICKLED}.")
    if not trusted:
        raise FileFormatError(
            f"{folder} holds pickled weights alone ({', '.join(pickled[:3])}); opening them can run code that they hold. Save the "
            "model again as safetensors; `verify` and `watch` open them with --trust-pickle, where you trust their origin."
        )
    import torch

    version = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 10):
        raise FileFormatError(
            f"torch {torch.__version__} can be tricked into running code by a pickled file; version 2.10 is the first that is safe "
            "from what is known today."
        )


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error
    return transformers
