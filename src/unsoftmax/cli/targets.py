"""TARGET on the command line: a table of schemes and kinds of files, each opened by a class that is imported on use."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
from safetensors import SafetensorError, safe_open

from unsoftmax.demo import DEFAULTS, demo_model, demo_oracle, setting
from unsoftmax.errors import BudgetExceededError, FileFormatError
from unsoftmax.models import Model, load
from unsoftmax.models.base import is_model
from unsoftmax.models.llama_layout import is_llama, read_llama
from unsoftmax.models.state_dicts import is_state_dict, read_state_dict, tensors_in
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.oracles.base import Oracle, Wrapper
from unsoftmax.oracles.loaded import files_read, identity_of_code
from unsoftmax.oracles.text import find_token, plain
from unsoftmax.oracles.torch_module import refuse_pickle

HELP = (
    "TARGET: demo, demo:FAMILY,key=value,…, FILE.safetensors[#part], FILE.py:NAME, FILE.onnx[#FROM..TO], ./FOLDER[#part] in "
    "Hugging Face layout, http(s)://HOST/v2/models/NAME, grpc://HOST:PORT/NAME, vllm+http://HOST/MODEL, "
    "sglang+http://HOST/MODEL, or rest+FILE.toml."
)
SCHEMES = {
    "http": "unsoftmax.oracles.http:HttpOracle",
    "https": "unsoftmax.oracles.http:HttpOracle",
    "grpc": "unsoftmax.oracles.grpc_v2:GrpcOracle",
    "grpcs": "unsoftmax.oracles.grpc_v2:GrpcOracle",
    "vllm+http": "unsoftmax.oracles.vllm:VllmOracle",
    "vllm+https": "unsoftmax.oracles.vllm:VllmOracle",
    "sglang+http": "unsoftmax.oracles.sglang:SglangOracle",
    "sglang+https": "unsoftmax.oracles.sglang:SglangOracle",
}
"""Servers by the scheme of their address; each class takes ``(text, width=, token=)``. Others come by entry point."""


class Named(Wrapper):
    """A target under the name that the user gave it, and the fingerprint that a journal keeps."""

    def __init__(self, inner: Oracle, name: str, identity: str) -> None:
        super().__init__(inner)
        self.name = name
        self.identity = identity


def open_target(
    text: str, width: int | None = None, *, heads: int | None = None, trust_pickle: bool = False, streams: int | None = None
) -> Named:
    """Open what the user named.

    Args:
        text: as ``HELP`` says.
        width: token length, where the target does not tell it.
        heads: heads of a state dict, which does not tell them.
        trust_pickle: whether a folder's pickled weights may be opened.
        streams: requests that a server is to work on side by side; every call is divided among them.

    Raises:
        click.UsageError: the text names nothing that can be opened, or nothing that takes requests.
    """
    served = {} if streams is None else {"in_flight": streams, "divide": True}
    if served and text.partition("://")[0].lower() not in SCHEMES and not text.startswith("rest+"):
        raise click.UsageError(
            f"{plain(text, 120)!r} takes no requests that could be under way side by side; streams are for targets behind "
            f"{', '.join(SCHEMES)} and rest+FILE.toml. Leave --streams out."
        )
    if text == "demo" or text.startswith("demo:"):
        return Named(_demo(text, width), text, text)
    scheme, found, _ = text.partition("://")
    if found:
        return _server(scheme.lower(), text, width, served)
    if text.startswith("rest+"):
        from unsoftmax.oracles.rest import RestOracle

        rest = RestOracle(text.removeprefix("rest+"), width=width, **served)
        return Named(rest, text, rest.identity)
    return _file(text, width, heads, trust_pickle)


def _server(scheme: str, text: str, width: int | None, served: dict[str, Any]) -> Named:
    """A server by its scheme: ours first, so that no package can take one of them over."""
    if scheme in SCHEMES:
        oracle = _class(SCHEMES[scheme])(text, width=width, token=find_token(), **served)
        return Named(oracle, text, oracle.identity)
    others = {point.name: point for point in importlib.metadata.entry_points(group="unsoftmax.targets")}
    if scheme not in others:
        known = ", ".join([*SCHEMES, *sorted(set(others) - set(SCHEMES))])
        raise click.UsageError(
            f"{plain(text, 120)!r} has the scheme {plain(scheme, 40)!r}, which nothing here opens. Known: {known}."
        )
    try:
        opened = others[scheme].load()(text, width=width)
    except ImportError as error:
        raise click.UsageError(f"The package that opens {scheme}:// cannot be imported: {plain(error)}") from error
    return Named(as_oracle(opened, None if hasattr(opened, "width") else width), text, str(getattr(opened, "identity", text)))


def _file(text: str, width: int | None, heads: int | None, trust_pickle: bool) -> Named:
    """A file or folder, perhaps with a part of it behind ``#``."""
    whole, _, part = text.partition("#")
    path, _, name = whole.partition(":")
    suffix = Path(path).suffix.lower()
    if suffix == ".py":
        return _python(Path(path), name, text, width)
    refuse_pickle(path)
    if suffix == ".onnx":
        from unsoftmax.oracles.onnx_file import OnnxOracle
        from unsoftmax.oracles.onnx_part import cut_out

        model = OnnxOracle(cut_out(whole, part) if part else whole, width=width)
        return Named(model, text, f"{model.identity} {part}".strip())
    if suffix == ".safetensors":
        return Named(as_oracle(model_in(whole, part, heads), width), text, f"{_fingerprint(Path(whole))} {part}".strip())
    if Path(whole).is_dir():
        from unsoftmax.deployment.folders import load_module, part_of
        from unsoftmax.oracles.torch_module import TorchOracle

        module = load_module(Path(whole), trust_pickle=trust_pickle)
        target = TorchOracle(part_of(module, part, whole) if part else module, width=width)
        return Named(target, text, target.identity)
    raise click.UsageError(f"TARGET is {text!r}, which is nothing that can be opened. {HELP}")


