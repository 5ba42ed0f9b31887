"""ONNX files: chosen by name, in their own precision, refused with a reason."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from heads_as_onnx import save_head
from unsoftmax.errors import FileFormatError, TargetError
from unsoftmax.models import Attention
from unsoftmax.oracles.onnx_file import OnnxOracle


def head(width=5, seed=0):
    rng = np.random.default_rng(seed)
    return Attention.single(W=rng.normal(size=(width, width)), v=rng.normal(size=width))


def sequences(batch=6, length=3, width=5):
    return np.random.default_rng(1).normal(size=(batch, length, width))


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-14), ("float32", 1e-5)])
def test_answers_match_in_the_files_precision(tmp_path, dtype, error):
    oracle = OnnxOracle(save_head(tmp_path / "head.onnx", head(), dtype=dtype))
    assert oracle.width == 5
    assert oracle.precision == {"float64": "FP64", "float32": "FP32"}[dtype]
    assert np.abs(oracle(sequences()) - head()(sequences())).max() < error


def test_fixed_batches_are_filled_up(tmp_path):
    oracle = OnnxOracle(save_head(tmp_path / "head.onnx", head(), batch=4))
    assert np.allclose(oracle(sequences(6)), head()(sequences(6)), atol=1e-14)


def test_a_fixed_length_is_told(tmp_path):
    oracle = OnnxOracle(save_head(tmp_path / "head.onnx", head(), length=3))
    assert oracle(sequences(length=3)).shape == (6,)
    with pytest.raises(TargetError, match="3 tokens only"):
        oracle(sequences(length=2))


def test_outputs_are_chosen_by_name(tmp_path):
    path = save_head(tmp_path / "head.onnx", head(), second=True)
    with pytest.raises(ValueError, match="answers, opposite"):
        OnnxOracle(path)
    assert np.array_equal(OnnxOracle(path, output="opposite")(sequences()), -OnnxOracle(path, output="answers")(sequences()))
    with pytest.raises(ValueError, match="no input 'x'"):
        OnnxOracle(path, input="x", output="answers")


def test_no_file_and_no_model_are_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError):
        OnnxOracle(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"\x00 not a model")
    with pytest.raises(FileFormatError, match="ONNX"):
        OnnxOracle(tmp_path / "bad.onnx")


def test_overflow_is_a_target_error(tmp_path):
    oracle = OnnxOracle(save_head(tmp_path / "head.onnx", head(), dtype="float32"))
    with pytest.raises(TargetError, match="FP32"):
        oracle(sequences() * 1e60)


def test_the_identity_follows_the_file(tmp_path):
    first, second = (OnnxOracle(save_head(tmp_path / f"{seed}.onnx", head(seed=seed))) for seed in (0, 1))
    assert first.identity != second.identity
