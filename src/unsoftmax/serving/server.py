"""Starting MLServer around a target, on loopback unless told otherwise."""

from __future__ import annotations

import asyncio
import math
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unsoftmax.errors import MissingExtraError
from unsoftmax.oracles.base import Oracle
from unsoftmax.oracles.text import Secret

LOOPBACK = ("127.0.0.1", "localhost", "::1")
CLIENTS = 64  # connections at once
QUIET = {  # these loggers print a traceback for every request that is refused or cut off
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler", "stream": "ext://sys.stderr"}},
    "loggers": {name: {"level": "CRITICAL", "handlers": ["stderr"], "propagate": False} for name in ("mlserver.grpc", "uvicorn")}
    | {"mlserver": {"level": "ERROR", "handlers": ["stderr"], "propagate": False}},
}


def serve(
    oracle: Oracle,
    *,
    name: str = "target",
    host: str = "127.0.0.1",
    port: int = 8080,
    grpc_port: int = 8081,
    rate: float | None = None,
    quota: int | None = None,
    token: Secret | None = None,
    patience: float | None = None,
    announce: Callable[[], None] | None = None,
) -> None:
    """Host ``oracle`` until the process is told to stop (Ctrl-C or SIGTERM); defences are wrappers around the oracle.

    Args:
        oracle: what answers.
        name: the model's name in its address, ``http://HOST:PORT/v2/models/NAME``.
        host: address to listen on.
        port: HTTP port.
        grpc_port: gRPC port.
        rate: sequences a second that are let through; requests beyond get 429 with the time to wait.
        quota: sequences that are answered in all; requests beyond get 403.
        token: a bearer token that requests must have; None asks for none.
        patience: seconds for a whole request to arrive; slower clients are dropped.
        announce: called once the server is about to listen.
    """
    try:
        import mlserver
    except ImportError as error:
        raise MissingExtraError("mlserver", "serve") from error
    from unsoftmax.serving.guard import PATIENCE, impatient
    from unsoftmax.serving.limits import Limiter, Quota
    from unsoftmax.serving.runtime import HOSTED, Hosted, HostedTarget

    if port == grpc_port:
        raise ValueError(f"HTTP and gRPC need a port each; both are told to listen on {port}.")
    for wanted in (port, grpc_port):
        _check_port(host, wanted)
    limits = (None if rate is None else Limiter(rate), None if quota is None else Quota(quota))
    HOSTED[name] = Hosted(oracle, *limits, token)
    with tempfile.TemporaryDirectory() as empty:
        settings = mlserver.Settings(
            debug=False,
            host=host,
            http_port=port,
            grpc_port=grpc_port,
            grpc_max_message_length=64 * 2**20,
            parallel_workers=0,
            metrics_endpoint=None,
            model_repository_root=empty,
            load_models_at_startup=False,
            logging_settings=QUIET,
        )
        settings._custom_rest_server_settings = {
            "http": impatient(patience or PATIENCE),
            "limit_concurrency": CLIENTS,
            "ws": "none",
        }
        model = mlserver.ModelSettings(name=name, implementation=HostedTarget, parameters=mlserver.settings.ModelParameters())
        names = LOOPBACK if host in LOOPBACK else None
        asyncio.run(_run(mlserver.MLServer, settings, model, announce, _Rules(names, token, patience or PATIENCE)))


def free_port(host: str = "127.0.0.1", *, but: int = 0) -> int:
    """A port that nobody listens on right now, other than ``but``."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = int(probe.getsockname()[1])
        return port if port != but else free_port(host, but=but)  # while this one is held


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(f"Port {port} on {host} cannot be listened on ({error.strerror}). Choose another one.") from error


@dataclass(frozen=True, slots=True)
class _Rules:
    hosts: tuple[str, ...] | None
    token: Secret | None
    patience: float


async def _run(kind: Any, settings: Any, model: Any, announce: Callable[[], None] | None, rules: _Rules) -> None:
    from unsoftmax.serving.guard import Guard
    from unsoftmax.serving.runtime import TooManyRequestsError, closed

    server = kind(settings)
    # MLServer offers no public way to its application and its repository: fail here, loudly, rather than serve without a guard
    application, repository = server._rest_server._app, server._model_repository_handlers
    application.add_exception_handler(TooManyRequestsError, _please_wait)
    application.add_middleware(Guard, hosts=rules.hosts, token=rules.token, patience=rules.patience)
    for action in ("index", "load", "unload"):
        setattr(repository, action, closed)
    if announce is not None:
        announce()
    await server.start([model])


async def _please_wait(request: Any, error: Any) -> Any:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": str(error)}, status_code=429, headers={"Retry-After": str(math.ceil(error.wait))})
