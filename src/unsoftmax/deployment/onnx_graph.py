"""Checkpoints from ONNX files: the graph run in torch, so that its weights have names, gradients and any precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from unsoftmax.deployment.checkpoint import Checkpoint
from unsoftmax.errors import FileFormatError
from unsoftmax.oracles.onnx_file import OnnxOracle
from unsoftmax.oracles.onnx_part import cut_out

Op = Callable[..., Any]


def onnx_checkpoint(text: str) -> Checkpoint:
    """``FILE.onnx`` or a part of it, ``FILE.onnx#FROM..TO``, as a checkpoint.

    Raises:
        FileFormatError: it has operations that are not known here; the message names them.
    """
    import onnx

    whole, _, part = text.partition("#")
    path = cut_out(whole, part) if part else whole
    plan = OnnxOracle(path).plan
    graph = onnx.load(str(path)).graph
    module = OnnxGraph(graph, plan.input, plan.output or graph.output[0].name, text)

    def call(asked: Any, tokens: Any) -> Any:
        return asked(tokens) if plan.batch is None else torch.cat([asked(tokens[i : i + 1]) for i in range(len(tokens))])

    return Checkpoint(module, name=text, width=plan.width, call=call)


class OnnxGraph(torch.nn.Module):
    """The nodes of a graph, in order; floating-point constants of more than one number are its parameters.

    Args:
        graph: of an ONNX file.
        source: name of the input.
        goal: name of the output.
        name: of the file, for messages.
    """

    def __init__(self, graph: Any, source: str, goal: str, name: str = "The graph") -> None:
        super().__init__()
        from onnx import numpy_helper

        self.source, self.goal = source, goal
        constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        constants |= {
            node.output[0]: numpy_helper.to_array(node.attribute[0].t)
            for node in graph.node
            if node.op_type == "Constant" and node.attribute[0].name == "value"
        }
        self.nodes = [
            (node.op_type, list(node.input), list(node.output), _attributes(node))
            for node in graph.node
            if node.output[0] not in constants
        ]
        unknown = sorted({kind for kind, *_ in self.nodes} - set(OPS))
        if unknown:
            raise FileFormatError(
                f"{name} has operations that cannot be run with changed weights here: {', '.join(unknown)}. Name a part without "
                "them (FILE.onnx#FROM..TO), or use it as TARGET."
            )
        self.held: dict[str, str] = {}  # names in the graph: as parameters or buffers here
        for key, value in constants.items():
            array = torch.as_tensor(np.array(value))
            if array.is_floating_point() and array.numel() > 1:
                self._nested(key, torch.nn.Parameter(array))
                continue
            self.held[key] = f"constant_{len(self.held)}"
            self.register_buffer(self.held[key], array)

    def _nested(self, key: str, value: torch.nn.Parameter) -> None:
        """A parameter under its own name, dots and all, so that layers are known by it."""
        steps = [step if step and not hasattr(torch.nn.Module, step) else f"{step}_" for step in key.replace("/", ".").split(".")]
        inner: Any = self
        for step in steps[:-1]:
            if step not in inner._modules:
                inner.add_module(step, torch.nn.Module())
            inner = inner._modules[step]
        inner.register_parameter(steps[-1], value)
        self.held[key] = ".".join(steps)

    def forward(self, tokens: Any) -> Any:
        """Run the nodes."""
        named = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        known: dict[str, Any] = {key: named[place] for key, place in self.held.items()}
        known = {key: value.to(tokens.dtype) if value.is_floating_point() else value for key, value in known.items()}
        known[self.source] = tokens
        for kind, given, made, settings in self.nodes:
            answer = OPS[kind]([known[name] if name else None for name in given], settings, tokens.dtype)
            known.update(zip(made, answer if isinstance(answer, list | tuple) else [answer], strict=False))
        return known[self.goal]


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper, numpy_helper

    found = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {key: numpy_helper.to_array(value) if hasattr(value, "raw_data") else value for key, value in found.items()}


def _list(value: Any) -> list[int]:
    return [int(number) for number in value]


def _axes(given: list[Any], settings: dict[str, Any]) -> list[int] | None:
    axes = settings.get("axes", given[1] if len(given) > 1 else None)
    return None if axes is None else _list(axes)


def _plain(act: Callable[..., Any]) -> Op:
    """An operation of all inputs, without settings."""
    return lambda given, settings, dtype: act(*given)


def _reduced(act: Callable[..., Any]) -> Op:
    def run(given: list[Any], settings: dict[str, Any], dtype: Any) -> Any:
        axes = _axes(given, settings)
        return act(given[0], dim=list(range(given[0].ndim)) if axes is None else axes, keepdim=bool(settings.get("keepdims", 1)))

    return run


def _cast(given: list[Any], settings: dict[str, Any], dtype: Any) -> Any:
    kinds = {6: torch.int32, 7: torch.int64, 9: torch.bool}
    return given[0].to(kinds.get(settings["to"], dtype))  # floats stay in the precision that the whole graph is run in


def _clip(given: list[Any], settings: dict[str, Any], dtype: Any) -> Any:
    low, high = (given[i] if len(given) > i else settings.get(name) for i, name in ((1, "min"), (2, "max")))
    return torch.clamp(given[0], None if low is None else float(low), None if high is None else float(high))


def _gemm(given: list[Any], settings: dict[str, Any], dtype: Any) -> Any:
    left, right = (x.T if settings.get(flag) else x for x, flag in ((given[0], "transA"), (given[1], "transB")))
    product = settings.get("alpha", 1.0) * (left @ right)
    return product + settings.get("beta", 1.0) * given[2] if len(given) > 2 else product


def _layer_norm(given: list[Any], settings: dict[str, Any], dtype: Any) -> Any:
    shape = given[0].shape[settings.get("axis", -1) :]
    return functional.layer_norm(given[0], shape, given[1], given[2] if len(given) > 2 else None, settings.get("epsilon", 1e-5))


def _reshape(given: list[Any], settings: dict[str, Any], dtype: Any) -> Any:
    return given[0].reshape([given[0].shape[i] if size == 0 else size for i, size in enumerate(_list(given[1]))])


def _slice(given: list[Any], settings: dict[str, Any], dtype: Any) -> Any:
    starts, ends = (_list(settings[name] if name in settings else given[i]) for i, name in ((1, "starts"), (2, "ends")))
    axes = settings.get("axes", given[3] if len(given) > 3 and given[3] is not None else range(len(starts)))
    steps = _list(given[4]) if len(given) > 4 else [1] * len(starts)
    found = given[0]
    for axis, start, end, step in zip(_list(axes), starts, ends, steps, strict=True):
        chosen = torch.arange(found.shape[axis])[slice(start, end if abs(end) < 2**31 - 1 else None, step)]
        found = found.index_select(axis, chosen)
    return found


def _split(given: list[Any], settings: dict[str, Any], dtype: Any) -> Any:
    axis = settings.get("axis", 0)
    sizes = settings.get("split", given[1] if len(given) > 1 else None)
    return torch.split(given[0], given[0].shape[axis] // settings["num_outputs"] if sizes is None else _list(sizes), axis)


def _squeeze(given: list[Any], settings: dict[str, Any], dtype: Any) -> Any:
    axes = _axes(given, settings)
    return given[0].squeeze() if axes is None else given[0].squeeze(tuple(axes))


def _unsqueeze(given: list[Any], settings: dict[str, Any], dtype: Any) -> Any:
    found = given[0]
    for axis in sorted(_axes(given, settings) or []):
        found = found.unsqueeze(axis)
    return found


def _gather(given: list[Any], settings: dict[str, Any], dtype: Any) -> Any:
    axis, places = settings.get("axis", 0), given[1]
    places = torch.where(places < 0, places + given[0].shape[axis], places)
    found = given[0].index_select(axis, places.reshape(-1))
    return found.reshape(*given[0].shape[:axis], *places.shape, *given[0].shape[axis:][1:])


OPS: dict[str, Op] = {
    "Add": _plain(torch.add), "Sub": _plain(torch.sub), "Mul": _plain(torch.mul), "Div": _plain(torch.div),
    "Pow": _plain(torch.pow),
    "MatMul": _plain(torch.matmul), "Sqrt": _plain(torch.sqrt), "Exp": _plain(torch.exp), "Log": _plain(torch.log),
    "Neg": _plain(torch.neg), "Abs": _plain(torch.abs), "Erf": _plain(torch.erf), "Tanh": _plain(torch.tanh),
    "Sigmoid": _plain(torch.sigmoid), "Relu": _plain(torch.relu), "Reciprocal": _plain(torch.reciprocal),
    "Identity": lambda given, settings, dtype: given[0], "Where": _plain(torch.where), "Equal": _plain(torch.eq),
    "Less": _plain(torch.lt), "Greater": _plain(torch.gt), "Not": _plain(torch.logical_not), "And": _plain(torch.logical_and),
    "ReduceMean": _reduced(torch.mean), "ReduceSum": _reduced(torch.sum), "Cast": _cast, "Clip": _clip, "Gemm": _gemm,
    "LayerNormalization": _layer_norm, "Reshape": _reshape, "Slice": _slice, "Split": _split, "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze, "Gather": _gather,
    "Shape": lambda given, settings, dtype: torch.tensor(given[0].shape),
    "Softmax": lambda given, settings, dtype: torch.softmax(given[0], settings.get("axis", -1)),
    "Gelu": lambda given, settings, dtype: functional.gelu(given[0], approximate=settings.get("approximate", b"none").decode()),
    "Transpose": lambda given, settings, dtype: given[0].permute(settings.get("perm", list(reversed(range(given[0].ndim))))),
    "Concat": lambda given, settings, dtype: torch.cat(given, settings["axis"]),
    "Expand": lambda given, settings, dtype: given[0] * torch.ones(_list(given[1]), dtype=given[0].dtype),
    "ConstantOfShape": lambda given, settings, dtype: torch.full(
        _list(given[0]), settings["value"].reshape(-1)[0].item() if "value" in settings else 0.0
    ),
}  # fmt: skip
