"""``unsoftmax serve``: hosts a target with its defences, on loopback, until it is told to stop."""

import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from servers import answers, own_port, started
from unsoftmax.cli.serve import serve
from unsoftmax.errors import TargetError
from unsoftmax.models import Attention
from unsoftmax.oracles.http import HttpOracle
from unsoftmax.serving import free_port

pytest.importorskip("mlserver")


@pytest.fixture
def weights(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "head.safetensors"
    Attention.single(W=rng.normal(size=(4, 4)), v=rng.normal(size=4)).save(path)
    return path


@pytest.mark.server
def test_a_target_with_defences_is_served_until_told_to_stop(weights):
    port = own_port()
    start = "from unsoftmax.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        start,
        "serve",
        str(weights),
        "--round",
        "2",
        "--rate",
        "50",
        "--quota",
        "25",
        "--port",
        str(port),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    url = f"http://127.0.0.1:{port}/v2/models/target"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True) as process:
        try:
            assert started(lambda: answers(url + "/ready"), process)
            with HttpOracle(url) as oracle:
                found = oracle(np.random.default_rng(1).normal(size=(20, 2, 4)))
            assert np.array_equal(found, np.round(found, 2))
            assert np.any(found != 0)
            with HttpOracle(url) as oracle, pytest.raises(TargetError, match="quota of 25 queries"):
                oracle(np.ones((6, 2, 4)))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=300)
            assert url in out
            assert "unsoftmax recover" in out
            assert "Defences: decimals 2, queries a second 50, quota of queries 25." in out
            assert "Traceback" not in err
        finally:
            process.kill()


def test_a_port_in_use_and_a_bad_name_are_told(weights):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = CliRunner().invoke(serve, [str(weights), "--port", str(taken.getsockname()[1])])
    assert isinstance(result.exception, OSError)
    assert "cannot be listened on" in str(result.exception)
    assert CliRunner().invoke(serve, [str(weights), "--name", "a/b"]).exit_code == 2
    assert CliRunner().invoke(serve, [str(weights), "--noise", "-1"]).exit_code == 2


def test_http_and_grpc_do_not_share_a_port(weights):
    result = CliRunner().invoke(serve, [str(weights), "--port", "8080", "--grpc-port", "8080"])
    assert isinstance(result.exception, ValueError)
    assert "a port each" in str(result.exception)
    taken = free_port()
    assert all(free_port(but=taken) != taken for _ in range(20))
