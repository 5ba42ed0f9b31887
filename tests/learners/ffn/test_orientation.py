"""Which way round each bend is written: found where a form without linear part exists, refused where none does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import LinAlgError

from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.lattice import subset_sum
from unsoftmax.learners.ffn.normal_equations import factored
from unsoftmax.learners.ffn.orientation import active_sides, flipped, subset_of, tied_sides
from unsoftmax.learners.ffn.settings import RELU


def network(seed, neurons, width, outputs):
    """Bends without a linear part."""
    rng = np.random.default_rng(seed)
    out = rng.normal(size=(neurons, outputs))
    out /= np.linalg.norm(out, axis=1, keepdims=True)
    return Hinges(
        out, rng.normal(size=(neurons, width)), rng.normal(size=neurons), np.zeros((outputs, width)), rng.normal(size=outputs)
    )


@given(seed=st.integers(0, 2**32 - 1), neurons=st.integers(1, 9), width=st.integers(1, 4), outputs=st.integers(1, 2))
def test_flipping_changes_the_writing_but_not_the_function(seed, neurons, width, outputs):
    whole = network(seed, neurons, width, outputs)
    rng = np.random.default_rng(seed)
    chosen = rng.random(neurons) < 0.5
    points = 3 * rng.normal(size=(50, width))
    turned = flipped(whole, chosen)
    assert np.allclose(turned(points), whole(points), rtol=1e-12, atol=1e-12)
    assert np.allclose(flipped(turned, chosen).linear, whole.linear, atol=1e-12)


@given(seed=st.integers(0, 2**32 - 1), neurons=st.integers(1, 14), width=st.integers(2, 4))
def test_the_form_without_linear_part_is_found_again(seed, neurons, width):
    whole = network(seed, neurons, width, 1)
    turned = flipped(whole, np.random.default_rng(seed).random(neurons) < 0.5)
    found = active_sides(turned, error=1e-11)
    assert found is not None
    assert np.abs(flipped(turned, found).linear).max() <= 1e-9 * np.abs(whole.normal).sum()


@given(seed=st.integers(0, 2**32 - 1), neurons=st.integers(1, 12))
def test_a_true_skip_has_no_such_form(seed, neurons):
    whole = network(seed, neurons, 4, 1)
    skip = np.random.default_rng([seed, 1]).normal(size=(1, 4))
    assert active_sides(Hinges(whole.out, whole.normal, whole.shift, skip, whole.constant), error=1e-11) is None


def test_nothing_is_flipped_where_nothing_is_linear():
    assert not active_sides(network(0, 5, 3, 1), error=1e-11).any()
    assert active_sides(Hinges.zero(3, 1), error=1e-11).shape == (0,)


def test_a_lattice_beyond_its_reach_is_not_reduced():
    rng = np.random.default_rng(0)
    many = rng.normal(size=(RELU.lattice_largest + 1, 2))
    assert subset_sum(many, many[:3].sum(axis=0), error=1e-9) is None
    few = rng.normal(size=(5, 2))
    assert subset_sum(few, few[:3].sum(axis=0), error=1e-16) is None  # more digits than exact integers have
    assert subset_sum(few, few[:3].sum(axis=0), error=1e-9).tolist() == [True] * 3 + [False] * 2
    assert subset_sum(few, few[:3].sum(axis=0) + 0.1, error=1e-9) is None


def test_equations_that_no_ridge_makes_definite_are_an_error():
    with pytest.raises(LinAlgError, match="positive definite"):
        factored(np.array([[1.0, 2.0], [2.0, 1.0]]), np.zeros(2))


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 18))
def test_one_sum_tells_which_numbers_it_is_made_of(seed, count):
    rng = np.random.default_rng(seed)
    numbers, chosen = rng.normal(size=count), rng.random(count) < 0.5
    found = subset_of(numbers, float(numbers[chosen].sum()), 1e-12)
    assert found is None or np.array_equal(found, chosen)  # None where another choice comes as near
    assert subset_of(numbers, float(np.abs(numbers).sum()) + 1.0, 1e-12) is None


def test_sums_that_several_choices_have_tell_nothing():
    assert subset_of(np.array([1.0, 2.0, 3.0]), 3.0, 1e-12) is None  # 3, and 1 + 2
    assert subset_of(np.random.default_rng(0).normal(size=60), 1.0, 1e-9) is None


@given(seed=st.integers(0, 2**32 - 1), neurons=st.integers(1, 14), width=st.integers(1, 4))
def test_a_linear_part_made_of_bends_is_told_from_a_measured_one(seed, neurons, width):
    rng = np.random.default_rng(seed)
    turned = flipped(network(seed, neurons, width, 1), rng.random(neurons) < 0.5)
    found = tied_sides(turned)
    assert found is None or np.abs(flipped(turned, found).linear).max() <= 1e-9 * np.abs(turned.normal).sum()
    measured = Hinges(turned.out, turned.normal, turned.shift, turned.linear + 1e-7, turned.constant)
    assert tied_sides(measured) is None or np.abs(flipped(measured, tied_sides(measured)).linear).max() < 1e-9
