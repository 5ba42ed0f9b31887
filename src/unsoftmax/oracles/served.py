"""What oracles over plain HTTP share: one address, one transport, requests of a bounded size, answers in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import msgspec
import numpy as np

from unsoftmax.errors import TargetError, UnknownWidthError
from unsoftmax.models import Floats
from unsoftmax.oracles.crew import Before, Task, in_turn, size_of_requests
from unsoftmax.oracles.http_address import Address, presentable, refuse_forbidden
from unsoftmax.oracles.http_codec import GarbledReplyError
from unsoftmax.oracles.http_transport import Transport
from unsoftmax.oracles.local import Layout, checked_answers
from unsoftmax.oracles.retry import Patience
from unsoftmax.oracles.text import Secret, find_token, plain

JSON = {"Content-Type": "application/json"}


def read_served(url: str, scheme: str) -> Address:
    """Take ``SCHEME+http(s)://HOST[:PORT]/MODEL`` apart; a model's name may hold slashes.

    >>> read_served("vllm+http://127.0.0.1:8000/org/name", "vllm").model
    'org/name'
    """
    form = f"{scheme}+http(s)://HOST[:PORT]/MODEL"
    shown = presentable(url)
    try:
        parts = urlsplit(url.removeprefix(f"{scheme}+"))
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{shown!r} is no address ({plain(error, 80)}); it must look like {form}.") from error
    if parts.username is not None or parts.password is not None:
        raise ValueError("The address holds a user name or password. Put a token into UNSOFTMAX_TOKEN or a file instead.")
    model = unquote(parts.path.strip("/"))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or not model:
        raise ValueError(f"{shown!r} is no address of a model; it must look like {form}.")
    refuse_forbidden(parts.hostname)
    return Address(parts.scheme, parts.hostname, port, "", model, None)


class Served(ABC):
    """An oracle that posts one JSON document per request; subclasses say what is in it and how to read the reply.

    Args:
        address: the server, and the model's name there.
        width: token length, where the server cannot be asked for it.
        sequences: sequences in one request at most.
        in_flight: requests under way at once.
        divide: whether every call is divided among them, for a server that works on them side by side.
        timeout: seconds without progress after which a request counts as lost.
        patience: how often and how long to try again.
        reply_cap: bytes of a reply beyond which it is refused.
        token: a bearer token; else the variables ``UNSOFTMAX_TOKEN_FILE`` and ``UNSOFTMAX_TOKEN`` are looked at.
        ca_file: certificates to trust in place of the public ones.
    """

    path = "/"

    def __init__(
        self,
        address: Address,
        *,
        width: int | None = None,
        sequences: int = 64,
        in_flight: int = 2,
        divide: bool = False,
        timeout: float = 60.0,
        patience: Patience | None = None,
        reply_cap: int = 256 * 2**20,
        token: Secret | None = None,
        ca_file: str | Path | None = None,
    ) -> None:
        self.address = address
        self._width = width
        self._sequences = sequences
        self._in_flight = in_flight
        self._streams = in_flight if divide else None
        self._layout = Layout()
        self._headers: dict[str, str] = dict(JSON)
        self._transport = Transport(
            address,
            token=token or find_token(),
            ca_file=ca_file,
            in_flight=in_flight,
            timeout=timeout,
            patience=patience or Patience(),
            reply_cap=reply_cap,
        )

    @property
    def width(self) -> int:
        """Length of a token vector."""
        if self._width is None:
            self._width = self._asked_width()
        return self._width

    @property
    def requests(self) -> int:
        """Requests sent so far."""
        return self._transport.requests

    @property
    def repeated(self) -> int:
        """Sequences that were sent again because a reply was lost."""
        return self._transport.repeated

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"{self.address.root}/{self.address.model}"

    @property
    def identity(self) -> str:
        """What a journal may know this target by."""
        return f"{type(self).__name__} {self.name} width {self.width}"

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask ``(batch, length, width)``; answers in the order of the questions."""
        if len(sequences) == 0:
            raise ValueError("There is nothing to ask: the batch is empty.")
        return np.concatenate([answers for _, answers in self.parts(sequences)])

    def parts(self, sequences: Floats, before: Before | None = None) -> Iterator[tuple[int, Floats]]:
        """The answers request by request, as ``(start, answers)``."""
        if sequences.shape[2] != self.width:
            raise ValueError(f"Sequences have tokens of width {sequences.shape[2]}; {self.name} takes {self.width}.")

        def tasks() -> Iterator[Task[Floats]]:
            size = size_of_requests(len(sequences), self._sequences, self._streams)
            for start in range(0, len(sequences), size):
                piece = sequences[start : start + size]
                yield start, len(piece), partial(self._ask, piece)

        return in_turn(tasks(), lambda: self._in_flight, before)

    def close(self) -> None:
        """Drop the connections. The oracle may be used again."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _ask(self, piece: Floats, given_up: Event) -> Floats:
        def read(reply: bytes, _: str | None) -> Floats:
            return checked_answers(self._read(decoded(reply), piece), (len(piece), piece.shape[1]), self._layout)

        body = msgspec.json.encode(self._body(piece))
        return self._transport.send("POST", self.path, body, self._headers, read, questions=len(piece), given_up=given_up)

    def _asked_width(self) -> int:
        raise UnknownWidthError(f"{self.name} does not tell the width of its tokens. Pass `width=` (--width).")

    @abstractmethod
    def _body(self, piece: Floats) -> Any:
        """The document that asks these sequences."""

    @abstractmethod
    def _read(self, reply: Any, piece: Floats) -> Any:
        """The answers to these sequences in a reply."""


def decoded(reply: bytes) -> Any:
    """A JSON document; bare NaN and Infinity are no JSON and count as garbled."""
    try:
        return msgspec.json.decode(reply)
    except msgspec.DecodeError as error:
        raise GarbledReplyError(f"The reply is no JSON document ({plain(error, 80)}).") from error


def at(reply: Any, *steps: str | int) -> Any:
    """What stands at a place in a reply, or a ``TargetError`` that names the place."""
    found = reply
    for step in steps:
        try:
            found = found[step]
        except (KeyError, IndexError, TypeError) as error:
            place = "/".join(map(str, steps))
            raise TargetError(f"The reply has nothing at {place!r}; it is not what this kind of server sends.") from error
    return found
