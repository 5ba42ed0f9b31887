"""Rounded answers that miss a model by more than rounding: noise before the rounding, or something faint that takes part."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.proof.noisy import alike_by_chance

STEP = 1e-4


@pytest.mark.parametrize("noise", [0.35, 0.5, 0.9])
def test_the_chance_that_noise_leaves_a_rounded_answer_alike(noise):
    rng = np.random.default_rng(0)
    exact, hidden = rng.random(200_000), np.sqrt(noise**2 - 1 / 12)
    first, second = (np.rint(exact + hidden * rng.normal(size=exact.shape)) for _ in range(2))
    same = np.mean(first == second)
    assert alike_by_chance(noise * STEP, 10**12, STEP, 1) == pytest.approx(same, abs=5e-3)
    assert alike_by_chance(noise * STEP, 10**12, STEP, 8) == pytest.approx(same**8, rel=0.1)


def test_noise_known_from_few_answers_proves_nothing():
    assert alike_by_chance(0.35, 20, 1.0, 32) == 1.0


def head(seed):
    rng = np.random.default_rng(seed)
    return us.Attention.single(rng.normal(size=(4, 4)) / 2, rng.normal(size=4), c=rng.normal(size=4))


def test_another_head_of_one_rounding_step_in_longer_sequences_is_no_noise():
    messages = []
    for seed, effect in ((2, 1.0), (4, 0.5), (5, 1.0)):
        one, other = head(seed), us.Attention.single(head(seed + 50).W[0], head(seed + 50).V[0])

        def target(X, one=one, other=other, share=effect * STEP):
            return np.round(one(X) + share * (X.shape[1] > 11) * other(X), 4)

        found = us.recover(target, width=4, seed=1, budget=20_000, on_failure="return")
        assert not found.status.success
        messages.append(found.message)
    assert any("asked again got the same answers" in message for message in messages)


def test_noise_before_rounding_is_recovered():
    one, rng = head(3), np.random.default_rng(3)
    found = us.recover(
        lambda X: np.round(one(X) + 0.5 * STEP * rng.normal(size=len(X)), 4), width=4, seed=1, max_norm=4.0, budget=4000
    )
    assert found.status is us.Status.WITHIN_TOLERANCE
