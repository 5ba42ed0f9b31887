"""The Open Inference Protocol (KServe V2) on the wire: arrays to request bodies, reply bodies to arrays.

Pure functions of bytes. Whatever a server sends, they return or raise a ``TargetError``: never hang, never another exception.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import DriftingError, TargetError
from unsoftmax.models import Floats
from unsoftmax.oracles.text import class_number, plain

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY_EXTENSION = "binary_tensor_data"
DATATYPES = {
    "FP64": "<f8", "FP32": "<f4", "FP16": "<f2", "BF16": "<u2",
    "INT64": "<i8", "INT32": "<i4", "INT16": "<i2", "INT8": "|i1",
    "UINT64": "<u8", "UINT32": "<u4", "UINT16": "<u2", "UINT8": "|u1",
}  # fmt: skip
ANSWERS = {**DATATYPES, "BOOL": "|u1", "BYTES": "|u1"}  # answers may be labels too, or names of classes
MAX_AXES = 8  # of a reply; answers have at most three


class GarbledReplyError(TargetError):
    """A reply that cannot be read at all: cut short, or not of this protocol."""


class TensorSpec(msgspec.Struct, frozen=True):
    """What a model says of one of its inputs or outputs; -1 stands for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelSpec(msgspec.Struct, frozen=True):
    """What a server says of a model."""

    name: str
    versions: list[str] | None = None
    platform: str | None = ""
    inputs: list[TensorSpec] | None = None
    outputs: list[TensorSpec] | None = None


class ServerSpec(msgspec.Struct, frozen=True):
    """What a server says of itself."""

    name: str = ""
    version: str | None = ""
    extensions: list[str] | None = None


Spec = TypeVar("Spec")


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: msgspec.Raw = msgspec.Raw()  # empty where it is absent
    parameters: dict[str, Any] | None = None


class _Reply(msgspec.Struct):
    outputs: list[_Output]
    id: Any = None
    model_name: Any = None
    model_version: Any = None


class Labels:
    """What replies say of themselves: each must be the reply to its own request, and all from one version of one model.

    Servers need not say anything. The first reply settles name and version, unless the address already named the version.
    """

    def __init__(self, version: str | None = None) -> None:
        self._version: Any = version
        self._name: Any = None

    def check(self, asked: str, request_id: Any, name: Any, version: Any) -> None:
        """Compare the labels of a reply with its request and with earlier replies.

        Raises:
            GarbledReplyError: it is the reply to another request, or of another model.
            DriftingError: another version of the model answers.
        """
        if request_id not in (None, "") and request_id != asked:
            raise GarbledReplyError(f"A reply to another request was delivered (id {plain(request_id, 40)!r}, not {asked!r}).")
        self._name = self._name or name or None
        if name not in (None, "", self._name):
            raise GarbledReplyError(
                f"A reply of model {plain(name, 40)!r} was delivered in place of one of {plain(self._name, 40)!r}."
            )
        self._version = self._version or version or None
        if version not in (None, "", self._version):
            raise DriftingError(
                f"The server answered with version {plain(version, 40)!r} of the model, before with {plain(self._version, 40)!r}. "
                "Pin one version in the address (…/versions/V) and start again.",
                evidence={"before": plain(self._version, 40), "after": plain(version, 40)},
            )


@dataclass(frozen=True, slots=True)
class Question:
    """One tensor to be answered: names as in the model's metadata; ``output=None`` asks for all outputs."""

    input: str
    datatype: str
    output: str | None


def read_model(body: bytes) -> ModelSpec:
    """Decode the reply to ``GET /v2/models/NAME``."""
    return _typed(body, ModelSpec, "model metadata")


def read_server(body: bytes) -> ServerSpec:
    """Decode the reply to ``GET /v2``."""
    return _typed(body, ServerSpec, "server metadata")


def read_error(body: bytes) -> str:
    """The reason in an error reply, as one printable line; empty if there is none."""
    try:
        content = msgspec.json.decode(body)
        reason = content.get("error") or content.get("detail") or "" if isinstance(content, dict) else content
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        reason = body[:2000].decode("utf-8", "replace")
    return plain(reason)


