"""Keys that are asked together: where they lie, and how well answers tell their weights."""

import numpy as np
import pytest

from unsoftmax.learners.vector_heads.keys import Keys, grouped, spread_keys
from unsoftmax.learners.vector_heads.values import Values
from unsoftmax.linalg import on_host, orthonormal

WIDTH, HEADS, RANK = 48, 4, 12


def values(rng, kind=np.asarray):
    """Heads whose ranges fill the answers, read through their dual."""
    left, right = rng.normal(size=(HEADS, WIDTH, RANK)), rng.normal(size=(HEADS, RANK, HEADS * RANK))
    dual = np.linalg.inv(right.reshape(HEADS * RANK, -1))
    return Values(kind(left), kind(right), kind(dual), (RANK,) * HEADS, 1.0)


def tensors(array):
    return pytest.importorskip("torch").tensor(array)


@pytest.mark.parametrize("seed", range(3))
def test_spread_keys_are_orthonormal_and_tell_weights_better(seed):
    rng = np.random.default_rng(seed)
    of, U = values(rng), grouped(orthonormal(WIDTH, rng), RANK)
    random, keys = Keys.of(of, U), spread_keys(of, U)
    assert np.allclose(keys.U @ keys.U.swapaxes(1, 2), np.eye(RANK), atol=1e-14)  # though the way there takes few digits
    assert keys.alone.max() < random.alone.max() / 2
    assert np.allclose(keys.solvers @ keys.seen, np.eye(RANK), atol=1e-9)
    assert np.allclose(keys.inverse @ keys.flat, np.eye(WIDTH), atol=1e-9)


def test_keys_lie_where_all_digits_would_lead():
    draw = np.random.default_rng(4).normal(size=(WIDTH, WIDTH))
    U = grouped(np.linalg.qr(draw)[0], RANK)
    here, there = (spread_keys(values(np.random.default_rng(5), kind), kind(U)) for kind in (np.asarray, tensors))
    assert np.allclose(here.U, on_host(there.U), atol=1e-3)


def test_keys_across_other_directions_stay_so():
    rng = np.random.default_rng(6)
    U = orthonormal(WIDTH, rng)
    keys = spread_keys(values(rng), grouped(U[2 * RANK :], RANK), across=U[: 2 * RANK])
    assert np.abs(keys.flat @ U[: 2 * RANK].T).max() < 1e-14
