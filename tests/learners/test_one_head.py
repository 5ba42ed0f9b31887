import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import one_head, seeds

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, TargetError
from unsoftmax.learners.one_head import OneHeadLearner
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.results import Floor
from unsoftmax.symmetry import distance


def relative_frobenius(found, true):
    return np.linalg.norm(found - true) / np.linalg.norm(true)


def learn(target, width=None, seed=0, **settings):
    oracle = Metered(CallableOracle(target, width=width))
    return OneHeadLearner(**settings).run(oracle, rng=np.random.default_rng(seed)), oracle


def gauss(rng, d, r=None):
    return rng.normal(size=(d, d)) / np.sqrt(d) if r is None else rng.normal(size=(d, r)) @ rng.normal(size=(r, d)) / np.sqrt(d * r)


@given(head=one_head(max_width=9, bias=False), seed=st.integers(0, 999))
def test_exact_answers_give_back_the_head_at_the_counting_bound(head, seed):
    d = head.width
    found, oracle = learn(head, seed=seed)
    assert distance(found.model, head) < 1e-13
    assert oracle.spent <= d * d + d + 24


@given(head=one_head(max_width=9, bias=True), seed=st.integers(0, 999))
def test_biases_are_found(head, seed):
    d = head.width
    found, oracle = learn(head, seed=seed)
    assert distance(found.model, head) < 1e-11
    assert oracle.spent <= d * d + d + 24 + 2 * d + 16


@given(d=st.integers(4, 24), r=st.integers(1, 3), seed=seeds)
def test_low_rank_is_found_and_cheap(d, r, seed):
    rng = np.random.default_rng(seed)
    head = Attention.single(gauss(rng, d, r), rng.normal(size=d))
    found, oracle = learn(head)
    assert found.evidence["rank"] == r
    assert relative_frobenius(found.model.W, head.W) < 1e-11
    assert oracle.spent <= 1.03 * (d + r * (2 * d - r)) + 64


@pytest.mark.parametrize("where", ["in the range", "orthogonal to it", "decaying"])
def test_low_rank_with_values_in_awkward_places(where):
    rng = np.random.default_rng(5)
    d, r = 96, 4
    A = np.linalg.qr(rng.normal(size=(d, r)))[0]
    sizes = np.logspace(0, -6, r) if where == "decaying" else np.ones(r)
    v = rng.normal(size=d)
    v = A @ rng.normal(size=r) if where == "in the range" else v - A @ (A.T @ v) if where == "orthogonal to it" else v
    head = Attention.single((A * sizes) @ np.linalg.qr(rng.normal(size=(d, r)))[0].T * 10, v)
    found, oracle = learn(head)
    assert found.evidence["rank"] == r
    assert relative_frobenius(found.model.W, head.W) < 1e-11
    assert oracle.spent <= 1.03 * (d + r * (2 * d - r)) + 64


def hard_heads():
    rng = np.random.default_rng(11)
    d = 48
    v = rng.normal(size=d)
    spread = lambda low, high, shape: 10 ** rng.uniform(low, high, size=shape) * rng.choice([-1, 1], size=shape)  # noqa: E731
    one = np.zeros(d)
    one[7] = 2.0
    single_entry = np.zeros((d, d))
    single_entry[3, 9] = 5.0
    return {
        "entries 10": (10 * rng.normal(size=(d, d)), v),
        "entries 100": (100 * rng.normal(size=(d, d)), v),
        "entries 1e-5": (1e-5 * rng.normal(size=(d, d)), v),
        "log-uniform": (spread(-6, 3, (d, d)), v),
        "rows and columns over 8 decades": (spread(-4, 4, (d, 1)) * rng.normal(size=(d, d)) * spread(-4, 4, (1, d)), v),
        "one entry": (single_entry, v),
        "rank one": (np.outer(rng.normal(size=d), rng.normal(size=d)), v),
        "one value": (gauss(rng, d), one),
        "values over 12 decades": (gauss(rng, d), spread(-12, 0, d)),
        "tiny everything": (1e-30 * rng.normal(size=(d, d)), 1e-20 * v),
    }


@pytest.mark.parametrize("name", list(hard_heads()))
def test_hard_heads(name):
    W, v = hard_heads()[name]
    head = Attention.single(W, v)
    found, oracle = learn(head)
    assert relative_frobenius(found.model.W, head.W) < 1e-13
    assert relative_frobenius(found.model.V, head.V) < 1e-14
    d = head.width
    assert oracle.spent <= 1.2 * (d * d + d) + 64


def test_no_scores_at_all():
    head = Attention.single(np.zeros((9, 9)), np.arange(1.0, 10.0))
    found, oracle = learn(head)
    assert np.abs(found.model.W).max() < 1e-13
    assert oracle.spent <= 9 + 40


@pytest.mark.parametrize("b", [0.0, 2.5])
def test_zero_values_leave_the_scores_unknown(b):
    with pytest.raises(NotIdentifiableError, match=r"W .* cannot be identified"):
        learn(Attention.single(np.eye(4), np.zeros(4), b=b))


