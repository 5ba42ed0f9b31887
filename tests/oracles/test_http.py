"""Asking over HTTP: exact, in order, patient within bounds, and on its guard."""

import gzip
import json
import ssl
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servers import MODEL, OpenInference, scripted
from unsoftmax.errors import TargetError
from unsoftmax.models import Attention
from unsoftmax.oracles.http import HttpOracle
from unsoftmax.oracles.http_address import read_address
from unsoftmax.oracles.retry import Patience, wait_asked

HASTE = Patience(attempts=5, total=300.0, first_pause=0.01, longest_pause=0.02, longest_wait=3.0)
PATH = f"/v2/models/{MODEL}"


def head(width=3, seed=0):
    rng = np.random.default_rng(seed)
    return Attention.single(W=rng.normal(size=(width, width)), v=rng.normal(size=width))


def sequences(batch, length=2, width=3, seed=1):
    return np.random.default_rng(seed).normal(size=(batch, length, width))


def asked(server, X, **options):
    """The answers through a scripted server, and the oracle that got them."""
    with scripted(server) as root, HttpOracle(root + PATH, patience=HASTE, **options) as oracle:
        return oracle(X), oracle


@settings(max_examples=12, deadline=None)
@given(
    batch=st.integers(1, 40),
    length=st.integers(1, 4),
    binary=st.booleans(),
    advertise=st.booleans(),
    size=st.integers(1, 200),
    in_flight=st.integers(1, 5),
)
def test_answers_come_exactly_and_in_order(batch, length, binary, advertise, size, in_flight):
    model, X = head(), sequences(batch, length)
    server = OpenInference(model, 3, binary=binary, advertise=advertise and binary)
    answers, oracle = asked(server, X, request_numbers=size, in_flight=in_flight)
    assert np.array_equal(answers, np.array([model(x[None])[0] for x in X])) or np.allclose(
        answers, model(X), rtol=1e-15, atol=1e-15
    )
    assert server.asked == batch, "no question is answered twice"
    assert oracle.repeated == 0
    assert oracle.describe()["encoding"] == ("binary" if binary else "JSON")


def test_metadata_is_read_first_and_asks_nothing():
    server = OpenInference(head(), 3)
    with scripted(server) as root, HttpOracle(root + PATH) as oracle:
        assert oracle.width == 3
        assert oracle.precision == "FP64"
        assert server.log == [("GET", PATH)]
        assert "FP64" in oracle.identity


def test_float32_model_gets_float32_and_says_so():
    server = OpenInference(head(), 3, datatype="FP32")
    X = sequences(5)
    answers, oracle = asked(server, X)
    assert oracle.precision == "FP32"
    assert np.array_equal(answers, head()(X.astype(np.float32)).astype(np.float32))


def test_a_wish_for_another_datatype_is_refused():
    with scripted(OpenInference(head(), 3, datatype="FP32")) as root:
        oracle = HttpOracle(root + PATH, datatype="FP64")
        with oracle, pytest.raises(ValueError, match="never cast silently"):
            _ = oracle.width


def test_batches_shrink_to_what_the_server_takes():
    server = OpenInference(head(), 3, limit=7)
    X = sequences(50)
    answers, oracle = asked(server, X)
    assert np.allclose(answers, head()(X), rtol=1e-14)
    assert server.asked == 50
    assert oracle.requests < 30


def once(*replies):
    """A fault script: the n-th question meets the n-th of these replies, later ones are answered."""
    return lambda n: replies[n - 1] if n <= len(replies) else None


@pytest.mark.parametrize("status", [429, 503, 502, 504, 408, 500])
def test_passing_failures_pass(status):
    server = OpenInference(head(), 3, fault=once((status, {}, b"wait"), (status, {}, b"wait")))
    answers, oracle = asked(server, sequences(4))
    assert np.allclose(answers, head()(sequences(4)))
    assert oracle.repeated == (8 if status in (502, 504) else 0), "only a lost reply may have been billed"


@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_is_honoured(as_date):
    came = []

    def fault(number):
        came.append(time.monotonic())
        later = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True) if as_date else "1"
        return (429, {"Retry-After": later}, b"") if number == 1 else None

    asked(OpenInference(head(), 3, fault=fault), sequences(2))
    assert len(came) == 2
    assert came[1] - came[0] > 0.9  # a date has whole seconds, so two of them may be little more than one


def test_a_wait_beyond_patience_ends_at_once_and_says_so():
    server = OpenInference(head(), 3, fault=lambda _: (503, {"Retry-After": "3600"}, b""))
    with pytest.raises(TargetError, match="3600 s"):
        asked(server, sequences(2))
    assert server.posts == 1


