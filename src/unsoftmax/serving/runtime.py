"""The MLServer runtime: one target, asked through MLServer's HTTP and gRPC doors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from mlserver import MLModel
from mlserver.errors import InferenceError, MLServerError
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor, ResponseOutput

from unsoftmax.errors import TargetError
from unsoftmax.oracles.base import Oracle
from unsoftmax.oracles.http_codec import DATATYPES, to_datatype
from unsoftmax.oracles.text import Secret, plain
from unsoftmax.serving.guard import bears
from unsoftmax.serving.limits import Limiter, Quota

INPUT, OUTPUT = "sequences", "answers"


class TooManyRequestsError(MLServerError):  # type: ignore[misc]  # mlserver has no type information
    """The rate limit is reached; ``wait`` is the time in seconds until this request may pass."""

    def __init__(self, wait: float) -> None:
        super().__init__(f"Too many requests; wait {wait:.2f} s.", status_code=429)
        self.wait = wait


class Hosted(NamedTuple):
    """A target, how often and how much it may be asked, and what a request must bear."""

    oracle: Oracle
    limiter: Limiter | None = None
    quota: Quota | None = None
    token: Secret | None = None


HOSTED: dict[str, Hosted] = {}  # by model name: MLServer builds the runtime itself, from settings


async def closed(*_: Any, **__: Any) -> Any:
    """What stands in place of MLServer's model repository: nobody loads or unloads anything from outside."""
    raise MLServerError("Models are not managed from outside.", status_code=403)


class HostedTarget(MLModel):  # type: ignore[misc]  # mlserver carries no types
    """Answers inference requests from the oracle registered under the model's name."""

    async def load(self) -> bool:
        """State the tensors in the model's metadata."""
        oracle = HOSTED[self.name].oracle
        self._datatype = wire_datatype(oracle)
        self.inputs = [MetadataTensor(name=INPUT, datatype=self._datatype, shape=[-1, -1, oracle.width])]
        self.outputs = [MetadataTensor(name=OUTPUT, datatype=self._datatype, shape=answer_shape(oracle))]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Ask the target; what it refuses comes back as an error of the protocol."""
        oracle, limiter, quota, token = HOSTED[self.name]
        if token is not None and not bears(_authorization(payload), token):  # over gRPC nothing else looks at it
            raise MLServerError("A bearer token is needed.", status_code=401)
        sequences = self._sequences(payload, oracle.width)
        wait = limiter.take(len(sequences)) if limiter is not None else 0.0
        if wait > 0.0:
            raise TooManyRequestsError(wait)
        if quota is not None and not quota.take(len(sequences)):
            raise MLServerError(f"The quota of {quota.most} queries is spent; {quota.left} are left.", status_code=403)
        try:
            answers = oracle(sequences)
        except TargetError as error:
            raise MLServerError(str(error), status_code=500) from error
        wire = to_datatype(np.asarray(answers), self._datatype)
        output = ResponseOutput(name=OUTPUT, datatype=self._datatype, shape=list(wire.shape), data=wire.ravel().tolist())
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=[output])

    def _sequences(self, payload: InferenceRequest, width: int) -> Any:
        tensor = next((tensor for tensor in payload.inputs if tensor.name == INPUT), None)
        if tensor is None:
            raise InferenceError(f"The request has no input {INPUT!r}.")
        if tensor.datatype != self._datatype:
            raise InferenceError(f"Input {INPUT!r} is {self._datatype}, not {tensor.datatype}.")
        shape = list(tensor.shape)
        if len(shape) != 3 or shape[0] < 1 or shape[1] < 1 or shape[2] != width:
            raise InferenceError(f"Input {INPUT!r} has shape {shape}; it must be [batch, length, {width}].")
        try:
            with np.errstate(over="ignore"):
                numbers = np.asarray(tensor.data.root, dtype=np.dtype(DATATYPES[self._datatype])).astype(np.float64).ravel()
        except (ValueError, TypeError, OverflowError) as error:
            raise InferenceError(f"Input {INPUT!r} is no array of numbers ({plain(error, 120)}).") from error
        if not np.isfinite(numbers).all():
            raise InferenceError(f"Input {INPUT!r} holds NaN or infinite numbers.")
        if numbers.size != np.prod(shape):
            raise InferenceError(f"Input {INPUT!r} holds {numbers.size} numbers, not the {shape} that it states.")
        return numbers.reshape(shape)


def _authorization(payload: InferenceRequest) -> str:
    """The Authorization header that a request came with."""
    headers = getattr(payload.parameters, "headers", None) or {}
    return str(next((value for name, value in headers.items() if name.lower() == "authorization"), ""))


def answer_shape(oracle: Oracle) -> list[int]:
    """The shape of answers as the protocol writes it, -1 for what varies; one question of two zero tokens shows it.

    [-1] for one number an answer, [-1, outputs], or [-1, -1, outputs] where every position is answered. A target that does not
    answer that question is announced by its first axis alone.
    """
    try:
        shape = np.asarray(oracle(np.zeros((1, 2, oracle.width)))).shape
    except TargetError:
        return [-1]
    return [-1, *([-1] if len(shape) == 3 else []), *shape[1:][-1:]] if len(shape) > 1 else [-1]


def wire_datatype(oracle: Oracle) -> str:
    """The protocol's name for the precision that a target computes in."""
    told = getattr(oracle, "precision", "FP64")
    return {"float32": "FP32", "FP32": "FP32"}.get(told, "FP64")
