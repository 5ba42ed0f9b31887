"""What a target loads: its code and the files it reads beside it belong to what a journal knows it by."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

WEIGHTS = (".safetensors", ".npz", ".npy", ".pt", ".pth", ".bin", ".onnx", ".gguf", ".h5", ".json", ".data", ".weights", ".csv")
CODE = (".py", ".pyc", ".so", ".pyd")
_listening = threading.local()
_hooked = threading.Event()


@contextmanager
def files_read() -> Iterator[set[Path]]:
    """Collects the files that Python code of this thread opens for reading inside the block."""
    if not _hooked.is_set():
        _hooked.set()
        sys.addaudithook(_heard)  # it stays for the life of the process, and is silent outside such blocks
    before = getattr(_listening, "to", None)
    found: set[Path] = set()
    _listening.to = found
    try:
        yield found
    finally:
        _listening.to = before


def _heard(event: str, values: tuple[object, ...]) -> None:
    if event != "open":
        return
    found = getattr(_listening, "to", None)
    if found is not None and values and isinstance(values[0], str | bytes | os.PathLike):
        mode = values[1] if len(values) > 1 else "r"
        if mode is None or (isinstance(mode, str) and not set(mode) & set("wax")):
            found.add(Path(os.fsdecode(values[0])).absolute())


def identity_of_code(path: str | Path, read: Iterable[Path] = ()) -> str:
    """What a journal knows the Python file ``path`` by: its own digest, and those of its neighbours that it loads.

    Neighbours are the files below its folder that were opened while it was loaded (``read``, from ``files_read``), the modules
    beside it that it imports, and weights whose names stand in that code, since libraries that are no Python open them unseen.
    """
    path = Path(path).absolute()
    folder = path.parent
    read = {other for other in read if other.is_relative_to(folder)}
    code = {path, *(source for other in read if other.suffix in CODE for source in _sources(other))}
    code |= {other for other in folder.glob("*.py") if _module_of(other)}
    text = "\n".join(other.read_text(encoding="utf-8", errors="replace") for other in sorted(code) if other.suffix == ".py")
    named = {other for other in folder.glob("*") if other.suffix in WEIGHTS and re.search(rf"\b{re.escape(other.stem)}\b", text)}
    data = {other for other in read if other.suffix not in CODE}
    beside = sorted(other for other in (code | named | data) - {path} if other.is_file())
    told = "".join(f" {other.relative_to(folder)} {digest_of(other)}" for other in beside)
    return f"{path.name} sha256 {digest_of(path, short=False)}{' with' + told if told else ''}"


def digest_of(path: Path, *, short: bool = True) -> str:
    """SHA-256 of a file, read in pieces."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            state.update(piece)
    return state.hexdigest()[: 16 if short else None]


def external_data(path: Path) -> list[Path]:
    """Files beside an ONNX file that hold tensors of it: those whose names stand in it."""
    content = path.read_bytes()
    return sorted(
        other
        for other in path.parent.rglob("*")
        if other != path and other.is_file() and str(other.relative_to(path.parent).as_posix()).encode() in content
    )


def _sources(compiled: Path) -> list[Path]:
    """The file that a compiled module was made from, where it is one."""
    if compiled.suffix != ".pyc":
        return [compiled]
    source = compiled.parent.parent / (compiled.name.split(".")[0] + ".py")
    return [source] if source.is_file() else []


def _module_of(path: Path) -> bool:
    """Whether a module in use was loaded from ``path``."""
    name = path.stem
    loaded = sys.modules.get(name)
    return loaded is not None and getattr(loaded, "__file__", None) is not None and Path(str(loaded.__file__)).absolute() == path
