"""A served target as seen from the network: what it refuses, and that it stays."""

import json
import socket
import sys
import time

import httpx
import numpy as np
import pytest

pytest.importorskip("mlserver")
import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

import unsoftmax as us
from servers import answers, ended, own_port, started
from unsoftmax.errors import TargetError
from unsoftmax.oracles.grpc_v2 import GrpcOracle
from unsoftmax.oracles.http import HttpOracle
from unsoftmax.oracles.retry import Patience
from unsoftmax.oracles.text import Secret

HASTE = Patience(attempts=2, total=60.0, first_pause=0.01, longest_pause=0.02)
START = """
import sys
from unsoftmax.demo import demo_oracle
from unsoftmax.oracles.text import Secret
from unsoftmax.serving import serve
token = Secret(sys.argv[3], "a test") if len(sys.argv) > 3 else None
serve(demo_oracle("attention", width=3, seed=1), port=int(sys.argv[1]), grpc_port=int(sys.argv[2]), token=token, patience=1.0)
"""


class Server:
    def __init__(self, *extra):
        self.port, self.grpc = own_port(), own_port()
        command = [sys.executable, "-W", "ignore", "-c", START, str(self.port), str(self.grpc), *extra]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.root = f"http://127.0.0.1:{self.port}"
        self.model = f"{self.root}/v2/models/target"

    def stop(self):
        ended(self.process)


@pytest.fixture(scope="module")
def server():
    made = Server()
    try:
        assert started(lambda: answers(f"{made.model}/ready"), made.process)
        yield made
    finally:
        made.stop()


def post(server, path, **options):
    return httpx.post(server.root + path, timeout=20, trust_env=False, **options)


def get(server, path, **options):
    return httpx.get(server.root + path, timeout=20, trust_env=False, **options)


GOOD = {"inputs": [{"name": "sequences", "datatype": "FP64", "shape": [1, 1, 3], "data": [1, 2, 3]}]}


@pytest.mark.server
def test_nobody_unloads_the_target_and_no_page_of_others_is_shown(server):
    for action in ("load", "unload"):
        assert post(server, f"/v2/repository/models/target/{action}").status_code == 404
    assert post(server, "/v2/repository/index", json={}).status_code == 404
    for path in ("/v2/docs", "/v2/models/target/docs", "/docs", "/openapi.json", "/metrics", "/v2/docs/dataplane.json"):
        reply = get(server, path)
        assert reply.status_code == 404
        assert "cdn" not in reply.text.lower()
    assert httpx.put(server.model, timeout=20, trust_env=False).status_code == 405
    assert post(server, "/v2/models/target/infer", json=GOOD).status_code == 200


@pytest.mark.server
def test_nobody_unloads_the_target_over_grpc(server):
    grpc = pytest.importorskip("grpc")
    from mlserver.grpc import dataplane_pb2

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/RepositoryModelUnload",
            request_serializer=dataplane_pb2.RepositoryModelUnloadRequest.SerializeToString,
            response_deserializer=dataplane_pb2.RepositoryModelUnloadResponse.FromString,
        )
        with pytest.raises(grpc.RpcError):
            call(dataplane_pb2.RepositoryModelUnloadRequest(model_name="target"), timeout=20)
    with GrpcOracle(f"grpc://127.0.0.1:{server.grpc}/target", patience=HASTE) as oracle:
        assert len(oracle(np.ones((2, 1, 3)))) == 2


@pytest.mark.server
def test_other_host_names_and_large_or_packed_bodies_are_refused(server):
    assert get(server, "/v2", headers={"Host": "rebound.example"}).status_code == 421
    assert get(server, "/v2", headers={"Host": "localhost:99"}).status_code == 200
    assert post(server, "/v2/models/target/infer", content=b"x", headers={"Content-Encoding": "gzip"}).status_code == 415
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(b"POST /v2/models/target/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert b" 413 " in client.recv(4096)


@pytest.mark.server
@pytest.mark.parametrize(
    "opening",
    [b"", b"GET /v2 HT", b"POST /v2/models/target/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"],
)
def test_slow_clients_are_dropped(server, opening):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(opening)
        began, told = time.monotonic(), b""
        try:
            while part := client.recv(4096):
                told += part
        except ConnectionResetError:
            pass
        assert time.monotonic() - began < 15
        assert not told or b" 408 " in told


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-3, 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["name", "shape", "data", "datatype", "x"]), inner),
    max_leaves=8,
)


@pytest.mark.server
@settings(max_examples=60, deadline=None)
@given(
    body=st.one_of(
        st.binary(max_size=60),
        json_values.map(lambda value: json.dumps(value).encode()),
        json_values.map(lambda value: json.dumps({"inputs": value}).encode()),
        st.builds(
            lambda data, shape, kind: json.dumps(
                {"inputs": [{"name": "sequences", "datatype": kind, "shape": shape, "data": data}]}
            ).encode(),
            json_values,
            st.lists(st.integers(-2, 4), max_size=4),
            st.sampled_from(["FP64", "FP32", "BYTES", "x"]),
        ),
    )
)
def test_nonsense_is_the_clients_fault(server, body):
    reply = post(server, "/v2/models/target/infer", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= reply.status_code < 500 or (reply.status_code == 200 and b"sequences" in body)


@pytest.mark.server
def test_a_token_is_asked_for_at_both_doors():
    made = Server("open-sesame")
    try:
        header = {"Authorization": "Bearer open-sesame"}
        assert started(
            lambda: answers(f"{made.root}/v2") or httpx_status(made, header) == 200,
            made.process,
        )
        assert get(made, "/v2").status_code == 401
        assert post(made, "/v2/models/target/infer", json=GOOD, headers={"Authorization": "Bearer wrong"}).status_code == 401
        head = us.recover(HttpOracle(made.model, token=Secret("open-sesame", "a test"), patience=HASTE), on_failure="return")
        assert head.status is us.Status.EXACT
        address = f"grpc://127.0.0.1:{made.grpc}/target"
        with GrpcOracle(address, patience=HASTE) as oracle, pytest.raises(TargetError):
            oracle(np.ones((1, 1, 3)))
        with GrpcOracle(address, patience=HASTE, token=Secret("open-sesame", "a test")) as oracle:
            assert len(oracle(np.ones((1, 1, 3)))) == 1
    finally:
        made.stop()


def httpx_status(made, header):
    try:
        return get(made, "/v2/models/target/ready", headers=header).status_code
    except httpx.TransportError:
        return None
