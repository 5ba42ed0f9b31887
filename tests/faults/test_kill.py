"""Killed, interrupted, out of disk: nothing that was paid for is lost, and the resumed run ends with the same numbers."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import unsoftmax as us
from servers import MODEL, OpenInference, scripted

START = "from unsoftmax.cli import main; main()"
# a measurement of coverage would write its own files where these tests allow none
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")} | {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
WIDTH = 12


def head():
    rng = np.random.default_rng(3)
    return us.Attention.single(W=rng.normal(size=(WIDTH, WIDTH)), v=rng.normal(size=WIDTH))


class Slow(OpenInference):
    """A server that takes its time, so that there is something to interrupt."""

    pause = 0.01

    def __call__(self, method, path, body, headers):
        if method == "POST":
            time.sleep(self.pause)
        return super().__call__(method, path, body, headers)


def command(root, out):
    return [sys.executable, "-c", START, "recover", f"{root}/v2/models/{MODEL}", "--out", str(out), "--json"]


def finish(root, out, **options):
    return subprocess.run(command(root, out), capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False, **options)


def parameters(out):
    model = us.load(out / "weights.safetensors")
    return model.W.tobytes() + model.V.tobytes()


def interrupt(root, out, sign, after, server):
    """Start a run, send it a signal once the server has answered ``after`` questions, and return exit code and delay."""
    goal = server.asked + after
    with subprocess.Popen(command(root, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        deadline = time.monotonic() + 60
        while server.asked < goal and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        began = time.monotonic()
        process.send_signal(sign)
        process.communicate(timeout=60)
        return process.returncode, time.monotonic() - began


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken")
    server = Slow(head(), WIDTH)
    server.pause = 0.0
    with scripted(server) as root:
        done = finish(root, out)
    assert done.returncode == 0, done.stderr
    return parameters(out), server.asked


def test_kill_dash_nine_loses_nothing(unbroken, tmp_path):
    expected, price = unbroken
    rng = np.random.default_rng(20261116)
    server = Slow(head(), WIDTH)
    with scripted(server) as root:
        kills = 0
        for after in rng.integers(1, 80, size=3):
            code, _ = interrupt(root, tmp_path, signal.SIGKILL, int(after), server)
            kills += code == -signal.SIGKILL
        done = finish(root, tmp_path)
    assert done.returncode == 0, done.stderr
    assert kills >= 2
    assert parameters(tmp_path) == expected
    largest = 256  # one call under way at each kill
    assert price - 8 <= server.asked <= price + kills * largest


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_within_two_seconds(tmp_path, sign):
    server = Slow(head(), WIDTH)
    with scripted(server) as root:
        server.pause = 5.0  # longer than the two seconds: the run must not wait for the reply
        began = server.posts
        with subprocess.Popen(command(root, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
            while server.posts == began and process.poll() is None:
                time.sleep(0.01)
            sent = time.monotonic()
            process.send_signal(sign)
            _, errors = process.communicate(timeout=60)
        assert time.monotonic() - sent < 2.0
        assert process.returncode == 130, errors
        assert b"Traceback" not in errors
        assert b"same command" in errors


def limit_files():
    """Files may not grow beyond a few pages: the journal meets a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))


def test_a_full_disk_is_fatal_clearly_said_and_loses_nothing(unbroken, tmp_path):
    server = OpenInference(head(), WIDTH)
    with scripted(server) as root:
        stopped = finish(root, tmp_path, preexec_fn=limit_files)
        spent = server.asked
        assert stopped.returncode == 2, (stopped.stdout, stopped.stderr)
        assert "journal" in stopped.stderr
        assert "Traceback" not in stopped.stderr
        assert 0 < spent < unbroken[1]
        done = finish(root, tmp_path)
    assert done.returncode == 0, done.stderr
    assert parameters(tmp_path) == unbroken[0]
    assert server.asked <= unbroken[1] + 256, "only the call that met the full disk was asked again"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace makes the disk fail")
def test_a_failing_sync_is_fatal_and_loses_nothing(unbroken, tmp_path):
    server = OpenInference(head(), WIDTH)
    with scripted(server) as root:
        inject = [
            "strace",
            "-f",
            "-qq",
            "-o",
            os.devnull,
            "-e",
            "trace=fdatasync,fsync",
            "-e",
            "inject=fdatasync,fsync:error=EIO:when=12+",
        ]
        stopped = subprocess.run(
            inject + command(root, tmp_path), capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False
        )
        assert stopped.returncode == 2, (stopped.stdout, stopped.stderr)
        assert "journal" in stopped.stderr
        done = finish(root, tmp_path)
    assert done.returncode == 0, done.stderr
    assert parameters(tmp_path) == unbroken[0]
