"""Deviations taken apart, hypotheses compared, versions counted: pure functions of numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsoftmax.deployment.coherence import coherence, paired
from unsoftmax.deployment.probes import Probe, chosen_calls, on_grid
from unsoftmax.deployment.replicas import contradicts, versions
from unsoftmax.deployment.where import Group, likeliest

seeds = st.integers(0, 2**32 - 1)


def deviations(rng, shift, calls=60, outputs=20):
    """Rounding of size 1, and a deviation that twins share of size ``shift``."""
    found = []
    for _ in range(calls):
        shared = np.repeat(shift * rng.normal(size=(4, outputs)), 2, axis=0)
        found.append(shared + rng.normal(size=(8, outputs)))
    return found, [np.ones(8) for _ in range(calls)]


@given(seeds, st.floats(0.1, 100.0))
@settings(max_examples=50, deadline=None)
def test_rounding_of_any_size_is_no_difference(seed, size):
    found, noise = deviations(np.random.default_rng(seed), 0.0)
    pairs = paired([size * part for part in found], noise)
    assert pairs.noise == pytest.approx(size, rel=0.15)
    assert not coherence(pairs, np.ones((3, 240))).differs


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_what_twins_share_is_seen_below_the_rounding_of_one_answer(seed):
    found, noise = deviations(np.random.default_rng(seed), 0.7)
    pairs = paired(found, noise)
    result = coherence(pairs, np.ones((1, 240)))
    assert result.differs
    assert pairs.size == pytest.approx(0.7, rel=0.2)
    assert not coherence(pairs, np.ones((1, 240)), honest=0.5).differs  # where this machine's own rounding has such a share


def test_a_large_deviation_does_not_hide_behind_its_own_spread():
    rng = np.random.default_rng(0)
    found, noise = deviations(rng, 0.0, calls=10)
    for part in found[:1]:
        part += 1e3 * np.repeat(rng.normal(size=(4, 1)), 2, axis=0)
    assert coherence(paired(found, noise), np.ones((1, 40))).differs


@given(seeds, st.integers(0, 2))
@settings(max_examples=25, deadline=None)
def test_the_group_that_changed_is_the_likeliest(seed, changed):
    rng = np.random.default_rng(seed)
    jacobians = [rng.normal(size=(60, 200)) @ np.diag(rng.uniform(0.1, 3.0, size=200)) for _ in range(3)]
    kernels = {f"t{i}": jacobian @ jacobian.T for i, jacobian in enumerate(jacobians)}
    # rows of different sequences have different sizes in different tensors; without that, kernels would all be alike
    for i, name in enumerate(kernels):
        rows = np.exp(rng.normal(size=60))
        kernels[name] *= np.outer(rows, rows)
        jacobians[i] *= rows[:, None]
    measured = 0.3 * jacobians[changed] @ rng.normal(size=200) + rng.normal(size=60)
    found = likeliest([Group(name, (name,), name) for name in kernels], kernels, measured)
    assert found.group.name == f"t{changed}"
    assert found.size == pytest.approx(0.3, rel=0.5)


def test_versions_are_counted_and_shares_told():
    rng = np.random.default_rng(0)
    truth, other = rng.normal(size=(2, 30))
    answers = np.where(np.arange(100)[:, None] % 20 == 0, other, truth) + 1e-6 * rng.normal(size=(100, 30))
    found = versions(answers, truth, 1e-6, tolerance=4e-6)
    assert [(round(v.share, 2), v.matches) for v in found] == [(0.95, True), (0.05, False)]
    assert contradicts(answers[:21], 1e-6)
    assert not contradicts(answers[1:20], 1e-6)


def test_numbers_on_the_grid_of_bfloat16_survive_every_endpoint():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).normal(size=1000)
    assert np.array_equal(on_grid(values), torch.tensor(values).float().bfloat16().double().numpy())


def test_every_tensor_gets_the_calls_that_show_it():
    responses = np.full((3, 30), 0.1)
    responses[0, 20], responses[1, 25], responses[2, 29] = 9.0, 5.0, 7.0
    pool = [Probe(np.zeros((8, 1, 1)), natural=i < 10) for i in range(30)]
    kept = chosen_calls(pool, responses, 12)
    assert len(kept) == 12
    assert {20, 25, 29} <= set(kept)
    assert set(range(4)) <= set(kept)  # a third as they come
