"""What errors of the parameters explain of a misfit, and what is foreign beside several heads."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.models import Attention
from unsoftmax.proof.compare import Compared
from unsoftmax.proof.fresh import Fresh
from unsoftmax.proof.settings import PROOF
from unsoftmax.proof.tangent import sequences_for, unexplained


def layer(rng, *, outputs, heads=2, d=5):
    V = rng.normal(size=(heads, d, outputs) if outputs else (heads, d))
    return Attention(rng.normal(size=(heads, d, d)) / 2, V, rng.normal(size=(heads, d)))


def seen_of(target, model, rng, *, causal=None, count=24):
    batches = tuple(Fresh(rng.normal(size=(count, n, model.width))) for n in (2, 3, 5, 9, 20))

    def answers(of):
        if causal is None:
            return np.concatenate([of(batch.sequences).reshape(count, -1) for batch in batches])
        return np.concatenate([of(batch.sequences, "all", causal=causal).reshape(-1, model.outputs or 1) for batch in batches])

    positions = () if causal is None else tuple(batch.length for batch in batches)
    return Compared(answers(target), answers(model), batches, causal=causal, positions=positions)


@pytest.mark.parametrize(("outputs", "causal"), [(None, None), (4, None), (4, True), (4, False)])
def test_errors_of_the_parameters_are_explained_and_a_gate_is_not(outputs, causal):
    rng = np.random.default_rng(3)
    model = layer(rng, outputs=outputs)
    near = Attention(*(block * (1 + 1e-8 * rng.normal(size=block.shape)) for block in (model.W, model.V, model.c)))

    def gated(X, *args, **kind):
        answers = model(X, *args, **kind)
        return answers * (1 + 1e-8 * np.tanh(answers))

    for target, foreign in ((near, False), (gated, True)):
        seen = seen_of(target, model, rng, causal=causal)
        rounding = np.full(seen.answers.shape, 1e-13)
        assert (seen.deviations > 100 * rounding).any()
        assert (unexplained(seen, model, rounding, rng) > 100).any() == foreign


def test_few_answers_ask_for_more_and_many_do_not():
    rng = np.random.default_rng(0)
    model = layer(rng, outputs=None)
    seen = seen_of(model, model, rng)
    assert sequences_for(seen, model) == np.ceil(PROOF.beside * model.sizes(None).parameters)


@pytest.mark.parametrize(("outputs", "seed"), [(None, 0), (None, 1), (5, 2), (9, 3)])
def test_several_heads_with_a_foreign_body_of_a_billionth_are_refused(outputs, seed):
    rng = np.random.default_rng(seed)
    model = layer(rng, outputs=outputs)

    def target(X):
        answers = model(X)
        return answers + 1e-9 * (model(X[:, -12:]) - answers)

    found = us.recover(target, width=5, seed=seed, on_failure="return")
    assert found.status is us.Status.NOT_IN_FAMILY
    assert "something else takes part" in found.message


@pytest.mark.parametrize("seed", range(4))
def test_heads_whose_values_nearly_depend_on_each_other_are_no_strangers(seed):
    rng = np.random.default_rng(seed)
    W, V = rng.normal(size=(3, 8, 8)) / 3, rng.normal(size=(3, 8, 8))
    V[1] = V[0] + 3e-3 * V[1]
    assert us.recover(Attention(W, V), seed=seed).status.success
