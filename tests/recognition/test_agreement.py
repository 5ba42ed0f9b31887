"""`recover` and `diagnose` say the same of a target, however faint what is foreign in it: kinds on which they once did not."""

import numpy as np
import pytest

import unsoftmax as us


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


class Head:
    def __init__(self, seed, d=5):
        self.rng = np.random.default_rng(seed)
        self.W, self.v = self.rng.normal(size=(d, d)) / np.sqrt(d), self.rng.normal(size=d)

    def weights(self, X):
        return np.einsum("bnd,de,be->bn", X, self.W, X[:, -1])

    def __call__(self, X):
        return np.einsum("bn,bnd,d->b", softmax(self.weights(X)), X, self.v)


def clips_values(head, effect):
    return lambda X: np.einsum("bn,bn->b", softmax(head.weights(X)), np.clip(X @ head.v, -1 / effect, 1 / effect))


def clips_answers(head, effect):
    return lambda X: np.clip(head(X), -1 / effect, 1 / effect)


def rounds_tokens(head, effect):
    return lambda X: head(effect * np.round(X / effect))


def rounds_by_chance(head, effect):
    return lambda X: head(effect * np.floor(X / effect + head.rng.random(X.shape)))


def caps_scores(head, effect):
    def answer(X):
        return np.einsum("bn,bnd,d->b", softmax(np.tanh(effect * head.weights(X)) / effect), X, head.v)

    return answer


def weighs_by_relu(head, effect):
    def answer(X):
        weights = np.maximum(head.weights(X), 0)
        other = np.einsum("bn,bnd,d->b", weights / (weights.sum(axis=1, keepdims=True) + 1e-9), X, head.v)
        return head(X) + effect * (other - head(X))

    return answer


def rounds_weights(head, effect):
    return lambda X: np.einsum("bn,bnd,d->b", effect * np.round(softmax(head.weights(X)) / effect), X, head.v)


def rounds_scores(head, effect):
    return lambda X: np.einsum("bn,bnd,d->b", softmax(effect * np.round(head.weights(X) / effect)), X, head.v)


def drops_tails(head, effect):
    def answer(X):
        weights = softmax(head.weights(X))
        weights = np.where(weights < effect, 0.0, weights)
        return np.einsum("bn,bnd,d->b", weights / weights.sum(axis=1, keepdims=True), X, head.v)

    return answer


def bends_answers(head, effect):
    return lambda X: np.tanh(effect * head(X)) / effect


def clips_scores(head, effect):
    return lambda X: np.einsum("bn,bnd,d->b", softmax(np.clip(head.weights(X), -1 / effect, 1 / effect)), X, head.v)


def leaks(head, effect):
    """A share of the mean of a batch's answers is taken off each."""
    return lambda X: head(X) - effect * head(X).mean(axis=0)


def jumps_far_out(head, effect):
    """Another head takes part where a token lies far along a direction."""
    other, along = Head(99), np.random.default_rng(5).normal(size=5)
    return lambda X: head(X) + effect * (X @ along > 3 * np.linalg.norm(along)).any(axis=1) * other(X)


def warms_by_side(head, effect):
    """Scores are larger on one side of a plane of last tokens, and smaller on the other."""
    across = np.random.default_rng(5).normal(size=5)

    def answer(X):
        scores = head.weights(X) * (1 + effect * np.sign(X[:, -1] @ across))[:, None]
        return np.einsum("bn,bnd,d->b", softmax(scores), X, head.v)

    return answer


KINDS = [
    (clips_values, (1e-9, 3e-7, 1e-4, 1e-2)),
    (clips_answers, (1e-8, 1e-5, 1e-2)),
    (rounds_tokens, (1e-8, 1e-6, 1e-3)),
    (rounds_by_chance, (1e-8, 1e-6)),
    (caps_scores, (1e-8, 1.5e-7, 4e-7, 2e-6)),
    (weighs_by_relu, (1e-8, 3e-7, 1e-4)),
    (rounds_weights, (1e-10, 1e-8)),
    (rounds_scores, (2e-10, 1e-7)),
    (drops_tails, (1e-9, 1e-6)),
    (bends_answers, (5e-7, 3e-5, 6e-4)),
    (clips_scores, (0.03, 0.04)),
    (leaks, (1e-9, 1e-4)),
    (jumps_far_out, (1e-4, 0.09)),
    (warms_by_side, (1e-6, 1e-3)),
]


@pytest.mark.parametrize(("kind", "effect"), [(kind, effect) for kind, effects in KINDS for effect in effects])
def test_what_is_recovered_is_no_stranger_and_what_is_of_no_family_is_not_inside(kind, effect):
    seed = int(-1000 * np.log10(effect))
    found = us.recover(kind(Head(seed), effect), width=5, seed=seed, on_failure="return")
    told = us.diagnose(kind(Head(seed), effect), width=5)
    assert told.queries <= 200 + 4 * 5
    if found.status.success:
        assert told.inside or "inconclusive" in told.family
    if found.status is us.Status.NOT_IN_FAMILY:
        assert not told.inside


