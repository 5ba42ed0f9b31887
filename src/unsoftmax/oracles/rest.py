"""Any plain REST interface, by a small mapping in TOML: where questions go, and where answers stand in the reply."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from unsoftmax.errors import FileFormatError, TargetError
from unsoftmax.models import Floats
from unsoftmax.oracles.http_address import Address, refuse_forbidden
from unsoftmax.oracles.served import Served, at
from unsoftmax.oracles.text import plain

KEYS = {"url", "width", "headers", "body", "tensor", "answer", "batched", "timeout", "sequences"}
VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")


class RestOracle(Served):
    """A model behind a REST interface that a TOML file describes, named as ``rest+FILE.toml``.

    The file has ``url``, ``width``, ``answer`` (the place of the numbers in the reply, such as ``"data/0/vector"``; ``*`` stands
    for every entry of a list), and may have ``tensor`` (the place of the sequences in the request, ``"inputs"`` by default),
    ``body`` (what else is in the request), ``headers`` (with ``${NAME}`` from the environment), ``batched`` (false: one sequence a
    request), ``sequences`` (in one request at most) and ``timeout``.
    """

    def __init__(self, file: str | Path, *, width: int | None = None, **settings: Any) -> None:
        mapping = read_mapping(Path(file))
        told = mapping.get("width")
        if width is not None and told is not None and width != told:
            raise ValueError(f"width={width} was given, but {file} says that its width is {told}.")
        self._batched = bool(mapping.get("batched", True))
        if "timeout" in mapping:
            settings.setdefault("timeout", float(mapping["timeout"]))
        settings.setdefault("sequences", int(mapping.get("sequences", 64)) if self._batched else 1)
        parts = urlsplit(mapping["url"])
        self.path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        address = Address(parts.scheme, str(parts.hostname), parts.port, "", parts.path.strip("/") or "model", None)
        super().__init__(address, width=width or told, **settings)
        self._headers = {**self._headers, **{key: _filled(value, str(file)) for key, value in mapping.get("headers", {}).items()}}
        if mapping.get("headers") and not address.private and VARIABLE.search(str(mapping["headers"])):
            raise ValueError(f"{file} would send what stands in the environment unencrypted to {address.host}. Use https://.")
        self._fixed: dict[str, Any] = mapping.get("body", {})
        self._tensor = str(mapping.get("tensor", "inputs")).split("/")
        self._answer = [int(step) if step.isdigit() else step for step in str(mapping["answer"]).split("/") if step]

    def _body(self, piece: Floats) -> Any:
        body: dict[str, Any] = dict(self._fixed)
        inner = body
        for step in self._tensor[:-1]:
            inner[step] = dict(inner.get(step, {}))
            inner = inner[step]
        inner[self._tensor[-1]] = piece.tolist() if self._batched else piece[0].tolist()
        return body

    def _read(self, reply: Any, piece: Floats) -> Any:
        found = gathered(reply, self._answer)
        try:
            answers = np.asarray(found, dtype=np.float64)
        except (TypeError, ValueError) as error:
            place = "/".join(map(str, self._answer))
            raise TargetError(f"What stands at {place!r} of the reply is no array of numbers ({plain(error, 80)}).") from error
        return answers if self._batched else answers[None]


def gathered(reply: Any, steps: list[str | int]) -> Any:
    """What stands at a place; ``*`` gathers it from every entry of a list.

    >>> gathered({"data": [{"v": [1, 2]}, {"v": [3, 4]}]}, ["data", "*", "v"])
    [[1, 2], [3, 4]]
    """
    if not steps:
        return reply
    if steps[0] == "*":
        if not isinstance(reply, list):
            raise TargetError("The reply has no list where the mapping says `*`.")
        return [gathered(entry, steps[1:]) for entry in reply]
    return gathered(at(reply, steps[0]), steps[1:])


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a TOML file, its keys and address checked."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        mapping = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} is no TOML document ({plain(error, 120)}).") from error
    unknown = sorted(set(mapping) - KEYS)
    missing = [key for key in ("url", "answer") if not isinstance(mapping.get(key), str)]
    if unknown or missing:
        raise FileFormatError(
            f"{path} {'lacks ' + ', '.join(missing) if missing else 'has unknown keys ' + ', '.join(unknown)}; known keys are "
            f"{', '.join(sorted(KEYS))}."
        )
    parts = urlsplit(mapping["url"])
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise FileFormatError(f"The url in {path} must be http(s)://HOST/PATH, without a user name.")
    refuse_forbidden(parts.hostname)
    return mapping


def _filled(value: Any, file: str) -> str:
    """A header with variables from the environment filled in."""

    def variable(found: re.Match[str]) -> str:
        told = os.environ.get(found[1])
        if told is None:
            raise ValueError(f"{file} wants the variable {found[1]} for a header, which is not set.")
        return told

    return VARIABLE.sub(variable, str(value))
