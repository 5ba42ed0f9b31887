"""A softmax head written as ONNX nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from unsoftmax.models import Attention

KINDS = {"float64": onnx.TensorProto.DOUBLE, "float32": onnx.TensorProto.FLOAT}


def save_head(
    path: Path,
    head: Attention,
    *,
    dtype: str = "float64",
    batch: str | int = "batch",
    length: str | int = "length",
    second: bool = False,
    threshold: float | None = None,
) -> Path:
    """A softmax head as ONNX nodes, ``sequences (batch, length, width) -> answers (batch,)``.

    ``second``: two outputs; ``threshold``: yes or no.
    """
    kind, width = KINDS[dtype], head.width
    tensors = {"W": head.W[0], "v": head.V[0][:, None], "last": np.array([-1]), "axis": np.array([1]), "axes": np.array([1, 2])}
    casts = {"W": dtype, "v": dtype}
    node = helper.make_node
    nodes = [
        node("Gather", ["sequences", "last"], ["query"], axis=1),
        node("MatMul", ["sequences", "W"], ["keys"]),
        node("Transpose", ["query"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["keys", "turned"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=1),
        node("MatMul", ["sequences", "v"], ["values"]),
        node("Mul", ["weights", "values"], ["parts"]),
        node("ReduceSum", ["parts", "axes"], ["answers"], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("sequences", kind, [batch, length, width])]
    outputs = [helper.make_tensor_value_info("answers", kind, [batch])]
    if second:
        nodes.append(node("Neg", ["answers"], ["opposite"]))
        outputs.append(helper.make_tensor_value_info("opposite", kind, [batch]))
    if threshold is not None:
        nodes.append(node("Greater", ["answers", "threshold"], ["label"]))
        tensors["threshold"], casts["threshold"] = np.array(threshold), dtype
        outputs = [helper.make_tensor_value_info("label", onnx.TensorProto.BOOL, [batch])]
    initial = [numpy_helper.from_array(value.astype(casts.get(name, value.dtype)), name) for name, value in tensors.items()]
    graph = helper.make_graph(nodes, "head", inputs, outputs, initial)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
