"""Matrices in factors are worked with as their products are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import seeds

import unsoftmax as us
from unsoftmax.models import Attention, load
from unsoftmax.models.base import jittered
from unsoftmax.models.matrices import Matrices
from unsoftmax.oracles import TorchOracle
from unsoftmax.symmetry import canonical, distance, head_gap, identifiability


def numpy_arrays(array):
    return array


def tensors(array):
    return pytest.importorskip("torch").tensor(array)


def pair(seed, heads=3, width=9, rank=2, kind=numpy_arrays):
    """The same matrices in factors and multiplied out."""
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(heads, width, rank)), rng.normal(size=(heads, rank, width))
    return Matrices(kind(left), kind(right)), Matrices(kind(left @ right))


@pytest.mark.parametrize("kind", [numpy_arrays, tensors])
def test_factors_and_their_products_tell_the_same(kind):
    factors, dense = pair(0, kind=kind)
    rows, by_head = (kind(np.random.default_rng(1).normal(size=shape)) for shape in ((5, 9), (5, 3, 9)))
    assert factors.shape == dense.shape == (3, 9, 9)
    for told in (
        lambda m: m.whole(),
        lambda m: m.after(rows),
        lambda m: m.after(rows, 1),
        lambda m: m.turned(rows),
        lambda m: m.turned(rows, 2),
        lambda m: m.summed(by_head),
        lambda m: m.sizes,
        lambda m: m.first_rows,
        lambda m: m.products(np.array([1.0, 2.0, 0.5])),
        lambda m: m.apart(0, 2),
        lambda m: m.apart(0, 2, -1.0),
        lambda m: m.some([2, 0]).whole(),
        lambda m: m.at(np.empty(0)).whole(),
        lambda m: [m.shows(head) for head in range(3)],
    ):
        assert np.allclose(told(factors), told(dense), rtol=1e-12, atol=1e-12)
    assert isinstance(factors.sizes, np.ndarray)
    assert isinstance(factors.at(np.empty(0)).right, np.ndarray)


@pytest.mark.parametrize("kind", [numpy_arrays, tensors])
def test_jitter_of_factors_is_that_of_their_product(kind):
    factors, dense = pair(2, kind=kind)
    off = factors.jittered(1e-3, np.random.default_rng(3)).whole()
    assert np.allclose(off, jittered(dense.whole(), 1e-3, np.random.default_rng(3)), rtol=1e-13, atol=1e-15)
    assert np.allclose(off, dense.jittered(1e-3, np.random.default_rng(3)).whole(), rtol=1e-13, atol=1e-15)
    assert 0.9e-3 < np.abs(off / dense.whole() - 1).max() < 1.1e-3


def test_the_difference_of_heads_that_are_almost_alike_keeps_its_digits():
    rng = np.random.default_rng(4)
    left, right, step = rng.normal(size=(1, 12, 3)), rng.normal(size=(1, 3, 12)), rng.normal(size=(1, 3, 12))
    near = Matrices(np.concatenate([left, left]), np.concatenate([right, right + 1e-9 * step]))
    assert near.apart(0, 1) == pytest.approx(1e-9 * np.linalg.norm(left @ step), rel=1e-6)


def test_factors_are_kept_only_where_they_are_fewer_numbers():
    rng = np.random.default_rng(5)
    assert Matrices.product(rng.normal(size=(2, 8, 3)), rng.normal(size=(2, 3, 8))).right is not None
    assert Matrices.product(rng.normal(size=(2, 8, 4)), rng.normal(size=(2, 4, 8))).right is None


def layers(seed, heads=3, width=9, rank=2, *, empty=False, twin=False):
    """One layer in factors and multiplied out."""
    rng = np.random.default_rng(seed)
    scores, values = pair(rng.integers(99), heads, width, rank)[0], pair(rng.integers(99), heads, width, rank)[0]
    if empty:
        values.left[1] = 0.0
    if twin:
        scores.left[2], scores.right[2] = scores.left[0], scores.right[0]
    c, b = rng.normal(size=(heads, width)) * (not twin), rng.normal(size=width)
    return Attention(scores, values, c, b), Attention(scores.left @ scores.right, values.left @ values.right, c, b)


@given(seed=seeds, empty=st.booleans(), twin=st.booleans())
@settings(max_examples=15)
def test_a_layer_in_factors_is_the_layer(seed, empty, twin):
    mine, plain = layers(seed, empty=empty, twin=twin)
    X = np.random.default_rng(seed).normal(size=(4, 6, 9)) / 2
    for given_ in ({}, {"positions": "all"}, {"positions": "all", "causal": True}):
        assert np.allclose(mine(X, **given_), plain(X, **given_), rtol=1e-11, atol=1e-11)
    assert (mine.heads, mine.width, mine.outputs, mine.can_answer) == (plain.heads, plain.width, plain.outputs, True)
    assert np.allclose(mine.token_sizes, plain.token_sizes)
    assert np.allclose(mine.last_scores(X), plain.last_scores(X))
    assert identifiability(mine) == identifiability(plain)
    assert head_gap(mine) == pytest.approx(head_gap(plain), abs=1e-7)
    assert canonical(mine).heads == canonical(plain).heads == 3 - empty - twin
    assert distance(mine, plain) < 1e-12
    assert not mine.W.flags.writeable
    assert not mine.V.flags.writeable


def test_a_file_holds_the_products(tmp_path):
    mine, plain = layers(6)
    mine.save(tmp_path / "layer.safetensors")
    found = load(tmp_path / "layer.safetensors")
    assert np.allclose(found.W, plain.W, rtol=1e-13, atol=1e-14)
    assert np.allclose(found.V, plain.V, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_factors_must_be_finite_and_fit(bad):
    scores, values = pair(7)[0], pair(8)[0]
    with pytest.raises(ValueError, match="V has shape"):
        Attention(scores, pair(8, heads=2)[0])
    values.right[0, 0, 0] = bad
    with pytest.raises(ValueError, match="V holds NaN"):
        Attention(scores, values)


@pytest.mark.parametrize("there", [False, True])
def test_a_recovery_multiplies_nothing_out_and_leaves_nothing_on_the_device(there):
    """W and V of a wide layer are many times its factors: nobody but the reader needs them."""
    truth = layers(9, heads=4, width=24)[1]

    def target(X):
        return truth(X)

    if there:
        torch = pytest.importorskip("torch")

        def on_tensors(X):
            return torch.tensor(truth(X.numpy()))

        target = TorchOracle(on_tensors, width=24, build_there=True)
    found = us.recover(target, width=24, seed=1)
    assert found.status is us.Status.EXACT
    assert not {"W", "V", "_there"} & set(vars(found.model))
    assert isinstance(found.model.scores.left, np.ndarray)
    assert isinstance(found.model.values.right, np.ndarray)
    assert us.distance(found.model, truth) < 1e-9
