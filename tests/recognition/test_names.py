"""Names for targets that follow no law of the family: a guess with a reason, never "inside"."""

import numpy as np
import pytest
from hypothesis import given, settings
from tests.recognition.targets import D, case_of, head, heads, scores_of, tanh_network, through, weighted
from tests.strategies import seeds

from unsoftmax.errors import Sign
from unsoftmax.recognition.case import Shape
from unsoftmax.recognition.names import many_copies, name_affine, name_bent, residual_left_open
from unsoftmax.results import Floor

LAYER = head(seed=3)


def kind(verdict):
    return verdict.family.removeprefix("outside: ")


def test_a_residual_beside_fitted_heads_is_one():
    assert kind(name_affine(case_of(LAYER), 1.0, residual=True)) == "residual"


def test_a_maximum_and_a_residual_outweighmany_copies():
    skip = np.random.default_rng(0).normal(size=D)
    assert kind(name_affine(case_of(lambda X: LAYER(X) + X[:, -1] @ skip), 1.0, residual=False)) == "residual"


def test_normalised_keys_do_not_follow_the_size_of_tokens():
    def normalised(X):
        Z = X / np.maximum(np.linalg.norm(X, axis=-1, keepdims=True), 1e-300)
        return weighted(4.0 * scores_of(LAYER, Z), X) @ LAYER.V[0]

    assert kind(name_affine(case_of(normalised), 1.0, residual=False)) == "QK-norm"


def test_pooled_answers_have_no_last_token():
    def pooled(X):
        return weighted((X @ LAYER.W[0]).sum(axis=-1) * 1.0, X) @ LAYER.V[0]

    assert kind(name_affine(case_of(pooled), 1.0, residual=False)) == "pooled"


def test_other_scores_get_the_general_name_and_its_sign():
    capped = case_of(lambda X: weighted(2 * np.tanh(scores_of(LAYER, X) / 2), X) @ LAYER.V[0])
    verdict = name_affine(capped, 1.0, residual=False)
    assert verdict.signs == (Sign.OTHER_SCORES,)
    assert "soft-cap" in verdict.family


def test_without_questions_left_the_general_name_must_do():
    case = case_of(LAYER)
    case.limit = 0
    assert name_affine(case, 1.0, residual=False).signs == (Sign.OTHER_SCORES,)
    assert kind(name_bent(case, Shape.SMOOTH)) == "not one head before a network"


@settings(max_examples=10)
@given(seed=seeds)
def testmany_copies_outweigh_the_last_token_of_every_layer_of_heads(seed):
    seed %= 97
    case = case_of(heads(3, seed=seed), seed=seed)
    p, x = 0.25 * case.draw(2)
    assert many_copies(case, p, x) <= 1
    assert case.asked == 5


def test_a_norm_hides_the_length_of_one_token():
    verdict = name_bent(case_of(lambda X: X[:, -1, 0] / np.linalg.norm(X[:, -1], axis=1)), Shape.SMOOTH)
    assert kind(verdict) == "norm"


def test_a_smooth_target_with_as_many_outputs_as_a_token_has_is_left_to_recovery():
    target = through(head(seed=1), tanh_network(seed=1))
    case = case_of(target)
    case.outputs = D
    verdict = name_bent(case, Shape.SMOOTH)
    assert set(verdict.signs) == {Sign.UNDECIDED, Sign.RESIDUAL_OPEN}
    assert verdict == residual_left_open(case)


@pytest.mark.parametrize("shape", [Shape.PIECEWISE, Shape.UNCLEAR])
def test_coarse_answers_of_a_kinked_target_leave_it_open(shape):
    case = case_of(through(head(seed=1), tanh_network(seed=1)), floor=Floor(kind="float32", relative=2.0**-22))
    verdict = name_bent(case, shape)
    assert (Sign.UNDECIDED in verdict.signs) == (shape is Shape.PIECEWISE)
    assert verdict.family.startswith("outside: ")


def test_a_target_that_fails_while_it_is_named_gets_the_general_name():
    def fails(X):
        raise RuntimeError("gone")

    assert name_affine(case_of(fails), 1.0, residual=False).signs == (Sign.OTHER_SCORES,)
