"""Hypothesis for a shared machine: no deadlines, repeatable examples."""

import gc

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("suite", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

collect_ignore_glob = ["peers/*"]  # servers that tests start in processes of their own


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Nothing that is imported becomes garbage: to look for it again and again takes a third of the collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True)
def _repeatable_questions(monkeypatch):
    """Where a test names no seed, one is drawn from the operating system in use; here it is the same every time."""
    monkeypatch.setattr("unsoftmax.desk.drawn_seed", lambda source: 0)