def test_permanent_failures_end_after_few_attempts():
    for reply, posts in (((500, {}, b"no"), 3), ((422, {}, b"no"), 1), ((401, {}, b"no"), 1), ((503, {}, b""), HASTE.attempts)):
        server = OpenInference(head(), 3, fault=lambda _, reply=reply: reply)
        with pytest.raises(TargetError):
            asked(server, sequences(1))
        assert server.posts == posts


def test_a_bad_batch_is_not_split_without_end():
    server = OpenInference(head(), 3, fault=lambda _: (400, {}, b"no"))
    with pytest.raises(TargetError, match="400"):
        asked(server, sequences(64))
    assert server.posts <= 8


@pytest.mark.parametrize("word", ["null", "NaN", "Infinity"])
def test_non_finite_answers_with_status_200_are_failures(word):
    body = f'{{"outputs":[{{"name":"answers","datatype":"FP64","shape":[1],"data":[{word}]}}]}}'.encode()
    with pytest.raises(TargetError, match="finite"):
        asked(OpenInference(head(), 3, fault=lambda _: (200, {}, body)), sequences(1))


@pytest.mark.parametrize(
    "body", [b'{"outputs":[{"name":"answers","datatype":"FP64","shape":[3],"data":[1,2,3]}]}', b"<html>", b"[" * 100_000]
)
def test_wrong_shapes_and_garbage_are_failures(body):
    with pytest.raises(TargetError):
        asked(OpenInference(head(), 3, fault=lambda _: (200, {}, body)), sequences(2))


def test_a_truncated_reply_is_asked_for_again_and_counted():
    cut = (200, {"Content-Length": "1000", "Connection": "close"}, b'{"outputs":[{"name"')
    server = OpenInference(head(), 3, fault=once(cut))
    with (
        scripted(server) as root,
        HttpOracle(root + PATH, patience=HASTE) as oracle,
    ):
        assert np.allclose(oracle(sequences(3)), head()(sequences(3)))
        assert oracle.repeated == 3


def collect(parts, into):
    for part in parts:
        into.append(part)


def test_answers_behind_a_failure_are_handed_out_before_it_is_raised():
    server = OpenInference(head(), 3, fault=lambda n: (422, {}, b"no") if n == 2 else None)
    with scripted(server) as root, HttpOracle(root + PATH, request_numbers=6, in_flight=3) as oracle:
        got = []
        with pytest.raises(TargetError, match="422"):
            collect(oracle.parts(sequences(10)), got)
    assert len(got) == server.asked, "whatever was answered reached the caller"


def test_an_unreachable_server_is_a_target_error():
    with (
        HttpOracle("http://127.0.0.1:9" + PATH, patience=HASTE) as oracle,
        pytest.raises(TargetError, match="could not be reached"),
    ):
        _ = oracle.width


def test_a_silent_server_is_given_up():
    over = threading.Event()

    def silent(*_):
        over.wait(300)
        return 200, {}, b"{}"

    patience = Patience(attempts=2, first_pause=0.01)
    try:
        with (
            scripted(silent) as root,
            HttpOracle(root + PATH, timeout=0.5, patience=patience) as oracle,
            pytest.raises(TargetError, match="fell silent"),
        ):
            _ = oracle.width
    finally:
        over.set()


# ---- security


def test_redirects_are_not_followed():
    other = OpenInference(head(), 3)
    with (
        scripted(other) as goal,
        scripted(lambda *_: (307, {"Location": goal + PATH}, b"")) as root,
        HttpOracle(root + PATH) as oracle,
        pytest.raises(TargetError, match="redirects"),
    ):
        _ = oracle.width
    assert other.log == []


def test_a_reply_beyond_the_cap_is_refused():
    big = (200, {}, b"1" * 100_000)
    with pytest.raises(TargetError, match="cap"):
        asked(OpenInference(head(), 3, fault=lambda _: big), sequences(1), reply_cap=10_000)


def test_a_gzip_bomb_is_refused_before_it_unfolds():
    bomb = gzip.compress(b"0" * 50_000_000)
    assert len(bomb) < 100_000
    with pytest.raises(TargetError, match="cap"):
        asked(
            OpenInference(head(), 3, fault=lambda _: (200, {"Content-Encoding": "gzip"}, bomb)), sequences(1), reply_cap=1_000_000
        )


def test_unasked_packing_is_refused_and_plain_gzip_is_read():
    with pytest.raises(TargetError, match="packed"):
        asked(OpenInference(head(), 3, fault=lambda _: (200, {"Content-Encoding": "br"}, b"x")), sequences(1))
    body = gzip.compress(b'{"outputs":[{"name":"answers","datatype":"FP64","shape":[1],"data":[2.5]}]}')
    answers, _ = asked(OpenInference(head(), 3, fault=lambda _: (200, {"Content-Encoding": "gzip"}, body)), sequences(1))
    assert answers[0] == 2.5


