"""Weights from one layout to another, parts of files, and schemes of other packages."""

import importlib.metadata

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import unsoftmax as us
from unsoftmax.cli import run
from unsoftmax.cli.targets import SCHEMES, open_target
from unsoftmax.errors import FileFormatError, TargetError
from unsoftmax.models import Attention
from unsoftmax.models.state_dicts import read_state_dict
from unsoftmax.models.torch_layouts import to_arrays


def layer(seed):
    rng = np.random.default_rng(seed)
    A, B, C, D = rng.normal(size=(4, 2, 3, 6))
    return Attention(W=np.einsum("hrd,hre->hde", A, B), V=np.einsum("hrd,hre->hde", C, D), b=rng.normal(size=6))


@pytest.mark.parametrize("layout", ["mha", "bert", "gpt2"])
def test_there_and_back(tmp_path, layout, capsys):
    model = layer(0)
    first, there, back = (str(tmp_path / f"{name}.safetensors") for name in ("ours", "there", "back"))
    model.save(first)
    assert run(["convert", first, there, "--layout", layout]) == 0
    assert run(["convert", there, back]) == 0  # the file remembers its heads
    assert us.distance(us.load(back), model) < 1e-9
    assert run(["convert", first, str(tmp_path / "x.pt")]) == 2
    assert run(["verify", "demo:attention,width=6", there]) == 2  # it answers with one number
    assert "6" in capsys.readouterr().err
    assert run(["verify", first, there]) == 0
    assert "MATCHES" in capsys.readouterr().out


def test_a_layer_is_chosen_by_its_name(tmp_path):
    file = tmp_path / "model.safetensors"
    state = {f"h.{i}.attn.{name}": array for i in range(2) for name, array in to_arrays(layer(i), "gpt2").items()}
    save_file(state, file)
    with pytest.raises(FileFormatError, match=r"2 attention layers.*h\.0\.attn, h\.1\.attn"):
        read_state_dict(file, heads=2)
    with pytest.raises(FileFormatError, match=r"no attention layer 'h\.7'"):
        read_state_dict(file, part="h.7", heads=2)
    with pytest.raises(ValueError, match="--heads"):
        read_state_dict(file, part="h.1")
    (tmp_path / "config.json").write_text('{"n_head": 2}')
    assert us.distance(read_state_dict(file, part="h.1"), layer(1)) < 1e-9
    target = open_target(f"{file}#h.0.attn", heads=2)
    X = np.random.default_rng(1).normal(size=(2, 3, 6))
    assert np.allclose(target(X), layer(0)(X))
    broken = load_file(file)
    del broken["h.0.attn.c_proj.weight"]
    save_file(broken, file)
    with pytest.raises(FileFormatError, match="lacks"):
        read_state_dict(file, part="h.0", heads=2)


def test_other_packages_add_schemes_but_replace_none(monkeypatch):
    class Point:
        def __init__(self, name):
            self.name = name

        def load(self):
            def opened(text, width=None):
                def target(X):
                    return X[:, -1].sum(axis=1)

                target.width = 3
                return target

            return opened

    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [Point("mine"), Point("http")] if group == "unsoftmax.targets" else []
    )
    assert np.array_equal(open_target("mine://there")(np.ones((1, 2, 3))), [3.0])
    with pytest.raises(TargetError, match="could not be reached"):
        open_target("http://127.0.0.1:1/v2/models/m", 3)  # ours, which looks for a server there
    assert run(["recover", "other://there"]) == 2
    assert all(":" in path for path in SCHEMES.values())


def test_a_part_of_an_onnx_file(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "one"], ["mid"]),
            helper.make_node("Mul", ["mid", "two"], ["double"]),
            helper.make_node("ReduceSum", ["double", "axis"], ["y"], keepdims=0),
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, ["b", "n", 3])],
        [helper.make_tensor_value_info("y", kind, ["b", 3])],
        [
            helper.make_tensor("one", kind, [1], [1.0]),
            helper.make_tensor("two", kind, [1], [2.0]),
            helper.make_tensor("axis", onnx.TensorProto.INT64, [1], [1]),
        ],
        value_info=[
            helper.make_tensor_value_info("mid", kind, ["b", "n", 3]),
            helper.make_tensor_value_info("double", kind, ["b", "n", 3]),
        ],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    assert np.allclose(open_target(f"{path}#mid..double")(np.ones((1, 2, 3))), 2.0)
    assert np.allclose(open_target(f"{path}#mid..y")(np.ones((1, 2, 3))), 4.0)
    with pytest.raises(FileFormatError, match="mid"):
        open_target(f"{path}#mid..nothing")
    with pytest.raises(ValueError, match=r"FROM\.\.TO"):
        open_target(f"{path}#mid")
