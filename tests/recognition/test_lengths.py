"""A target that is another head at one single length is no layer of heads, however few sequences have that length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.recognition.targets import case_of, head, heads, weighted
from tests.recognition.test_depth import transformer

import unsoftmax as us
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.recognition.case import most_asked
from unsoftmax.recognition.lengths import every_length


def elsewhere(target, other, length, share=1.0):
    """Another target at one length."""
    return lambda X: target(X) + share * (X.shape[1] == length) * (other(X) - target(X))


def same_values(width=5, seed=0):
    """Two heads that differ in their scores alone: copies of one token tell nothing of it."""
    one, two = head(width, seed), head(width, seed + 1)
    return one, us.Attention(two.W, one.V)


@pytest.mark.parametrize("length", [2, 7, 23, 37, 61, 64])
@pytest.mark.parametrize("share", [1e-8, 1.0])
def test_one_head_that_has_other_scores_at_one_length_is_told(length, share):
    told = us.diagnose(elsewhere(*same_values(seed=length), length, share), width=5, seed=length)
    assert not told.inside
    assert told.queries <= most_asked(5)


@pytest.mark.parametrize("length", [3, 8, 31, 53, 64])
@pytest.mark.parametrize("outputs", [None, 3])
def test_several_heads_that_are_others_at_one_length_are_told(length, outputs):
    told = us.diagnose(
        elsewhere(heads(2, seed=1, outputs=outputs), heads(2, seed=2, outputs=outputs), length), width=5, seed=length
    )
    assert not told.inside


@pytest.mark.parametrize(
    "target", [head(), head(outputs=3, bias=True, constant=True), heads(2, seed=1), heads(3, seed=1, outputs=4)], ids=str
)
def test_every_length_is_asked_of_heads_within_the_promise(target):
    lengths = set()

    def asked(X):
        lengths.add(X.shape[1])
        return target(X)

    told = us.diagnose(asked, width=5)
    assert told.inside
    assert told.queries <= most_asked(5)
    assert lengths >= {*range(1, 65)}
    (fact,) = [fact for fact in told.evidence if fact.test == "every length"]
    assert fact.sentence == "Sequences of every length from 2 to 64 are answered by one law."


def test_lengths_for_which_no_questions_are_left_are_counted():
    told = us.diagnose(transformer((6, 12, 1), 3), width=6)
    assert told.family == "transformer"
    (fact,) = [fact for fact in told.evidence if fact.test == "every length"]
    assert "of the lengths from 2 to 64 were not asked" in fact.sentence


def of_every_length(target, foretold=(), room=200):
    case = case_of(target)
    case.alone, case.cheap, case.limit = True, True, room
    case.foretold.update(foretold)
    return case, every_length(case, 1.0, None)


@given(length=st.integers(2, 64), seed=st.integers(0, 99))
def test_copies_of_two_tokens_tell_any_length_of_any_family(length, seed):
    target = transformer((5, 6, 1), seed)
    case, verdict = of_every_length(target)
    assert verdict is None
    assert case.foretold >= {*range(2, 65)}
    assert case.asked == 63 + 16  # lengths beyond 32 of no factor two want one more to be compared with
    _, verdict = of_every_length(elsewhere(target, transformer((5, 6, 1), seed + 100), length))
    assert verdict is not None
    assert verdict.family == "outside: another law at other lengths"


def test_only_lengths_that_nothing_foretold_are_asked_and_only_as_questions_last():
    case, _ = of_every_length(head(), foretold=set(range(2, 65)) - {24, 48})
    assert case.asked == 2
    case, verdict = of_every_length(head(), room=12)
    assert verdict is None
    assert case.left() < 6
    assert "were not asked" in case.evidence[-1].sentence


def test_a_target_behind_a_wire_is_not_asked_for_every_length():
    class Remote(CallableOracle):
        local = False

    oracle = Metered(Remote(head(), width=5))
    told = us.diagnose(oracle)
    assert told.inside
    assert told.queries < 160
    assert all(fact.test != "every length" for fact in told.evidence)


def otherwise_asked(layer, share, longest):
    """Scores are larger by a share where the last token is no longer than that: one-token answers tell nothing of it."""

    def answer(X):
        scores = np.einsum("bnd,de,be->bn", X, layer.W[0], X[:, -1])
        return weighted(scores * (1 + share * (np.linalg.norm(X[:, -1], axis=1) < longest))[:, None], X) @ layer.V[0]

    return answer


@pytest.mark.parametrize("size", [1.0, 0.3, 0.1, 0.03])
@pytest.mark.parametrize("seed", range(3))
def test_scores_that_change_with_what_asks_are_met_on_natural_tokens_or_far_away(size, seed):
    told = us.diagnose(otherwise_asked(head(seed=seed, size=size), 1e-4, 1.5 * 5**0.5), width=5, seed=seed)
    assert not told.inside
    assert told.queries <= most_asked(5)


@pytest.mark.parametrize("size", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("bias", [False, True])
def test_a_second_plane_denies_no_head(size, bias):
    for seed in range(4):
        assert us.diagnose(head(seed=seed, size=size, bias=bias), width=5, seed=seed).family == "attention"


def test_what_hangs_on_tokens_is_not_put_down_to_their_number():
    told = us.diagnose(otherwise_asked(head(seed=2, size=0.03), 1e-4, 1.5 * 5**0.5), width=5)
    assert told.family == "outside: scores not bilinear (soft-cap or another law)"
    told = us.diagnose(elsewhere(*same_values(seed=1), 37, 1e-6), width=5)
    assert told.family == "outside: another law at other lengths"


@pytest.mark.parametrize("length", [5, 12, 37])
def test_what_hangs_on_the_number_of_far_tokens_is_told_so(length):
    """Tokens of a head with small scores lie beyond natural ones, which is not why another law holds from some length on."""
    one, other = head(seed=4, size=0.1), head(seed=5)
    told = us.diagnose(lambda X: one(X) + 1e-6 * (X.shape[1] > length) * (other(X) - X[:, -1] @ other.V[0]), width=5)
    assert told.family != "outside: inconclusive (token length)"
    assert not told.inside
