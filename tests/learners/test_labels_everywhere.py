"""Labels from every kind of target, and through a server that is killed on the way."""

import signal

import numpy as np
import pytest

import unsoftmax as us
from faults.test_kill import Holding, finish, interrupt
from heads_as_onnx import save_head
from servers import MODEL, OpenInference, scripted
from unsoftmax.errors import TargetError
from unsoftmax.oracles import HttpOracle, OnnxOracle, TorchOracle
from unsoftmax.oracles.http_codec import from_bytes
from unsoftmax.oracles.local import checked_answers
from unsoftmax.oracles.text import class_number

WIDTH = 4
RNG = np.random.default_rng(12)
HEAD = us.Attention.single(RNG.normal(size=(WIDTH, WIDTH)) / 2, RNG.normal(size=WIDTH), 0.3 * RNG.normal(size=WIDTH), -0.5)
PLAIN = us.Attention.single(HEAD.W[0], HEAD.V[0])  # without bias and constant


def apart(found, head=HEAD):
    return np.linalg.norm(found.model.W - head.W) / np.linalg.norm(head.W)


def named(X):
    return np.where(HEAD(X) > 0, "spam", "ham")


def test_names_of_classes_are_labels():
    found = us.recover(named, width=WIDTH, seed=1)
    assert found.facts["family"] == "labels"
    assert apart(found) < 1e-11
    assert set(found.facts["evidence"]["labels"]) == {class_number("spam"), class_number("ham")}


def test_names_keep_their_numbers():
    told = checked_answers(np.array(["b", "a", "-3"], dtype=object), (3, 1, WIDTH))
    assert np.array_equal(told, [class_number("b"), class_number("a"), -3.0])
    assert np.array_equal(from_bytes(b"\x01\0\0\0b\x02\0\0\0-3", "BYTES"), [class_number("b"), -3.0])
    with pytest.raises(TargetError, match="9 bytes"):
        from_bytes(b"\x09\0\0\0b", "BYTES")


def test_a_torch_module_that_decides():
    torch = pytest.importorskip("torch")

    class Decision(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.W, self.v, self.c = (torch.nn.Parameter(torch.tensor(part[0])) for part in (HEAD.W, HEAD.V, HEAD.c))

        def forward(self, X):
            scores = torch.einsum("bnd,de,be->bn", X, self.W, X[:, -1]) + X @ self.c
            return (torch.softmax(scores, 1) * (X @ self.v)).sum(1) > 0.5

    found = us.recover(TorchOracle(Decision().eval(), width=WIDTH), seed=1)
    assert found.facts["family"] == "labels"
    assert apart(found) < 1e-11


def test_an_onnx_file_that_decides(tmp_path):
    pytest.importorskip("onnxruntime")
    file = save_head(tmp_path / "head.onnx", PLAIN, threshold=0.5)
    found = us.recover(OnnxOracle(file), seed=1)
    assert found.facts["family"] == "labels"
    assert apart(found) < 1e-11


@pytest.mark.parametrize(
    ("datatype", "binary", "answer"),
    [
        ("BOOL", True, lambda X: HEAD(X) > 0),
        ("INT8", True, lambda X: np.where(HEAD(X) > 0, 1, -1)),
        ("BYTES", False, named),
    ],
)
def test_a_server_that_decides(datatype, binary, answer):
    server = OpenInference(answer, WIDTH, labels=datatype, binary=binary, advertise=binary)
    with scripted(server) as root, HttpOracle(f"{root}/v2/models/{MODEL}") as oracle:
        found = us.recover(oracle, seed=1)
    assert found.facts["family"] == "labels"
    assert apart(found) < 1e-11


def test_kill_and_resume_lose_no_label(tmp_path):
    server = Holding(lambda X: HEAD(X) > 0, WIDTH, labels="BOOL")
    with scripted(server) as root:
        with HttpOracle(f"{root}/v2/models/{MODEL}") as oracle:
            price = us.recover(oracle, seed=5) and server.asked
        code, _ = interrupt(root, tmp_path, signal.SIGKILL, price // 2, server)
        assert code == -signal.SIGKILL
        done = finish(root, tmp_path)
    assert done.returncode == 0, done.stderr
    model = us.load(tmp_path / "weights.safetensors")
    assert np.linalg.norm(model.W - HEAD.W) < 1e-11 * np.linalg.norm(HEAD.W)
    assert server.asked <= 2 * price + 256  # one call under way at the kill