def test_hostile_texts_are_made_harmless():
    reason = json.dumps({"error": "\x1b[2J<script>alert(1)</script>\x07" + "x" * 5000}).encode()
    with pytest.raises(TargetError) as caught:
        asked(OpenInference(head(), 3, fault=lambda _: (422, {}, reason)), sequences(1))
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600
    spec = {
        "name": "\x1b[31mhead",
        "platform": "\x1b]0;x\x07",
        "inputs": [{"name": "\x1bX", "datatype": "FP64", "shape": [-1, -1, 3]}],
    }
    with scripted(lambda *_: (200, {}, json.dumps(spec).encode())) as root, HttpOracle(root + PATH) as oracle:
        assert oracle.width == 3
        assert "\x1b" not in str(oracle.describe())


def test_the_token_is_sent_but_never_shown(monkeypatch, tmp_path):
    secret = "s3cr3t-t0ken"
    monkeypatch.setenv("UNSOFTMAX_TOKEN", secret)
    server = OpenInference(head(), 3, fault=lambda _: (403, {}, f"bad token {secret}".encode()))
    with scripted(server) as root, HttpOracle(root + PATH) as oracle:
        with pytest.raises(TargetError) as caught:
            oracle(sequences(1))
        shown = f"{caught.value!r} {caught.value.__cause__!r} {vars(oracle)} {oracle.describe()} {vars(oracle._transport)}"
    assert server.headers[0]["Authorization"] == f"Bearer {secret}"
    assert secret not in shown
    with pytest.raises(ValueError, match="unencrypted"):
        HttpOracle("http://example.org" + PATH)
    monkeypatch.delenv("UNSOFTMAX_TOKEN")
    file = tmp_path / "token"
    file.write_text(secret)
    file.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        HttpOracle("https://example.org" + PATH, token_file=file)
    file.chmod(0o600)
    assert secret not in repr(vars(HttpOracle("https://example.org" + PATH, token_file=file)._transport))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return key, cert


def test_certificates_are_verified(certificate):
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = OpenInference(head(), 3)
    with scripted(server, lambda socket: context.wrap_socket(socket, server_side=True)) as root:
        with HttpOracle(root + PATH) as oracle, pytest.raises(TargetError, match="trusted"):
            _ = oracle.width
        assert server.log == []
        with HttpOracle(root + PATH, ca_file=cert) as oracle:
            assert np.allclose(oracle(sequences(3)), head()(sequences(3)))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/v2/models/a",
        "http://host/v1/models/a",
        "http://host/v2/models/",
        "http://host/v2/models/a/b",
        "http://host/v2/models/..",
        "http://host/v2/models/a?x=1",
        "http://user:word@host/v2/models/a",
        "http://169.254.169.254/v2/models/a",
        "http://[fe80::1]/v2/models/a",
        "http://host:99999/v2/models/a",
        "http://ho\x1bst/v2/models/a",
        "http:///v2/models/a",
    ],
)
def test_bad_addresses_are_refused_at_once(url):
    with pytest.raises(ValueError, match=r"address|model|user name") as caught:
        HttpOracle(url)
    assert "word@" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_addresses_are_taken_apart():
    address = read_address("https://host:8443/gate/v2/models/a%2Fb/versions/3/")
    assert address.infer_path == "/gate/v2/models/a%2Fb/versions/3/infer"
    assert address.root == "https://host:8443"
    assert read_address("http://[::1]:80/v2/models/a").loopback


@given(text=st.text(max_size=30))
def test_any_retry_after_is_read_or_ignored(text):
    wait = wait_asked(text)
    assert wait is None or 0.0 <= wait < float("inf")


def test_choices_are_listed_when_there_are_several():
    tensor = {"datatype": "FP64", "shape": [-1, -1, 3]}
    spec = {"name": MODEL, "inputs": [tensor | {"name": "a"}, tensor | {"name": "b"}], "outputs": [tensor | {"name": "y"}]}
    with scripted(lambda *_: (200, {}, json.dumps(spec).encode())) as root:
        with HttpOracle(root + PATH) as oracle, pytest.raises(ValueError, match="a, b"):
            _ = oracle.width
        with HttpOracle(root + PATH, input="b") as oracle:
            assert oracle.plan.input == "b"
        with HttpOracle(root + PATH, input="c") as oracle, pytest.raises(ValueError, match="no input 'c'"):
            _ = oracle.width
