from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import one_head, seeds

from unsoftmax.errors import TargetError
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.oracles.noise import Cast, Clipped, LowPrecision, Noisy, Rounded, round_digits


def sequences(head, seed, batch=7, length=3):
    return np.random.default_rng(seed).normal(size=(batch, length, head.width))


@given(head=one_head(), seed=seeds, decimals=st.integers(0, 8))
def test_rounding_moves_an_answer_by_half_a_step_at_most_and_is_idempotent(head, seed, decimals):
    X = sequences(head, seed)
    rounded = Rounded(CallableOracle(head), decimals=decimals)(X)
    assert np.abs(rounded - head(X)).max() <= 0.5 * 10.0**-decimals + 1e-12
    assert np.array_equal(np.round(rounded, decimals), rounded)


@given(values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=8), digits=st.integers(1, 10))
def test_significant_digits_agree_with_printing(values, digits):
    answers = np.array(values)
    expected = np.array([float(f"{value:.{digits - 1}e}") for value in values])
    rounded = round_digits(answers, digits)
    assert np.abs(rounded - answers).max(initial=0) <= np.abs(0.5000001 * 10.0 ** (1 - digits) * answers).max(initial=0) + 1e-279
    close = np.abs(rounded - expected) <= 1e-15 * np.abs(expected) + 1e-279
    tie = np.abs(np.abs(rounded - answers) - np.abs(expected - answers)) <= 1e-9 * np.abs(answers)  # halves may go either way
    assert (close | tie).all()


@given(head=one_head(), seed=seeds)
def test_fixed_noise_repeats_and_fresh_noise_does_not(head, seed):
    X = sequences(head, seed)
    fixed, fresh = (Noisy(CallableOracle(head), 0.1, seed=3, fresh=fresh) for fresh in (False, True))
    assert np.array_equal(fixed(X), fixed(X[::-1])[::-1])
    assert not np.array_equal(fresh(X), fresh(X))


def test_noise_has_the_stated_scale():
    head = Attention.single(np.eye(3), np.ones(3))
    X = sequences(head, 0, batch=4000)
    for fresh in (True, False):
        noise = Noisy(CallableOracle(head), 0.25, fresh=fresh)(X) - head(X)
        assert abs(noise.std() / 0.25 - 1) < 0.05
        assert abs(noise.mean()) < 0.02


@given(head=one_head(), seed=seeds, limit=st.floats(0.1, 3.0))
def test_clipping_leaves_short_tokens_and_shortens_long_ones(head, seed, limit):
    X = sequences(head, seed)
    norms = np.linalg.norm(X, axis=-1, keepdims=True)
    short = X * np.minimum(1.0, limit / norms)
    assert np.allclose(Clipped(CallableOracle(head), limit)(X), head(short), rtol=1e-10, atol=1e-12)


@given(head=one_head(), seed=seeds, dtype=st.sampled_from(["float32", "float16", "bfloat16"]))
def test_cast_answers_are_numbers_of_the_format(head, seed, dtype):
    X = sequences(head, seed)
    answers = Cast(CallableOracle(head), dtype)(X)
    bits = {"float32": 24, "float16": 11, "bfloat16": 8}[dtype]
    assert (np.abs(answers - head(X)) <= 2.0**-bits * np.abs(head(X)) + 2.0**-25).all()
    assert np.array_equal(Cast(CallableOracle(lambda _: answers, width=head.width), dtype)(X), answers)


@settings(max_examples=30)
@given(head=one_head(bias=True), seed=seeds)
def test_low_precision_comes_close_to_the_model(head, seed):
    X = sequences(head, seed)
    sizes = np.abs(head(X)).max() + np.abs(X).max() * np.abs(head.V).sum()
    for dtype, unit in (("float32", 2.0**-24), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        error = np.abs(LowPrecision(head, dtype)(X) - head(X)).max()
        scores = 1 + np.abs(X).max() ** 2 * np.abs(head.W).sum() + np.abs(X).max() * np.abs(head.c).sum()
        assert error <= 32 * unit * sizes * scores


def test_overflow_in_half_precision_is_reported_as_a_failing_target():
    head = Attention.single(np.eye(2), np.ones(2))
    with pytest.raises(TargetError, match="finite"):
        LowPrecision(head)(np.full((1, 2, 2), 1e4))


def test_wrappers_nest_and_pass_on_the_meter():
    head = Attention.single(np.eye(2), np.ones(2))
    oracle = Rounded(Noisy(Clipped(Metered(CallableOracle(head)), 1.0), 0.0), decimals=3)
    oracle(np.ones((5, 2, 2)))
    assert oracle.spent == 5
    assert oracle.width == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda o: Rounded(o),
        lambda o: Rounded(o, decimals=1, digits=1),
        lambda o: Rounded(o, digits=0),
        lambda o: Noisy(o, -1.0),
        lambda o: Noisy(o, np.nan),
        lambda o: Clipped(o, 0.0),
        lambda o: Cast(o, "float8"),
        lambda o: LowPrecision(o.target, "float64"),
    ],
)
def test_misuse_is_a_value_error(make):
    oracle = CallableOracle(Attention.single(np.eye(2), np.ones(2)))
    with pytest.raises(ValueError, match=r"\w"):
        make(oracle)
