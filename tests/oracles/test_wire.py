"""Servers that never end, replies that were meant for others, widths that nobody has, and addresses that are never asked."""

import contextlib
import json
import socket
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import unsoftmax as us
from servers import MODEL, OpenInference, scripted
from unsoftmax import memory
from unsoftmax.errors import DriftingError, TargetError
from unsoftmax.oracles import Metered
from unsoftmax.oracles.grpc_v2 import GrpcOracle
from unsoftmax.oracles.http import HttpOracle
from unsoftmax.oracles.http_address import forbidden, presentable, read_address
from unsoftmax.oracles.http_codec import ModelSpec, TensorSpec
from unsoftmax.oracles.retry import Patience
from unsoftmax.oracles.tensors import Wishes, plan_tensors

HASTE = Patience(attempts=2, total=300.0, first_pause=0.01, longest_pause=0.02, longest_wait=1.0)
ONCE = replace(HASTE, attempts=1)
PATH = f"/v2/models/{MODEL}"


@contextlib.contextmanager
def endless(first: bytes, drip: bytes, pause: float):
    """A server that answers every request with ``first`` and then ``drip`` for ever; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve(client):
        with client, contextlib.suppress(OSError):
            client.recv(65536)
            client.sendall(first)
            while not over.is_set():
                client.sendall(drip)
                if pause:
                    time.sleep(pause)

    def accept():
        with contextlib.suppress(OSError):
            while not over.is_set():
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.parametrize(
    ("first", "drip", "pause"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),  # a flood of interim replies
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0.05),  # and a drip of them
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.05),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n", 0.05),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0.05),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x", 0.05),
    ],
)
def test_a_reply_that_never_ends_does(first, drip, pause, monkeypatch):
    monkeypatch.setattr("unsoftmax.oracles.http_transport.DRIP", 4)
    began = time.monotonic()
    with endless(first, drip, pause) as root, HttpOracle(root + PATH, patience=ONCE, timeout=0.15) as oracle:
        with pytest.raises(TargetError):
            _ = oracle.width
        assert time.monotonic() - began < 20.0


class Labelled(OpenInference):
    """Echoes request ids and says a version; ``relabel`` may change that, reply by reply."""

    def __init__(self, *settings, relabel=lambda number, labels: labels, **options):
        super().__init__(*settings, **options)
        self.relabel = relabel

    def _infer(self, body, headers):
        request = json.loads(body)
        status, extra, content = super()._infer(body, headers)
        labels = self.relabel(self.posts, {"id": request["id"], "model_name": MODEL, "model_version": "1"})
        return status, extra, json.dumps(json.loads(content) | labels).encode()


def total(X):
    return X[:, -1].sum(axis=1)


def test_a_reply_to_another_request_is_not_taken():
    X = np.arange(12.0).reshape(6, 1, 2)
    server = Labelled(total, 2, binary=False, relabel=lambda n, labels: labels | ({"id": "theirs"} if n == 1 else {}))
    with scripted(server) as root, HttpOracle(root + PATH, patience=HASTE, encoding="json") as oracle:
        assert np.array_equal(oracle(X), total(X))
        assert oracle.repeated == 6
    always = Labelled(total, 2, binary=False, relabel=lambda n, labels: labels | {"model_name": f"model {n}"})
    with scripted(always) as root, HttpOracle(root + PATH, patience=HASTE, encoding="json") as oracle:
        oracle(X)
        with pytest.raises(TargetError, match="in place of"):
            oracle(X)


def test_another_version_that_answers_is_drift():
    rng = np.random.default_rng(0)
    head = us.Attention.single(W=rng.normal(size=(3, 3)), v=rng.normal(size=3))
    server = Labelled(head, 3, binary=False, relabel=lambda n, labels: labels | {"model_version": "1" if n < 9 else "2"})
    with scripted(server) as root, HttpOracle(root + PATH, patience=HASTE, encoding="json") as oracle:
        assert us.recover(oracle, on_failure="return").status is us.Status.DRIFTING
    pinned = Labelled(head, 3, binary=False)
    with (
        scripted(pinned) as root,
        HttpOracle(root + PATH + "/versions/7", patience=HASTE, encoding="json") as oracle,
        pytest.raises(DriftingError, match="'7'"),
    ):
        oracle(np.zeros((1, 1, 3)))


def test_a_misdelivered_reply_does_not_poison_a_journal(tmp_path):
    rng = np.random.default_rng(0)
    head = us.Attention.single(W=rng.normal(size=(3, 3)), v=rng.normal(size=3))

    def swap(number, labels):
        return labels | {"id": "theirs", "outputs": [{"name": "answers", "datatype": "FP64", "shape": [0], "data": []}]}

    server = Labelled(head, 3, binary=False, relabel=lambda n, labels: swap(n, labels) if n % 7 == 3 else labels)
    with scripted(server) as root, HttpOracle(root + PATH, patience=HASTE, encoding="json") as oracle:
        assert us.recover(oracle, journal=tmp_path / "j.sqlite", on_failure="return").status is us.Status.EXACT


def spec(width):
    return ModelSpec("m", inputs=[TensorSpec("x", "FP64", (-1, -1, width))], outputs=[TensorSpec("y", "FP64", (-1,))])


def test_a_width_that_nobody_has_needs_a_word_of_the_user(monkeypatch):
    monkeypatch.setattr(memory, "memory_left", lambda: 2**50)
    assert plan_tensors(spec(65_536), Wishes()).width == 65_536
    with pytest.raises(ValueError, match="--width 65537"):
        plan_tensors(spec(65_537), Wishes())
    assert plan_tensors(spec(65_537), Wishes(width=65_537)).width == 65_537
    monkeypatch.setattr(memory, "memory_left", lambda: 2**20)
    with pytest.raises(MemoryError, match="GiB are left"):
        plan_tensors(spec(1000), Wishes(width=1000))


LINK_LOCAL = [
    "169.254.169.254", "2852039166", "0xA9FEA9FE", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376", "169.254.43518",
    "169.254.169.254.",
    "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[fe80::1]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]",
    "[::169.254.169.254]",
    "[fd00:ec2::254]", "100.100.100.200", "metadata.google.internal", "METADATA.google.internal.",
]  # fmt: skip


@pytest.mark.parametrize("host", LINK_LOCAL)
def test_where_clouds_keep_their_secrets_nothing_is_asked(host):
    assert forbidden(host)
    with pytest.raises(ValueError, match="never asked"):
        read_address(f"http://{host}:80{PATH}")
    with pytest.raises(ValueError, match="never asked"):
        GrpcOracle(f"grpc://{host}:80/name")


def test_a_name_that_leads_there_is_refused_too(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(ValueError, match="never asked"):
        GrpcOracle("grpc://innocent.example:80/name")
    monkeypatch.undo()
    monkeypatch.setattr("unsoftmax.oracles.http_wire.forbidden", lambda host: host == "127.0.0.1")
    server = OpenInference(total, 2)
    with scripted(server) as root, HttpOracle(root + PATH, patience=HASTE) as oracle:
        with pytest.raises(TargetError, match="never asked"):
            _ = oracle.width
        assert server.log == []


@pytest.mark.parametrize(
    "url",
    [
        "grpc://me:hunter2@host:80/name",
        "grpc://:hunter2@host:80/name",
        "grpc://host:80/name?token=hunter2",
        "grpc://host:80/name#hunter2",
        "grpc://host:notaport/hunter2@x",
        f"http://me:hunter2@host{PATH}",
        f"http://host{PATH}?token=hunter2",
        f"http://host:hunter2@x{PATH}",
        "http://me:hunter2@host:9x/v2",
    ],
)
def test_passwords_in_addresses_are_refused_unseen(url):
    open_it = GrpcOracle if url.startswith("grpc") else HttpOracle
    with pytest.raises(ValueError, match=r".") as caught:
        open_it(url)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in presentable("grpc://me:hunter2@host:80/name?token=hunter2")


def test_grpcs_honours_the_certificate_file(monkeypatch, tmp_path):
    monkeypatch.setenv("UNSOFTMAX_CA_FILE", str(tmp_path / "absent.pem"))
    with GrpcOracle("grpcs://127.0.0.1:9/name") as oracle, pytest.raises(ValueError, match=r"absent\.pem"):
        _ = oracle.width


@pytest.mark.parametrize("answer", ["NaN", "shape", "error", "500"])
def test_every_sequence_that_was_sent_is_billed(answer):
    def model(X):
        return {"NaN": np.full(len(X), np.nan), "shape": np.zeros(len(X) + 1)}.get(answer, total(X))

    sent = []

    def fail(X):
        sent.append(len(X))
        if answer == "error":
            raise RuntimeError("no")
        return model(X)

    if answer != "500":
        meter = Metered(us.oracles.CallableOracle(fail, width=2))
        with pytest.raises(TargetError):
            meter(np.zeros((5, 1, 2)))
        assert sent == [5, 1][: 1 + (answer == "error")], "one that raises may take smaller batches"
        assert meter.spent == meter.phases["asked"].queries == sum(sent)
    server = OpenInference(model, 2, fault=lambda _: (500, {}, b"no") if answer in ("500", "error") else None)
    with scripted(server) as root, HttpOracle(root + PATH, patience=HASTE, request_numbers=4, in_flight=1) as oracle:
        meter = Metered(oracle)
        with pytest.raises(TargetError):
            meter(np.zeros((6, 1, 2)))
        assert meter.spent == 2, "of three requests one was sent"
