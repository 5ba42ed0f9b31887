"""Parts of ONNX files: what lies between two tensors, as a file of its own."""

from __future__ import annotations

import atexit
import difflib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unsoftmax.errors import FileFormatError, MissingExtraError
from unsoftmax.oracles.text import plain


def cut_out(path: str | Path, part: str) -> Path:
    """The sub-graph between two tensors, ``FROM..TO``, as an ONNX file of its own in a temporary folder.

    Raises:
        FileFormatError: no such tensors (the message names those that are called nearly so), or no way from one to the other.
    """
    source, found, goal = part.partition("..")
    if not (source and found and goal):
        raise ValueError(f"#{part} names no part of an ONNX file; write FILE.onnx#FROM..TO with the names of two tensors.")
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx") from error
    try:
        model = onnx.load(str(path))
    except Exception as error:  # protobuf raises its own kinds of errors, and plain ones
        raise FileFormatError(f"{path} is no ONNX model ({plain(error, 120)}).") from error
    graph = _between(onnx, model.graph, source, goal, path)
    cut = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version, functions=model.functions)
    folder = Path(tempfile.mkdtemp(prefix="unsoftmax-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    goal_file = folder / f"{Path(path).stem}-part.onnx"
    onnx.save(cut, str(goal_file))
    return goal_file


def _between(onnx: Any, graph: Any, source: str, goal: str, path: str | Path) -> Any:
    """The nodes that lead from one tensor to the other, with the constants that they use."""
    made_by = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    inputs = [tensor.name for tensor in graph.input if tensor.name not in constants]
    known = [*inputs, *made_by]
    absent = [name for name in (source, goal) if name not in known]
    if absent:
        raise FileFormatError(f"{path} has {_near(absent, known)} ({len(known)} tensors in all).")
    needed: list[str] = [goal]
    seen = {source, ""}
    nodes: set[int] = set()
    while needed:
        name = needed.pop()
        if name in seen or name in constants:
            continue
        seen.add(name)
        if name not in made_by:
            raise FileFormatError(
                f"{path}: {plain(goal, 60)} needs {plain(name, 60)!r} beside {plain(source, 60)!r}, so that this part has no "
                "answer of its own. Begin farther in front."
            )
        nodes.add(id(made_by[name]))
        needed += list(made_by[name].input)
    kept = [node for node in graph.node if id(node) in nodes]
    if not any(source in node.input for node in kept):
        raise FileFormatError(f"{path}: {plain(goal, 60)} does not depend on {plain(source, 60)}.")
    used = {name for node in kept for name in node.input}
    weights = [tensor for name, tensor in constants.items() if name in used]
    shapes = {info.name: info for info in [*graph.value_info, *graph.input, *graph.output]}
    kind = shapes[source].type.tensor_type.elem_type if source in shapes else 0
    given = _known_shape(shapes.get(source)) or [None, None, _width(onnx, kept, source, {t.name: t for t in weights})]
    return onnx.helper.make_graph(
        kept,
        f"{graph.name} part",
        [onnx.helper.make_tensor_value_info(source, kind or onnx.TensorProto.FLOAT, given)],
        [onnx.helper.make_tensor_value_info(goal, kind or onnx.TensorProto.FLOAT, _known_shape(shapes.get(goal)))],
        weights,
    )


def _known_shape(info: Any) -> list[int | str | None] | None:
    """The shape that a file states for a tensor; None where it states none."""
    if info is None or not info.type.tensor_type.HasField("shape"):
        return None
    return [size.dim_value if size.HasField("dim_value") else size.dim_param or None for size in info.type.tensor_type.shape.dim]


def _width(onnx: Any, nodes: Sequence[Any], source: str, weights: dict[str, Any]) -> int | None:
    """The token length, by the first weight that meets what comes from the source: rows of a matrix, or numbers of a vector."""
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
    held = {n.output[0]: n.attribute[0].t for n in nodes if n.op_type == "Constant" and n.attribute[0].name == "value"}
    reached = {source}
    for node in nodes:
        if not reached & set(node.input):
            continue
        reached |= set(node.output)
        for tensor in filter(None, ({**held, **weights}.get(name) for name in node.input)):
            if tensor.data_type in floats and tensor.dims and int(tensor.dims[0]) > 1:
                return int(tensor.dims[0])
    return None


def _near(absent: Sequence[str], names: Sequence[str]) -> str:
    """Which tensors a file does not have, and those with names nearest to them."""
    told = []
    for name in absent:
        near = difflib.get_close_matches(name, names, n=4, cutoff=0.5) or [other for other in names if name in other][:4]
        told.append(f"no tensor {plain(name, 60)!r} (near it: {', '.join(plain(other, 60) for other in near or names[:6])})")
    return " and ".join(told)
