"""Questions asked while a device still answers: the same check, at another moment."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax import driver
from unsoftmax.desk import Desk
from unsoftmax.families.attention import ONE_HEAD
from unsoftmax.models import Attention
from unsoftmax.oracles import TorchOracle
from unsoftmax.proof.ahead import Foretold
from unsoftmax.proof.fresh import COUNT
from unsoftmax.wishes import Wishes

torch = pytest.importorskip("torch")
WIDE, NARROW = 160, 120  # of what learning 160^2 numbers asks, 2% pay for two checks


class Target:
    """A head that notes the lengths it is asked for, and may answer long sequences otherwise."""

    def __init__(self, width, *, beyond=np.inf):
        rng = np.random.default_rng(width)
        self.width, self.beyond = width, beyond
        self.head = Attention.single(rng.normal(size=(width, width)) / width**0.5, rng.normal(size=width))
        self.W, self.v = torch.tensor(self.head.W[0]), torch.tensor(self.head.V[0])
        self.asked, self.fails_at = [], 0

    def __call__(self, X):
        if X.shape[1] == self.fails_at:
            raise RuntimeError("out of order")
        self.asked.append(tuple(X.shape))
        scores = (X @ (X[:, -1] @ self.W.T)[:, :, None])[:, :, 0]
        answers = (torch.softmax(scores, dim=1) * (X @ self.v)).sum(dim=1)
        return answers * (1.001 if X.shape[1] > self.beyond else 1.0)

    def oracle(self):
        return TorchOracle(self, width=self.width, build_there=True)


@pytest.fixture
def until_proof(monkeypatch):
    """How many calls the target had seen when the proof began."""
    seen = []
    prove = driver.prove

    def noted(desk, family, learned):
        seen.append(len(desk.guarded.inner.module.asked))
        return prove(desk, family, learned)

    monkeypatch.setattr(driver, "prove", noted)
    return seen


@pytest.mark.parametrize(("width", "wishes"), [(WIDE, {}), (WIDE, {"budget": 10**6}), (WIDE, {"max_norm": 100.0}), (NARROW, {})])
def test_the_check_is_asked_before_anybody_looks_at_what_was_learned_where_nothing_limits_it(until_proof, width, wishes):
    target = Target(width)
    found = us.recover(target.oracle(), seed=1, **wishes)
    ahead = width == WIDE and not wishes
    assert (len(target.asked) == until_proof[0]) == ahead
    assert found.status is us.Status.EXACT
    assert us.distance(found.model, target.head) < 1e-11
    assert found.check.sequences == COUNT
    assert {96, 128, 256} <= set(found.check.by_length)
    asked = sum(shape[0] for shape in target.asked)
    assert asked == found.queries + found.check.sequences + 1  # one more to see how long sequences may be


def test_fresh_questions_come_after_those_that_they_judge_and_are_others_each_time():
    lengths = []
    for _ in range(2):
        target = Target(WIDE)
        us.recover(target.oracle(), seed=1)
        pairs = [i for i, shape in enumerate(target.asked) if shape[1] == 2 and shape[0] > 1000]
        long = [i for i, shape in enumerate(target.asked) if shape[1] == 128]
        assert max(pairs) < min(long)
        lengths.append([shape[1] for shape in target.asked[max(pairs) :]])
    assert lengths[0] != lengths[1]


def test_answers_that_were_asked_ahead_are_judged(until_proof):
    target = Target(WIDE, beyond=64)
    found = us.recover(target.oracle(), seed=1, on_failure="return")
    assert until_proof
    assert found.status is us.Status.NOT_IN_FAMILY
    assert found.check.relative_error > 1e-6


def test_several_heads_that_pass_for_one_are_met_ahead_as_well():
    """Beyond sequences of two tokens this is another function; what was asked ahead for one head is not used for others."""
    target = Target(WIDE, beyond=3)
    found = us.recover(target.oracle(), seed=1, on_failure="return")
    assert found.status not in (us.Status.EXACT, us.Status.WITHIN_TOLERANCE)


def test_a_head_foretold_twice_is_checked_in_the_usual_way():
    """Some scores saturated, and were asked again: what was asked for the first one does not suit it."""
    target = Target(WIDE)
    desk = Desk(target.oracle(), Wishes())
    desk.first_look()
    desk.foretold = lambda W: ONE_HEAD._ask_ahead(desk, W)
    desk.foretold(target.W)
    assert len(desk.ahead.fresh) == len(desk.ahead.together.sizes)
    assert all(batch.told is not None for batch in desk.ahead.fresh)
    desk.foretold(target.W)
    assert desk.ahead is None
    assert desk.foretold is None


def test_what_is_foretold_suits_the_head_as_the_model_does():
    target = Target(NARROW)
    head = Foretold(target.W)
    np.testing.assert_allclose(head.token_sizes.numpy(), target.head.token_sizes, rtol=1e-12)
    X = torch.randn((5, 3, NARROW), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(head.last_scores(X).numpy(), target.head.last_scores(X.numpy()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [64, 128])
def test_where_the_target_fails_on_what_is_asked_ahead_nothing_is(length):
    target = Target(WIDE)
    desk = Desk(target.oracle(), Wishes())
    desk.first_look()
    desk.foretold = lambda W: ONE_HEAD._ask_ahead(desk, W)
    target.fails_at = length
    desk.foretold(target.W)
    assert desk.ahead is None
    assert desk.foretold is None
