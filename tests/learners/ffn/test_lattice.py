import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import seeds

from unsoftmax.learners.ffn.lattice import reduced, subset_sum


@given(count=st.integers(2, 14), size=st.integers(2, 5), seed=seeds)
def test_the_chosen_rows_are_found(count, size, seed):
    rng = np.random.default_rng(seed)
    terms = rng.normal(size=(count, size))
    choice = rng.random(count) < 0.5
    found = subset_sum(terms, choice @ terms + 1e-12 * rng.normal(size=size), error=1e-8)
    assert found is not None
    assert (found == choice).all()


def test_a_sum_that_is_none_is_none():
    rng = np.random.default_rng(0)
    assert subset_sum(rng.normal(size=(8, 4)), rng.normal(size=4), error=1e-8) is None


@given(count=st.integers(2, 6), seed=seeds)
def test_reduction_spans_the_same_lattice(count, seed):
    basis = np.random.default_rng(seed).integers(-50, 50, size=(count, count)).astype(float) + 100 * np.eye(count)
    short = reduced(basis)
    change = np.linalg.solve(basis.T, short.T)
    np.testing.assert_allclose(change, np.rint(change), atol=1e-6)
    np.testing.assert_allclose(abs(np.linalg.det(change)), 1, rtol=1e-6)
