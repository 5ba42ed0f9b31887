"""Targets that compute in half precision: judged by all deviations together, in errors that such numbers let expect."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.precision.formats import to_bits
from unsoftmax.precision.law import Floor

BITS = {"bfloat16": 8, "float16": 11}


def computed(layer, bits, sink=0.0):
    """One head that rounds after every operation; a sink takes weight from all tokens, as one more of score 0 does."""

    def short(values):
        return to_bits(np.asarray(values, dtype=np.float64), bits)

    def answer(X):
        x = short(X)
        scores = short(np.einsum("bnd,bd->bn", x, short(x[:, -1] @ layer.W[0].T)))
        top = scores.max(axis=1, keepdims=True)
        weights = short(np.exp(scores - top))
        total = short(weights.sum(axis=1) + sink * np.exp(-top[:, 0]))
        return short(np.einsum("bn,bn->b", short(weights / total[:, None]), short(x @ layer.V[0])))

    return answer


def head(seed, bits):
    rng = np.random.default_rng(seed)
    return us.Attention.single(to_bits(rng.normal(size=(6, 6)) / 6**0.5, bits), to_bits(rng.normal(size=6), bits))


@pytest.mark.parametrize("name", BITS)
def test_a_head_computed_in_half_precision_is_known_as_far_as_that_goes(name):
    for seed in range(3):
        layer = head(seed, BITS[name])
        found = us.recover(computed(layer, BITS[name]), width=6, seed=seed)
        assert found.status.name == "WITHIN_TOLERANCE"
        rng, worst = np.random.default_rng(seed), 0.0
        for X in (rng.normal(size=(20_000, 2, 6)), rng.normal(size=(2_000, 9, 6))):
            answers = computed(layer, BITS[name])(X)
            worst = max(worst, np.abs(found.model(X) - answers).max() / answers.std())
        assert worst / 3 < found.facts["tolerance"] < 5 * worst  # neither hides rare sequences nor says nothing


@pytest.mark.parametrize("sink", [0.3, 0.01, 0.001])
def test_a_sink_below_rounding_shows_where_no_token_scores(sink):
    for seed in range(3):
        assert not us.recover(computed(head(seed, 8), 8, sink=sink), width=6, on_failure="return").status.success


def test_the_tolerance_foretells_sequences_on_which_large_scores_nearly_tie():
    rng = np.random.default_rng(0)
    layer = us.Attention.single(*(to_bits(rng.normal(size=shape), 11) for shape in ((6, 6), 6)))
    target = computed(layer, 11)
    for _ in range(3):
        found = us.recover(target, width=6)
        X = rng.normal(size=(4000, 2, 6))
        answers = target(X)
        assert np.abs(found.model(X) - answers).max() <= 3 * found.facts["tolerance"] * answers.std()


def test_the_law_judges_mean_and_largest():
    law, rng = Floor(kind="bfloat16"), np.random.default_rng(0)
    usual = np.abs(rng.normal(size=(300, 1)))
    assert law.explains(usual, np.ones_like(usual))
    assert not law.explains(2.5 * usual, np.ones_like(usual))  # all of them a little too far
    usual[7] = 20.0
    assert not law.explains(usual, np.ones_like(usual))  # one of them much too far


@pytest.mark.parametrize("scalar", [True, False])
def test_bars_of_cast_answers_cover(scalar):
    hits = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        layer = us.Attention(rng.normal(size=(1, 6, 6)) / 6**0.5, rng.normal(size=(1, 6) if scalar else (1, 6, 3)))
        found = us.recover(lambda X, layer=layer: layer(X).astype(np.float16).astype(np.float64), width=6, seed=seed)
        hits += [
            np.mean(np.abs(getattr(found.model, block) - getattr(layer, block)) <= getattr(found.bounds, block)) for block in "WV"
        ]
    assert 0.88 < np.mean(hits) < 1.0


def test_a_constant_that_one_mixture_of_outputs_hides_is_found():
    rng = np.random.default_rng(1)
    V = rng.normal(size=(1, 5, 3))
    b = np.cross(*rng.normal(size=(2, 3)))
    b -= (b @ (u := np.linalg.svd(V[0])[2][0])) * u  # nothing of it along the loudest mixture
    layer = us.Attention(rng.normal(size=(1, 5, 5)) / 5**0.5, V, b=b)
    found = us.recover(lambda X: layer(X) + 1e-3 * rng.normal(size=(len(X), 3)), width=5, seed=0, max_norm=4.0)
    assert np.abs(found.model.b - b).max() < 1e-2
