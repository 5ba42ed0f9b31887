"""What strikes one token in thousands, or only very long sequences: a few of those are asked where they are cheap."""

import time

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.proof.rare import lengths

D = 6


def head(seed):
    rng = np.random.default_rng(seed)
    return us.Attention.single(rng.normal(size=(D, D)) / np.sqrt(D), rng.normal(size=D))


def counting(answer):
    """The target, and the lengths of all sequences that it was asked."""
    asked = []

    def target(X):
        asked.append(X.shape[1])
        return answer(X)

    return target, asked


@pytest.mark.parametrize("seed", range(3))
def test_dropout_of_one_token_in_twenty_thousand_is_noticed(seed):
    one, rng = head(seed), np.random.default_rng(seed)

    def forgetful(X):
        return one(np.where((rng.random(X.shape[:2]) < 5e-5)[..., None], 0.0, X))

    found = us.recover(forgetful, width=D, on_failure="return")
    assert found.status is us.Status.DRIFTING
    assert "dropout" in found.message


def test_very_long_sequences_count_in_what_is_covered():
    target, asked = counting(head(3))
    found = us.recover(target, width=D)
    assert found.status is us.Status.EXACT
    assert sorted(set(asked))[-5:] == lengths(D) == [1024, 4096, 16384, 65536, 262144]
    assert max(found.check.by_length) == 262144
    assert found.check.sequences == 240


def test_another_law_of_very_long_sequences_leaves_it_open():
    one, other = head(4), head(5)
    target = counting(lambda X: (other if X.shape[1] > 3000 else one)(X))[0]
    found = us.recover(target, width=D, on_failure="return")
    assert found.status is us.Status.INCONCLUSIVE
    assert "max_length=256" in found.message
    assert us.recover(target, width=D, max_length=256).status is us.Status.EXACT


def test_a_target_that_takes_no_such_sequences_is_recovered():
    one = head(6)

    def short(X):
        if X.shape[1] > 512:
            raise RuntimeError("at most 512 tokens")
        return one(X)

    found = us.recover(short, width=D)
    assert found.status is us.Status.EXACT
    assert max(found.check.by_length) == 256


def test_a_target_that_would_take_long_is_asked_no_more():
    one = head(7)

    def slow(X):
        time.sleep(0.02 * (X.shape[1] >= 1024))
        return one(X)

    target, asked = counting(slow)
    found = us.recover(target, width=D)
    assert found.status is us.Status.EXACT
    assert max(asked) == 1024
    assert found.check.sequences == 240, "no fewer than of a fast one"


@pytest.mark.parametrize("wish", [{"max_length": 256}, {"check": 235}, {"budget": 6 * 7 + 17 + 240}])
def test_they_are_asked_only_where_nobody_wished_otherwise(wish):
    target, asked = counting(head(8))
    assert us.recover(target, width=D, **wish).status is us.Status.EXACT
    assert max(asked) == 256
