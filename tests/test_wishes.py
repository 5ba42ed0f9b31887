"""What no run can go by is refused at once, in words, whatever its type."""

import numpy as np
import pytest

import unsoftmax as us

HEAD = us.Attention.single(np.diag([1.0, 2.0, -1.0]), [1.0, -2.0, 3.0])
NAN, INF = float("nan"), float("inf")
NUMBERS = ["x", 1j, NAN, INF, -1.0, 0.0, True, np.array([1.0])]


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
@pytest.mark.parametrize("name", ["tolerance", "max_norm", "accuracy"])
def test_what_is_no_positive_number(name, value):
    with pytest.raises(ValueError, match=f"{name} is"):
        us.recover(HEAD, **{name: value})


@pytest.mark.parametrize("value", ["x", 1j, NAN, INF, -1, 1.5, True, np.array([1])], ids=repr)
@pytest.mark.parametrize("name", ["rank", "heads", "budget", "seed", "max_length", "check", "entropy"])
def test_what_is_no_whole_number(name, value):
    with pytest.raises(ValueError, match=f"{name} is"):
        us.recover(HEAD, **{name: value})


@pytest.mark.parametrize("value", [1j, "x", True, [], np.ones((3, 1)), np.ones((3, 3)), [1.0, "x", 2.0]], ids=repr)
def test_what_is_no_spacing(value):
    with pytest.raises(ValueError, match="grid"):
        us.recover(HEAD, grid=value)


@pytest.mark.parametrize(
    "value",
    ["x", [], [1.0, 2.0, 3.0], [[1.0, 2.0, 3.0], [1.0]], np.ones((2, 3), complex), [[NAN, 0.0, 0.0]], [["a", "b", "c"]]],
    ids=repr,
)
def test_what_are_no_tokens(value):
    with pytest.raises(ValueError, match="natural"):
        us.recover(HEAD, natural=value)


def test_tokens_may_be_lists():
    tokens = np.random.default_rng(0).normal(size=(40, 3)).tolist()
    assert us.recover(HEAD, natural=tokens, seed=1).status is us.Status.EXACT


@pytest.mark.parametrize("name", ["max_norm", "max_length", "seed"])
@pytest.mark.parametrize("value", ["x", -1, NAN], ids=repr)
def test_a_diagnosis_refuses_the_same(name, value):
    with pytest.raises(ValueError, match=f"{name} is"):
        us.diagnose(HEAD, **{name: value})


def test_whole_numbers_of_any_kind_are_taken():
    found = us.recover(HEAD, seed=2**200, budget=np.int64(1000), rank=3.0, check=np.array(40))
    assert found.status is us.Status.EXACT
    assert found.account.seed == 2**200


def test_a_limit_of_lengths_is_no_wish_for_such_a_length():
    found = us.recover(HEAD, max_length=10**12, seed=1)
    assert found.status is us.Status.EXACT
    assert "Longer sequences than 16384 tokens were not asked." in found.check.covers
