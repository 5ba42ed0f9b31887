"""Other servers of the protocol, on demand: name an interpreter that has one, and the head is recovered through it.

    UNSOFTMAX_KSERVE_PYTHON=…/bin/python UNSOFTMAX_PYTRITON_PYTHON=…/bin/python pytest tests/faults/test_peers.py

KServe's server listens on every interface of the machine; run that one in a network namespace of its own (``unshare -rn``).
"""

import os
import subprocess

import numpy as np
import pytest

import unsoftmax as us
from servers import peer
from unsoftmax.oracles.grpc_v2 import GrpcOracle
from unsoftmax.oracles.http import HttpOracle

PEERS = {"kserve": "UNSOFTMAX_KSERVE_PYTHON", "pytriton": "UNSOFTMAX_PYTRITON_PYTHON"}


@pytest.mark.server
@pytest.mark.parametrize("kind", PEERS)
def test_other_servers_give_the_same_head(kind, tmp_path):
    interpreter = os.environ.get(PEERS[kind])
    if not interpreter:
        pytest.skip(f"on demand: set {PEERS[kind]} to an interpreter that has {kind}")
    rng = np.random.default_rng(8)
    W, v = rng.normal(size=(64, 8)) @ rng.normal(size=(8, 64)) / 64, rng.normal(size=64)
    np.savez(tmp_path / "head.npz", W=W, v=v)
    library = subprocess.run(
        [interpreter, "-c", "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    with peer(kind, interpreter, tmp_path / "head.npz", library.stdout.strip()) as (http, grpc):
        with HttpOracle(http) as oracle:
            over_http = us.recover(oracle)
            assert oracle.describe()["encoding"] == "binary"
        with GrpcOracle(grpc) as oracle:
            over_grpc = us.recover(oracle)
    here = us.recover(us.Attention.single(W=W, v=v))
    for found in (over_http, over_grpc):
        assert found.status is us.Status.EXACT
        assert np.abs(found.model.W - here.model.W).max() < 1e-11 * np.abs(here.model.W).max()
        assert abs(found.queries - here.queries) <= 0.01 * here.queries + 1
