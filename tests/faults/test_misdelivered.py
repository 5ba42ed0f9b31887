"""A gateway that delivers somebody else's reply: noticed, never blamed on the family, and no journal is poisoned for good."""

import numpy as np
import pytest

import unsoftmax as us
from servers import MODEL, OpenInference, scripted
from unsoftmax.oracles import CallableOracle
from unsoftmax.oracles.contradiction import CONFIRMED
from unsoftmax.oracles.http import HttpOracle
from unsoftmax.oracles.receipts import Receipts
from unsoftmax.results import Floor

WIDTH = 3


def head(seed):
    rng = np.random.default_rng(seed)
    return us.Attention.single(W=rng.normal(size=(WIDTH, WIDTH)), v=rng.normal(size=WIDTH))


class Mixing(OpenInference):
    """Delivers another model's answers to the requests for which ``mixed`` holds."""

    def __init__(self, mixed):
        super().__init__(head(1), WIDTH)
        self.mixed = mixed

    def __call__(self, method, path, body, headers):
        self.model = head(2 if method == "POST" and self.mixed(self.posts + 1) else 1)
        return super().__call__(method, path, body, headers)


def runs(server, journal, times):
    with scripted(server) as root:
        for _ in range(times):
            with HttpOracle(f"{root}/v2/models/{MODEL}") as oracle:
                yield us.recover(oracle, journal=journal, seed=3, on_failure="return")


@pytest.mark.parametrize("at", [2, 9, 25])  # the first answers, learning, and the held-out check
def test_one_wrong_reply_is_called_so_and_asked_again(at, tmp_path):
    first, second, third = runs(Mixing(lambda post: post == at), tmp_path / "j.sqlite", 3)
    assert first.status is us.Status.DRIFTING, first.message
    assert "1 of" in first.message
    assert "replies were not the target's own" in first.message
    assert second.status is us.Status.EXACT, second.message
    assert us.distance(second.model, head(1)) < 1e-9
    assert second.facts["journal"]["replaced"] > 0
    assert third.status is us.Status.EXACT
    assert third.facts["journal"]["replaced"] == 0


def test_a_mixture_is_not_cleaned_run_by_run(tmp_path):
    seen = list(runs(Mixing(lambda post: post % 12 == 0), tmp_path / "j.sqlite", 4))
    assert not any(recovery.status.success for recovery in seen)


def test_a_target_that_changed_or_a_stranger_is_not_taken_for_a_wrong_reply():
    rng = np.random.default_rng(0)
    for wrong in (0, 1, CONFIRMED - 1, CONFIRMED, 30):
        receipts = Receipts()
        for number in range(30):
            X = rng.normal(size=(4, 3, WIDTH))
            receipts.take(("learn", number, 0), X, head(2 if number < wrong else 1)(X))
        found = receipts.misdelivered(CallableOracle(head(1), width=WIDTH), Floor())
        assert [place[1] for place in found] == (list(range(wrong)) if wrong < CONFIRMED else [])


def test_of_many_replies_a_fair_sample_is_kept():
    receipts = Receipts(most=10)
    for number in range(1000):
        receipts.take(("learn", number, 0), np.ones((2, 1, 1)), np.ones(2))
    kept = [place[1] for place, _, _ in receipts.kept]
    assert len(kept) == 10
    assert max(kept) > 300
