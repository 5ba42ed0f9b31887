"""What stands before a hosted target: the doors of the protocol alone, bodies of bounded size and time, its own host names."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from unsoftmax.oracles.text import Secret

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_LIMIT = 64 * 2**20
PATIENCE = 20.0  # seconds for a whole request to arrive, and for a reply to be taken
MODEL = r"/v2/models/[A-Za-z0-9_]+(/versions/[A-Za-z0-9_.-]+)?"
DOORS = {
    "GET": re.compile(rf"/v2|/v2/health/(live|ready)|{MODEL}(/ready)?"),
    "POST": re.compile(rf"{MODEL}/infer"),
}


class RefusedError(Exception):
    """A request that is answered with a status in place of the target's answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Guard:
    """An ASGI application around another one.

    Attributes:
        app: the application of the server.
        hosts: names that a request may call this machine by; None for any.
        token: what requests must bear; None for nothing.
        limit: bytes of a body.
        patience: seconds for a body to arrive.
    """

    app: Callable[[Message, Receive, Send], Awaitable[None]]
    hosts: tuple[str, ...] | None = None
    token: Secret | None = None
    limit: int = BODY_LIMIT
    patience: float = PATIENCE

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            if scope["type"] != "http":
                raise RefusedError(400, "Only HTTP is spoken here.")
            self._check(scope)
            body = await self._body(receive)
            if scope["method"] == "POST":
                _check_json(body)
            await self.app(scope, _once(body, receive), watched)
        except RefusedError as error:
            if scope["type"] == "http" and not begun:
                await _answer(send, error.status, str(error))
        except Exception:
            if begun:
                raise
            await _answer(send, 500, "The target failed on this request.")

    def _check(self, scope: Message) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = re.sub(r":\d*$", "", headers.get("host", "")).strip("[]").lower()
        if self.hosts is not None and host not in self.hosts:
            raise RefusedError(421, "This server does not answer under that name.")
        if self.token is not None and not bears(headers.get("authorization", ""), self.token):
            raise RefusedError(401, "A bearer token is needed.")
        door = DOORS.get(scope["method"])
        if door is None:
            raise RefusedError(405, "Only GET and POST are spoken here.")
        if not door.fullmatch(scope["path"]):
            raise RefusedError(404, "There is nothing here.")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise RefusedError(415, "Packed requests are not taken.")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > self.limit:
            raise RefusedError(413, f"A request may have {self.limit} bytes.")

    async def _body(self, receive: Receive) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self.patience):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(400, "The client hung up.")
                    body += message.get("body", b"")
                    if len(body) > self.limit:
                        raise RefusedError(413, f"A request may have {self.limit} bytes.")
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise RefusedError(408, f"A request must arrive within {self.patience:g} s.") from None


def bears(header: str, token: Secret) -> bool:
    """Whether an Authorization header bears the token; takes as long for a wrong one as for the right one."""
    kind, _, value = header.partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(value.strip().encode(), token.reveal().encode())


def impatient(patience: float = PATIENCE) -> type[H11Protocol]:
    """The server's HTTP protocol, which drops clients that send a request, or take a reply, too slowly."""

    class Impatient(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its own base has it
            super().connection_made(transport)
            self._since = self.loop.time()
            self._look_later()

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            self._since = self.loop.time()
            super().on_response_complete()

        def _look_later(self) -> None:
            self._timer = self.loop.call_later(patience / 4, self._look)

        def _look(self) -> None:
            cycle = self.cycle
            ours = cycle is not None and not cycle.response_complete and not cycle.more_body and not self.flow.write_paused
            if ours:  # the target is at work: its time is not the client's
                self._since = self.loop.time()
            elif self.loop.time() - self._since > patience:
                self.transport.abort()
                return
            self._look_later()

    return Impatient


def _check_json(body: bytes) -> None:
    """Refuse what is no JSON object here: deeper inside it would count as a fault of the server."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RefusedError(400, f"The request is no JSON ({error}).") from error
    if not isinstance(content, dict) or not isinstance(content.get("inputs"), list):
        raise RefusedError(400, "The request is no inference request: it needs an object with `inputs`.")


def _once(body: bytes, receive: Receive) -> Receive:
    """A source of one body that is already there; afterwards the client's own end of the line."""
    told = False

    async def give() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give


async def _answer(send: Send, status: int, reason: str) -> None:
    content = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
