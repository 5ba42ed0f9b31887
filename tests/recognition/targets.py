"""Small targets of known kinds, and a diagnosis in progress about each: what the tests of single tests share."""

from __future__ import annotations

import numpy as np

from unsoftmax.candidates import made
from unsoftmax.desk import Desk
from unsoftmax.models import Attention
from unsoftmax.oracles import CallableOracle
from unsoftmax.recognition import standing
from unsoftmax.recognition.case import Case
from unsoftmax.recognition.decide import by_tests
from unsoftmax.results import Floor
from unsoftmax.wishes import Wishes

D = 5


def case_of(target, width=D, seed=0, *, max_norm=None, floor=None):
    """A diagnosis whose answers count as exact, or as coarse as ``floor`` says; nothing was asked yet."""
    case = Case(CallableOracle(target, width=width), np.random.default_rng(seed), max_norm)
    case.outputs = None
    case.floor = floor or Floor()
    return case


def as_tested(oracle, seed=0, max_norm=None):
    """What the family tests alone tell of a target, before which no law of a family is asked for."""
    desk = Desk(oracle, Wishes(max_norm=max_norm, seed=seed), sentinels=0)
    standing.opened(desk, alone=True)
    walk, found = by_tests(), None
    while True:
        try:
            found = made(desk, walk.send(found))
        except StopIteration as end:
            return end.value


def head(width=D, seed=0, *, size=1.0, outputs=None, bias=False, constant=False):
    """One softmax head."""
    rng = np.random.default_rng([seed, width])
    v = rng.normal(size=width if outputs is None else (width, outputs))
    c = rng.normal(size=width) if bias else None
    b = rng.normal(size=v.shape[1:]) if constant else 0.0
    return Attention.single(size * rng.normal(size=(width, width)) / np.sqrt(width), v, c, b)


def heads(count, width=D, seed=0, outputs=None):
    """Several of them."""
    rng = np.random.default_rng([seed, width, count])
    V = rng.normal(size=(count, width) if outputs is None else (count, width, outputs))
    return Attention(rng.normal(size=(count, width, width)) / np.sqrt(width), V)


def weighted(scores, X):
    """The mean of tokens with softmax weights."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("bn,bnd->bd", weights / weights.sum(axis=1, keepdims=True), X)


def scores_of(layer, X):
    """Scores of the one head of a layer."""
    return np.einsum("bnd,de,be->bn", X, layer.W[0], X[:, -1]) + X @ layer.c[0]


def through(layer, network):
    """A head, then a network on the mean of the tokens."""
    return lambda X: network(weighted(scores_of(layer, X), X))


def relu_network(width=D, hidden=8, seed=0):
    """One hidden layer of ReLU neurons."""
    rng = np.random.default_rng([seed, hidden])
    A, shift, out = rng.normal(size=(width, hidden)), 0.5 * rng.normal(size=hidden), rng.normal(size=hidden)
    return lambda z: np.maximum(z @ A + shift, 0.0) @ out


def tanh_network(width=D, hidden=8, seed=0):
    """One hidden layer of smooth neurons."""
    rng = np.random.default_rng([seed, hidden])
    A, shift, out = rng.normal(size=(width, hidden)) / np.sqrt(width), 0.5 * rng.normal(size=hidden), rng.normal(size=hidden)
    return lambda z: np.tanh(z @ A + shift) @ out


def passed(case, test):
    """Whether the last fact of a test holds; None where it was not asked."""
    facts = [fact for fact in case.evidence if fact.test == test]
    return facts[-1].passed if facts else None
