"""The names that users rely on."""

import importlib
import inspect
import subprocess
import sys

import pytest

import unsoftmax as us


def test_all_is_what_is_exported():
    assert len(set(us.__all__)) == len(us.__all__)
    for name in us.__all__:
        assert getattr(us, name) is not None
    assert dir(us) == sorted(us.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        us.nothing  # noqa: B018 - the access is the test


def test_every_oracle_named_is_there():
    for name in us.oracles.__all__:
        assert getattr(us.oracles, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        us.oracles.nothing  # noqa: B018 - the access is the test


def test_the_contract_of_recover():
    settings = inspect.signature(us.recover).parameters
    expected = [
        "target",
        "width",
        "family",
        "rank",
        "heads",
        "tolerance",
        "max_norm",
        "budget",
        "adaptive",
        "grid",
        "journal",
        "seed",
    ]
    assert list(settings)[: len(expected)] == expected
    assert settings["on_failure"].default == "raise"
    assert all(p.kind is p.KEYWORD_ONLY for name, p in settings.items() if name != "target")


def test_statuses_are_sentences():
    names = {
        "EXACT",
        "WITHIN_TOLERANCE",
        "NOT_IN_FAMILY",
        "INCONCLUSIVE",
        "NOT_IDENTIFIABLE",
        "BUDGET_SPENT",
        "TOO_NOISY",
        "DRIFTING",
        "TARGET_FAILED",
    }
    assert set(us.Status.__members__) == names
    assert all(status.value.endswith(".") for status in us.Status)
    assert [s.name for s in us.Status if s.success] == ["EXACT", "WITHIN_TOLERANCE"]


def test_importing_is_light():
    heavy = "[m for m in ('scipy', 'numpy', 'torch', 'httpx', 'rich') if m in sys.modules]"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys, unsoftmax, unsoftmax.cli; print({heavy})"], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "room",
    [
        "linalg",
        "models",
        "probes",
        "symmetry",
        "learners",
        "precision",
        "recognition",
        "families",
        "proof",
        "audits",
        "oracles",
        "report",
        "cli",
    ],
)
def test_every_room_says_what_it_is_for(room):
    assert importlib.import_module(f"unsoftmax.{room}").__doc__
