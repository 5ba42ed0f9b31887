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


def test_a_llama_there_and_back_and_from_a_folder(tmp_path, capsys):
    rng = np.random.default_rng(0)
    state = {"lm_head.weight": rng.normal(size=(9, 8)), "model.norm.weight": rng.uniform(1, 2, size=8)}
    for name, shape in (("q_proj", (8, 8)), ("k_proj", (4, 8)), ("v_proj", (4, 8)), ("o_proj", (8, 8))):
        state[f"model.layers.0.self_attn.{name}.weight"] = rng.normal(size=shape)
    for name, shape in (("gate", (6, 8)), ("up", (6, 8)), ("down", (8, 6))):
        state[f"model.layers.0.mlp.{name}_proj.weight"] = rng.normal(size=shape)
    for name in ("input", "post_attention"):
        state[f"model.layers.0.{name}_layernorm.weight"] = rng.uniform(1, 2, size=8)
    folder = tmp_path / "llama"
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    ours, there = str(tmp_path / "ours.safetensors"), str(tmp_path / "there.safetensors")
    assert run(["convert", str(folder), ours]) == 2  # nothing tells its heads
    assert "--heads" in capsys.readouterr().err
    (folder / "config.json").write_text('{"num_attention_heads": 2, "rope_parameters": {"rope_theta": 500.0}}')
    assert run(["convert", str(folder), ours]) == 0
    assert us.load(ours).layers[0].base == 500.0
    assert run(["convert", ours, there, "--layout", "llama"]) == 0
    assert run(["verify", ours, str(folder / "model.safetensors")]) == 0
    save_file({**state, "model.layers.0.self_attn.q_proj.bias": np.ones(8)}, folder / "model.safetensors")
    assert run(["convert", str(folder), ours]) == 2
    assert "q_proj.bias" in capsys.readouterr().err
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text('{"num_attention_heads": 2, "rope_scaling": {"rope_type": "llama3"}}')
    assert run(["convert", str(folder), ours]) == 2
    assert "llama3" in capsys.readouterr().err


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
    with pytest.raises(FileFormatError, match=r"no tensor 'midd' \(near it: mid\)"):
        open_target(f"{path}#midd..double")
    with pytest.raises(FileFormatError, match="needs 'x' beside 'double'"):
        open_target(f"{path}#double..mid")
    with pytest.raises(FileFormatError, match="no tensor 'nothing'"):
        open_target(f"{path}#mid..nothing")
    assert run(["convert", f"{path}#mid..double", str(tmp_path / "o.safetensors")]) == 2
    with pytest.raises(ValueError, match=r"FROM\.\.TO"):
        open_target(f"{path}#mid")
