"""The HTTP door at its edges: settings, half-open gateways, broken packing, whole numbers and half precision."""

import gzip
import json
import re
import socket
import time
from contextlib import suppress

import numpy as np
import pytest

from servers import MODEL, OpenInference, scripted
from unsoftmax.errors import TargetError
from unsoftmax.oracles.http import HttpOracle
from unsoftmax.oracles.http_address import read_address
from unsoftmax.oracles.http_codec import MAX_AXES, Question, decode_reply, encode_request, read_error, shaped, to_datatype
from unsoftmax.oracles.retry import Patience, TransientError, wait_asked
from unsoftmax.oracles.text import Secret, find_token

HASTE = Patience(attempts=3, total=300.0, first_pause=0.01, longest_pause=0.02, longest_wait=1.0)
PATH = f"/v2/models/{MODEL}"
URL = f"http://127.0.0.1:9{PATH}"


def total(X):
    return X[:, -1].sum(axis=1)


@pytest.mark.parametrize(
    "settings", [{"encoding": "xml"}, {"request_numbers": 0}, {"in_flight": 0}, {"reply_cap": 0}, {"timeout": 0.0}]
)
def test_settings_without_sense_are_refused_before_anything_is_asked(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        HttpOracle(URL, **settings)


def test_an_empty_batch_asks_nothing():
    server = OpenInference(total, 2)
    with scripted(server) as root, HttpOracle(root + PATH, patience=HASTE) as oracle:
        with pytest.raises(ValueError, match="empty"):
            oracle(np.zeros((0, 1, 2)))
        assert server.posts == 0


def test_a_gateway_that_lets_only_the_model_through_is_enough():
    server = OpenInference(total, 2)

    def gateway(method, path, body, headers):
        return (404, {}, b"") if path == "/v2" else server(method, path, body, headers)

    X = np.arange(12.0).reshape(3, 2, 2)
    with scripted(gateway) as root, HttpOracle(root + PATH, patience=HASTE) as oracle:
        assert np.array_equal(oracle(X), total(X))
        assert oracle.describe()["encoding"] == "binary"  # found by trying, since nothing was advertised


def test_a_refused_trial_of_binary_tensors_is_no_excuse_for_json():
    server = OpenInference(total, 2, advertise=False, fault=lambda _: (401, {}, b"no"))
    with scripted(server) as root, HttpOracle(root + PATH, patience=HASTE) as oracle:
        with pytest.raises(TargetError, match="401"):
            oracle(np.zeros((1, 1, 2)))
        assert server.posts == 1


def test_an_infinite_probe_is_not_sent():
    server = OpenInference(total, 2)
    with scripted(server) as root, HttpOracle(root + PATH, patience=HASTE) as oracle:
        with pytest.raises(TargetError, match="range of FP64"):
            oracle(np.full((1, 1, 2), np.inf))
        assert server.posts == 0


@pytest.mark.parametrize("damage", [lambda body: body[:-4], lambda body: b"\x1f\x8b" + b"x" * 40])
def test_packing_that_breaks_is_asked_for_again(damage):
    whole = gzip.compress(json.dumps({"outputs": [{"name": "answers", "datatype": "FP64", "shape": [1], "data": [2.5]}]}).encode())
    packed = {"Content-Encoding": "gzip"}
    server = OpenInference(total, 2, fault=lambda n: (200, packed, damage(whole) if n == 1 else whole))
    with scripted(server) as root, HttpOracle(root + PATH, patience=HASTE) as oracle:
        assert oracle(np.zeros((1, 1, 2)))[0] == 2.5
        assert (server.posts, oracle.repeated) == (2, 1)


def test_half_precision_needs_binary_tensors():
    question = Question("x", "FP16", None)
    with pytest.raises(ValueError, match="binary"):
        encode_request(np.ones((1, 1, 2)), question, binary=False)
    body, headers = encode_request(np.array([[[1.0, 2.0]]]), question, binary=True)
    assert np.array_equal(np.frombuffer(body[int(headers["Inference-Header-Content-Length"]) :], np.float16), [1.0, 2.0])


def test_an_output_may_be_asked_for_by_name():
    for binary in (True, False):
        body, headers = encode_request(np.ones((1, 1, 2)), Question("x", "FP64", "y"), binary=binary)
        length = int(headers.get("Inference-Header-Content-Length", len(body)))
        asked = json.loads(body[:length])["outputs"]
        assert asked == [{"name": "y"} | ({"parameters": {"binary_data": True}} if binary else {})]


def test_whole_numbers_pass_where_the_probes_are_whole():
    assert to_datatype(np.array([1.0, -2.0]), "INT32").dtype == np.int32
    with pytest.raises(ValueError, match="COMPLEX"):
        to_datatype(np.ones(2), "COMPLEX")


def test_an_output_that_is_no_number_is_refused():
    body = json.dumps({"outputs": [{"name": "y", "datatype": "COMPLEX64", "shape": [1], "data": [1]}]}).encode()
    with pytest.raises(TargetError, match="no real number"):
        decode_reply(body, None, None)


def test_some_outputs_may_be_binary_and_others_not():
    raw = np.array([1.0, 2.0]).tobytes()
    outputs = [
        {"name": "plain", "datatype": "FP64", "shape": [1], "data": [7]},
        {"name": "raw", "datatype": "FP64", "shape": [2], "parameters": {"binary_data_size": len(raw)}},
    ]
    header = json.dumps({"outputs": outputs}).encode()
    for name, expected in (("plain", [7.0]), ("raw", [1.0, 2.0])):
        assert decode_reply(header + raw, str(len(header)), name).tolist() == expected
    odd = json.dumps({"outputs": [outputs[1] | {"parameters": {"binary_data_size": 9}}]}).encode()
    with pytest.raises(TargetError, match="no whole number"):
        decode_reply(odd + raw[:9], str(len(odd)), "raw")


def test_this_machine_is_known_by_name_and_number():
    assert read_address(f"http://localhost:1{PATH}").private
    assert read_address(f"http://127.8.8.8:1{PATH}").private
    assert not read_address(f"http://example.org:1{PATH}").private
    assert read_address(f"https://example.org:1{PATH}").private


def test_a_certificate_file_that_is_none_is_told(tmp_path):
    wrong = tmp_path / "ca.pem"
    wrong.write_text("no certificate")
    with pytest.raises(ValueError, match=r"ca\.pem"):
        read_address(f"https://example.org:1{PATH}").trust(wrong)


@pytest.mark.parametrize("value", ["", "two words", "naïve", "line\nbreak x"])
def test_a_token_that_no_header_can_carry_is_refused(value, tmp_path):
    with pytest.raises(ValueError, match="token"):
        Secret(value, "a test")
    path = tmp_path / "token"
    path.write_text(value, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(ValueError, match="token"):
        find_token(file=path)


def test_a_date_without_zone_is_taken_as_greenwich():
    assert wait_asked("Fri, 01 Jan 2100 00:00:00 -0000") > 0
    assert wait_asked("Fri, 01 Jan 1999 00:00:00 GMT") == 0.0
    assert wait_asked("soon") is None


def test_reasons_are_read_from_any_kind_of_error_reply():
    assert read_error(b'{"error": "too long"}') == "too long"
    assert read_error(b'{"detail": "too short"}') == "too short"
    assert read_error(b'{"other": 1}') == ""
    assert read_error(b'"plain words"') == "plain words"
    assert read_error(b"no JSON at all") == "no JSON at all"


def test_numbers_keep_the_shape_that_the_reply_states():
    values = np.arange(6.0)
    assert shaped(values, [1] * (MAX_AXES - 1) + [6]).ndim == MAX_AXES
    for wrong in ([1] * MAX_AXES + [6], [-2, -3], [5]):
        with pytest.raises(TargetError, match=re.escape(str(wrong)[:20])):
            shaped(values, wrong)


def test_the_outputs_there_are_get_named():
    body = json.dumps({"outputs": [{"name": n, "datatype": "FP64", "shape": [1], "data": [1]} for n in ("left", "right")]}).encode()
    with pytest.raises(TargetError, match=r"left.*right"):
        decode_reply(body, None, None)
    with pytest.raises(TargetError, match="middle"):
        decode_reply(body, None, "middle")
    assert decode_reply(body, None, "right").tolist() == [1.0]


def test_a_report_is_told_where_and_how_the_answers_came():
    server = OpenInference(total, 2)
    with scripted(server) as root, HttpOracle(root + PATH, patience=HASTE) as oracle:
        oracle(np.zeros((2, 1, 2)))
        assert oracle.describe() == {
            "address": root + PATH,
            "server": "scripted 1",
            "platform": "",
            "input": "sequences",
            "datatype": "FP64",
            "encoding": "binary",
            "requests": oracle.requests,
            "repeated": 0,
        }


def test_a_reply_with_several_outputs_is_not_guessed_at():
    output = {"datatype": "FP64", "shape": [1], "data": [1.0]}
    both = json.dumps({"outputs": [output | {"name": "a"}, output | {"name": "b"}]}).encode()
    assert decode_reply(both, None, "b", "FP64") == [1.0]
    with pytest.raises(TargetError, match="exactly one output"):
        decode_reply(both, None, None, "FP64")


def test_a_wrong_address_fails_at_once_and_names_the_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(TargetError) as failed:
        HttpOracle(f"http://127.0.0.1:{port}/v2/models/target").width  # noqa: B018 - reading the metadata is the test
    told = str(failed.value)
    assert time.monotonic() - started < 5
    assert f"127.0.0.1:{port} could not be reached" in told
    assert "Tried 2 times in" in told
    assert "check the address and the port" in told


def test_a_server_that_was_met_is_tried_again_and_says_so(caplog):
    caplog.set_level("INFO", logger="unsoftmax.retry")
    patience = Patience(attempts=4, first_pause=0.001, longest_pause=0.002)
    tried = 0
    with suppress(TransientError):
        for attempt in patience.tries(lambda error: None, met=True):
            with attempt:
                tried += 1
                raise TransientError("gone", unreached=True)
    assert tried == 4
    assert [record.getMessage() for record in caplog.records if record.name == "unsoftmax.retry"] == [
        f"retrying {k} of 3" for k in (1, 2, 3)
    ]
