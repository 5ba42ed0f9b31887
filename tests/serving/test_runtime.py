"""The hosted target: what it lets pass and what it refuses, without a server around it."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("mlserver")
from mlserver.errors import InferenceError, MLServerError
from mlserver.settings import ModelParameters, ModelSettings
from mlserver.types import InferenceRequest, RequestInput

from unsoftmax.oracles import CallableOracle
from unsoftmax.serving import runtime
from unsoftmax.serving.server import _please_wait


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_the_limiter_lets_a_burst_of_one_second_pass_and_then_the_rate():
    clock = Clock()
    limiter = runtime.Limiter(4.0, clock)
    assert [limiter.take() for _ in range(4)] == [0.0] * 4
    assert limiter.take() == pytest.approx(0.25)
    clock.now += 0.2
    assert limiter.take() == pytest.approx(0.05)  # a refusal costs nothing
    clock.now += 0.05
    assert limiter.take() == 0.0
    clock.now += 100.0
    assert [limiter.take() > 0 for _ in range(5)] == [False] * 4 + [True]  # an idle hour saves up one second's worth, no more


def test_a_slow_limiter_still_lets_single_requests_pass():
    clock = Clock()
    limiter = runtime.Limiter(0.5, clock)
    assert limiter.take() == 0.0
    assert limiter.take() == pytest.approx(2.0)
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="above 0"):
            runtime.Limiter(rate)


@pytest.fixture
def hosted(monkeypatch):
    def host(target, limiter=None, quota=None):
        monkeypatch.setitem(runtime.HOSTED, "target", runtime.Hosted(target, limiter, quota))
        settings = ModelSettings(name="target", implementation=runtime.HostedTarget, parameters=ModelParameters())
        model = runtime.HostedTarget(settings)
        asyncio.run(model.load())
        return model

    return host


def request(data, shape, name=runtime.INPUT, datatype="FP64"):
    return InferenceRequest(inputs=[RequestInput(name=name, datatype=datatype, shape=shape, data=data)])


SUM = CallableOracle(lambda X: X[:, -1].sum(axis=1), width=2)


def test_a_request_is_answered_in_the_precision_of_the_target(hosted):
    model = hosted(SUM)
    assert [(t.name, t.datatype, t.shape) for t in model.inputs] == [("sequences", "FP64", [-1, -1, 2])]
    reply = asyncio.run(model.predict(request([1.0, 2.0, 3.0, 4.5], [2, 1, 2])))
    assert reply.outputs[0].data.root == [3.0, 7.5]
    assert reply.outputs[0].shape == [2]

    class Single:
        width, precision = 2, "float32"

        def __call__(self, sequences):
            return sequences[:, -1].sum(axis=1) / 3

    reply = asyncio.run(hosted(Single()).predict(request([1.0, 0.0], [1, 1, 2], datatype="FP32")))
    assert (reply.outputs[0].datatype, reply.outputs[0].data.root) == ("FP32", [float(np.float32(1 / 3))])


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request([1.0, 2.0], [1, 1, 2], name="other"), "no input"),
        (request([1.0, 2.0], [1, 1, 2], datatype="FP32"), "not FP32"),
        (request([1.0, 2.0], [1, 2]), "must be"),
        (request([1.0, 2.0, 3.0], [1, 1, 3]), "must be"),
        (request([], [0, 1, 2]), "must be"),
        (request([1.0, 2.0, 3.0], [1, 1, 2]), "3 numbers"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(hosted, asked, reason):
    with pytest.raises(InferenceError, match=reason):
        asyncio.run(hosted(SUM).predict(asked))


def test_a_failing_target_is_an_error_of_the_protocol(hosted):
    model = hosted(CallableOracle(lambda X: np.full(len(X), np.nan), width=2))
    with pytest.raises(MLServerError, match="nan") as failed:
        asyncio.run(model.predict(request([1.0, 2.0], [1, 1, 2])))
    assert failed.value.status_code == 500


def test_the_rate_limit_answers_429_with_the_time_to_wait(hosted):
    model = hosted(SUM, runtime.Limiter(0.5, Clock()))
    asked = request([1.0, 2.0], [1, 1, 2])
    asyncio.run(model.predict(asked))
    with pytest.raises(runtime.TooManyRequestsError, match=r"2\.00 s") as refused:
        asyncio.run(model.predict(asked))
    reply = asyncio.run(_please_wait(None, refused.value))
    assert (reply.status_code, reply.headers["Retry-After"]) == (429, "2")


def test_limits_count_sequences_and_not_requests(hosted):
    clock = Clock()
    limiter = runtime.Limiter(10.0, clock)
    assert limiter.take(10) == 0.0
    assert limiter.take(5) == pytest.approx(0.5)
    clock.now += 1.0
    assert limiter.take(30) == 0.0  # more than a second has room for: let pass, and paid off
    assert limiter.take(1) == pytest.approx(2.1)
    model = hosted(SUM, quota=runtime.Quota(3))
    asyncio.run(model.predict(request([1.0, 2.0, 3.0, 4.5], [2, 1, 2])))
    with pytest.raises(MLServerError, match="quota of 3 queries is spent; 1 are left") as refused:
        asyncio.run(model.predict(request([1.0, 2.0, 3.0, 4.5], [2, 1, 2])))
    assert refused.value.status_code == 403


@pytest.mark.parametrize(
    ("answers", "shape"),
    [
        (lambda X: X[:, -1].sum(axis=1), [-1]),
        (lambda X: X[:, -1] @ np.ones((2, 5)), [-1, 5]),
        (lambda X: X @ np.ones((2, 5)), [-1, -1, 5]),
        (lambda X: np.full(len(X), np.nan), [-1]),
    ],
)
def test_the_metadata_tells_the_shape_of_answers(hosted, answers, shape):
    assert hosted(CallableOracle(answers, width=2)).outputs[0].shape == shape
