"""Real and scripted servers on loopback, started and stopped by the tests."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from unsoftmax.models import load
from unsoftmax.oracles import CallableOracle
from unsoftmax.oracles.http_codec import DATATYPES
from unsoftmax.serving import serve

MODEL = "head"


@dataclass(frozen=True)
class Hosted:
    """Where a server listens."""

    http: str
    grpc: str
    process: subprocess.Popen[bytes]


PORTS = itertools.count(10_000 + 7 * os.getpid() % 20_000)


def own_port() -> int:
    """A free port that no other process of the suite looks at, below those that the system gives away by itself."""
    for port in PORTS:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("ports have no end")


@contextlib.contextmanager
def mlserver(weights: Path, *, precision: str = "FP64", rate: float | None = None, port: int | None = None) -> Iterator[Hosted]:
    """MLServer with the model saved at ``weights``, in a process of its own."""
    http_port, grpc_port = port or own_port(), own_port()
    command = [sys.executable, __file__, str(weights), str(http_port), str(grpc_port), precision, str(rate or 0)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    root = f"http://127.0.0.1:{http_port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            if not started(lambda: answers(f"{root}/v2/models/{MODEL}/ready"), process):
                log.seek(0)
                raise RuntimeError(f"the server did not start: {log.read()[-2000:].decode(errors='replace')}")
            yield Hosted(f"{root}/v2/models/{MODEL}", f"grpc://127.0.0.1:{grpc_port}/{MODEL}", process)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def peer(kind: str, interpreter: str, head: Path, library: str) -> Iterator[tuple[str, str]]:
    """Another server of the protocol, in another interpreter; yields its HTTP and gRPC addresses."""
    http_port, grpc_port = own_port(), own_port()
    command = [interpreter, str(Path(__file__).parent / "peers" / f"{kind}_server.py"), str(head), str(http_port), str(grpc_port)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"LD_LIBRARY_PATH": library}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    http = f"http://127.0.0.1:{http_port}/v2/models/{MODEL}"
    try:
        if not started(lambda: answers(http + "/ready"), process):
            raise RuntimeError(f"{kind} did not start")
        yield http, f"grpc://127.0.0.1:{grpc_port}/{MODEL}"
    finally:
        ended(process)


def ended(process: subprocess.Popen[bytes]) -> None:
    """Ask a server to stop, so that what it measured of itself is written, and wait for it; after a while end it."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=10, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def started(ready: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 300.0) -> bool:
    deadline = time.monotonic() + seconds
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


Reply = tuple[int, dict[str, str], bytes]
Script = Callable[[str, str, bytes, dict[str, str]], Reply]  # method, path, body, headers


@contextlib.contextmanager
def scripted(script: Script, wrap: Callable[[Any], Any] | None = None) -> Iterator[str]:
    """A server that answers as ``script`` says, with keep-alive; yields its address. ``wrap`` may put TLS around its socket."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # headers and body are two pieces: the second would wait for the first to be acknowledged

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, content = script(self.command, self.path, body, dict(self.headers))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:  # clients that hang up are part of the script
            pass

    server = Server(("127.0.0.1", 0), Handler)
    if wrap is not None:
        server.socket = wrap(server.socket)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"{'http' if wrap is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class OpenInference:
    """A small server of the protocol for scripts: answers with ``model``; ``fault`` may answer a question in its place.

    Attributes:
        asked: questions answered so far.
        log: method and path of each request.
    """

    def __init__(
        self,
        model: Callable[[Any], Any],
        width: int,
        *,
        datatype: str = "FP64",
        labels: str | None = None,
        binary: bool = True,
        advertise: bool = True,
        limit: int | None = None,
        fault: Callable[[int], Reply | None] = lambda _: None,
    ) -> None:
        self.model, self.width, self.datatype, self.labels = model, width, datatype, labels or datatype
        self.binary, self.advertise, self.limit, self.fault = binary, advertise, limit, fault
        self.asked = 0
        self.log: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.posts = 0

    def __call__(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Reply:
        self.log.append((method, path))
        self.headers.append(headers)
        if method == "GET" and path == "/v2":
            return self._json({"name": "scripted", "version": "1", "extensions": ["binary_tensor_data"] if self.advertise else []})
        if method == "GET":
            tensor = {"datatype": self.datatype}
            inputs = [tensor | {"name": "sequences", "shape": [-1, -1, self.width]}]
            told = {"name": "answers", "datatype": self.labels, "shape": [-1]}
            return self._json({"name": MODEL, "inputs": inputs, "outputs": [told]})
        self.posts += 1
        wrong = self.fault(self.posts)
        return self._infer(body, headers) if wrong is None else wrong

    def _infer(self, body: bytes, headers: dict[str, str]) -> Reply:
        lower = {name.lower(): value for name, value in headers.items()}
        split = lower.get("inference-header-content-length")
        kind = np.dtype(DATATYPES[self.datatype])
        if split is not None and not self.binary:
            return 500, {}, b"Internal Server Error"
        request = json.loads(body[: int(split)] if split else body)
        tensor = request["inputs"][0]
        shape = tensor["shape"]
        if tensor["datatype"] != self.datatype or shape[2] != self.width:
            return 400, {}, json.dumps({"error": f"unexpected {tensor['datatype']} {shape}"}).encode()
        if self.limit is not None and shape[0] > self.limit:
            return 413, {}, b""
        X = np.frombuffer(body[int(split) :], kind) if split else np.array(tensor["data"], kind)
        Y = np.asarray(self.model(X.reshape(shape).astype(np.float64)))
        Y = Y if self.labels in ("BOOL", "BYTES") else Y.astype(DATATYPES[self.labels])
        self.asked += len(Y)
        output = {"name": "answers", "datatype": self.labels, "shape": list(Y.shape)}
        if not split:
            return self._json({"model_name": MODEL, "outputs": [output | {"data": Y.ravel().tolist()}]})
        raw = Y.tobytes()
        if self.labels == "BYTES":
            raw = b"".join(len(name).to_bytes(4, "little") + name.encode() for name in Y.ravel().tolist())
        header = json.dumps({"outputs": [output | {"parameters": {"binary_data_size": len(raw)}}]}).encode()
        return 200, {"Inference-Header-Content-Length": str(len(header))}, header + raw

    @staticmethod
    def _json(content: object) -> Reply:
        return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()


class _At:
    """A callable with a precision, as adapters have it."""

    def __init__(self, oracle: CallableOracle, precision: str) -> None:
        self.oracle = oracle
        self.width = oracle.width
        self.precision = precision

    def __call__(self, sequences: Any) -> Any:
        return self.oracle(sequences)


if __name__ == "__main__":
    weights, http_port, grpc_port, precision, rate = sys.argv[1:]
    model = load(weights)
    serve(
        _At(CallableOracle(model, model.width), precision),  # type: ignore[arg-type]
        name=MODEL,
        port=int(http_port),
        grpc_port=int(grpc_port),
        rate=float(rate) or None,
    )
