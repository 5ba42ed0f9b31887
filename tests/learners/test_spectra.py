"""Singular values of many blocks at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import seeds

from unsoftmax.learners.vector_heads.spectra import SMALL, least_singular, spectra


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (3 * SMALL, 2 * SMALL), (2 * SMALL, 3 * SMALL)])
@pytest.mark.parametrize("count", [1, 3])
def test_spectra_are_those_of_each_block(shape, count):
    blocks = list(np.random.default_rng(0).normal(size=(count, *shape)))
    for block, (sizes, left) in zip(blocks, spectra(blocks), strict=True):
        assert np.allclose(sizes, np.linalg.svd(block, compute_uv=False), rtol=1e-12)
        assert left.shape == (shape[0], min(shape))
        assert np.allclose(left.T @ left, np.eye(min(shape)), atol=1e-12)
        assert np.allclose(np.linalg.norm(left.T @ block, axis=1), sizes, rtol=1e-10)


@given(seed=seeds, n=st.integers(1, 6), small=st.floats(-12, 0))
def test_the_least_singular_value_is_never_told_too_large(seed, n, small):
    blocks = np.random.default_rng(seed).normal(size=(2, n, 8))
    blocks[0, 0] *= 10.0**small
    told, truth = least_singular(blocks), np.linalg.svd(blocks, compute_uv=False)[:, -1]
    assert (told <= truth * (1 + 1e-9)).all()
    assert (told[truth > 1e-3 * np.linalg.norm(blocks, axis=(1, 2))] > 0).all()


def test_rows_that_depend_on_each_other_have_none():
    rows = np.random.default_rng(1).normal(size=(1, 4, 8))
    rows[0, 3] = rows[0, :3].sum(axis=0)
    assert least_singular(rows)[0] == 0.0
    assert least_singular(np.ones((1, 9, 8)))[0] == 0.0
    assert least_singular(np.zeros((1, 2, 8)))[0] == 0.0
