"""TARGET on the command line: a demo, a saved model, Python code, an ONNX file, or a server."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
from safetensors import SafetensorError, safe_open

from unsoftmax.demo import DEFAULTS, demo_model, demo_oracle
from unsoftmax.models import Model, load
from unsoftmax.models.base import is_model
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.oracles.base import Oracle, Wrapper
from unsoftmax.oracles.text import plain

HELP = "TARGET: demo, demo:FAMILY,key=value,…, FILE.safetensors, FILE.py:NAME, FILE.onnx, http(s)://HOST/v2/models/NAME, or grpc://HOST:PORT/NAME."


class Named(Wrapper):
    """A target under the name that the user gave it, and the fingerprint that a journal keeps."""

    def __init__(self, inner: Oracle, name: str, identity: str) -> None:
        super().__init__(inner)
        self.name = name
        self.identity = identity


def open_target(text: str, width: int | None = None) -> Named:
    """Open what the user named.

    Raises:
        click.UsageError: the text names nothing that can be opened.
    """
    if text == "demo" or text.startswith("demo:"):
        return Named(_demo(text, width), text, text)
    if text.startswith(("http://", "https://")):
        from unsoftmax.oracles.http import HttpOracle
        from unsoftmax.oracles.text import find_token

        server = HttpOracle(text, width=width, token=find_token())
        return Named(server, text, server.identity)
    if text.startswith(("grpc://", "grpcs://")):
        from unsoftmax.oracles.grpc_v2 import GrpcOracle
        from unsoftmax.oracles.text import find_token

        service = GrpcOracle(text, width=width, token=find_token())
        return Named(service, text, service.identity)
    path, _, name = text.partition(":")
    suffix = Path(path).suffix
    if suffix == ".py":
        return _python(Path(path), name, text, width)
    if suffix in (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib"):
        from unsoftmax.oracles.torch_module import refuse_pickle

        refuse_pickle(text)
    if suffix == ".onnx":
        from unsoftmax.oracles.onnx_file import OnnxOracle

        model = OnnxOracle(text, width=width)
        return Named(model, text, model.identity)
    if suffix == ".safetensors":
        return Named(as_oracle(load(text), width), text, _fingerprint(Path(text)))
    raise click.UsageError(f"TARGET is {text!r}, which is nothing that can be opened. {HELP}")


def open_token_target(text: str, embeddings: Path) -> Named:
    """A Python target on token ids, with the table that says what each id means."""
    from unsoftmax.oracles.tokens import Tokens

    path, _, name = text.partition(":")
    if Path(path).suffix != ".py":
        raise click.UsageError(f"TARGET is {text!r}; with --embeddings it must be FILE.py:NAME, a function of ids (batch, length).")
    module = _named_module(Path(path), name, text)
    return Named(
        Tokens(getattr(module, name), _table(embeddings)), text, f"{_fingerprint(Path(path))}:{name} {_fingerprint(embeddings)}"
    )


def _table(path: Path) -> Any:
    """The one two-dimensional array of a safetensors or npy file."""
    if not path.is_file():
        raise click.UsageError(f"There is no file {path}.")
    if path.suffix == ".npy":
        try:
            with path.open("rb") as handle:
                return np.lib.format.read_array(handle, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:  # click would take EOFError for an interrupt
            raise click.UsageError(f"{path} is not a NumPy array ({error}).") from error
    try:
        with safe_open(str(path), framework="numpy") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it cannot be iterated
    except (SafetensorError, OSError, TypeError) as error:
        raise click.UsageError(f"{path} is not a safetensors file ({error}).") from error
    tables = [tensor for tensor in tensors.values() if tensor.ndim == 2]
    if len(tables) != 1:
        raise click.UsageError(
            f"{path} holds {len(tables)} two-dimensional tensors; an embedding file holds one, (vocabulary, width)."
        )
    return tables[0]


def model_of(text: str, width: int | None = None) -> Model | None:
    """The model itself where a demo or a file of weights is named; None for targets that show nothing but answers."""
    if text == "demo" or text.startswith("demo:"):
        family, settings = _demo_settings(text, width)
        if family in DEFAULTS:
            return demo_model(family, **settings)
        target = getattr(demo_oracle(family, **settings), "target", None)
        return target if is_model(target) else None
    return load(text) if Path(text).suffix == ".safetensors" else None


def _demo(text: str, width: int | None) -> Oracle:
    family, settings = _demo_settings(text, width)
    return demo_oracle(family, **settings)


def _demo_settings(text: str, width: int | None) -> tuple[str, dict[str, int]]:
    family, *pairs = text.removeprefix("demo").removeprefix(":").split(",")
    settings: dict[str, int] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            settings[name.strip()] = int(value)
        except ValueError:
            raise click.UsageError(f"In {text!r}, {pair!r} is not of the form key=whole number.") from None
    if width is not None and settings.setdefault("width", width) != width:
        raise click.UsageError(f"--width is {width}, but {text!r} says that its width is {settings['width']}.")
    return family or "attention", settings


def _python(path: Path, name: str, text: str, width: int | None) -> Named:
    module = _named_module(path, name, text)
    return Named(as_oracle(getattr(module, name), width), text, f"{_fingerprint(path)}:{name}")


def _named_module(path: Path, name: str, text: str) -> ModuleType:
    """The module in ``path``, which must hold ``name``."""
    if not path.is_file():
        raise click.UsageError(f"There is no file {path}.")
    if not name:
        raise click.UsageError(f"{text!r} names a file but nothing in it. Write {path}:NAME with the callable's or module's name.")
    try:
        module = _load_module(path)
    except (Exception, SystemExit) as error:
        raise click.UsageError(f"{path} cannot be loaded: {type(error).__name__}: {plain(error)}") from error
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")][:8]
        raise click.UsageError(f"{path} has no {name!r}; it has {', '.join(public) or 'nothing public'}.")
    return module


def _load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"unsoftmax_target_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.absolute()))  # so that the file may import its neighbours
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent.absolute()))
    return module  # type: ignore[no-any-return]  # a module, typed Any for its attributes


def _fingerprint(path: Path) -> str:
    return f"{path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"
