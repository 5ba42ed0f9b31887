import asyncio
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from unsoftmax.errors import BudgetExceededError, TargetError
from unsoftmax.models import Attention
from unsoftmax.oracles.adapt import as_oracle, identity_of
from unsoftmax.oracles.base import LastPosition, phase
from unsoftmax.oracles.guard import NormGuard
from unsoftmax.oracles.local import CallableOracle
from unsoftmax.oracles.meter import Budgeted, Metered

HEAD = Attention.single(np.eye(3), [1.0, 2.0, 3.0])
ASK = np.ones((4, 2, 3))


def raised(error):
    raise error


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (lambda X: np.full(len(X), np.nan), "answered nan to sequence 0"),
        (lambda X: np.where(np.arange(len(X)) == 2, np.inf, 0.0), "answered inf to sequence 2"),
        (lambda X: np.zeros(len(X) + 1), r"shape \(5,\)"),
        (lambda X: np.zeros((len(X), X.shape[1] + 1, 2)), r"shape \(4, 3, 2\)"),
        (lambda X: 0.0, r"shape \(\)"),
        (lambda X: [None] * len(X), "no array of real numbers"),
        (lambda X: np.zeros(len(X), dtype=complex), "no array of real numbers"),
        (lambda X: 1 / 0, "raised ZeroDivisionError"),
        (lambda X: sys.exit(3), "raised SystemExit"),
        (lambda X: raised(asyncio.CancelledError()), "raised CancelledError"),
        (lambda X: raised(GeneratorExit()), "raised GeneratorExit"),
        (lambda X: raised(RuntimeError("red\x1b[31m\nline.")), r"red \[31m line\. Check"),
    ],
)
def test_nonsense_answers_say_what_came_and_what_to_do(target, words):
    with pytest.raises(TargetError, match=words):
        CallableOracle(target, width=3)(ASK)


def test_an_interrupt_is_the_users_and_not_the_targets():
    with pytest.raises(KeyboardInterrupt):
        CallableOracle(lambda X: raised(KeyboardInterrupt()), width=3)(ASK)


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        ((4,), (4, 2), "1 number a sequence at first, and now with 2 numbers a sequence"),
        ((4, 2), (4, 2, 2), "2 numbers a sequence at first, and now with 2 numbers at every position"),
        ((4, 2, 3), (4, 2, 1), "3 numbers at every position at first, and now with 1 number at every position"),
    ],
)
def test_answers_keep_their_shape(first, then, words):
    shapes = iter([first, first, then])
    oracle = CallableOracle(lambda X: np.ones(next(shapes)), width=3)
    oracle(ASK)
    oracle(ASK)
    with pytest.raises(TargetError, match=words):
        oracle(ASK)


def test_one_number_may_have_an_axis_or_none():
    shapes = iter([(4,), (4, 1), (4,)])
    oracle = CallableOracle(lambda X: np.ones(next(shapes)), width=3)
    assert [oracle(ASK).shape for _ in range(3)] == [(4,), (4, 1), (4,)]


@pytest.mark.parametrize("width", [0, -1, 2.5, True, "four", np.nan, np.inf])
def test_a_width_that_is_none_is_refused(width):
    with pytest.raises(ValueError, match="width is"):
        CallableOracle(lambda X: X, width=width)


def test_the_width_comes_from_the_target_or_the_caller():
    assert as_oracle(HEAD).width == 3
    assert as_oracle(lambda X: X[:, 0, 0], 5).width == 5
    with pytest.raises(ValueError, match="Pass `width=`"):
        as_oracle(lambda X: X)
    with pytest.raises(ValueError, match="says that its width is 3"):
        as_oracle(HEAD, 4)
    with pytest.raises(ValueError, match="cannot be called"):
        as_oracle(3.0)
    with pytest.raises(ValueError, match="answers nothing"):
        as_oracle(Attention(np.eye(3)[None], None))
    assert as_oracle(Metered(CallableOracle(HEAD))).spent == 0
    with pytest.raises(ValueError, match="Leave `width` out"):
        as_oracle(CallableOracle(HEAD), 7)


def test_the_meter_counts_by_phase_and_stops_before_the_budget():
    meter = Budgeted(CallableOracle(HEAD), budget=9)
    phase(meter, "one")
    meter(ASK)
    phase(meter, "two")
    meter(ASK)
    with pytest.raises(BudgetExceededError, match="needs 12 queries in total but the budget is 9"):
        meter(ASK)
    assert meter.spent == 8
    assert meter.tokens == 16
    assert {name: count.queries for name, count in meter.phases.items()} == {"one": 4, "two": 4}


def test_a_phase_means_nothing_to_a_plain_oracle():
    phase(CallableOracle(HEAD), "anything")


def test_the_last_position_alone():
    everywhere = CallableOracle(lambda X: HEAD(X, "all"), width=3)
    assert np.array_equal(LastPosition(everywhere)(ASK)[:, 0], HEAD(ASK))