@pytest.mark.parametrize("kind", [clips_values, clips_answers])
def test_what_is_cut_far_away_is_recovered_from_shorter_tokens(kind):
    head = Head(7)
    found = us.recover(kind(head, 1e-5), width=5, seed=0)
    assert found.status is us.Status.EXACT
    assert us.distance(found.model, us.Attention.single(head.W, head.v)) < 1e-9
    assert any("none longer than" in note for note in found.account.notes)
    assert "none longer than" in found.check.covers


@pytest.mark.parametrize("seed", [0, 2, 3, 6, 8])
def test_scores_that_are_cut_beyond_natural_tokens_are_left_open_by_a_diagnosis(seed):
    """A recovery looks at natural tokens, which meet that once in many thousand or never."""
    assert us.diagnose(clips_scores(Head(seed), 0.04), width=5).family == "outside: inconclusive (token length)"


@pytest.mark.parametrize("seed", range(3))
def test_answers_that_leak_into_their_batch_by_less_than_rounding_may_are_no_other_law(seed):
    assert us.diagnose(leaks(Head(seed), 1e-11), width=5).family == "attention"


def test_answers_that_leak_into_their_batch_by_more_are_told_so():
    told = us.diagnose(leaks(Head(3), 1e-2), width=5)
    assert told.family == "outside: answers depend on the batch"


@pytest.mark.parametrize("seed", range(10))
def test_jumps_are_told_before_questions_run_out(seed):
    assert us.diagnose(jumps_far_out(Head(seed), 0.09), width=5).family == "outside: not piecewise linear"


@pytest.mark.parametrize("effect", [1e-6, 1e-3])
def test_one_head_along_a_line_that_another_plane_excludes_is_none(effect):
    assert not us.diagnose(warms_by_side(Head(3), effect), width=5).inside


def test_one_answer_by_chance_of_all_leaves_a_diagnosis_open():
    head, calls = Head(3), [0]

    def answer(X):
        calls[0] += X.shape[1] == 37
        return head(X) + 1e-3 * (X.shape[1] == 37 and calls[0] == 1)

    told = us.diagnose(answer, width=5)
    assert told.family == "outside: inconclusive (power)"
    assert "asked twice" in told.reason


def test_what_is_cut_nearby_is_refused():
    found = us.recover(clips_values(Head(7), 0.05), width=5, seed=0, on_failure="return")
    assert not found.status.success
    assert not us.diagnose(clips_values(Head(7), 0.05), width=5).inside


def test_tokens_rounded_inside_are_named_by_both():
    found = us.recover(rounds_tokens(Head(3), 1e-6), width=5, seed=0, on_failure="return")
    assert found.status is us.Status.NOT_IN_FAMILY
    assert us.diagnose(rounds_tokens(Head(3), 1e-6), width=5).family == "outside: quantised evaluation"


def coarse(target, kind):
    noise = np.random.default_rng(9)
    if kind == "float32":
        return lambda X: target(X).astype(np.float32).astype(float)
    return lambda X: target(X) + 1e-7 * noise.normal(size=len(X))


@pytest.mark.parametrize("kind", ["float32", "noise"])
@pytest.mark.parametrize("seed", range(3))
def test_several_heads_through_coarse_answers_are_not_called_strangers(kind, seed):
    """One head is excluded, and several cannot be told through such answers: that is no proof of another family."""
    rng = np.random.default_rng(seed)
    layer = us.Attention(rng.normal(size=(2, 4, 4)) / 2, rng.normal(size=(2, 4)))
    found = us.recover(coarse(layer, kind), width=4, seed=seed, on_failure="return")
    assert found.status is not us.Status.NOT_IN_FAMILY
    if found.status is us.Status.INCONCLUSIVE:
        assert "stays open" in found.message


def test_one_head_by_name_that_is_none_is_refused_as_such():
    rng = np.random.default_rng(0)
    layer = us.Attention(rng.normal(size=(2, 4, 4)) / 2, rng.normal(size=(2, 4)))
    found = us.recover(coarse(layer, "float32"), width=4, heads=1, seed=0, on_failure="return")
    assert found.status is us.Status.NOT_IN_FAMILY


def test_heads_whose_values_are_cut_very_far_away_are_recovered():
    head = Head(11)
    found = us.recover(clips_values(head, 5e-10), width=5, seed=0)
    assert found.status is us.Status.EXACT
    assert us.diagnose(clips_values(head, 5e-10), width=5).family == "outside: inconclusive (token length)"


def test_answers_cast_to_float16_are_no_quantised_input():
    layer = us.Attention.single(Head(2).W, Head(2).v)
    told = us.diagnose(lambda X: layer(X).astype(np.float16).astype(float), width=5)
    assert told.inside or "inconclusive" in told.family


def test_a_token_dropped_now_and_then_is_told_as_chance():
    head, calls = Head(4), [0]

    def answer(X):
        scores = head.weights(X)
        if X.shape[1] > 40:
            calls[0] += 1
            if calls[0] % 3 == 0:  # every third long question lacks a token
                scores[:, 0] = -1e30
        return np.einsum("bn,bnd,d->b", softmax(scores), X, head.v)

    told = us.diagnose(answer, width=5)
    assert not told.inside
    assert told.family in ("outside: random answers", "outside: changed while asked", "outside: dropout")
