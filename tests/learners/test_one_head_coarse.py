"""One head whose rank is judged from coarse products, and fresh answers that are casts."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle
from unsoftmax.oracles.noise import Cast, LowPrecision


def with_biases(seed, width):
    rng = np.random.default_rng(seed)
    W, v, c = rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=width), rng.normal(size=width)
    return Attention.single(W, v, c=c, b=float(rng.normal()))


@pytest.mark.parametrize(("seed", "width", "norm"), [(530_001, 8, 4.0), (530_002, 8, None)])
def test_float32_answers_do_not_make_a_low_rank(seed, width, norm):
    """A block of the products is singular as far as these answers tell, by chance; a larger one is not."""
    head = with_biases(seed, width)
    found = us.recover(LowPrecision(head, "float32"), seed=seed, max_norm=norm)
    assert found.facts["rank"] == width
    assert np.abs(found.model.W - head.W).max() < 1e-3


@pytest.mark.parametrize("seed", [530_000, 530_003, 530_005])
def test_fresh_answers_may_be_off_by_their_own_last_bit(seed):
    """Beside a constant, answers of eight bits are coarser than a share of how much they vary."""
    head = with_biases(seed, 3)
    for _ in range(5):
        found = us.recover(Cast(CallableOracle(head), "bfloat16"), seed=seed, max_norm=4.0)
        assert found.status is us.Status.WITHIN_TOLERANCE
        assert np.abs(found.model.W - head.W).max() < 5e-3


def test_a_head_that_hides_its_own_fresh_answers_is_no_head():
    """Two heads that pass for one at first: W of 1e87 has tokens so short that rounding hides whatever they are answered."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(850875844)
    module = torch.nn.MultiheadAttention(24, 2, bias=True, batch_first=True).eval()
    with torch.no_grad():
        module.in_proj_bias.normal_()
        module.out_proj.bias.normal_()

    def target(X):
        with torch.no_grad():
            x = torch.as_tensor(X, dtype=torch.float32)
            return module(x, x, x, need_weights=False)[0][:, -1].numpy().astype(np.float64)

    found = us.recover(target, width=24, seed=8200406, on_failure="return")
    assert found.status is us.Status.WITHIN_TOLERANCE
    assert found.model.heads == 2
