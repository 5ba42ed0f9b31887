"""A real MLServer on loopback, asked over HTTP and gRPC."""

import json
import time

import numpy as np
import pytest

from servers import mlserver
from unsoftmax.errors import TargetError
from unsoftmax.models import Attention
from unsoftmax.oracles.grpc_messages import MESSAGES, message
from unsoftmax.oracles.grpc_v2 import GrpcOracle
from unsoftmax.oracles.http import HttpOracle
from unsoftmax.oracles.retry import Patience

pytest.importorskip("mlserver")
pytest.importorskip("grpc")

HASTE = Patience(attempts=3, total=300.0, first_pause=0.01, longest_pause=0.02, longest_wait=3.0)


@pytest.fixture(scope="module")
def head():
    rng = np.random.default_rng(0)
    return Attention.single(W=rng.normal(size=(8, 8)), v=rng.normal(size=8), c=rng.normal(size=8))


@pytest.fixture(scope="module")
def weights(head, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "head.safetensors"
    head.save(path)
    return path


@pytest.fixture(scope="module")
def server(weights):
    with mlserver(weights) as hosted:
        yield hosted


def sequences(batch, length=2, width=8):
    return np.random.default_rng(batch).normal(size=(batch, length, width))


@pytest.mark.server
@pytest.mark.parametrize("length", [1, 2, 5])
def test_both_doors_give_the_same_bits(server, head, length):
    X = sequences(300, length)
    with HttpOracle(server.http, request_numbers=1000) as http, GrpcOracle(server.grpc, request_bytes=10_000) as grpc:
        assert http.width == grpc.width == 8
        over_http, over_grpc = http(X), grpc(X)
        assert http.describe()["encoding"] == "JSON"
        assert http.repeated == grpc.repeated == 0
        assert grpc.requests > 2
    assert np.allclose(over_http, head(X), rtol=0, atol=1e-13)
    assert np.allclose(over_grpc, head(X), rtol=0, atol=1e-13)


@pytest.mark.server
def test_what_the_server_refuses_is_a_target_error(server):
    for kind, url in ((HttpOracle, server.http), (GrpcOracle, server.grpc)):
        with kind(url, patience=HASTE) as oracle, pytest.raises(TargetError, match="shape"):
            oracle(np.ones((2, 2, 3)))
        with kind(url + "x", patience=HASTE) as oracle, pytest.raises(TargetError, match=r"404|NOT_FOUND"):
            _ = oracle.width
        with kind(url, width=9, patience=HASTE) as oracle, pytest.raises(ValueError, match="width=9"):
            _ = oracle.width


@pytest.mark.server
def test_overflow_on_the_server_is_a_target_error(server):
    for kind, url in ((HttpOracle, server.http), (GrpcOracle, server.grpc)):
        with kind(url, patience=HASTE) as oracle, pytest.raises(TargetError):
            oracle(np.full((1, 2, 8), 1e300))


@pytest.mark.server
def test_a_rate_limit_is_waited_for_and_a_restart_survived(weights, head):
    with mlserver(weights, rate=4.0, precision="FP32") as hosted, HttpOracle(hosted.http, request_numbers=16) as oracle:
        assert oracle.precision == "FP32"
        began = time.monotonic()
        answers = oracle(sequences(9))
        assert time.monotonic() - began > 0.5
        assert np.allclose(answers, head(sequences(9)), atol=1e-5)
        port = int(hosted.http.split(":")[2].split("/")[0])
        hosted.process.kill()
        hosted.process.wait()
        with mlserver(weights, rate=4.0, precision="FP32", port=port):
            assert np.allclose(oracle(sequences(2)), head(sequences(2)), atol=1e-5)


def test_addresses_of_grpc_models():
    for url in ("grpc://host/name", "http://host:1/name", "grpc://host:1/", "grpc://host:1/a/b", "grpc://u@host:1/a"):
        with pytest.raises(ValueError, match="gRPC"):
            GrpcOracle(url)
    with (
        GrpcOracle("grpc://127.0.0.1:9/none", patience=HASTE, timeout=2.0) as oracle,
        pytest.raises(TargetError, match="UNAVAILABLE"),
    ):
        _ = oracle.width


def test_messages_agree_with_another_implementation_of_the_protocol():
    other = pytest.importorskip("mlserver.grpc.dataplane_pb2")
    names = {"TensorMetadata": other.ModelMetadataResponse.TensorMetadata, "Tensor": other.ModelInferRequest.InferInputTensor}
    names["RequestedOutput"] = other.ModelInferRequest.InferRequestedOutputTensor
    for name, fields in MESSAGES.items():
        theirs = (names.get(name) or getattr(other, name)).DESCRIPTOR.fields_by_name
        for field, (number, kind, repeated) in fields.items():
            assert theirs[field].number == number, (name, field)
            assert theirs[field].is_repeated == repeated, (name, field)
            assert isinstance(kind, str) or theirs[field].type == kind, (name, field)
    request = message("ModelInferRequest")(model_name="m", raw_input_contents=[b"abc"])
    assert json.dumps(other.ModelInferRequest.FromString(request.SerializeToString()).model_name) == '"m"'
