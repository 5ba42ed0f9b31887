"""Recovery through a proxy that breaks things: right parameters or an honest refusal, and every answer used once."""

import contextlib

import numpy as np
import pytest

import unsoftmax as us
from chaos_proxy import ChaosProxy
from servers import MODEL, OpenInference, scripted
from unsoftmax.oracles.http import HttpOracle
from unsoftmax.oracles.retry import Patience

HASTE = Patience(attempts=5, total=300.0, first_pause=0.005, longest_pause=0.01, longest_wait=1.0)
TRIES = 12  # of resuming


def head(seed, width=6):
    rng = np.random.default_rng(seed)
    return us.Attention.single(W=rng.normal(size=(width, width)), v=rng.normal(size=width))


@contextlib.contextmanager
def behind_chaos(model, seed, **options):
    """A server of ``model`` behind a proxy; yields proxy, server and the model's address through the proxy."""
    server = OpenInference(model, model.width, binary=bool(seed % 2), advertise=False)
    with scripted(server) as root:
        proxy = ChaosProxy(int(root.rsplit(":", 1)[1]), seed, **options)
        with proxy.running() as address:
            yield proxy, server, f"{address}/v2/models/{MODEL}"


def attempt(url, journal, seed, timeout=120.0):
    """One run of ``recover``, as the command line would make it."""
    with HttpOracle(url, patience=HASTE, timeout=timeout, request_numbers=200) as oracle:
        return us.recover(oracle, journal=journal, seed=seed, on_failure="return")


@pytest.mark.parametrize("seed", range(8))
def test_faults_end_in_the_right_parameters_or_an_honest_refusal(seed, tmp_path):
    model = head(seed)
    with behind_chaos(model, seed) as (proxy, server, url):
        confirmed = 0  # sequences of earlier attempts that asked again what was replayed
        for _ in range(TRIES):
            recovery = attempt(url, tmp_path / "journal.sqlite", seed)
            if recovery.status is not us.Status.TARGET_FAILED:
                break
            confirmed += recovery.facts["journal"]["confirmed"]
    assert recovery.status in (us.Status.EXACT, us.Status.TARGET_FAILED), recovery.message
    if recovery.status is us.Status.EXACT:
        assert us.distance(recovery.model, model) < 1e-9
        used = recovery.facts["queries"]["total"]
        assert used <= proxy.history.answered <= used + confirmed, "every answer that arrived was used, and used once"
        assert server.asked == proxy.history.answered + proxy.history.lost, "nothing was asked again but what was lost"


def test_a_calm_proxy_changes_nothing(tmp_path):
    model = head(100)
    with behind_chaos(model, 1, rate=0.0) as (proxy, server, url):
        recovery = attempt(url, tmp_path / "journal.sqlite", 0)
    assert recovery.status is us.Status.EXACT
    assert server.asked == proxy.history.answered == recovery.facts["queries"]["total"]
    assert proxy.history.lost == 0


def test_silence_ends_in_the_right_parameters_or_an_honest_refusal(tmp_path):
    model = head(7)
    with behind_chaos(model, 3, rate=0.08, faults={"stall": 1}) as (proxy, _, url):
        for _ in range(TRIES):  # what is slow on a busy machine looks silent, too, so nothing is counted here
            recovery = attempt(url, tmp_path / "journal.sqlite", 0, timeout=0.5)
            if recovery.status is not us.Status.TARGET_FAILED:
                break
    assert recovery.status in (us.Status.EXACT, us.Status.TARGET_FAILED), recovery.message
    assert proxy.history.requests["stall"] > 0
    if recovery.status is us.Status.EXACT:
        assert us.distance(recovery.model, model) < 1e-9
