"""The live page: who may read it, what it is told, and that watching changes nothing of a run."""

import functools
import http.client
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.live import Board, LiveServer, LiveView
from unsoftmax.live.pictures import error_curve
from unsoftmax.watching import watched_by, watchers


@pytest.fixture
def served():
    board = Board()
    server = LiveServer(board, heartbeat=0.2, pace=0.01)
    yield board, server
    server.close(patience=0.5)


def ask(server, path, *, host=None, method="GET"):
    """Status, headers and body of one request."""
    port = int(server.address.split(":")[2].split("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    try:
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_the_page_is_for_whoever_has_the_address(served):
    board, server = served
    board.put("end", {}, last=True)
    room = f"/{server.token}/"
    assert [ask(server, room + name)[0] for name in ("", "live.js", "live.css", "events")] == [200] * 4
    assert [ask(server, path)[0] for path in ("/", "/x/", f"/{server.token[:-1]}/", "//events", "/events")] == [404] * 5
    assert ask(server, room + "../secret")[0] == ask(server, room + "live.html")[0] == 404
    assert [ask(server, room, host=host)[0] for host in ("evil.example", "127.0.0.1", "127.0.0.1:1", "")] == [421, 421, 421, 200]
    assert ask(server, room, method="POST")[0] == 501
    _, headers, body = ask(server, room)
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert b"http" not in body
    assert len(server.token) >= 32
    other = LiveServer(Board())
    other.close()
    assert other.token != server.token


def test_a_reader_gets_all_that_stands_and_then_what_changes(served):
    board, server = served
    board.put("run", {"target": "a\nb"})
    board.put("bill", {"words": "1"})
    board.put("bill", {"words": "2"})
    read = []
    thread = threading.Thread(target=lambda: read.append(ask(server, f"/{server.token}/events")[2].decode()))
    thread.start()
    while not server.readers:
        time.sleep(0.01)
    time.sleep(0.3)
    board.put("end", {"verdict": "DONE"}, last=True)
    thread.join(timeout=5)
    events = re.findall(r"event: (\w+)\ndata: (.*)\n\n", read[0])
    assert [name for name, _ in events] == ["run", "bill", "end"]
    assert json.loads(events[1][1]) == {"words": "2"}
    assert ": still here" in read[0]


def test_only_so_many_readers(served):
    _, server = served
    server.most_readers = 0
    assert ask(server, f"/{server.token}/events")[0] == 503


def parts(board):
    return {name: json.loads(text) for name, text in board.news(0, 0.0)[1]}


def watched(target, **wishes):
    view = LiveView(Board(), title="recover", target="head", frame=0.0)
    with watched_by(view):
        found = us.recover(target, on_progress=view.count, **wishes)
    view.end(verdict="V", sentence="S", mood="good")
    return found, view


def test_w_fills_in_the_error_falls_and_the_bill_runs():
    rng = np.random.default_rng(0)
    head = us.Attention.single(W=rng.normal(size=(24, 24)) / 5, v=rng.normal(size=24))
    found, view = watched(head, seed=3, entropy=5)
    assert watchers() == ()
    plain = us.recover(head, seed=3, entropy=5)
    assert np.array_equal(found.model.W, plain.model.W)
    assert found.queries == plain.queries
    early = [error for queries, error in view.errors if queries < 24 * 24 / 2]
    late = [error for queries, error in view.errors if queries > 24 * 24 + 24 + 60]
    assert len(early) >= 5
    assert min(early) > 1e-3
    assert max(late) < 1e-12
    told = parts(view.board)
    assert told["bill"]["words"] == f"{found.facts['queries']['total']:,} queries" or " of about " in told["bill"]["words"]
    assert [name for name, _ in told["bill"]["phases"]][:3] == ["first look", "longest sequence", "values"]
    assert "<svg" in told["model"]["maps"][0]["drawing"]
    assert us.distance(view.model, head) < 1e-12
    assert told["end"]["verdict"] == "V"


def test_a_budget_is_a_promise_and_heads_share_one_colour_scale():
    rng = np.random.default_rng(1)
    heads = us.Attention(W=rng.normal(size=(2, 8, 8)), V=rng.normal(size=(2, 8, 8)))
    found, view = watched(heads, seed=3, budget=4000)
    told = parts(view.board)
    assert told["bill"]["words"] == f"{found.facts['queries']['total']:,} of at most 4,000 queries"
    assert [m["caption"] for m in told["model"]["maps"]] == ["W of head 1", "W of head 2"]
    scales = [re.findall(r'text-anchor="start">(−?[\d.]+)<', m["drawing"])[-1] for m in told["model"]["maps"]]
    assert scales[0] == scales[1]


def test_noisy_answers_are_watched_too():
    rng = np.random.default_rng(2)
    head = us.Attention.single(W=rng.normal(size=(3, 3)), v=rng.normal(size=3))
    noise = np.random.default_rng(9)
    target = us.oracles.CallableOracle(lambda X: head(X) + 1e-3 * noise.normal(size=len(X)), width=3)
    _, view = watched(target, seed=3)
    assert min(error for _, error in view.errors) < 0.05


def test_the_curve_shows_errors_of_one_size_and_of_zero():
    assert "last 0.0e+00 after 7 queries" in error_curve([(3, 0.0), (7, 0.0)])
    assert error_curve([(1, 1e-3)]).startswith("<svg")


def test_at_a_terminal_the_page_stays_until_ctrl_c():
    command = [sys.executable, "-m", "unsoftmax", "recover", "demo:attention,width=4", "--live"]
    ours, theirs = pty.openpty()
    # a suite that runs in the background ignores Ctrl-C, and hands that down
    heeding = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    run = subprocess.Popen(
        command, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL, start_new_session=True, preexec_fn=heeding
    )
    os.close(theirs)
    said = b""
    while b"until Ctrl-C" not in said:
        said += os.read(ours, 4096)
    address = re.search(rb"stays at (http://\S+)", said)[1].decode()
    port, token = re.match(r"http://127.0.0.1:(\d+)/([\w-]+)/", address).groups()
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
    connection.request("GET", f"/{token}/events")
    assert b"RECOVERED EXACTLY" in connection.getresponse().read()
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=20) == 0
    os.close(ours)
