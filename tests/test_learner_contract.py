"""What every learner must do, from one table."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.demo import demo_model, demo_oracle
from unsoftmax.errors import RefusalError
from unsoftmax.learners.behind_network import BehindNetworkLearner
from unsoftmax.learners.decoder import DecoderLearner
from unsoftmax.learners.ffn import FFNLearner
from unsoftmax.learners.grid import GridLearner
from unsoftmax.learners.labels import LabelsLearner
from unsoftmax.learners.noisy import CertifiedHeadLearner, NoisyHeadLearner
from unsoftmax.learners.non_adaptive import NonAdaptiveLearner
from unsoftmax.learners.one_head import OneHeadLearner
from unsoftmax.learners.scalar_heads import ScalarHeadsLearner
from unsoftmax.learners.smooth import SmoothNetworkLearner, SmoothTransformerLearner
from unsoftmax.learners.squared import SquaredNetworkLearner
from unsoftmax.learners.stack import StackLearner
from unsoftmax.learners.tokens import TokensLearner
from unsoftmax.learners.transformer import TransformerLearner
from unsoftmax.learners.vector_heads import VectorHeadsLearner
from unsoftmax.models.decoder import random_decoder
from unsoftmax.models.stack import random_stack
from unsoftmax.oracles import CallableOracle, Metered, Tokens
from unsoftmax.results import Floor

RNG = np.random.default_rng(77)
TABLE = RNG.normal(size=(40, 6))
ONE = demo_model("attention", width=6, seed=1)
GRID = us.Attention.single(RNG.integers(-7, 8, size=(6, 6)) * 0.125, RNG.integers(-7, 8, size=6) * 0.125)
LABELLED = us.Attention.single(RNG.normal(size=(4, 4)) / 2, RNG.normal(size=4), 0.3 * RNG.normal(size=4), -1.0)
RELU = demo_model("transformer", width=6, hidden=8)
CURVES = us.FFN(RELU.ffn.weights, RELU.ffn.biases, activation="gelu")
STACK = random_stack(2, 1, 16, 3, np.random.default_rng(1), hidden=12)
DECODER = random_decoder(1, 2, 12, 4, np.random.default_rng(1))
SQUARES = us.FFN(RELU.ffn.weights, RELU.ffn.biases, activation="relu2")
CURVED = us.Transformer(RELU.attention, CURVES, residual=RELU.residual)


def tanh_head(X):
    return np.tanh(0.3 * ONE(X)) + 0.1 * ONE(X)


def everywhere(X):
    return DECODER(X, "all")


@dataclass
class Row:
    learner: Any
    oracle: Any  # makes a fresh oracle
    truth: Any
    accuracy: float
    most: int  # queries
    values: bool = True  # the model holds V


ROWS = {
    "one head": Row(OneHeadLearner(), lambda: CallableOracle(ONE), ONE, 1e-13, 6 * 6 + 6 + 16),
    "scalar heads": Row(
        ScalarHeadsLearner(),
        lambda: demo_oracle("attention", width=6, heads=2),
        demo_model("attention", width=6, heads=2),
        1e-10,
        500,
    ),
    "vector heads": Row(
        VectorHeadsLearner(),
        lambda: demo_oracle("attention", width=8, heads=2, outputs=8),
        demo_model("attention", width=8, heads=2, outputs=8),
        1e-9,
        300,
    ),
    "network": Row(FFNLearner(), lambda: demo_oracle("ffn", width=6, hidden=8), demo_model("ffn", width=6, hidden=8), 1e-9, 200),
    "transformer": Row(
        TransformerLearner(),
        lambda: demo_oracle("transformer", width=6, hidden=8),
        demo_model("transformer", width=6, hidden=8),
        1e-9,
        300,
    ),
    "smooth network": Row(SmoothNetworkLearner(), lambda: CallableOracle(lambda X: CURVES(X[:, 0]), width=6), CURVES, 1e-9, 200),
    "squared ReLU": Row(SquaredNetworkLearner(), lambda: CallableOracle(lambda X: SQUARES(X[:, 0]), width=6), SQUARES, 1e-9, 200),
    "smooth transformer": Row(SmoothTransformerLearner(), lambda: CallableOracle(CURVED), CURVED, 1e-9, 320),
    "stack": Row(StackLearner(), lambda: CallableOracle(STACK), STACK, 1e-8, 360),
    "decoder": Row(DecoderLearner(), lambda: CallableOracle(everywhere, width=12), DECODER, 1e-9, 1894),
    "behind a network": Row(BehindNetworkLearner(), lambda: CallableOracle(tanh_head, width=6), ONE, 1e-7, 1000, values=False),
    "grid": Row(GridLearner(grid=0.125), lambda: CallableOracle(GRID), GRID, 0.0, 40),
    "fixed probes": Row(NonAdaptiveLearner(), lambda: CallableOracle(ONE), ONE, 1e-10, 120),
    "tokens": Row(TokensLearner(), lambda: Tokens(lambda ids: ONE(TABLE[ids]), TABLE), ONE, 1e-9, 80),
    "labels": Row(LabelsLearner(), lambda: CallableOracle(lambda X: LABELLED(X) > 0, width=4), LABELLED, 1e-11, 70 * (4 * 4 + 8)),
    "noisy": Row(NoisyHeadLearner(max_norm=2.5, floor=Floor(kind="noisy")), lambda: CallableOracle(ONE), ONE, 1e-6, 6 * 42 + 8),
    "certified": Row(CertifiedHeadLearner(1e-9, 2.5), lambda: CallableOracle(ONE), ONE, 1e-6, 3 * 42 + 3 * 6 + 4 + 40),
}


def run(row, seed=0, oracle=None):
    meter = Metered(row.oracle() if oracle is None else oracle)
    return row.learner.run(meter, rng=np.random.default_rng(seed)), meter


@pytest.mark.parametrize("name", list(ROWS))
def test_it_finds_the_parameters_at_its_price(name):
    row = ROWS[name]
    learned, meter = run(row)
    if row.values:
        assert us.distance(learned.model, row.truth) <= row.accuracy
    else:
        assert np.linalg.norm(learned.model.W - row.truth.W) <= row.accuracy * np.linalg.norm(row.truth.W)
    assert meter.spent <= row.most
    assert learned.ambiguity


@pytest.mark.parametrize("name", list(ROWS))
def test_same_seed_same_questions_same_bits(name):
    row = ROWS[name]
    asked = []

    def recording():
        inner = row.oracle()

        class Recording:
            width = inner.width
            embeddings = getattr(inner, "embeddings", None)

            def __call__(self, X):
                asked.append(X.copy())
                return inner(X)

        return Recording() if hasattr(inner, "embeddings") else CallableOracle(Recording(), width=inner.width)

    (first, _), calls = run(row, 5, recording()), len(asked)
    second, _ = run(row, 5, recording())
    assert len(asked) == 2 * calls
    assert all(np.array_equal(a, b) for a, b in zip(asked[:calls], asked[calls:], strict=True))
    assert us.distance(first.model, second.model) == 0.0 if row.values else np.array_equal(first.model.W, second.model.W)


@pytest.mark.parametrize("name", list(ROWS))
def test_it_says_so_when_there_is_nothing_to_find(name):
    row = ROWS[name]
    width = row.oracle().width
    silent = (
        Tokens(lambda ids: np.zeros(len(ids)), TABLE)
        if name == "tokens"
        else CallableOracle(lambda X: np.zeros(len(X)), width=width)
    )
    if name == "network":  # silence is a network too
        learned, _ = run(row, oracle=silent)
        assert np.all(learned.model(np.ones((3, width))) == 0)
    else:
        with pytest.raises(RefusalError, match=r".{20}"):
            run(row, oracle=silent)
