"""Identifiability of models that are too large to differentiate, or hold no values."""

import numpy as np

from unsoftmax.models import FFN, Attention, Transformer
from unsoftmax.symmetry import identifiability
from unsoftmax.symmetry.identifiability import LARGEST_JACOBIAN


def network(width, hidden, seed=0):
    rng = np.random.default_rng(seed)
    return FFN([rng.normal(size=(hidden, width)), rng.normal(size=(1, hidden))], [rng.normal(size=hidden), rng.normal(size=1)])


def test_a_large_network_is_counted_as_a_small_one_is_measured():
    small, width = identifiability(network(4, 6)), 40
    hidden = LARGEST_JACOBIAN // width + 1
    large = identifiability(network(width, hidden))
    assert small.nullity == 6  # the scale of each neuron
    assert large.nullity == hidden
    assert large.dimension == hidden * (width + 2) + 1 - hidden
    assert "too large" in large.symmetries[-1]


def test_a_large_transformer_loses_its_values_unless_there_is_a_residual():
    width = 40
    hidden = LARGEST_JACOBIAN // width + 1
    rng = np.random.default_rng(1)
    attention = Attention(rng.normal(size=(1, width, width)), rng.normal(size=(1, width, width)))
    plain = identifiability(Transformer(attention, network(width, hidden)))
    residual = identifiability(Transformer(attention, network(width, hidden), residual=True))
    assert plain.nullity == hidden + width**2
    assert residual.nullity == hidden


def test_heads_without_values_are_counted_by_their_scores():
    W = np.random.default_rng(2).normal(size=(1, 3, 3))
    assert identifiability(Attention(W, None)).dimension == 9
    assert identifiability(Attention(W, None, c=np.ones((1, 3)))).dimension == 12
