import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import seeds

from unsoftmax.learners.ffn.fit import fit
from unsoftmax.learners.ffn.hinges import Hinges, design_at, merge_parallel
from unsoftmax.learners.ffn.normal_equations import gram_of, pulled
from unsoftmax.learners.ffn.orientation import active_sides, flipped


def random_hinges(rng, m, d, p):
    out = rng.normal(size=(m, p))
    out /= np.linalg.norm(out, axis=1, keepdims=True)
    return Hinges(out, rng.normal(size=(m, d)), rng.normal(size=m), rng.normal(size=(p, d)), rng.normal(size=p))


@given(m=st.integers(1, 6), d=st.integers(1, 5), p=st.integers(1, 3), seed=seeds)
def test_turning_bends_round_keeps_the_function(m, d, p, seed):
    rng = np.random.default_rng(seed)
    hinges, points = random_hinges(rng, m, d, p), rng.normal(size=(20, d))
    turned = flipped(hinges, rng.random(m) < 0.5)
    np.testing.assert_allclose(turned(points), hinges(points), atol=1e-10)


@given(d=st.integers(2, 5), p=st.integers(1, 3), seed=seeds)
def test_bends_on_one_hyperplane_become_one(d, p, seed):
    rng = np.random.default_rng(seed)
    hinges, points = random_hinges(rng, 3, d, p), rng.normal(size=(20, d))
    twin = Hinges(-hinges.out, -2 * hinges.normal, -2 * hinges.shift, hinges.linear, hinges.constant)
    merged = merge_parallel(hinges.plus(twin), 1e-9)
    assert merged.neurons == 3
    np.testing.assert_allclose(merged(points), hinges(points) + twin(points), atol=1e-9)


@given(m=st.integers(1, 6), d=st.integers(1, 4), p=st.integers(1, 3), seed=seeds)
def test_squares_and_pulls_are_those_of_the_derivatives(m, d, p, seed):
    rng = np.random.default_rng(seed)
    hinges, centre, weights = random_hinges(rng, m, d, p), rng.normal(size=d), 0.5 + rng.random(30)
    references = np.repeat(rng.normal(size=(10, d)), 3, axis=0)  # three points in each linear piece
    points, residual = references + 0.1 * rng.normal(size=(30, d)), rng.normal(size=(30, p))
    rows = design_at(hinges, centre, points, references, weights)
    np.testing.assert_allclose(gram_of(hinges, centre, points, references, weights), rows.T @ rows, atol=1e-9)
    found = pulled(hinges, centre, points, references, weights, residual)
    np.testing.assert_allclose(found, rows.T @ residual.T.ravel(), atol=1e-9)


@given(m=st.integers(1, 8), p=st.integers(1, 3), seed=seeds)
def test_the_fit_takes_back_a_small_error(m, p, seed):
    rng = np.random.default_rng(seed)
    truth = random_hinges(rng, m, 4, p)
    points = 2 * rng.normal(size=(40 * (m + 2), 4))
    points = points[np.abs(truth.before(points)).min(axis=1) > 1e-3]
    rough = Hinges(
        truth.out, truth.normal + 1e-7 * rng.normal(size=truth.normal.shape), truth.shift, truth.linear, truth.constant + 1e-7
    )
    better, _ = fit(rough, points, points, truth(points), np.full(len(points), 1e-15))
    assert np.abs(better(points) - truth(points)).max() < 1e-11


@given(m=st.integers(1, 10), seed=seeds)
def test_a_network_without_skip_is_written_without_one(m, seed):
    rng = np.random.default_rng(seed)
    hinges = random_hinges(rng, m, 5, 1)
    plain = Hinges(hinges.out, hinges.normal, hinges.shift, 0 * hinges.linear, hinges.constant)
    mixed = flipped(plain, rng.random(m) < 0.5)
    choice = active_sides(mixed, error=1e-9)
    assert choice is not None
    assert np.abs(flipped(mixed, choice).linear).max() < 1e-9
