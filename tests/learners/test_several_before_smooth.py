"""Several heads in front of a smooth network that can be asked through."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.smooth import SmoothTransformerLearner
from unsoftmax.learners.smooth.curves import Curves
from unsoftmax.learners.smooth.inverse import inverted, loss
from unsoftmax.models import FFN, Attention, Transformer
from unsoftmax.models.activations import activation_named
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.symmetry import canonical, distance


def target(d, m, p, heads, seed):
    rng = np.random.default_rng(seed)
    W, V = rng.normal(size=(2, heads, d, d)) / np.sqrt(d)
    weights = [rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=(p, m)) / np.sqrt(m)]
    return Transformer(Attention(W, V), FFN(weights, [rng.normal(size=m), rng.normal(size=p)], activation="gelu"))


def curves(d, m, p):
    rng = np.random.default_rng(0)
    shapes = [(m, p), (m, d), m, (p, d), p]
    return Curves(activation_named("gelu"), *(rng.normal(size=shape) for shape in shapes))


def test_two_heads_are_read_through_the_network():
    hidden = target(4, 16, 8, 2, 0)
    oracle = Metered(CallableOracle(hidden, width=4))
    learned = SmoothTransformerLearner().run(oracle, rng=np.random.default_rng(0))
    assert learned.evidence["heads"] == 2
    assert distance(learned.model, hidden) < 1e-9
    assert np.allclose(learned.model.attention.V.sum(axis=0), np.eye(4), atol=1e-9)
    assert oracle.spent < 400
    X = np.random.default_rng(1).normal(size=(50, 7, 4))
    assert np.abs(learned.model(X) - hidden(X)).max() < 1e-9


@pytest.mark.parametrize(("d", "m", "p", "heads"), [(4, 16, 8, 2), (6, 24, 12, 3)])
def test_the_run_of_several_heads_keeps_to_the_plan(d, m, p, heads):
    hidden = target(d, m, p, heads, 0)
    bill = us.plan(hidden, family="smooth-transformer", neurons=m, heads=heads)
    found = us.recover(hidden, seed=0)
    assert found.status.success
    assert bill.queries <= found.facts["queries"]["total"] <= bill.queries_max
    assert f"{heads} heads" in " ".join(bill.assumptions)
    assert us.plan(hidden, family="smooth-transformer", neurons=m, heads=1).queries_max < bill.queries_max


def test_a_network_that_folds_points_together_is_refused():
    hidden = target(4, 6, 4, 2, 1)
    with pytest.raises(NotInFamilyError, match="cannot be asked through"):
        SmoothTransformerLearner().run(CallableOracle(hidden, width=4), rng=np.random.default_rng(0))


def test_points_are_found_again_from_their_values():
    network, rng = curves(3, 12, 7), np.random.default_rng(2)
    truth = rng.normal(size=(20, 3))
    points, explained = inverted(network, network(truth), truth + 0.1 * rng.normal(size=truth.shape))
    assert explained.all()
    assert np.allclose(points, truth, atol=1e-11)
    assert loss(network, 3, (1.0, 2.0**36), rng) < 2.0**-36


def test_several_heads_in_canonical_form_and_with_residual():
    hidden = target(4, 6, 3, 3, 5)
    X = np.random.default_rng(3).normal(size=(30, 5, 4))
    folded = canonical(hidden)
    assert np.allclose(folded(X), hidden(X), atol=1e-11)
    assert np.allclose(folded.attention.V.sum(axis=0), np.eye(4), atol=1e-11)
    assert folded.sizes(None).heads == 3
    with pytest.raises(ValueError, match="one head"):
        Transformer(hidden.attention, hidden.ffn, residual=True)