@given(d=st.integers(2, 20), m=st.integers(1, 20), seed=seeds, biased=st.booleans())
def test_vector_answers_divide_the_price(d, m, seed, biased):
    rng = np.random.default_rng(seed)
    c, b = (rng.normal(size=d), rng.normal(size=m)) if biased else (None, 0.0)
    head = Attention.single(gauss(rng, d), rng.normal(size=(d, m)), c, b)
    found, oracle = learn(head)
    usable = min(d, m)
    assert distance(found.model, head) < 1e-8
    assert oracle.spent <= d + d * -(-d // usable) + 24 + (2 * d + 16 if biased else 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("d", "m"), [(32, 32), (24, 6), (10, 1)])
def test_every_position_answers(d, m, causal):
    rng = np.random.default_rng(d + m)
    head = Attention.single(gauss(rng, d), rng.normal(size=(d, m)))
    found, oracle = learn(lambda X: head(X, "all", causal=causal), width=d)
    assert distance(found.model, head) < 1e-9
    assert oracle.spent <= 16 + -(-d // min(d, m))


@pytest.mark.parametrize("causal", [False, True])
def test_every_position_answers_with_biases(causal):
    rng = np.random.default_rng(8)
    head = Attention.single(gauss(rng, 32), rng.normal(size=(32, 32)), rng.normal(size=32), rng.normal(size=32))
    found, oracle = learn(lambda X: head(X, "all", causal=causal), width=32)
    assert distance(found.model, head) < 1e-9
    assert oracle.spent <= 20


@given(head=one_head(max_width=8), limit=st.floats(0.5, 30.0), seed=st.integers(0, 99))
def test_no_token_is_longer_than_allowed(head, limit, seed):
    longest = 0.0

    def target(X):
        nonlocal longest
        longest = max(longest, float(np.linalg.norm(X, axis=2).max()))
        return head(X)

    found, _ = learn(target, width=head.width, seed=seed, max_norm=limit)
    assert longest <= limit
    assert distance(found.model, head) < 1e-7


def test_float32_targets_give_float32_accuracy():
    rng = np.random.default_rng(3)
    W, v = gauss(rng, 32).astype(np.float32), rng.normal(size=32).astype(np.float32)

    def target(X):
        X = X.astype(np.float32)
        s = np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T)
        a = np.exp(s - s.max(axis=1, keepdims=True))
        a /= a.sum(axis=1, keepdims=True)
        return np.einsum("bn,bnd->bd", a, X) @ v

    found, oracle = learn(target, width=32, floor=Floor(kind="float32", relative=2.0**-22))
    assert relative_frobenius(found.model.W[0], W) < 1e-5
    assert oracle.spent <= 32 * 33 + 64


def test_a_given_rank_costs_no_search_and_may_be_too_large():
    rng = np.random.default_rng(1)
    head = Attention.single(gauss(rng, 20, 3), rng.normal(size=20))
    for rank in (3, 5, 20):
        found, oracle = learn(head, rank=rank)
        assert distance(found.model, head) < 1e-11
        assert oracle.spent <= 20 + rank * (40 - rank) + 16


def test_several_heads_are_told_before_the_columns_are_asked():
    rng = np.random.default_rng(2)
    heads = Attention(rng.normal(size=(2, 12, 12)) / 3, rng.normal(size=(2, 12)))
    with pytest.raises(NotInFamilyError, match="Two copies of a key"):
        learn(heads)


class Torch:
    """A head in PyTorch, as a function of tensors."""

    def __init__(self, head):
        import torch

        self.W, self.v, self.torch = torch.tensor(head.W[0]), torch.tensor(head.V[0]), torch

    def __call__(self, X):
        scores = self.torch.einsum("bnd,bd->bn", X, X[:, -1] @ self.W.T)
        return (self.torch.softmax(scores, dim=1) * (X @ self.v)).sum(dim=1)


@pytest.mark.parametrize(("width", "rank"), [(5, 5), (40, 3), (150, 150), (150, 149)])
def test_probes_built_on_the_device_of_the_target_give_the_same_head(width, rank):
    pytest.importorskip("torch")
    from unsoftmax.oracles import TorchOracle

    rng = np.random.default_rng(width)
    head = Attention.single(rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width)) / width, rng.normal(size=width))
    oracle = Metered(TorchOracle(Torch(head), width=width, build_there=True))
    found = OneHeadLearner().run(oracle, rng=np.random.default_rng(0))
    assert found.evidence["rank"] == rank
    assert distance(found.model, head) < 1e-11
    assert oracle.spent <= min(width * (width + 1) + 32, 1.1 * (width + rank * (2 * width - rank)) + width**2 // 16 + 64)


def test_answers_on_a_device_that_are_no_numbers_are_refused():
    torch = pytest.importorskip("torch")
    from unsoftmax.oracles import TorchOracle

    head = Attention.single(np.eye(40) / 4, np.ones(40))
    good = Torch(head)

    def target(X):
        return good(X) if X.shape[1] == 1 or len(X) < 20 else torch.full((len(X),), torch.nan)

    with pytest.raises(TargetError, match="NaN"):
        OneHeadLearner().run(TorchOracle(target, width=40, build_there=True), rng=np.random.default_rng(0))


@pytest.mark.parametrize("rank", [20, 60, 100, 180])
def test_a_rank_between_low_and_full_costs_little_more_than_told(rank):
    rng = np.random.default_rng(rank)
    head = Attention.single(gauss(rng, 200, rank), rng.normal(size=200))
    found, oracle = learn(head)
    assert found.evidence["rank"] == rank
    assert oracle.spent <= 1.1 * (200 + rank * (400 - rank)) + 64
    assert distance(found.model, head) < 1e-11


def test_a_target_that_works_in_place_is_recovered_all_the_same():
    head = Attention.single(np.random.default_rng(3).normal(size=(210, 210)) / 14, np.random.default_rng(4).normal(size=210))

    def target(X):
        answers = head(X)
        X *= 2.0
        return answers

    found = OneHeadLearner().run(CallableOracle(target, width=210), rng=np.random.default_rng(0))
    assert distance(found.model, head) < 1e-12
