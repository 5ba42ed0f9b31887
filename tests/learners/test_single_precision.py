"""ReLU networks and Transformers that compute in float32: right within that precision, or refused."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.errors import RefusalError
from unsoftmax.learners.ffn import FFNLearner, rough
from unsoftmax.learners.ffn.places import Places
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.transformer import TransformerLearner
from unsoftmax.oracles import CallableOracle
from unsoftmax.results import Floor

SINGLE = Floor(kind="float32", relative=2.0**-22)


def weights(d, m, p, rng):
    drawn = (rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=m), rng.normal(size=(p, m)) / np.sqrt(m), rng.normal(size=p))
    return [part.astype(np.float32) for part in drawn]


def network(d, m, p, rng):
    B, b, A, a = weights(d, m, p, rng)
    return lambda X: (np.maximum(X[:, -1].astype(np.float32) @ B.T + b, 0) @ A.T + a).astype(np.float64)


def transformer(d, m, p, rng, *, residual):
    B, b, A, a = weights(d, m, p, rng)
    W, V = ((rng.normal(size=(d, d)) / np.sqrt(d)).astype(np.float32) for _ in range(2))

    def answer(X):
        x = X.astype(np.float32)
        scores = np.einsum("bnd,bd->bn", x, x[:, -1] @ W.T)
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        mean = np.einsum("bn,bnd->bd", share / share.sum(axis=1, keepdims=True), x)
        z = mean @ V.T + x[:, -1] if residual else mean @ V.T
        return (np.maximum(z @ B.T + b, 0) @ A.T + a).astype(np.float64)

    return W.astype(np.float64), answer


@pytest.mark.parametrize(("d", "m", "p", "seed"), [(4, 8, 1, 0), (8, 12, 1, 1), (6, 12, 4, 2)])
def test_a_float32_network_has_its_number_of_neurons(d, m, p, seed):
    rng = np.random.default_rng(seed)
    target = network(d, m, p, rng)
    found = FFNLearner(floor=SINGLE).run(CallableOracle(target, width=d), rng=rng)
    X = rng.normal(size=(256, 1, d))
    assert found.evidence["neurons"] == m
    assert np.abs(found.model.answer(X) - target(X)).max() < 1e-4 * target(X).std()


def test_a_faint_neuron_is_seen_or_nothing_is_said():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        B, b, A, a = weights(4, 6, 1, rng)
        A[0, 0] *= 1e-7 if seed else 1e-3  # below what float32 answers show, and above
        oracle = CallableOracle(lambda X: (np.maximum(X[:, -1].astype(np.float32) @ B.T + b, 0) @ A.T + a).astype(float), width=4)  # noqa: B023
        try:
            found = FFNLearner(floor=SINGLE).run(oracle, rng=rng)
        except RefusalError:
            continue
        assert found.evidence["neurons"] == (5 if seed else 6)


@pytest.mark.parametrize("residual", [False, True])
def test_float32_transformers_come_back_with_error_bars(residual):
    covered = []
    for seed in range(6):  # the errors within one W rise and fall together, so that one W says little of its bars
        rng = np.random.default_rng(seed)
        W, target = transformer(5, 8, 3, rng, residual=residual)
        found = TransformerLearner(floor=SINGLE).run(CallableOracle(target, width=5), rng=rng)
        X = rng.normal(size=(256, 5, 5))
        assert found.model.residual is residual
        assert np.abs(found.model.answer(X) - target(X)).max() < 1e-4 * target(X).std()
        off = np.abs(found.model.attention.W[0] - W)
        assert off.max() < 1e-5
        covered.append(np.mean(off <= found.bounds.W[0]))
    assert np.mean(covered) > 0.82


def test_recover_knows_bent_float32_answers():
    rng = np.random.default_rng(3)
    W, target = transformer(4, 6, 2, rng, residual=False)
    found = us.recover(target, width=4, seed=3)
    assert found.status is us.Status.WITHIN_TOLERANCE
    assert found.facts["family"] == "transformer"
    assert found.facts["neurons"] == 6
    assert np.abs(found.model.attention.W[0] - W).max() < 1e-4


def test_bends_do_not_pass_for_noise():
    """The noise is the ruler by which a network fits: with bends in it, one of the wrong neuron count would fit as well."""
    rng = np.random.default_rng(0)
    net, places, measured = network(16, 48, 1, rng), Places(None, 1.0, 64), []
    for _ in range(60):
        questions = Questions(CallableOracle(net, width=16), floor=SINGLE, max_norm=None)
        questions.offset, questions.slope = 4.0, 1.0
        measured.append(rough._noise(questions, rough._stretches(questions, places, 4.0, rng)))
    assert max(measured) < 10 * np.median(measured)


def test_a_smooth_float32_function_is_refused_after_three_lines():
    rng = np.random.default_rng(0)
    v, u = rng.normal(size=(2, 4)).astype(np.float32)

    def gated(X):
        x = X[:, -1].astype(np.float32)
        return (x @ v) * (1 + np.float32(0.1) * np.tanh(x @ u))

    learner = FFNLearner(floor=Floor(kind="float32", relative=2.0**-22))
    with pytest.raises(RefusalError, match="3 lines"):  # ten lines took half an hour
        learner.run(CallableOracle(gated, width=4), rng=np.random.default_rng(1))