def test_the_guard_stops_a_token_that_is_too_long():
    guard = NormGuard(CallableOracle(HEAD), max_norm=1.0)
    guard(np.full((1, 1, 3), 0.5))
    with pytest.raises(AssertionError, match="beyond max_norm"):
        guard(np.ones((1, 1, 3)))


def test_identity_tells_models_wrappers_and_functions_apart():
    other = Attention.single(2 * np.eye(3), [1.0, 2.0, 3.0])
    assert identity_of(CallableOracle(HEAD)) == identity_of(HEAD) != identity_of(other)
    assert identity_of(NormGuard(CallableOracle(HEAD), 1.0)) != identity_of(NormGuard(CallableOracle(HEAD), 2.0))
    assert "test_local" in identity_of(test_the_last_position_alone)


def test_a_target_that_works_in_place_cannot_change_the_questions(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # with torch loaded, targets get memory that they may write to
    asked = []

    def target(X):
        asked.append(X)
        X *= 2.0
        return X.sum(axis=(1, 2))

    X = np.ones((3, 2, 4))
    oracle = CallableOracle(target, width=4)
    for _ in range(2):
        assert np.array_equal(oracle(X), np.full(3, 16.0))
        assert np.array_equal(X, np.ones((3, 2, 4)))
    assert len(asked) == 3  # the first attempt, and a copy each time


def test_an_error_of_the_target_is_not_taken_for_an_attempt_to_write(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    def target(X):
        raise ValueError("no such thing")

    with pytest.raises(TargetError, match="no such thing"):
        CallableOracle(target, width=2)(np.ones((1, 1, 2)))


class Narrow:
    """A head that takes at most ``most`` sequences at once, and counts what it was sent."""

    def __init__(self, most, seed=0, width=6):
        rng = np.random.default_rng(seed)
        self.head = us.Attention.single(W=rng.normal(size=(width, width)), v=rng.normal(size=width))
        self.width, self.most, self.sent = width, most, 0

    def __call__(self, X):
        self.sent += len(X)
        if len(X) > self.most:
            raise MemoryError(f"{len(X)} sequences at once")
        return self.head(X)


@pytest.mark.parametrize("most", [1, 3, 7, 50])
def test_what_a_target_raised_on_is_billed_as_often_as_it_was_sent(most):
    target = Narrow(most)
    found = us.recover(target, seed=1)
    assert found.status is us.Status.EXACT
    assert found.account.queries.total == target.sent


def test_several_targets_that_limit_the_batch_are_billed_what_each_was_sent():
    targets = [Narrow(3), Narrow(5)]
    found = us.recover(us.oracles.Several([CallableOracle(target) for target in targets]), seed=1)
    assert found.status is us.Status.EXACT
    assert found.account.queries.total == sum(target.sent for target in targets)


@given(most=st.integers(1, 40), sizes=st.lists(st.integers(1, 90), min_size=1, max_size=6))
def test_the_meter_counts_what_leaves_whatever_the_batch_limit(most, sizes):
    target = Narrow(most)
    oracle, rng = Metered(CallableOracle(target)), np.random.default_rng(0)
    for size in sizes:
        X = rng.normal(size=(size, 2, target.width))
        assert np.allclose(oracle(X), target.head(X), rtol=1e-13, atol=1e-13)
    assert oracle.spent == target.sent
    assert oracle.tokens == 2 * target.sent


@pytest.mark.parametrize("budget", [60, 100, 200, 400])
def test_no_batch_is_divided_beyond_the_budget(budget):
    target = Narrow(5)
    found = us.recover(target, seed=1, budget=budget, on_failure="return")
    assert found.account.queries.total == target.sent <= budget


def test_a_batch_that_the_budget_cannot_repeat_says_so():
    oracle = Budgeted(CallableOracle(Narrow(5)), 15)
    with pytest.raises(
        BudgetExceededError, match="smaller batches would take 21 sequences for this step, where the budget leaves 15"
    ):
        oracle(np.zeros((10, 2, 6)))
    assert oracle.spent == 10


def test_a_question_that_a_target_spoilt_is_sent_and_billed_again(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # beside torch memory is not protected but copied
    seen = []

    def in_place(X):
        seen.append(len(X))
        X *= 2.0
        return X.sum(axis=(1, 2))

    oracle = Metered(CallableOracle(in_place, width=3))
    for _ in range(3):
        oracle(np.ones((4, 2, 3)))
    assert oracle.spent == sum(seen) == 16


def test_a_target_may_write_every_answer_into_the_same_memory():
    memory = {}

    def target(X):
        answers = HEAD(X)
        kept = memory.setdefault(answers.shape, np.empty(answers.shape))
        kept[...] = answers
        return kept

    assert us.recover(target, width=3, seed=1).status is us.Status.EXACT
