"""The same head through every door: same parameters, same number of questions."""

import numpy as np
import pytest

import unsoftmax as us
from heads_as_onnx import save_head
from servers import MODEL, OpenInference, mlserver, scripted
from unsoftmax.oracles.grpc_v2 import GrpcOracle
from unsoftmax.oracles.http import HttpOracle
from unsoftmax.oracles.onnx_file import OnnxOracle
from unsoftmax.oracles.torch_module import TorchOracle

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("mlserver")

WIDTH, RANK = 64, 8


@pytest.fixture(scope="module")
def head():
    rng = np.random.default_rng(8)
    W = rng.normal(size=(WIDTH, RANK)) @ rng.normal(size=(RANK, WIDTH)) / WIDTH
    return us.Attention.single(W=W, v=rng.normal(size=WIDTH))


class TorchHead(torch.nn.Module):
    """The head written for torch: queries, keys, and a read-out at the last position."""

    def __init__(self, head):
        super().__init__()
        self.register_buffer("W", torch.tensor(np.array(head.W[0])))
        self.register_buffer("v", torch.tensor(np.array(head.V[0])))
        self.width = head.width

    def forward(self, x):
        scores = torch.einsum("bij,jk,bk->bi", x, self.W, x[:, -1])
        return (torch.softmax(scores, -1) * (x @ self.v)).sum(-1)


@pytest.mark.server
def test_the_same_head_through_every_door(head, tmp_path):
    weights = tmp_path / "head.safetensors"
    head.save(weights)
    found = {
        "callable": us.recover(lambda X: head(X), width=WIDTH),
        "torch": us.recover(TorchOracle(TorchHead(head).eval())),
        "onnx": us.recover(OnnxOracle(save_head(tmp_path / "head.onnx", head))),
    }
    with mlserver(weights) as hosted:
        with HttpOracle(hosted.http) as oracle:
            found["http json"] = us.recover(oracle)
            assert oracle.describe()["encoding"] == "JSON"
        with GrpcOracle(hosted.grpc) as oracle:
            found["grpc"] = us.recover(oracle)
    with scripted(OpenInference(head, WIDTH, binary=True)) as root, HttpOracle(f"{root}/v2/models/{MODEL}") as oracle:
        found["http binary"] = us.recover(oracle)
        assert oracle.describe()["encoding"] == "binary"
    asked = [recovery.queries for recovery in found.values()]
    for name, recovery in found.items():
        assert recovery.status is us.Status.EXACT, name
        assert us.distance(recovery.model, head) < 1e-11, name
    assert max(asked) <= 1.01 * min(asked) + 1, asked