def model_in(path: str, part: str = "", heads: int | None = None) -> Model:
    """A model of ours from a safetensors file: saved by us, or in a layout of the trade (one layer after ``#``, a whole Llama)."""
    if Path(path).exists() and is_state_dict(path):
        return read_state_dict(path, part=part, heads=heads)
    if not part and Path(path).exists() and is_llama(path):
        return read_llama(path, heads=heads)
    if Path(path).is_dir():
        names = list(tensors_in(Path(path)))  # a corrupt shard is told here
        raise FileFormatError(f"{path} holds no attention layer in a layout that is known here; tensors: {', '.join(names[:4])} …")
    if part:
        raise click.UsageError(f"{path} holds one model of unsoftmax and no parts; leave out #{part}.")
    return load(path)


def _class(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


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
        holder = getattr(target, "__self__", getattr(target, "func", target))  # a method for sequences, or with settings
        return holder if is_model(holder) else None
    whole, _, part = text.partition("#")
    return model_in(whole, part) if Path(whole).suffix == ".safetensors" else None


def _demo(text: str, width: int | None) -> Oracle:
    family, settings = _demo_settings(text, width)
    return demo_oracle(family, **settings)


def _demo_settings(text: str, width: int | None) -> tuple[str, dict[str, int]]:
    family, *pairs = text.removeprefix("demo").removeprefix(":").split(",")
    settings: dict[str, int] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            settings[name.strip()] = setting(name.strip(), value.strip())
        except ValueError:
            raise click.UsageError(f"In {text!r}, {pair!r} is not of the form key=whole number (or activation=NAME).") from None
    if width is not None and settings.setdefault("width", width) != width:
        raise click.UsageError(f"--width is {width}, but {text!r} says that its width is {settings['width']}.")
    return family or "attention", settings


def _python(path: Path, name: str, text: str, width: int | None) -> Named:
    with files_read() as read:
        module = _named_module(path, name, text)
    return Named(as_oracle(getattr(module, name), width), text, f"{identity_of_code(path, read)}:{name}")


def _named_module(path: Path, name: str, text: str) -> ModuleType:
    """The module in ``path``, which must hold ``name``."""
    if not path.is_file():
        raise click.UsageError(f"There is no file {path}.")
    if not name:
        raise click.UsageError(f"{text!r} names a file but nothing in it. Write {path}:NAME with the callable's or module's name.")
    try:
        module = _load_module(path)
    except BudgetExceededError:  # the time of the run is over, which is no fault of the file
        raise
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
