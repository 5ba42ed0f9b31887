"""Numerical primitives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unsoftmax.linalg import alike, all_on_host, left_inverse, log_odds, orthonormal, right_inverse, there


@given(size=st.sampled_from([1, 2, 7, 128, 129, 200]), seed=st.integers(0, 999))
def test_rotations_are_orthonormal_repeatable_and_mix_every_axis(size, seed):
    q = orthonormal(size, np.random.default_rng(seed))
    assert np.allclose(q @ q.T, np.eye(size), atol=1e-12)
    assert np.array_equal(q, orthonormal(size, np.random.default_rng(seed)))
    if size > 100:
        assert np.abs(q).max() < 0.6  # no axis stays where it was


@given(size=st.integers(2, 200), seed=st.integers(0, 999))
def test_some_rows_of_a_rotation(size, seed):
    rows = orthonormal(size, np.random.default_rng(seed), rows=2)
    assert rows.shape == (2, size)
    assert np.allclose(rows @ rows.T, np.eye(2), atol=1e-12)


@given(score=st.floats(-30, 30), low=st.floats(-10, 10), span=st.floats(0.1, 10), flip=st.booleans())
def test_log_odds_invert_the_sigmoid_on_either_side(score, low, span, flip):
    high = low - span if flip else low + span
    answer = low + (high - low) / (1 + np.exp(-score))
    lost = 1e-15 * (abs(low) + span) / span * (np.exp(abs(score)) + 1)  # what the rounding of the answer leaves of the score
    found = log_odds(np.array(answer), np.array(low), np.array(high))
    assert not np.isfinite(found) or abs(found - score) <= 4 * lost + 1e-12


def test_answers_at_an_end_are_infinite_scores():
    answers = np.array([0.0, 1.0, -1.0, 2.0])
    assert log_odds(answers, np.array(0.0), np.array(1.0)).tolist() == [-np.inf, np.inf, -np.inf, np.inf]
    assert log_odds(answers, np.array(1.0), np.array(0.0)).tolist() == [np.inf, -np.inf, np.inf, -np.inf]
    assert not np.isfinite(log_odds(answers, np.array(1.0), np.array(1.0))).any()


def test_arrays_of_any_kind_come_back_as_they_were():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(3, 2)), torch.tensor(rng.normal(size=(2, 1, 4))), torch.tensor(rng.normal(size=5)), np.ones(0)]
    for some in (arrays, arrays[:2], [], [arrays[1], torch.ones(2, dtype=torch.float32)]):
        told = all_on_host(some)
        assert all(isinstance(array, np.ndarray) for array in told)
        for array, expected in zip(told, some, strict=True):
            np.testing.assert_array_equal(array, np.asarray(expected))
            assert array.dtype == np.asarray(expected).dtype


def test_numbers_keep_their_type_on_the_way_to_a_device_and_become_floats_where_these_are_wanted():
    torch = pytest.importorskip("torch")
    like, whole = torch.empty(0, dtype=torch.float64), np.arange(3)
    assert there(whole, like).dtype == torch.int64
    assert there(whole, None) is whole
    assert alike(whole, like).dtype == torch.float64


@pytest.mark.parametrize(("size", "rows"), [(7, None), (129, None), (200, None), (60, 5)])
def test_rotations_on_a_device_are_those_of_the_host(size, rows):
    torch = pytest.importorskip("torch")
    here = orthonormal(size, np.random.default_rng(3), rows=rows)
    there = orthonormal(size, np.random.default_rng(3), rows=rows, like=torch.empty(0, dtype=torch.float64))
    assert isinstance(there, torch.Tensor)
    assert np.allclose(there.numpy(), here, rtol=0, atol=1e-12)


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("rows", [3, 6])
def test_inverses_keep_their_digits_where_rows_differ_in_size(rows, careful):
    even, sizes = np.random.default_rng(0).normal(size=(5, rows, 6)), np.logspace(0, -9, rows)[:, None]
    found = right_inverse(even * sizes, careful=careful) * sizes.T
    assert np.allclose(even @ found, np.eye(rows), atol=1e-9)
    assert np.allclose(left_inverse(even.swapaxes(1, 2)) @ even.swapaxes(1, 2), np.eye(rows), atol=1e-9)


def test_square_systems_are_inverted_as_they_are():
    systems = np.random.default_rng(0).normal(size=(5, 6, 6)) * np.logspace(0, -9, 6)  # squares would lose the faint columns
    assert np.allclose(right_inverse(systems) * np.logspace(0, -9, 6)[:, None], np.linalg.inv(systems / np.logspace(0, -9, 6)))
