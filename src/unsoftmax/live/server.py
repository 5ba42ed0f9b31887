"""The live page over HTTP: loopback alone, a secret in the address, one page and its stream of events, nothing else."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from unsoftmax.live.board import Board


class LiveServer:
    """Serves a board until it is closed.

    Attributes:
        address: of the page; whoever has it can read the page.
        readers: streams that are open now.
    """

    def __init__(self, board: Board, *, most_readers: int = 8, heartbeat: float = 2.0, pace: float = 0.1) -> None:
        self.board = board
        self.most_readers, self.heartbeat, self.pace = most_readers, heartbeat, pace
        self.readers = 0
        self.lock = threading.Lock()
        self.token = secrets.token_urlsafe(24)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.live = self
        self.hosts = tuple(f"{name}:{self._server.server_port}" for name in ("127.0.0.1", "localhost"))
        self.address = f"http://{self.hosts[0]}/{self.token}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(self.pace,), name="unsoftmax-live", daemon=True)
        self._thread.start()

    def close(self, patience: float = 5.0) -> None:
        """Let open streams take what is left, then stop."""
        until = time.monotonic() + patience
        while self.board.ended and self.readers and time.monotonic() < until:
            time.sleep(self.pace)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a reader that hangs must not hold the run
    live: LiveServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 20.0
    server_version = "unsoftmax"
    sys_version = ""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address holds the secret."""

    def do_GET(self) -> None:
        """The page, its script, its style and its events."""
        live = self.server.live
        if self.headers.get("Host", "").lower() not in live.hosts:  # another name for this machine: a rebinding attack
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        _, token, name = (*self.path.split("/", 2), "", "")[:3]
        files = {"": ("live.html", "text/html"), "live.js": ("live.js", "text/javascript"), "live.css": ("live.css", "text/css")}
        if not hmac.compare_digest(token.encode(), live.token.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif name == "events":
            self._stream(live)
        elif name in files:
            self._send(*files[name])
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _head(self, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:"
        for header, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Security-Policy", f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(header, value)

    def _send(self, file: str, kind: str) -> None:
        body = resources.files("unsoftmax.live").joinpath("templates", file).read_bytes()
        if file.endswith(".css"):
            from unsoftmax.report.page import stylesheet

            body = stylesheet().encode() + body
        self._head(kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, live: LiveServer) -> None:
        """Every part as it stands, then each change; a comment now and then, so that a reader who left is noticed."""
        with live.lock:
            room = live.readers < live.most_readers
            live.readers += room
        if not room:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        try:
            self._head("text/event-stream")
            self.end_headers()
            seen, ended = 0, False
            while not ended:
                ended = live.board.ended  # looked up first: what it ended with is among the news
                seen, news = live.board.news(seen, 0.0 if ended else live.heartbeat)
                text = "".join(f"event: {name}\ndata: {content}\n\n" for name, content in news) or ": still here\n\n"
                self.wfile.write(text.encode())
                self.wfile.flush()
                time.sleep(live.pace)  # several changes are sent as one
        finally:
            with live.lock:
                live.readers -= 1
