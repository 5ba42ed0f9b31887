"""Targets behind gRPC: the Open Inference Protocol's binary twin (extra ``grpc``)."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from unsoftmax.errors import MissingExtraError, TargetError
from unsoftmax.models import Floats
from unsoftmax.oracles.base import all_parts
from unsoftmax.oracles.crew import Before, size_of_requests
from unsoftmax.oracles.grpc_messages import SERVICE, message
from unsoftmax.oracles.http_address import CA_VARIABLE, Address, forbidden, presentable, refuse_forbidden
from unsoftmax.oracles.http_codec import (
    ANSWERS,
    GarbledReplyError,
    Labels,
    ModelSpec,
    TensorSpec,
    from_bytes,
    shaped,
    to_datatype,
)
from unsoftmax.oracles.local import Layout, checked_answers
from unsoftmax.oracles.retry import Patience, TransientError
from unsoftmax.oracles.tensors import Plan, Planned, Wishes, plan_tensors
from unsoftmax.oracles.text import Secret, class_number, find_token, plain

FORM = "grpc(s)://HOST:PORT/NAME"
PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "RESOURCE_EXHAUSTED")
DOUBTFUL = ("UNKNOWN", "INTERNAL")


class GrpcOracle(Planned):
    """A model behind the gRPC service of the Open Inference Protocol, at ``grpc://HOST:PORT/NAME`` (``grpcs://`` with TLS).

    Args:
        url: address of the model.
        width: token length, where the metadata leaves it open.
        input: name of the input, where the model has several.
        output: name of the output, where the model has several.
        request_bytes: size of a request at most; servers take 4 MiB unless told otherwise.
        in_flight: requests under way at once.
        divide: whether every call is divided among them, for a server that works on them side by side.
        timeout: seconds for one request.
        patience: how often and how long to try again.
        reply_cap: bytes of a reply beyond which it is refused.
        token: as for ``HttpOracle``.
        token_file: as for ``HttpOracle``.
        ca_file: as for ``HttpOracle``.
    """

    def __init__(
        self,
        url: str,
        *,
        width: int | None = None,
        input: str | None = None,
        output: str | None = None,
        request_bytes: int = 3 * 2**20,
        in_flight: int = 2,
        divide: bool = False,
        timeout: float = 60.0,
        patience: Patience | None = None,
        reply_cap: int = 64 * 2**20,
        token: Secret | None = None,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
    ) -> None:
        try:
            import grpc
        except ImportError as error:
            raise MissingExtraError("grpcio", "grpc") from error
        self._grpc = grpc
        self.address = _read_address(url)
        self._token: Secret | None = token or find_token(file=token_file)
        if forbidden_after_lookup(self.address.host, self.address.port):
            raise ValueError(
                f"{self.address.host} leads to a link-local address, where clouds keep their secrets; it is never asked."
            )
        if self._token is not None and not self.address.private:
            raise ValueError(f"The token from {self._token.origin} would go unencrypted to {self.address.host}. Use grpcs://.")
        self._ca_file = ca_file or os.environ.get(CA_VARIABLE)
        self._wishes = Wishes(width=width, input=input, output=output)
        self._request_bytes = request_bytes
        self._in_flight = in_flight
        self._streams = in_flight if divide else None
        self._timeout = timeout
        self._patience = patience or Patience()
        self._reply_cap = reply_cap
        self._plan: Plan | None = None
        self._layout = Layout()
        self._labels = Labels()
        self._met = False  # whether the server ever replied
        self._channel: Any = None
        self.requests = 0
        self.repeated = 0

    @property
    def plan(self) -> Plan:
        """Names, datatypes and shapes, from the model's metadata (read once)."""
        if self._plan is None:
            request = message("ModelMetadataRequest")(name=self.address.model)
            reply = self._answered("ModelMetadata", request, "ModelMetadataResponse", None, 0)
            spec = ModelSpec(name=reply.name, platform=reply.platform, inputs=_specs(reply.inputs), outputs=_specs(reply.outputs))
            self._plan = plan_tensors(spec, self._wishes)
        return self._plan

    @property
    def identity(self) -> str:
        """What a journal may know this target by: its address and its tensors."""
        place = f"{self.address.host}:{self.address.port}/{self.address.model}"
        return f"grpc {place} {self.plan.input}:{self.plan.datatype} width {self.width}"

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask ``(batch, length, width)``; the answers come back in the order of the questions."""
        if len(sequences) == 0:
            raise ValueError("There is nothing to ask: the batch is empty.")
        return all_parts(self.parts, sequences)

    def parts(self, sequences: Floats, before: Before | None = None) -> Iterator[tuple[int, Floats]]:
        """The answers request by request, as ``(start, answers)`` in order; see ``HttpOracle.parts``."""
        plan = self.plan
        try:
            tensor = np.ascontiguousarray(to_datatype(plan.fit(sequences), plan.datatype))
        except ValueError as error:
            raise TargetError(str(error)) from error
        largest = max(1, self._request_bytes // tensor[0].nbytes)
        size = size_of_requests(len(tensor), min(largest, plan.batch or largest), self._streams)
        waiting: deque[tuple[int, Any, Any, int]] = deque()
        failure: TargetError | None = None
        start = 0
        try:
            while waiting or (start < len(tensor) and failure is None):
                if start < len(tensor) and failure is None and len(waiting) < self._in_flight:
                    piece = tensor[start : start + size]
                    if before is not None:
                        before(start, len(piece))
                    request = self._request(piece)
                    waiting.append((start, request, self._begin("ModelInfer", request, "ModelInferResponse"), len(piece)))
                    start += len(piece)
                    continue
                first, request, under_way, count = waiting[0]
                try:
                    reply = self._answered("ModelInfer", request, "ModelInferResponse", under_way, count, self._labels)
                    answers = checked_answers(self._numbers(reply), (count, sequences.shape[1]), self._layout)
                except TargetError as error:
                    failure = failure or error
                else:
                    yield first, answers
                waiting.popleft()
        finally:
            for _, _, under_way, _ in waiting:
                under_way.cancel()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Drop the connection. The oracle may be used again."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def __enter__(self) -> GrpcOracle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _request(self, piece: Any) -> Any:
        plan = self.plan
        request = message("ModelInferRequest")(
            model_name=self.address.model, id=secrets.token_hex(8), raw_input_contents=[piece.tobytes()]
        )
        request.inputs.add(name=plan.input, datatype=plan.datatype, shape=piece.shape)
        if plan.output is not None:
            request.outputs.add(name=plan.output)
        return request

    def _numbers(self, reply: Any) -> Floats:
        """The numbers of the output wanted, from the raw bytes or the typed contents."""
        plan = self.plan
        places = [i for i, tensor in enumerate(reply.outputs) if plan.output is None or tensor.name == plan.output]
        if len(places) != 1:
            names = ", ".join(plain(tensor.name, 40) for tensor in reply.outputs) or "none"
            raise TargetError(f"The reply has outputs {names}; exactly one was expected. Choose it with `output=`.")
        place = places[0]
        tensor = reply.outputs[place]
        if tensor.datatype not in ANSWERS or (plan.promised is not None and tensor.datatype != plan.promised):
            raise TargetError(
                f"The output came as {plain(tensor.datatype, 20)}, but the metadata says {plan.promised or 'nothing'}. "
                "Numbers are never cast silently: correct the model's metadata."
            )
        if place < len(reply.raw_output_contents):
            values = from_bytes(reply.raw_output_contents[place], tensor.datatype)
        else:
            contents: Any = next(
                (held for _, held in tensor.contents.ListFields()), []
            )  # one field holds them, as the datatype says
            if tensor.datatype == "BYTES":
                contents = [class_number(name.decode(errors="replace")) for name in contents]
            values = np.array(contents, dtype=np.float64)
        return shaped(values, list(tensor.shape))

    def _answered(self, method: str, request: Any, reply: str, under_way: Any, questions: int, labels: Labels | None = None) -> Any:
        """Wait for an answer, asking again where that may help; ``under_way`` is a first attempt that was already sent."""

        def noticed(error: TransientError) -> None:
            self.repeated += questions * error.lost

        attempts, started = 0, time.monotonic()
        try:
            for attempt in self._patience.tries(noticed, met=self._met):
                with attempt:
                    attempts += 1
                    current, under_way = under_way or self._begin(method, request, reply), None
                    try:
                        found = current.result()
                        self._met = True
                    except self._grpc.RpcError as error:
                        raise self._failure(error) from error
                    try:
                        if labels is not None:
                            labels.check(request.id, found.id, found.model_name, found.model_version)
                    except GarbledReplyError as error:
                        raise TransientError(str(error), lost=True, doubtful=True) from error
                    return found
        except TransientError as error:
            raise TargetError(self._patience.given_up(error, attempts, time.monotonic() - started, met=self._met)) from error
        raise AssertionError("the attempts end by an answer or an error")

    def _failure(self, error: Any) -> TargetError:
        code = error.code().name
        detail = plain(error.details() or "", 200)
        told = f"The server at {self.address.host} answered {code} ({self._token.redact(detail) if self._token else detail})."
        if code == "RESOURCE_EXHAUSTED" and "larger than max" in detail:  # it was answered, and would be again
            return TargetError(f"{told} Raise `reply_cap` (now {self._reply_cap} bytes) if such answers are expected.")
        if code in PASSING or code in DOUBTFUL:
            return TransientError(
                told, lost=code != "RESOURCE_EXHAUSTED", doubtful=code in DOUBTFUL, unreached=code == "UNAVAILABLE"
            )
        return TargetError(f"{told} Check the address, and that the model takes sequences of this shape.")

    def _begin(self, method: str, request: Any, reply: str) -> Any:
        self.requests += 1
        serialize = type(request).SerializeToString
        call = self._connected().unary_unary(
            SERVICE + method, request_serializer=serialize, response_deserializer=message(reply).FromString
        )
        metadata = [("authorization", f"Bearer {self._token.reveal()}")] if self._token else None
        return call.future(request, timeout=self._timeout, metadata=metadata)

    def _connected(self) -> Any:
        if self._channel is None:
            host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
            place = f"{host}:{self.address.port}"
            options = [("grpc.max_receive_message_length", self._reply_cap), ("grpc.max_send_message_length", -1)]
            options.append(("grpc.enable_http_proxy", 0))  # no proxies from the surroundings
            if self.address.scheme == "http":
                self._channel = self._grpc.insecure_channel(place, options)
            else:
                trusted = _certificates(self._ca_file) if self._ca_file else None
                self._channel = self._grpc.secure_channel(place, self._grpc.ssl_channel_credentials(trusted), options)
        return self._channel


def _read_address(url: str) -> Address:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{presentable(url)!r} is no address; it must look like {FORM}.") from error
    name = parts.path.strip("/")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            f"The gRPC address {presentable(url)!r} holds a user name, password or query. "
            "Put a token into UNSOFTMAX_TOKEN or a file."
        )
    if (
        parts.scheme not in ("grpc", "grpcs")
        or not parts.hostname
        or port is None
        or not name
        or "/" in name
        or not url.isprintable()
    ):
        raise ValueError(f"{presentable(url)!r} is no address of a model over gRPC; it must look like {FORM}.")
    refuse_forbidden(parts.hostname)
    return Address("https" if parts.scheme == "grpcs" else "http", parts.hostname, port, "", unquote(name), None)


def forbidden_after_lookup(host: str, port: int | None) -> bool:
    """Whether a name leads to an address that is never asked; a name that leads nowhere is left to the connection."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(forbidden(str(place[4][0])) for place in found)


def _certificates(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"The certificate file {path} cannot be read ({type(error).__name__}).") from error


def _specs(tensors: Any) -> list[TensorSpec]:
    return [TensorSpec(name=tensor.name, datatype=tensor.datatype, shape=tuple(tensor.shape)) for tensor in tensors]
