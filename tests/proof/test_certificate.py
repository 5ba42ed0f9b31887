"""Certificates: hold for what is determined, fail with the reason for what is not."""

import numpy as np
import pytest

from unsoftmax.models import Attention
from unsoftmax.proof.certificate import certificate, head_gap


def layer(seed=0, heads=3, width=4, outputs=None):
    rng = np.random.default_rng(seed)
    tail = () if outputs is None else (outputs,)
    return Attention(rng.normal(size=(heads, width, width)), rng.normal(size=(heads, width, *tail)))


@pytest.mark.parametrize("outputs", [None, 3])
def test_generic_layers_are_certified(outputs):
    verdict = certificate(layer(outputs=outputs), held_out=1e-13)
    assert verdict.holds
    assert verdict.nullity == 0
    assert 1.0 < verdict.condition < 1e7
    assert verdict.estimated_error == pytest.approx(verdict.condition * 1e-13)
    assert certificate(layer(outputs=outputs), held_out=0.0).estimated_error == pytest.approx(verdict.condition * 2.0**-52)
    assert "canonical form" in " ".join(verdict.reasons)


def test_a_poor_match_is_not():
    verdict = certificate(layer(), held_out=1e-5)
    assert not verdict.holds
    assert "Fresh sequences differ" in verdict.reasons[0]
    assert not certificate(layer(), held_out=float("nan")).holds


def test_empty_and_split_heads_are_found_out():
    model = layer()
    V = model.V.copy()
    V[2] *= 1e-15
    almost = certificate(Attention(model.W, V), held_out=1e-13)
    assert not almost.holds
    assert not almost.reduced
    twice = certificate(Attention(model.W[[0, 1, 0]], model.V), held_out=1e-13)
    assert not twice.holds
    assert twice.nullity > 0
    assert twice.gap == 0.0


def test_close_heads_cost_digits():
    model = layer()
    W = model.W.copy()
    W[1] = W[0] + 1e-6 * W[1]
    near = Attention(W, model.V)
    verdict = certificate(near, held_out=1e-13)
    assert verdict.estimated_error > 1e-6
    assert head_gap(near) < 1e-5
    assert not certificate(near, held_out=1e-13, rounding=2.0**-23).holds


def test_wide_layers_are_judged_by_theory():
    verdict = certificate(layer(heads=4, width=32), held_out=1e-12)
    assert verdict.holds
    assert verdict.condition is None


def test_no_values_no_certificate():
    with pytest.raises(ValueError, match="no V"):
        certificate(Attention(np.ones((1, 2, 2)), None), held_out=0.0)


def test_a_head_without_scores_is_far_from_every_other():
    heads = Attention(W=np.stack([np.zeros((3, 3)), np.eye(3)]), V=np.eye(2, 3))
    assert head_gap(heads) == 1.0
