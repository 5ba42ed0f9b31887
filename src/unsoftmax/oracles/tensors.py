"""Which of a model's tensors to use, and how sequences fit into them; shared by the adapters that read metadata."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from unsoftmax.errors import TargetError, UnknownWidthError
from unsoftmax.memory import check_memory
from unsoftmax.models import Floats
from unsoftmax.oracles.http_codec import DATATYPES, ModelSpec, TensorSpec
from unsoftmax.oracles.text import plain

WIDEST = 65_536  # numbers in a token that metadata may claim by itself


@dataclass(frozen=True, slots=True)
class Plan:
    """How to put a question: ``input`` of ``datatype`` and ``axes``, answer in ``output`` of datatype ``promised``.

    Attributes:
        width: token length.
        batch: the largest batch that the model's shape allows; None for any.
        length: the only length that the model takes; None for any.
        axes: 3 for sequences, 2 for a model that takes one vector each (sequences of one token).
    """

    input: str
    datatype: str
    output: str | None
    promised: str | None
    width: int
    batch: int | None = None
    length: int | None = None
    axes: int = 3

    def fit(self, sequences: Floats) -> Floats:
        """``(batch, length, width)`` in the axes of the input; a length that the model cannot take is a ``TargetError``."""
        length = sequences.shape[1]
        if self.length is not None and length != self.length:
            raise TargetError(
                f"The model's input {plain(self.input, 60)!r} takes sequences of {self.length} tokens only, not of {length}. "
                "Export it with a free length (-1), since lengths 1 and 2 are needed at least."
            )
        return sequences[:, 0] if self.axes == 2 else sequences


class Planned(ABC):
    """An oracle that reads off a model's metadata which tensors it takes."""

    @property
    @abstractmethod
    def plan(self) -> Plan:
        """Names, datatypes and shapes."""

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self.plan.width

    @property
    def precision(self) -> str:
        """Datatype in which probes reach the model, such as ``"FP64"``: probes are rounded to it, nothing else is ever cast."""
        return self.plan.datatype


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller said of a model's tensors; None where the metadata is to tell."""

    width: int | None = None
    input: str | None = None
    output: str | None = None
    datatype: str | None = None


def plan_tensors(spec: ModelSpec, wishes: Wishes) -> Plan:
    """Choose input and output from a model's metadata, where the caller's wishes come first.

    Raises:
        ValueError: the choice is open; the message lists what there is.
    """
    width, datatype = wishes.width, wishes.datatype
    taken = _pick(spec.inputs or [], wishes.input, "input")
    given = _pick(spec.outputs or [], wishes.output, "output")
    if taken is None and (wishes.input is None or width is None):
        raise ValueError(
            f"The server tells nothing about the inputs of {plain(spec.name, 60)!r}. Give `input=` (its name) and `width=`."
        )
    kind = taken.datatype if taken is not None else datatype or "FP64"
    if datatype is not None and kind != datatype:
        raise ValueError(
            f"datatype={datatype!r} was given, but the model's input is {plain(kind, 20)}; numbers are never cast silently."
        )
    if kind not in DATATYPES:
        raise ValueError(f"The model's input has datatype {plain(kind, 20)}; numbers can be sent as {', '.join(DATATYPES)}.")
    shape = (-1, -1, -1) if taken is None else taken.shape
    if len(shape) not in (2, 3):
        raise ValueError(f"The model's input has shape {list(shape)[:8]}; it must be (batch, length, width), or (batch, width).")
    told = shape[-1] if shape[-1] > 0 else None
    if width is not None and told is not None and told != width:
        raise ValueError(f"width={width} was given, but the model's input says {told}. Leave `width` out.")
    if width is None and told is None:
        raise UnknownWidthError(
            "The model's metadata leaves the token length open (-1). Pass `width=`, the length of a token vector."
        )
    found = told if width is None else width
    assert found is not None
    if found < 1:
        raise ValueError(f"width is {found}; it must be at least 1.")
    if width is None and found > WIDEST:
        raise ValueError(
            f"The model's metadata says that tokens have {found} numbers, which is hardly meant. "
            f"Pass `width=` (--width {found}) if it is."
        )
    check_memory(found)
    return Plan(
        input=taken.name if taken is not None else str(wishes.input),
        datatype=kind,
        output=given.name if given is not None else wishes.output,
        promised=given.datatype if given is not None else None,
        width=found,
        batch=shape[0] if shape[0] > 0 else None,
        length=1 if len(shape) == 2 else (shape[1] if shape[1] > 0 else None),
        axes=len(shape),
    )


def _pick(tensors: Sequence[TensorSpec], name: str | None, role: str) -> TensorSpec | None:
    if not tensors:
        return None
    matching = [tensor for tensor in tensors if name is None or tensor.name == name]
    if len(matching) != 1:
        names = ", ".join(plain(tensor.name, 40) for tensor in tensors[:10])
        problem = f"has no {role} {name!r}" if name is not None else f"has several {role}s"
        raise ValueError(
            f"The model {problem}; choose one with `{role}=`, or a part of an ONNX file as FILE.onnx#INPUT..OUTPUT: {names}."
        )
    return matching[0]