def encode_request(
    array: NDArray[Any], question: Question, *, binary: bool, request_id: str | None = None
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of ``POST …/infer`` for ``array``, whose numbers go in the datatype of the model's input.

    Raises:
        ValueError: a number does not fit the datatype, or the datatype cannot go this way.
    """
    cast = to_datatype(array, question.datatype)
    tensor: dict[str, Any] = {"name": question.input, "shape": list(cast.shape), "datatype": question.datatype}
    request: dict[str, Any] = {"inputs": [tensor]} if request_id is None else {"id": request_id, "inputs": [tensor]}
    if question.output is not None:
        request["outputs"] = [{"name": question.output}]
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if not binary:
        if question.datatype in ("FP16", "BF16"):
            raise ValueError(f"{question.datatype} numbers cannot be sent as JSON; this server needs the binary tensor extension.")
        tensor["data"] = cast.ravel().tolist()
        return msgspec.json.encode(request), headers
    raw = np.ascontiguousarray(cast).tobytes()
    tensor["parameters"] = {"binary_data_size": len(raw)}
    if question.output is not None:
        request["outputs"][0]["parameters"] = {"binary_data": True}
    else:
        request["parameters"] = {"binary_data_output": True}
    header = msgspec.json.encode(request)
    headers |= {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(header))}
    return header + raw, headers


def decode_reply(
    body: bytes,
    header_length: str | None,
    output: str | None,
    promised: str | None = None,
    check: Callable[[Any, Any, Any], None] | None = None,
) -> Floats:
    """The numbers of one output, in the shape that the reply gives them; null, NaN and Infinity come back as non-finite numbers.

    Args:
        body: the whole reply.
        header_length: value of ``Inference-Header-Content-Length``, for replies with binary tensors.
        output: name of the output wanted; None where the reply may have only one.
        promised: datatype that the metadata named; another one is an error.
        check: told id, model name and model version of the reply, to refuse one that is not meant.
    """
    header, tail = body, b""
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit()) or len(header_length) > 12 or int(header_length) > len(body):
            raise GarbledReplyError(f"The reply says that its header has {plain(header_length, 40)} of {len(body)} bytes.")
        header, tail = body[: int(header_length)], body[int(header_length) :]
    reply = _typed_lenient(header)
    if check is not None:
        check(reply.id, reply.model_name, reply.model_version)
    outputs = reply.outputs
    raw: dict[str, bytes] = {}
    for tensor in outputs:  # binary parts follow each other in the order of the outputs
        size = (tensor.parameters or {}).get("binary_data_size")
        if size is None:
            continue
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(tail):
            raise GarbledReplyError(
                f"The reply says that output {plain(tensor.name, 60)!r} has {plain(size, 40)} of {len(tail)} binary bytes."
            )
        raw[tensor.name], tail = tail[:size], tail[size:]
    chosen = _choose(outputs, output)
    if promised is not None and chosen.datatype != promised:
        raise TargetError(
            f"Output {plain(chosen.name, 60)!r} came as {plain(chosen.datatype, 20)}, but the model's metadata says {promised}. "
            "Numbers are never cast silently: correct the model's metadata."
        )
    if chosen.datatype not in ANSWERS:
        raise TargetError(f"Output {plain(chosen.name, 60)!r} has datatype {plain(chosen.datatype, 20)}, which is no real number.")
    values = from_bytes(raw[chosen.name], chosen.datatype) if chosen.name in raw else _numbers(chosen.data, chosen.datatype)
    return shaped(values, chosen.shape)


def shaped(values: Floats, shape: list[int]) -> Floats:
    """``values`` in the shape that the reply states, checked."""
    if len(shape) > MAX_AXES or any(size < 0 for size in shape) or math.prod(shape) != values.size:
        raise TargetError(f"The reply holds {values.size} numbers but gives their shape as {plain(shape, 80)}.")
    return values.reshape(shape)


def to_datatype(array: NDArray[Any], datatype: str) -> NDArray[Any]:
    """``array`` in a protocol datatype; the one place where probes lose digits, to a target that computes with fewer."""
    if datatype not in DATATYPES:
        raise ValueError(f"The model's input has datatype {plain(datatype, 20)}; numbers can be sent as {', '.join(DATATYPES)}.")
    kind = np.dtype(DATATYPES[datatype])
    if datatype != "BF16" and kind.kind in "iu":
        cast = np.asarray(array).astype(kind)
        if not np.array_equal(cast, array):
            raise ValueError(f"The model's input takes whole numbers ({datatype}); vectors of real numbers cannot be sent to it.")
        return cast
    with np.errstate(over="ignore"):
        cast = np.asarray(array).astype(np.float32 if datatype == "BF16" else kind)
    if not np.isfinite(cast).all():
        raise ValueError(
            f"A probe holds {np.abs(array).max():.3g}, beyond the range of {datatype}. Limit the probes with `max_norm`."
        )
    if datatype == "BF16":  # round to nearest, ties to even, on the upper half of a float32
        bits = cast.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(kind)
    return cast


def from_bytes(raw: bytes, datatype: str) -> Floats:
    """Little-endian numbers of a protocol datatype, flat, as float64; names of classes as ``class_number`` has them."""
    if datatype == "BYTES":
        return np.array([class_number(name) for name in _names(raw)], dtype=np.float64)
    kind = np.dtype(ANSWERS[datatype])
    if len(raw) % kind.itemsize:
        raise GarbledReplyError(f"The reply holds {len(raw)} bytes of {datatype}, which is no whole number of them.")
    values = np.frombuffer(raw, dtype=kind)
    if datatype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64)


def _names(raw: bytes) -> Iterator[str]:
    """Byte strings, each after its length in four bytes."""
    while raw:
        size = int.from_bytes(raw[:4], "little")
        if len(raw) < 4 + size:
            raise GarbledReplyError(f"The reply holds a name of {size} bytes, but only {len(raw)} bytes are left.")
        yield raw[4 : 4 + size].decode(errors="replace")
        raw = raw[4 + size :]


def _typed(body: bytes, kind: type[Spec], what: str) -> Spec:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise GarbledReplyError(f"The server's {what} cannot be read ({plain(error, 120)}).") from error


def _typed_lenient(header: bytes) -> _Reply:
    try:
        return msgspec.json.decode(header, type=_Reply)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        try:  # bare NaN and Infinity are no JSON, but some servers send them; the standard library takes them
            legal = msgspec.json.encode(json.loads(header))  # msgspec writes non-finite numbers as null
            return msgspec.json.decode(legal, type=_Reply)
        except (ValueError, RecursionError, OverflowError, TypeError, msgspec.MsgspecError):
            raise GarbledReplyError(f"The reply cannot be read ({plain(error, 120)}).") from error


def _choose(outputs: list[_Output], name: str | None) -> _Output:
    matching = [tensor for tensor in outputs if name is None or tensor.name == name]
    if len(matching) != 1:
        names = ", ".join(plain(tensor.name, 40) for tensor in outputs[:10]) or "none"
        wanted = "exactly one output" if name is None else f"output {plain(name, 60)!r}"
        raise TargetError(f"The reply has outputs {names}; {wanted} was expected. Choose one with `output=`.")
    return matching[0]


def _numbers(data: msgspec.Raw, datatype: str) -> Floats:
    """A JSON array of numbers, flat or nested, as a flat float64 array; null becomes NaN. Labels are true, false or names."""
    if not bytes(data):
        raise GarbledReplyError("The reply's output has neither data nor a binary part.")
    try:
        flat = msgspec.json.decode(data, type=list[float | None])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        flat = _flattened(data, datatype)
    return np.array([math.nan if value is None else value for value in flat] if None in flat else flat, dtype=np.float64)


def _flattened(data: msgspec.Raw, datatype: str) -> list[float | None]:
    try:
        values: list[Any] = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise GarbledReplyError(f"The reply's numbers cannot be read ({plain(error, 120)}).") from error
    for _ in range(MAX_AXES):
        if not isinstance(values, list) or not all(isinstance(value, list) for value in values) or not values:
            break
        values = [inner for value in values for inner in value]
    if datatype == "BYTES" and isinstance(values, list):
        values = [class_number(value) if isinstance(value, str) else value for value in values]
    legal = isinstance(values, list) and all(
        value is None or (isinstance(value, int | float) and (datatype == "BOOL" or not isinstance(value, bool)))
        for value in values
    )
    try:
        if legal:
            return [None if value is None else float(value) for value in values]
    except OverflowError:
        pass
    raise GarbledReplyError("The reply's data is no array of numbers.")
