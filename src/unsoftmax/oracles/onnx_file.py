"""Targets in ONNX files, run by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax.errors import FileFormatError, MissingExtraError, TargetError
from unsoftmax.models import Floats
from unsoftmax.oracles.http_codec import ModelSpec, TensorSpec, to_datatype
from unsoftmax.oracles.loaded import digest_of, external_data
from unsoftmax.oracles.local import checked_answers
from unsoftmax.oracles.tensors import Plan, Planned, Wishes, plan_tensors
from unsoftmax.oracles.text import plain

DATATYPES = {
    "tensor(double)": "FP64",
    "tensor(float)": "FP32",
    "tensor(float16)": "FP16",
    "tensor(int64)": "INT64",
    "tensor(int32)": "INT32",
}


class OnnxOracle(Planned):
    """A model in an ONNX file; probes are rounded to the datatype of its input, nothing else is cast.

    Args:
        path: the file.
        input: name of the input, where the model has several.
        output: name of the output, where the model has several.
        width: token length, where the file leaves it open.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is no ONNX model that ONNX Runtime can load.
        ValueError: several inputs or outputs and no choice among them; the message lists them.
    """

    local = True  # what fails here fails because of the question

    def __init__(self, path: str | Path, input: str | None = None, output: str | None = None, *, width: int | None = None) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"There is no file {path}.")
        self._session = _open(self.path)
        self._plan = plan_tensors(
            ModelSpec(
                name=self.path.name,
                inputs=[_spec(tensor) for tensor in self._session.get_inputs()],
                outputs=[_spec(tensor) for tensor in self._session.get_outputs()],
            ),
            Wishes(width=width, input=input, output=output),
        )

    @property
    def plan(self) -> Plan:
        """Names, datatypes and shapes, from the file."""
        return self._plan

    @property
    def identity(self) -> str:
        """What a journal may know this target by: a digest of the file and of its external data, and the tensors chosen."""
        beside = "".join(f" {other.name} {digest_of(other)}" for other in external_data(self.path))
        return f"onnx {digest_of(self.path, short=False)}{beside} {self.plan.input} -> {self.plan.output}"

    def __call__(self, sequences: Floats, /) -> Floats:
        """Run the model and check shape and finiteness of what it says."""
        asked = self.plan.fit(sequences)
        size = self.plan.batch or len(asked)
        pieces = [self._run(asked[start : start + size], size) for start in range(0, len(asked), size)]
        return checked_answers(np.concatenate(pieces), sequences.shape)

    def _run(self, piece: Floats, size: int) -> Any:
        count = len(piece)
        if self.plan.batch is not None and count < size:  # a file with a fixed batch takes no less: fill up, and drop it again
            piece = np.concatenate([piece, np.repeat(piece[-1:], size - count, axis=0)])
        try:
            tensor = np.ascontiguousarray(to_datatype(piece, self.plan.datatype))
            return np.asarray(self._session.run([self.plan.output], {self.plan.input: tensor})[0])[:count]
        except Exception as error:  # ONNX Runtime's own exceptions share no public base
            raise TargetError(
                f"The ONNX model raised {type(error).__name__} on sequences of shape {piece.shape}: {plain(error, 200)}"
            ) from error


def _open(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "onnx") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors come back as exceptions; the log would repeat them on stderr
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise FileFormatError(f"{path} is no ONNX model that ONNX Runtime can load ({plain(error, 200)}).") from error


def _spec(tensor: Any) -> TensorSpec:
    shape = tuple(size if isinstance(size, int) else -1 for size in tensor.shape or ())  # names stand for any size
    return TensorSpec(name=tensor.name, datatype=DATATYPES.get(tensor.type, tensor.type), shape=shape)
