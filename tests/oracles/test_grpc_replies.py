"""The gRPC door against a server that says what the test wants: odd replies, refusals, limits, tokens."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from unsoftmax.errors import DriftingError, TargetError
from unsoftmax.oracles import Metered
from unsoftmax.oracles.grpc_messages import message
from unsoftmax.oracles.grpc_v2 import SERVICE, GrpcOracle
from unsoftmax.oracles.retry import Patience
from unsoftmax.oracles.text import Secret

grpc = pytest.importorskip("grpc")
HASTE = Patience(attempts=3, total=300.0, first_pause=0.01, longest_pause=0.02, longest_wait=3.0)
X = np.arange(24.0).reshape(3, 2, 4)


class Scripted:
    """Sums of the last tokens, unless the script has something else to say; keeps the metadata of each call."""

    def __init__(self, *script):
        self.script = deque(script)
        self.seen = []
        self.sizes = []

    def service(self, details):
        if details.method == SERVICE + "ModelMetadata":
            kind, answer = "ModelMetadataRequest", self.metadata
        else:
            kind, answer = "ModelInferRequest", self.infer
        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=message(kind).FromString, response_serializer=lambda reply: reply.SerializeToString()
        )

    def metadata(self, request, context):
        self.seen.append(dict(context.invocation_metadata()))
        reply = message("ModelMetadataResponse")(name=request.name, platform="test")
        reply.inputs.add(name="x", datatype="FP64", shape=[-1, -1, 4])
        reply.outputs.add(name="y", datatype="FP64", shape=[-1])
        return reply

    def infer(self, request, context):
        self.seen.append(dict(context.invocation_metadata()))
        step = self.script.popleft() if self.script else None
        if isinstance(step, tuple):
            context.abort(*step)
        shape = list(request.inputs[0].shape)
        self.sizes.append(shape[0])
        sums = np.frombuffer(request.raw_input_contents[0]).reshape(shape)[:, -1].sum(axis=1)
        reply = message("ModelInferResponse")(model_name="m")
        if callable(step):
            step(reply, sums)
        else:
            reply.outputs.add(name="y", datatype="FP64", shape=[len(sums)])
            reply.raw_output_contents.append(sums.tobytes())
        return reply


@contextmanager
def asked(*script, **options):
    """The oracle of a server that follows the script."""
    told = Scripted(*script)

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            return told.service(details)

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with GrpcOracle(f"grpc://127.0.0.1:{port}/m", patience=HASTE, timeout=60.0, **options) as oracle:
            yield oracle, told
    finally:
        server.stop(None)


def typed(reply, sums):
    output = reply.outputs.add(name="y", datatype="FP64", shape=[len(sums)])
    output.contents.fp64_contents.extend(sums)


def test_raw_and_typed_numbers_are_both_read():
    with asked(None, typed) as (oracle, _):
        assert np.array_equal(oracle(X), X[:, -1].sum(axis=1))
        assert np.array_equal(oracle(X), X[:, -1].sum(axis=1))
        assert oracle.precision == "FP64"
        assert "x:FP64 width 4" in oracle.identity
        oracle.close()
        assert np.array_equal(oracle(X), X[:, -1].sum(axis=1))  # a closed oracle connects again


def other_name(reply, sums):
    reply.outputs.add(name="z", datatype="FP64", shape=[len(sums)])


def other_type(reply, sums):
    reply.outputs.add(name="y", datatype="FP32", shape=[len(sums)])
    reply.raw_output_contents.append(sums.astype(np.float32).tobytes())


def too_few(reply, sums):
    reply.outputs.add(name="y", datatype="FP64", shape=[len(sums) - 1])
    reply.raw_output_contents.append(sums[1:].tobytes())


def no_number(reply, sums):
    reply.outputs.add(name="y", datatype="FP64", shape=[len(sums)])
    reply.raw_output_contents.append((sums * np.nan).tobytes())


@pytest.mark.parametrize(
    ("reply", "reason"), [(other_name, "outputs z"), (other_type, "FP32"), (too_few, "3"), (no_number, "finite")]
)
def test_a_reply_that_breaks_the_promise_is_refused(reply, reason):
    with asked(reply) as (oracle, _), pytest.raises(TargetError, match=reason):
        oracle(X)


@pytest.mark.parametrize(("code", "lost"), [("RESOURCE_EXHAUSTED", 0), ("UNAVAILABLE", 3)])
def test_a_passing_refusal_is_asked_again_and_booked(code, lost):
    with asked((grpc.StatusCode[code], "busy")) as (oracle, _):
        assert np.array_equal(oracle(X), X[:, -1].sum(axis=1))
        assert oracle.repeated == lost  # a limit refuses before it answers; a lost connection may have answered


def test_a_refusal_that_stays_ends_with_its_reason():
    with asked((grpc.StatusCode.INVALID_ARGUMENT, "no such shape")) as (oracle, told):
        with pytest.raises(TargetError, match=r"INVALID_ARGUMENT.*no such shape"):
            oracle(X)
        assert len(told.seen) == 2  # metadata and one attempt: nothing is gained by another
    busy = (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
    with asked(*[busy] * 9) as (oracle, _), pytest.raises(TargetError, match="RESOURCE_EXHAUSTED"):
        oracle(X)


def test_answers_behind_a_failed_request_are_still_handed_out():
    kept, begun = [], []
    with asked((grpc.StatusCode.INVALID_ARGUMENT, "odd"), request_bytes=64, in_flight=2) as (oracle, told):
        parts = oracle.parts(X, before=lambda start, count: begun.append((start, count)))
        with pytest.raises(TargetError, match="odd"):
            kept.extend(parts)
        assert begun[:2] == [(0, 1), (1, 1)]
        assert 1 <= len(kept) == len(begun) - 1  # a third may have left before the refusal came back
        assert told.sizes == [1] * len(kept)


def test_what_cannot_be_sent_asks_nothing():
    with asked() as (oracle, told):
        assert oracle.width == 4
        with pytest.raises(ValueError, match="empty"):
            oracle(np.zeros((0, 2, 4)))
        with pytest.raises(TargetError, match="range of FP64"):
            oracle(np.full((2, 2, 4), np.inf))
        assert told.sizes == []


def test_a_token_travels_only_where_it_is_private_and_is_never_told():
    secret = Secret("s3cret", "a test")
    with pytest.raises(ValueError, match="unencrypted"):
        GrpcOracle("grpc://example.org:1/m", token=secret)
    GrpcOracle("grpcs://example.org:1/m", token=secret)  # nothing is asked yet
    with asked((grpc.StatusCode.PERMISSION_DENIED, "s3cret is wrong"), token=secret) as (oracle, told):
        with pytest.raises(TargetError, match=r"\[token\] is wrong") as refused:
            oracle(X)
        assert "s3cret" not in str(refused.value)
        assert all(seen["authorization"] == "Bearer s3cret" for seen in told.seen)


def test_a_server_without_trust_is_not_talked_to(tmp_path):
    with (
        GrpcOracle("grpcs://127.0.0.1:9/m", patience=HASTE, timeout=1.0) as oracle,
        pytest.raises(TargetError, match="UNAVAILABLE"),
    ):
        _ = oracle.width


def test_a_reply_beyond_the_cap_is_billed_once_and_not_asked_for_again():
    def large(reply, sums):
        reply.outputs.add(name="y", datatype="FP64", shape=[len(sums)])
        reply.raw_output_contents.append(bytes(100_000))

    with asked(large, large, large, reply_cap=10_000) as (oracle, told):
        meter = Metered(oracle)
        with pytest.raises(TargetError, match="reply_cap"):
            meter(X)
        assert told.sizes == [3], "it was answered; asking again would be answered, and billed, again"
        assert meter.spent == 3


def test_a_reply_to_another_request_and_another_version_are_noticed():
    def labelled(**labels):
        def step(reply, sums):
            reply.outputs.add(name="y", datatype="FP64", shape=[len(sums)])
            reply.raw_output_contents.append(sums.tobytes())
            for name, value in labels.items():
                setattr(reply, name, value)

        return step

    with asked(labelled(id="theirs"), labelled(model_version="1"), labelled(model_version="2")) as (oracle, _):
        assert np.array_equal(oracle(X), X[:, -1].sum(axis=1))
        assert oracle.repeated == 3
        with pytest.raises(DriftingError, match="version"):
            oracle(X)
