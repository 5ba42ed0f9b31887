"""A finished journal is no certificate for today: what is replayed is asked again, and a target that changed is called out."""

import json

import numpy as np
import pytest

import unsoftmax as us
from servers import MODEL, OpenInference, scripted
from unsoftmax.cli import run
from unsoftmax.errors import DriftingError
from unsoftmax.oracles import CallableOracle, Cast, Journal, Journaled, Noisy, Rounded
from unsoftmax.oracles.journal_file import recorded_seed
from unsoftmax.oracles.replayed import SENTINELS
from unsoftmax.results import Floor

WIDTH = 6


def head(seed):
    rng = np.random.default_rng(seed)
    return us.Attention.single(W=rng.normal(size=(WIDTH, WIDTH)), v=rng.normal(size=WIDTH))


class Switchable:
    """A target whose answers may be changed between runs, under one identity."""

    width, identity = WIDTH, "the same address"

    def __init__(self, model):
        self.model, self.asked = model, 0

    def __call__(self, X):
        self.asked += len(X)
        return self.model(X)


def test_other_weights_behind_the_same_address_are_drift_and_exit_five(tmp_path, capsys):
    server = OpenInference(head(1), WIDTH)
    with scripted(server) as root:
        command = ["recover", f"{root}/v2/models/{MODEL}", "--out", str(tmp_path), "--json", "--seed", "3"]
        assert run(command) == 0
        server.model = head(2)
        assert run(command) == 5
    assert json.loads(capsys.readouterr().out.split("\n}\n")[1] + "}")["status"] == "DRIFTING"
    assert not (tmp_path / "weights.safetensors").exists()


def test_an_honest_target_is_asked_again_and_the_page_says_what_is_old(tmp_path, capsys):
    server = OpenInference(head(1), WIDTH)
    with scripted(server) as root:
        command = ["recover", f"{root}/v2/models/{MODEL}", "--out", str(tmp_path), "--seed", "3"]
        assert run(command) == 0
        price = server.asked
        assert run(command) == 0
    assert server.asked == price + SENTINELS
    record = json.loads((tmp_path / "recovery.json").read_text())
    assert record["journal"]["replayed"] == price
    assert record["journal"]["asked_now"] == record["journal"]["confirmed"] == SENTINELS
    assert record["journal"]["answers_from"][:4] == record["journal"]["answers_to"][:4] >= "2026"
    assert record["queries"]["total"] == price + SENTINELS
    assert record["queries"]["learn"] + record["queries"]["check"] == price
    shown = capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert f"{price} answers of 20" in shown
    for words in ("replayed", "answers of 20", "to confirm replayed answers"):
        assert words in shown
        assert words in page


def test_a_target_that_is_gone_is_no_success(tmp_path):
    target = Switchable(head(4))
    assert us.recover(target, journal=tmp_path / "j.sqlite", seed=1).status is us.Status.EXACT

    def gone(X):
        raise ConnectionError("nobody there")

    target.model = gone
    assert us.recover(target, journal=tmp_path / "j.sqlite", seed=1, on_failure="return").status is us.Status.TARGET_FAILED


def test_a_refusal_does_not_rest_on_old_answers_either(tmp_path):
    target = Switchable(lambda X: np.tanh(X.sum(axis=(1, 2))))
    first = us.recover(target, journal=tmp_path / "j.sqlite", seed=1, on_failure="return")
    assert first.status is us.Status.NOT_IN_FAMILY
    target.model = head(2)
    assert us.recover(target, journal=tmp_path / "j.sqlite", seed=1, on_failure="return").status is us.Status.DRIFTING


def kept(path, oracle, count=200):
    """A journal with answers of ``oracle``, opened again and replayed; and the questions."""
    questions = np.random.default_rng(0).normal(size=(count, 3, WIDTH))
    journal = Journal(path, {})
    Journaled(oracle, journal)(questions)
    journal.close()
    journal = Journal(path, {})
    Journaled(oracle, journal)(questions)
    return journal


BARE = CallableOracle(head(9), width=WIDTH)
FLOORS = {
    "exact": (lambda: BARE, Floor()),
    "rounded": (lambda: Rounded(BARE, decimals=3), Floor("rounded", absolute=5e-4, step=1e-3)),
    "digits": (lambda: Rounded(BARE, digits=4), Floor("digits", relative=1e-3)),
    "noisy": (lambda: Noisy(BARE, 0.01), Floor("noisy", absolute=0.01, fresh=True)),
    "noisy, rounded": (lambda: Rounded(Noisy(BARE, 0.01), decimals=2), Floor("noisy", absolute=0.01, step=0.01, fresh=True)),
    "float32": (lambda: Cast(BARE, "float32"), Floor("float32", relative=2.0**-22)),
    "float16": (lambda: Cast(BARE, "float16"), Floor("float16", relative=2.0**-9)),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", FLOORS)
def test_the_same_target_is_never_accused(kind, known, tmp_path):
    make, floor = FLOORS[kind]
    for seed in range(12):
        journal = kept(tmp_path / f"{seed}.sqlite", make())
        target = make()
        if hasattr(target, "_rng"):  # noise of another day
            target._rng = np.random.default_rng(seed + 100)
        journal.confirm_replayed(target, floor if known else None)
        assert SENTINELS <= journal.asked == journal.confirmed <= 2 * SENTINELS
        journal.close()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("kind", "today"),
    [
        ("rounded", lambda: BARE),  # a defence switched off
        ("rounded", lambda: Rounded(BARE, decimals=4)),
        ("rounded", lambda: Rounded(BARE, decimals=2)),
        ("digits", lambda: BARE),
        ("noisy", lambda: BARE),
        ("noisy, rounded", lambda: Rounded(BARE, decimals=2)),
        ("float32", lambda: BARE),
        ("float16", lambda: Cast(BARE, "float32")),
        ("exact", lambda: Cast(BARE, "float32")),
        ("exact", lambda: CallableOracle(head(10), width=WIDTH)),
    ],
)
def test_a_target_that_changed_is_called_out(kind, today, known, tmp_path):
    make, floor = FLOORS[kind]
    for seed in range(5):
        journal = kept(tmp_path / f"{seed}.sqlite", make())
        with pytest.raises(DriftingError):
            journal.confirm_replayed(today(), floor if known else None)
        journal.close()


def test_the_seed_of_a_journal_can_be_read_back(tmp_path):
    path = tmp_path / "j.sqlite"
    assert recorded_seed(path) is None
    us.recover(head(1), journal=path, seed=77)
    assert recorded_seed(path) == 77
    path.write_bytes(b"damaged" * 100)
    assert recorded_seed(path) is None


@pytest.mark.parametrize("seed", range(6))
def test_a_tiny_change_of_one_weight_is_called_out_beside_touchy_questions(seed, tmp_path):
    width = 4 + seed % 3
    rng = np.random.default_rng(seed)
    W, v = rng.normal(size=(width, width)), rng.normal(size=width)
    target = Switchable(us.Attention.single(W=W.copy(), v=v))
    target.width = width
    us.recover(target, journal=tmp_path / "j.sqlite", seed=seed)
    W[seed % width, 0] += 1e-8
    target.model = us.Attention.single(W=W, v=v)
    again = us.recover(target, journal=tmp_path / "j.sqlite", seed=seed, on_failure="return")
    assert again.status is us.Status.DRIFTING
