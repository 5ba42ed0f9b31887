"""The watch: catches changed and mixed weights, costs little, accuses no honest target."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.errors import DriftingError, TargetError
from unsoftmax.models import Attention
from unsoftmax.oracles import Budgeted, CallableOracle, Metered, TorchOracle, phase
from unsoftmax.oracles.drift import Sizes, Watched, post_mortem, replicas, tolerance
from unsoftmax.proof.compare import predictor
from unsoftmax.results import Floor

EXACT = Floor()
SINGLE = Floor(kind="float32", relative=2.0**-22)


def head(width=6, seed=0):
    rng = np.random.default_rng(seed)
    return Attention.single(W=rng.normal(size=(width, width)), v=rng.normal(size=width))


def questions(rng, batch, width=6):
    """Questions of the scales that learners use, tiny and huge."""
    scale = 2.0 ** rng.integers(-30, 30, size=(batch, 1, 1))
    return rng.normal(size=(batch, int(rng.integers(1, 4)), width)) * scale


class Swapped:
    """A target whose weights change after a number of questions."""

    def __init__(self, after, width=6):
        self.before, self.behind, self.after, self.asked, self.width = head(width, 1), head(width, 2), after, 0, width

    def __call__(self, X):
        answers = [(self.before if self.asked + i < self.after else self.behind)(x[None])[0] for i, x in enumerate(X)]
        self.asked += len(X)
        return np.array(answers)


class Single:
    """A target that computes in float32, with last bits that depend on the batch."""

    def __init__(self, model):
        self.model, self.width = model, model.width

    def __call__(self, X):
        tokens = X.astype(np.float32)
        W, v = self.model.W[0].astype(np.float32), self.model.V[0].astype(np.float32)
        order = np.random.default_rng(len(X)).permutation(self.width)  # another order of summation for another batch size
        scores = np.einsum("bij,bj->bi", tokens, (tokens[:, -1] @ W.T)[:, :])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        values = np.zeros(tokens.shape[:2], np.float32)
        for j in order:
            values += tokens[:, :, j] * v[j]
        return (weights * values).sum(axis=1).astype(np.float64)


@settings(deadline=None, max_examples=25)
@given(after=st.integers(5, 600), seed=st.integers(0, 2**31))
def test_swapped_weights_are_caught_by_sentinels_or_afterwards(after, seed):
    rng = np.random.default_rng(seed)
    watched = Watched(CallableOracle(Swapped(after)), np.random.default_rng(seed), floor=EXACT, cap=4, expected=800)
    with pytest.raises(DriftingError) as caught:
        run_and_look_back(watched, rng, 800)
    assert caught.value.evidence["deviation"] > caught.value.evidence["allowed"]


def run(oracle, rng, total):
    spent = 0
    while spent < total:
        X = questions(rng, int(rng.integers(1, 100)))
        oracle(X)
        spent += len(X)


def run_and_look_back(watched, rng, total):
    run(watched, rng, total)
    post_mortem(watched.inner, watched.sample(32, rng), watched.floor)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), precise=st.booleans())
def test_honest_targets_are_never_accused(seed, precise):
    rng = np.random.default_rng(seed)
    model = head(seed=seed % 1000)
    target = CallableOracle(model if precise else Single(model))
    floor = EXACT if precise else SINGLE
    watched = Watched(target, np.random.default_rng(seed), floor=floor, share=0.05)
    with np.errstate(over="ignore"):
        run(watched, rng, 1500)
        post_mortem(watched.inner, watched.sample(64, rng), floor)
    assert watched.sentinels > 30


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), cap=st.sampled_from([None, 0, 1, 4]), total=st.integers(1, 3000))
def test_the_watch_stays_within_its_share_and_cap(seed, cap, total):
    rng = np.random.default_rng(seed)
    meter = Metered(CallableOracle(head()))
    watched = Watched(meter, np.random.default_rng(seed), floor=EXACT, cap=cap, expected=total)
    run(watched, rng, total)
    assert watched.sentinels == meter.spent - watched.asked
    assert watched.sentinels <= 0.01 * watched.asked
    assert cap is None or watched.sentinels <= cap


def test_the_learners_batches_pass_unchanged_and_phases_come_back():
    seen = []
    target = CallableOracle(lambda X: seen.append(X) or X.sum(axis=(1, 2)), width=6)
    watched = Watched(Metered(target), np.random.default_rng(0), floor=EXACT, share=0.5)
    phase(watched, "values")
    batches = [questions(np.random.default_rng(i), 50) for i in range(5)]
    for X in batches:
        watched(X)
    own = [X for X in seen if any(np.shares_memory(X, batch) for batch in batches)]
    assert len(own) == 5
    assert watched.sentinels > 0
    assert watched.phases["sentinels"].queries == watched.sentinels
    assert watched.phases["values"].queries == 250


def test_without_a_floor_nothing_is_asked_again():
    meter = Metered(CallableOracle(head()))
    watched = Watched(meter, np.random.default_rng(0), share=0.5)
    run(watched, np.random.default_rng(0), 500)
    assert meter.spent == watched.asked


def test_a_budget_has_no_room_for_sentinels_and_none_are_asked():
    watched = Watched(Budgeted(CallableOracle(head()), 200), np.random.default_rng(0), floor=EXACT, share=0.5)
    watched(questions(np.random.default_rng(0), 200))
    assert watched.spent == 200


def test_the_same_seed_asks_the_same_sentinels():
    def transcript(seed):
        seen = []
        target = CallableOracle(lambda X: seen.append(np.array(X)) or X.sum(axis=(1, 2)), width=6)
        run(Watched(target, np.random.default_rng(seed), floor=EXACT, share=0.1), np.random.default_rng(3), 500)
        return seen

    first, again = transcript(1), transcript(1)
    assert len(first) == len(again)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_model_that_explains_all_but_the_first_answers_gives_them_away(after):
    rng = np.random.default_rng(0)
    watched = Watched(CallableOracle(Swapped(after)), np.random.default_rng(0))
    run(watched, rng, 300)
    left = watched.unexplained(predictor(head(6, 2)), 1e-14)
    assert 1 <= len(left) <= after
    with pytest.raises(DriftingError):
        post_mortem(watched.inner, left, EXACT)
    honest = Watched(CallableOracle(head(6, 2)), np.random.default_rng(0))
    run(honest, rng, 300)
    assert honest.unexplained(predictor(head(6, 2)), 1e-14) == []


def test_early_questions_stay_in_the_sample():
    watched = Watched(CallableOracle(Swapped(6)), np.random.default_rng(0))
    rng = np.random.default_rng(0)
    watched(np.zeros((4, 1, 6)))  # questions that any two heads answer alike
    run(watched, rng, 5000)
    with pytest.raises(DriftingError):
        post_mortem(watched.inner, watched.sample(32, rng), EXACT)


class Pool:
    """Replicas that take turns, request by request."""

    def __init__(self, answer, count):
        self.answer, self.count, self.calls, self.width = answer, count, 0, 6

    def __call__(self, X):
        self.calls += 1
        return self.answer(X, self.calls % self.count)


@settings(deadline=None, max_examples=20)
@given(count=st.integers(1, 3), decimals=st.sampled_from([None, 4]))
def test_replicas_are_counted(count, decimals):
    models = [head(seed=i) for i in range(count)]

    def answer(X, turn):
        exact = models[turn](X)
        return exact if decimals is None else np.round(exact, decimals)

    question = np.random.default_rng(0).normal(size=(2, 6))
    assert replicas(CallableOracle(Pool(answer, count)), question)[0] == count


def test_a_watched_pool_is_called_what_it_is():
    models = [head(seed=i) for i in range(2)]
    watched = Watched(Metered(CallableOracle(Pool(lambda X, turn: models[turn](X), 2))), np.random.default_rng(0))
    watched(questions(np.random.default_rng(0), 10))
    with pytest.raises(DriftingError, match="2 fixed answers") as caught:
        watched.look_for_replicas()
    assert caught.value.evidence["replicas"] == 2
    calm = Watched(CallableOracle(models[0]), np.random.default_rng(0))
    calm(questions(np.random.default_rng(0), 10))
    calm.look_for_replicas()
    noise = np.random.default_rng(0)
    noisy = Watched(CallableOracle(lambda X: models[0](X) + 0.1 * noise.normal(size=len(X)), 6), np.random.default_rng(0))
    noisy(questions(np.random.default_rng(0), 10))
    noisy.look_for_replicas()
    swapped = Watched(CallableOracle(Swapped(3)), np.random.default_rng(0))
    swapped(np.random.default_rng(0).normal(size=(5, 1, 6)))
    with pytest.raises(DriftingError, match="earlier"):
        swapped.look_for_replicas()


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([1e-9, 1e-3, 0.1]), decimals=st.sampled_from([None, 1, 2, 3]))
def test_noise_is_not_taken_for_replicas(seed, scale, decimals):
    rng = np.random.default_rng(seed)
    model = head()

    def noisy(X):
        answers = model(X) + scale * rng.normal(size=len(X))
        return answers if decimals is None else np.round(answers, decimals)

    question = np.random.default_rng(0).normal(size=(2, 6))
    assert replicas(CallableOracle(noisy, 6), question)[0] == 1


def test_a_rounding_step_up_or_down_is_no_contradiction():
    jitter = np.random.default_rng(0)

    def on_the_edge(X):
        return np.round(X.sum(axis=(1, 2)) + 1e-12 * jitter.normal(size=len(X)), 1)

    watched = Watched(CallableOracle(on_the_edge, 1), np.random.default_rng(0), floor=EXACT)
    watched(np.full((20, 1, 1), 0.25))
    assert post_mortem(watched.inner, watched.sample(20, np.random.default_rng(0)), EXACT) == 20
    watched.look_for_replicas()


def test_sizes_look_at_comparable_questions_only():
    sizes = Sizes()
    sizes.learn(np.array([[[1e-6]], [[1.0]], [[1e6]]]), np.array([0.5, 3.0, 1e7]))
    assert sizes.of(np.array([[[1e-6]], [[1.5]], [[2e6]]])) == [0.5, 3.0, 1e7]
    assert tolerance(Floor(absolute=0.1, relative=0.0), 1.0) == pytest.approx(1.0)


def test_sentinels_on_a_device_are_compared_when_they_are_due_and_not_before():
    torch = pytest.importorskip("torch")
    asked = []

    def target(X):
        asked.append(X)
        return X.sum(dim=(1, 2)) * (1.0 if len(asked) < 8 else 2.0)

    watched = Watched(TorchOracle(target, width=6, build_there=True), np.random.default_rng(0), share=0.2, floor=EXACT)
    for seed in range(20):
        watched(torch.rand(10, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    assert watched.sentinels >= 20
    assert all(isinstance(X, torch.Tensor) for X in asked)
    before = len(asked)
    with pytest.raises(DriftingError) as caught:
        watched.settle()
    assert caught.value.evidence["deviation"] > 0.1
    assert len(asked) == before + 1  # the closer look
    watched.settle()  # what was told once is not told again


def test_a_sentinel_that_is_answered_with_nan_on_a_device_is_noticed():
    torch = pytest.importorskip("torch")
    asked = []

    def target(X):
        asked.append(X)
        return X.sum(dim=(1, 2)) * (torch.nan if len(X) == 1 else 1.0)

    watched = Watched(TorchOracle(target, width=6, build_there=True), np.random.default_rng(0), share=0.01, floor=EXACT)
    for seed in range(30):
        watched(torch.rand(10, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    assert watched.sentinels
    with pytest.raises(TargetError, match="nan"):
        watched.settle()
