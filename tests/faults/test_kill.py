"""Killed, interrupted, out of disk: nothing that was paid for is lost, and the resumed run ends with the same numbers."""

import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading

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


class Holding(OpenInference):
    """A server that stops answering once it has answered ``goal`` questions, so that there is something to interrupt."""

    goal: float = math.inf

    def __init__(self, *settings, **options):
        super().__init__(*settings, **options)
        self.holds, self.released = threading.Event(), threading.Event()

    def __call__(self, method, path, body, headers):
        if method == "POST" and self.asked >= self.goal:
            released = self.released
            self.holds.set()
            released.wait(500)
            return 503, {}, b""  # to a client that is gone
        return super().__call__(method, path, body, headers)

    def release(self):
        self.goal = math.inf
        self.released.set()
        self.holds, self.released = threading.Event(), threading.Event()


def command(root, out):
    return [sys.executable, "-c", START, "recover", f"{root}/v2/models/{MODEL}", "--out", str(out), "--seed", "5", "--json"]


def finish(root, out, **options):
    return subprocess.run(command(root, out), capture_output=True, text=True, env=ENVIRONMENT, timeout=500, check=False, **options)


def parameters(out):
    model = us.load(out / "weights.safetensors")
    return model.W.tobytes() + model.V.tobytes()


def heed_interrupts():
    """A suite that runs in the background may have to ignore Ctrl-C, and its children with it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt(root, out, sign, after, server):
    """Start a run, send it a signal while it waits for a reply after ``after`` answers; return its exit code and errors."""
    server.goal = server.asked + after
    with subprocess.Popen(
        command(root, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, preexec_fn=heed_interrupts
    ) as process:
        while process.poll() is None and not server.holds.wait(0.1):
            pass
        process.send_signal(sign)
        _, errors = process.communicate(timeout=300)  # the reply is still held back: the run does not wait for it
    server.release()
    return process.returncode, errors


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken")
    server = OpenInference(head(), WIDTH)
    with scripted(server) as root:
        done = finish(root, out)
    assert done.returncode == 0, done.stderr
    return parameters(out), server.asked


def test_kill_dash_nine_loses_nothing(unbroken, tmp_path):
    expected, price = unbroken
    rng = np.random.default_rng(20261116)
    server = Holding(head(), WIDTH)
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
@pytest.mark.parametrize("after", [0, 30])
def test_an_interrupt_ends_without_the_reply(tmp_path, sign, after):
    server = Holding(head(), WIDTH)
    with scripted(server) as root:
        code, errors = interrupt(root, tmp_path, sign, after, server)
    assert code == 130, errors
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
            inject + command(root, tmp_path), capture_output=True, text=True, env=ENVIRONMENT, timeout=500, check=False
        )
        assert stopped.returncode == 2, (stopped.stdout, stopped.stderr)
        assert "journal" in stopped.stderr
        done = finish(root, tmp_path)
    assert done.returncode == 0, done.stderr
    assert parameters(tmp_path) == unbroken[0]
