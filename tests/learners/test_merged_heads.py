"""Two heads that looked at the same token in every saturated pair pass for one, until moderate pairs show what is left."""

from dataclasses import replace

import numpy as np
import pytest

from unsoftmax.learners.vector_heads.addressing import steer
from unsoftmax.learners.vector_heads.answers import Answers
from unsoftmax.learners.vector_heads.demixing import Mixture, demix, one_token
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.results import Floor

WIDTH, HEADS = 12, 4


@pytest.mark.parametrize("biased", [False, True])
def test_heads_that_pass_for_one_are_told_apart_by_further_pairs(biased):
    rng = np.random.default_rng(5)
    layer = Attention(
        rng.normal(size=(HEADS, WIDTH, WIDTH)),
        rng.normal(size=(HEADS, WIDTH, WIDTH)),
        0.3 * rng.normal(size=(HEADS, WIDTH)) if biased else None,
    )
    oracle = Metered(CallableOracle(layer, width=WIDTH))
    answers = Answers(oracle, Floor(), None)
    totals = one_token(answers, np.zeros(WIDTH), rng)
    right = demix(answers, totals, rng)
    assert right.heads == HEADS
    assert steer(answers, totals, right, rng) is not None

    looked = np.rint(right.sums.told @ np.linalg.pinv(right.parts))
    alike = looked[:, 0] == looked[:, 1]
    one = Mixture(
        u=right.u,
        parts=np.concatenate([right.parts[:1] + right.parts[1:2], right.parts[2:]]),
        around=right.around,
        sums=replace(right.sums, told=right.sums.told[alike]),
    )
    assert steer(answers, totals, one, rng) is None
    before = oracle.spent
    again = demix(answers, totals, rng, begun=one)
    assert again.heads == HEADS
    assert oracle.spent - before <= 16
    order = [int(np.argmin(np.linalg.norm(again.parts - part, axis=1))) for part in right.parts]
    np.testing.assert_allclose(again.parts[order], right.parts, rtol=1e-9, atol=1e-9 * np.abs(right.parts).max())
