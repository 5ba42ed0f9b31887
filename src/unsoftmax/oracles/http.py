"""Targets behind HTTP: the Open Inference Protocol (KServe V2), with JSON or binary tensors."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from unsoftmax.errors import TargetError
from unsoftmax.models import Floats
from unsoftmax.oracles.base import all_parts
from unsoftmax.oracles.crew import Before, Task, in_turn, size_of_requests
from unsoftmax.oracles.http_address import read_address
from unsoftmax.oracles.http_codec import (
    BINARY_EXTENSION,
    Labels,
    ModelSpec,
    Question,
    ServerSpec,
    decode_reply,
    encode_request,
    read_model,
    read_server,
)
from unsoftmax.oracles.http_transport import StatusError, Transport
from unsoftmax.oracles.local import Layout, checked_answers
from unsoftmax.oracles.retry import Patience
from unsoftmax.oracles.tensors import Plan, Planned, Wishes, plan_tensors
from unsoftmax.oracles.text import Secret, find_token, plain

REFUSED_BATCH = (400, 413)  # what servers say to a batch that is too large
WITHOUT_BINARY = ("mlserver",)  # a trial would only make it fail loudly
NOT_BINARY = (400, 404, 415, 422, 500, 501)  # what servers say to binary tensors that they do not know


class HttpOracle(Planned):
    """A model on a server that speaks the Open Inference Protocol, at ``http(s)://HOST/v2/models/NAME``.

    Metadata is read first, on first use; it names tensors, datatypes and shapes. Numbers go as binary tensors where the server
    advertises them or takes them for the first batch; else as JSON. Large calls are split into requests, a few of them in
    flight, answers in order.

    Args:
        url: address of the model, ``…/v2/models/NAME`` or ``…/v2/models/NAME/versions/V``.
        width: token length, where the metadata leaves it open.
        input: name of the input, where the model has several.
        output: name of the output, where the model has several.
        datatype: datatype of the input (``"FP64"``, ``"FP32"`` …), where the metadata is silent.
        encoding: ``"binary"``, ``"json"`` or ``"auto"``.
        request_numbers: numbers in one request at most, which sizes the batch; a server that finds it too large gets halves.
        in_flight: requests under way at once.
        divide: whether every call is divided among them, for a server that works on them side by side.
        timeout: seconds without progress after which a request counts as lost.
        patience: how often and how long to try again.
        reply_cap: bytes of a reply, unpacked, beyond which it is refused.
        token: a bearer token.
        token_file: file with a bearer token; else the variables ``UNSOFTMAX_TOKEN_FILE`` and ``UNSOFTMAX_TOKEN`` are looked at.
        ca_file: certificates to trust in place of the public ones; verification itself cannot be switched off.
    """

    def __init__(
        self,
        url: str,
        *,
        width: int | None = None,
        input: str | None = None,
        output: str | None = None,
        datatype: str | None = None,
        encoding: Literal["auto", "binary", "json"] = "auto",
        request_numbers: int = 2**19,
        in_flight: int = 2,
        divide: bool = False,
        timeout: float = 30.0,
        patience: Patience | None = None,
        reply_cap: int = 64 * 2**20,
        token: Secret | None = None,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
    ) -> None:
        if encoding not in ("auto", "binary", "json"):
            raise ValueError(f"encoding is {encoding!r}; it must be 'auto', 'binary' or 'json'.")
        if request_numbers < 1 or in_flight < 1 or reply_cap < 1 or timeout <= 0:
            raise ValueError("request_numbers, in_flight, reply_cap and timeout must be positive.")
        self.address = read_address(url)
        self._transport = Transport(
            self.address,
            token=token or find_token(file=token_file),
            ca_file=ca_file,
            in_flight=in_flight,
            timeout=timeout,
            patience=patience or Patience(),
            reply_cap=reply_cap,
        )
        self._wishes = Wishes(width=width, input=input, output=output, datatype=datatype)
        self._binary: bool | None = {"auto": None, "binary": True, "json": False}[encoding]
        self._request_numbers = request_numbers
        self._in_flight = in_flight
        self._streams = in_flight if divide else None
        self._layout = Layout()
        self._labels = Labels(self.address.version)
        self._largest_batch: int | None = None
        self._plan: Plan | None = None
        self._model: ModelSpec | None = None
        self._server: ServerSpec | None = None

    @property
    def plan(self) -> Plan:
        """Names, datatypes and shapes, from the model's metadata (read once)."""
        if self._plan is None:
            self._model = self._transport.get(self.address.model_path, read_model)
            self._plan = plan_tensors(self._model, self._wishes)
        return self._plan

    @property
    def requests(self) -> int:
        """Requests sent so far."""
        return self._transport.requests

    @property
    def repeated(self) -> int:
        """Sequences that were sent again because a reply was lost, and may have been billed twice."""
        return self._transport.repeated

    @property
    def identity(self) -> str:
        """What a journal may know this target by: its address and its tensors."""
        plan = self.plan
        return f"{self.address.url} {plan.input}:{plan.datatype} -> {plan.output or '?'}:{plan.promised or '?'} width {plan.width}"

    def describe(self) -> dict[str, Any]:
        """Facts for a report, in words that are safe to print."""
        return {
            "address": self.address.url,
            "server": plain(f"{self._server.name} {self._server.version or ''}") if self._server else "",
            "platform": plain(self._model.platform or "") if self._model else "",
            "input": plain(self.plan.input),
            "datatype": self.plan.datatype,
            "encoding": {None: "not settled", True: "binary", False: "JSON"}[self._binary],
            "requests": self.requests,
            "repeated": self.repeated,
        }

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask ``(batch, length, width)``; the answers come back in the order of the questions."""
        if len(sequences) == 0:
            raise ValueError("There is nothing to ask: the batch is empty.")
        return all_parts(self.parts, sequences)

    def parts(self, sequences: Floats, before: Before | None = None) -> Iterator[tuple[int, Floats]]:
        """The answers request by request, as ``(start, answers)`` in order, so that each can be kept before the next is waited for.

        When a request fails for good, the answers that were under way behind it are still handed out before the error is raised.
        ``before(start, count)`` is called right before questions are sent.
        """
        asked = self.plan.fit(np.ascontiguousarray(sequences))
        if self._binary is None and self._server is None:
            self._binary = self._advertised_binary()

        def tasks() -> Iterator[Task[Floats]]:
            start = 0
            while start < len(asked):
                piece = asked[start : start + self._batch(asked)]
                yield start, len(piece), partial(self._ask, piece, sequences.shape[1])
                start += len(piece)

        # the first batch settles the encoding, alone
        return in_turn(tasks(), lambda: 1 if self._binary is None else self._in_flight, before)

    def close(self) -> None:
        """Drop the connections. The oracle may be used again."""
        self._transport.close()

    def __enter__(self) -> HttpOracle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _batch(self, asked: Floats) -> int:
        sized: int = max(1, self._request_numbers // max(1, asked[0].size))
        return size_of_requests(len(asked), min(sized, self._largest_batch or sized, self.plan.batch or sized), self._streams)

    def _advertised_binary(self) -> bool | None:
        """True if the server advertises binary tensors, False if it is known to lack them; None if only a trial can tell."""
        try:
            self._server = self._transport.get(self.address.server_path, read_server)
        except TargetError:
            self._server = ServerSpec()  # optional in practice: gateways often let only the model through
        if BINARY_EXTENSION in (self._server.extensions or []):
            return True
        return False if self._server.name in WITHOUT_BINARY else None

    def _ask(self, piece: Floats, length: int, given_up: threading.Event) -> Floats:
        """Answer one request's worth of questions, in smaller requests if the server says that it is too large."""
        try:
            if self._binary is not None:
                return self._infer(piece, length, self._binary, given_up)
            return self._settle(piece, length, given_up)
        except StatusError as error:
            if error.status not in REFUSED_BATCH or len(piece) == 1:
                raise
        half = (len(piece) + 1) // 2
        answers = [self._ask(part, length, given_up) for part in (piece[:half], piece[half:])]
        self._largest_batch = min(half, self._largest_batch or half)
        return np.concatenate(answers)

    def _settle(self, piece: Floats, length: int, given_up: threading.Event) -> Floats:
        """Ask with binary tensors, and with JSON if the server does not know them; no question is answered twice."""
        try:
            answers = self._infer(piece, length, True, given_up)
            self._binary = True
        except StatusError as error:
            if error.status not in NOT_BINARY:
                raise
            answers = self._infer(piece, length, False, given_up)
            self._binary = False
        return answers

    def _infer(self, piece: Floats, length: int, binary: bool, given_up: threading.Event) -> Floats:
        plan = self.plan
        request_id = secrets.token_hex(8)
        try:
            body, headers = encode_request(
                piece, Question(plan.input, plan.datatype, plan.output), binary=binary, request_id=request_id
            )
        except ValueError as error:
            raise TargetError(str(error)) from error

        def read(reply: bytes, header_length: str | None) -> Floats:
            raw = decode_reply(reply, header_length, plan.output, plan.promised, partial(self._labels.check, request_id))
            return checked_answers(raw, (len(piece), length), self._layout)

        trial = binary and self._binary is None
        if trial:  # servers that stumble over binary tensors drop the connection, which must not cost the next request
            headers["Connection"] = "close"
        return self._transport.send(
            "POST", self.address.infer_path, body, headers, read, questions=len(piece), hopeful=not trial, given_up=given_up
        )
