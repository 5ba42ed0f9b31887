"""The wire under HTTP requests: one deadline and one allowance of bytes around everything that a server may send or hold back.

Timeouts of sockets begin anew with every byte, and interim replies (1xx), header lines and trailers may come for ever; so every
read and write of a request looks at the same clock, and what comes before the reply itself has a cap of its own.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

from unsoftmax.oracles.http_address import forbidden

BEFORE_REPLY = 256 * 2**10  # bytes of interim replies and headers
PIECE = 64 * 2**10  # bytes written between looks at the clock


class Allowance(threading.local):
    """What the request of this thread may still take: time until ``until``, and ``room`` bytes."""

    until: float = float("inf")
    room: float = float("inf")

    def begin(self, seconds: float) -> None:
        """A new request: so many seconds for all of it."""
        self.until = time.monotonic() + seconds
        self.room = BEFORE_REPLY

    def reply(self, cap: int) -> None:
        """The reply's headers are there: its body may have ``cap`` bytes, packed in chunks."""
        self.room = 2 * cap + BEFORE_REPLY

    def seconds(self, timeout: float | None, late: type[Exception]) -> float:
        """How long the next step may wait."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise late("the request took too long in all")
        return left if timeout is None else min(timeout, left)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, allowance: Allowance) -> None:
        self._inner, self._allowance = inner, allowance

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._inner.read(max_bytes, self._allowance.seconds(timeout, httpcore.ReadTimeout))
        self._allowance.room -= len(data)
        if self._allowance.room < 0:
            raise httpcore.RemoteProtocolError("more bytes than a reply may have, or too many interim replies")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), PIECE):
            self._inner.write(buffer[start : start + PIECE], self._allowance.seconds(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        allowed = self._allowance.seconds(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, allowed), self._allowance)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.SyncBackend):
    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        allowed = self._allowance.seconds(timeout, httpcore.ConnectTimeout)
        stream = super().connect_tcp(host, port, allowed, local_address, socket_options)
        reached = str(stream.get_extra_info("server_addr")[0])
        if forbidden(reached):  # a name may lead anywhere; nothing was sent yet
            stream.close()
            raise httpcore.UnsupportedProtocol(f"{host} leads to {reached}, a link-local address, which is never asked")
        return _Stream(stream, self._allowance)


class Wire(httpx.BaseTransport):
    """A pool of connections for httpx whose every step keeps to ``allowance``."""

    def __init__(self, trust: ssl.SSLContext | bool, connections: int, allowance: Allowance) -> None:
        context = trust if isinstance(trust, ssl.SSLContext) else httpx.create_ssl_context(trust_env=False)
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            max_connections=connections,
            max_keepalive_connections=connections,
            keepalive_expiry=4.0,  # common servers hang up after 5 idle seconds; be first
            network_backend=_Backend(allowance),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request."""
        url = request.url
        with _translated():
            reply = self._pool.handle_request(
                httpcore.Request(
                    method=request.method,
                    url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx.Response(reply.status, headers=reply.headers, stream=_Body(reply), extensions=reply.extensions)

    def close(self) -> None:
        """Drop the connections."""
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, reply: httpcore.Response) -> None:
        self._reply = reply

    def __iter__(self) -> Iterator[bytes]:
        with _translated():
            yield from self._reply.iter_stream()

    def close(self) -> None:
        with _translated():
            self._reply.close()


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of the pool as those of httpx, which have the same names."""
    try:
        yield
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
        kind = getattr(httpx, type(error).__name__, httpx.TransportError)
        raise kind(str(error)) from error
