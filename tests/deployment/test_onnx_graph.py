"""ONNX graphs as weights: the same answers in torch, changes named by their tensor, unknown operations refused."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")

from unsoftmax.cli import run  # noqa: E402 - needs onnx
from unsoftmax.cli.targets import open_target  # noqa: E402
from unsoftmax.cli.verify import weights_of  # noqa: E402
from unsoftmax.deployment.onnx_graph import OnnxGraph  # noqa: E402
from unsoftmax.errors import FileFormatError  # noqa: E402

FLOAT = onnx.TensorProto.FLOAT


def saved(path, seed=0, off=0.0, odd=False):
    """A block as exporters write it: norm by hand, one head, residual, erf-GELU; shapes of inner tensors are not stated."""
    helper = onnx.helper
    rng = np.random.default_rng(seed)
    weights = {f"layer.0.{name}": rng.normal(size=(6, 6)).astype(np.float32) for name in ("q", "k", "v", "o", "up", "down")}
    weights["layer.0.gain"] = rng.uniform(0.5, 1.5, size=6).astype(np.float32)
    weights["layer.0.v"] += np.float32(off) * rng.normal(size=(6, 6)).astype(np.float32)
    constants = {"two": [2.0], "eps": [1e-5], "root": [6**0.5], "half": [0.5], "r2": [2**0.5], "one": [1.0]}
    node = helper.make_node
    nodes = [
        node("Identity", ["x"], ["in"]),
        node("ReduceMean", ["in"], ["mean"], axes=[-1]),
        node("Sub", ["in", "mean"], ["away"]),
        node("Pow", ["away", "two"], ["square"]),
        node("ReduceMean", ["square"], ["variance"], axes=[-1]),
        node("Add", ["variance", "eps"], ["positive"]),
        node("Sqrt", ["positive"], ["size"]),
        node("Div", ["away", "size"], ["unit"]),
        node("Mul", ["unit", "layer.0.gain"], ["normed"]),
        *(node("MatMul", ["normed", f"layer.0.{name}"], [name]) for name in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["products"]),
        node("Div", ["products", "root"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v"], ["mixed"]),
        node("MatMul", ["mixed", "layer.0.o"], ["out"]),
        node("Add", ["in", "out"], ["mid"]),
        node("MatMul", ["mid", "layer.0.up"], ["hidden"]),
        node("Div", ["hidden", "r2"], ["turned"]),
        node("Erf", ["turned"], ["bent"]),
        node("Add", ["bent", "one"], ["gate"]),
        node("Mul", ["hidden", "gate"], ["double"]),
        node("Mul", ["double", "half"], ["active"]),
        node("MatMul", ["active", "layer.0.down"], ["back"]),
        node("Add", ["mid", "back"], ["end"]),
        node("HardSwish" if odd else "Identity", ["end"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", FLOAT, ["b", "n", 6])],
        [helper.make_tensor_value_info("y", FLOAT, ["b", "n", 6])],
        [
            *(onnx.numpy_helper.from_array(value, name) for name, value in weights.items()),
            *(helper.make_tensor(name, FLOAT, [], value) for name, value in constants.items()),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return str(path)


def test_a_graph_in_torch_answers_as_onnx_runtime_does(tmp_path):
    path = saved(tmp_path / "m.onnx")
    X = np.random.default_rng(1).normal(size=(3, 4, 6))
    for text in (path, f"{path}#normed..out", f"{path}#in..end"):
        checkpoint = weights_of(text)
        assert checkpoint.width == 6
        assert np.allclose(checkpoint(X).reshape(3, 4, 6), open_target(text)(X), atol=1e-5)
    assert checkpoint.layers() == {"layer 0": list(checkpoint.tensors)}


def test_a_changed_tensor_of_a_graph_is_named(tmp_path, capsys):
    path = saved(tmp_path / "m.onnx")
    other = saved(tmp_path / "other.onnx", off=1e-3)
    assert run(["verify", path, path, "--queries", "160", "--seed", "1"]) == 0
    assert "MATCHES" in capsys.readouterr().out
    assert run(["verify", f"{other}#in..end", f"{path}#in..end", "--queries", "160", "--seed", "1"]) == 1
    assert "layer.0.v" in capsys.readouterr().out


def test_operations_that_are_not_known_are_named(tmp_path):
    path = saved(tmp_path / "odd.onnx", odd=True)
    with pytest.raises(FileFormatError, match="HardSwish"):
        weights_of(path)
    assert weights_of(f"{path}#in..end").width == 6


def whole(*numbers):
    return np.array(numbers, dtype=np.int64)


SIX = np.linspace(-1.0, 1.0, 6, dtype=np.float32)
SQUARE = np.outer(SIX, SIX[::-1]) + np.eye(6, dtype=np.float32)
OPERATIONS = {  # kind: constants beside the input, settings, outputs, opset
    "Clip": ([np.float32(-0.5), np.float32(0.7)], {}, 1, 13),
    "Clip, no upper end": ([np.float32(-0.5)], {}, 1, 13),
    "Gemm": ([SQUARE, SIX], {"transB": 1, "alpha": 0.5, "beta": 2.0}, 1, 13),
    "Gemm, nothing added": ([SQUARE], {}, 1, 13),
    "LayerNormalization": ([SIX + 2, SIX], {"axis": -1, "epsilon": 1e-3}, 1, 17),
    "LayerNormalization, no bias": ([SIX + 2], {}, 1, 17),
    "Reshape": ([whole(0, 2, 3)], {}, 1, 13),
    "Reshape, one open": ([whole(-1, 3)], {}, 1, 13),
    "Slice": ([whole(1), whole(5), whole(1), whole(2)], {}, 1, 13),
    "Slice, to the end": ([whole(-3), whole(2**62), whole(-1)], {}, 1, 13),
    "Split": ([whole(2, 4)], {"axis": 1}, 2, 13),
    "Split, evenly": ([], {"axis": 1, "num_outputs": 3}, 3, 18),
    "Squeeze, nothing named": ([], {}, 1, 13),
    "Unsqueeze": ([whole(0, 3)], {}, 1, 13),
    "Gather": ([whole(-1, 0, 2)], {"axis": 1}, 1, 13),
    "Gather, a table of places": ([whole(1, -2, 0, 3).reshape(2, 2)], {"axis": 1}, 1, 13),
    "ReduceSum": ([whole(1)], {"keepdims": 0}, 1, 13),
    "ReduceMean": ([], {"axes": [0]}, 1, 13),
    "Softmax": ([], {"axis": 0}, 1, 13),
    "Gelu": ([], {"approximate": "tanh"}, 1, 20),
    "Transpose": ([], {}, 1, 13),
    "Concat": ([np.ones((4, 2), dtype=np.float32)], {"axis": 1}, 1, 13),
    "Expand": ([whole(3, 1, 1)], {}, 1, 13),
    "Cast": ([], {"to": onnx.TensorProto.INT32}, 1, 13),
    "Pow": ([np.float32(2.0)], {}, 1, 13),
    "Reciprocal": ([], {}, 1, 13),
}


@pytest.mark.parametrize("case", OPERATIONS)
def test_every_operation_is_run_as_the_runtime_runs_it(case):
    constants, settings, outputs, opset = OPERATIONS[case]
    names = [f"c{i}" for i in range(len(constants))]
    made = [f"y{i}" for i in range(outputs)]
    node = onnx.helper.make_node(case.partition(",")[0], ["x", *names], made, **settings)
    kept = [onnx.numpy_helper.from_array(np.asarray(value), name) for value, name in zip(constants, names, strict=True)]
    kind = onnx.TensorProto.INT32 if "to" in settings else FLOAT
    ends = [onnx.helper.make_tensor_value_info(name, kind, None) for name in made]
    graph = onnx.helper.make_graph([node], "one", [onnx.helper.make_tensor_value_info("x", FLOAT, [4, 6])], ends, kept)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=9)
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    truth = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for name, expected in zip(made, truth, strict=True):
        answer = OnnxGraph(graph, "x", name)(torch.as_tensor(x)).detach().numpy()
        assert answer.shape == expected.shape
        np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-6)
