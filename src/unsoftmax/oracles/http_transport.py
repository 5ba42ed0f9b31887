"""One HTTP connection pool to one server: sends a request until it is answered, or until it is clear that it will not be."""

from __future__ import annotations

import ssl
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx

from unsoftmax.errors import TargetError
from unsoftmax.oracles.crew import check_wanted
from unsoftmax.oracles.http_address import Address
from unsoftmax.oracles.http_codec import HEADER_LENGTH, GarbledReplyError, read_error
from unsoftmax.oracles.http_wire import Allowance, Wire
from unsoftmax.oracles.retry import Patience, TransientError, wait_asked
from unsoftmax.oracles.text import Secret, plain

PASSING = (408, 425, 429, 502, 503, 504)
UNPROCESSED = (408, 425, 429, 503)  # the server did not work on it, so asking again is not billed twice
DRIP = 10  # a request may take this many timeouts in all, its reply included, as long as something comes within each
UNPACK_EITHER = 47  # zlib's word for "gzip or zlib, whichever it is"

Content = TypeVar("Content")
Reader = Callable[[bytes, str | None], Content]


class StatusError(TargetError):
    """The server refused a request with this status; asking the same again would not help."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Transport:
    """Requests to one server, with retries, caps on what it may send back, and a token that never shows.

    Attributes:
        requests: requests sent so far.
        repeated: questions that were sent again because a reply was lost, and may have been billed twice.
    """

    def __init__(
        self,
        address: Address,
        *,
        token: Secret | None,
        ca_file: str | Path | None,
        in_flight: int,
        timeout: float,
        patience: Patience,
        reply_cap: int,
    ) -> None:
        if token is not None and not address.private:
            raise ValueError(
                f"The token from {token.origin} would go unencrypted to {address.host}. Use https://, or unset the token."
            )
        self.requests = 0
        self.repeated = 0
        self._address = address
        self._token = token
        self._trust = address.trust(ca_file)
        self._in_flight = in_flight
        self._timeout = timeout
        self._patience = patience
        self._reply_cap = reply_cap
        self._counting = threading.Lock()
        self._allowance = Allowance()
        self._client: httpx.Client | None = None
        self._met = False  # whether the server ever replied

    def get(self, path: str, read: Callable[[bytes], Content]) -> Content:
        """Read something that costs no question."""
        return self.send("GET", path, b"", {}, lambda body, _: read(body))

    def send(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: dict[str, str],
        read: Reader[Content],
        *,
        questions: int = 0,
        hopeful: bool = True,
        given_up: threading.Event | None = None,
    ) -> Content:
        """Send one request and hand its reply to ``read``.

        Args:
            method: GET or POST.
            path: path on the server.
            body: what to send.
            headers: headers of this request.
            read: turns body and ``Inference-Header-Content-Length`` into the result; a garbled reply is asked for again.
            questions: sequences in the request, for the count of those possibly billed twice.
            hopeful: whether a plain 500 is worth another attempt.
            given_up: set when nobody waits for the reply any more, so that no further attempt is made.

        Raises:
            StatusError: the server refused it.
            TargetError: any other failure that did not pass.
        """

        def noticed(error: TransientError) -> None:
            with self._counting:
                self.repeated += questions * error.lost

        attempts, started = 0, time.monotonic()
        try:
            for attempt in self._patience.tries(noticed, met=self._met):
                with attempt:
                    attempts += 1
                    check_wanted(given_up)
                    reply, header_length = self._once(method, path, body, headers, hopeful)
                    try:
                        return read(reply, header_length)
                    except GarbledReplyError as error:
                        raise TransientError(str(error), lost=True, doubtful=True) from error
        except TransientError as error:
            raise TargetError(self._patience.given_up(error, attempts, time.monotonic() - started, met=self._met)) from error
        raise AssertionError("the attempts end by an answer or an error")

    def close(self) -> None:
        """Drop the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _once(self, method: str, path: str, body: bytes, headers: dict[str, str], hopeful: bool) -> tuple[bytes, str | None]:
        with self._counting:
            self.requests += 1
        self._allowance.begin(DRIP * self._timeout)
        try:
            with self._connected().stream(method, path, content=body or None, headers=headers) as reply:
                self._allowance.reply(self._reply_cap)
                content = self._content(reply)
        except httpx.TransportError as error:
            raise self._broken(error) from error
        self._met = True
        if reply.status_code == 200:
            return content, reply.headers.get(HEADER_LENGTH)
        raise self._refused(reply, content, hopeful)

    def _content(self, reply: httpx.Response) -> bytes:
        """The body, unpacked by ourselves so that a small reply cannot grow without bound."""
        packing = reply.headers.get("Content-Encoding", "identity").strip().lower()
        if packing not in ("identity", "gzip", "deflate", ""):
            raise TargetError(f"The reply is packed as {plain(packing, 40)}, which was not asked for.")
        unpack = zlib.decompressobj(wbits=UNPACK_EITHER) if packing in ("gzip", "deflate") else None
        content = bytearray()
        for chunk in reply.iter_raw():
            room = self._reply_cap - len(content) + 1
            try:
                content += unpack.decompress(chunk, room) if unpack else chunk
            except zlib.error as error:
                raise TransientError(f"The reply cannot be unpacked ({plain(error, 80)}).", lost=True, doubtful=True) from error
            if len(content) > self._reply_cap:
                raise TargetError(
                    f"A reply exceeds the cap of {self._reply_cap} bytes. Raise `reply_cap` if such answers are expected."
                )
        if unpack is not None and not unpack.eof:
            raise TransientError("The packed reply ends before its end.", lost=True)
        return bytes(content)

    def _refused(self, reply: httpx.Response, content: bytes, hopeful: bool) -> TargetError:
        status = reply.status_code
        reason = self._redacted(read_error(content))
        told = f"The server answered {status}{f' ({reason})' if reason else ''}."
        if 300 <= status < 400:
            goal = self._redacted(plain(reply.headers.get("Location", "?"), 100))
            return TargetError(f"{told} It redirects to {goal}; redirects are not followed, give the final address.")
        if status in (401, 403):
            source = f"the token from {self._token.origin} was sent" if self._token else "no token was sent"
            return TargetError(f"{told} Access denied; {source}. Tokens come from UNSOFTMAX_TOKEN or UNSOFTMAX_TOKEN_FILE.")
        if status in PASSING:
            return TransientError(told, wait=wait_asked(reply.headers.get("Retry-After")), lost=status not in UNPROCESSED)
        if status == 500 and hopeful:
            return TransientError(told, doubtful=True)
        return StatusError(f"{told} Check the address, and that the model takes sequences of this shape.", status)

    def _broken(self, error: httpx.TransportError) -> TargetError:
        cause: BaseException | None = error
        for _ in range(8):  # the certificate error hides a few causes down
            if isinstance(cause, ssl.SSLError):
                return TargetError(
                    f"No trusted connection to {self._address.host}: {plain(cause, 160)}. Certificates are always verified; "
                    "for a private authority name its certificate in `ca_file` or UNSOFTMAX_CA_FILE."
                )
            cause = None if cause is None else cause.__cause__ or cause.__context__
        if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
            return TargetError(f"The request cannot be sent: {plain(error, 160)}.")
        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        what = "could not be reached" if unsent else "broke off or fell silent"
        detail = self._redacted(plain(error, 120))
        return TransientError(f"{self._address.root} {what} ({detail or type(error).__name__}).", lost=not unsent, unreached=unsent)

    def _redacted(self, text: str) -> str:
        return self._token.redact(text) if self._token else text

    def _connected(self) -> httpx.Client:
        if self._client is None:
            self._client = httpx.Client(
                base_url=self._address.root,
                transport=Wire(self._trust, self._in_flight, self._allowance),
                headers={"Authorization": f"Bearer {self._token.reveal()}"} if self._token else {},
                timeout=self._timeout,
                follow_redirects=False,
                trust_env=False,  # no proxies, .netrc or certificates from the surroundings
            )
            weakref.finalize(self, self._client.close)  # an oracle that nobody closed drops its connections with itself
        return self._client
