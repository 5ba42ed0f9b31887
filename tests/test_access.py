"""`recover` through every kind of access: tokens only, fixed probes, bounded, noisy, rounded and promised answers, known grids."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.oracles import CallableOracle, Clipped, Noisy, Rounded, Tokens


def head(width=5, seed=0):
    rng = np.random.default_rng(seed)
    return us.Attention.single(W=rng.normal(size=(width, width)) / np.sqrt(width), v=rng.normal(size=width))


def longest(oracle):
    """The same target, and the length of the longest token that it was sent."""
    seen = [0.0]

    def target(X):
        seen[0] = max(seen[0], float(np.linalg.norm(X, axis=-1).max()))
        return oracle(X)

    return target, seen


def test_token_ids_are_enough():
    truth = head(4)
    table = np.random.default_rng(1).normal(size=(40, 4))
    sent = []

    def target(ids):
        sent.append(ids)
        return truth(table[ids])

    found = us.recover(Tokens(target, table))
    assert found.status is us.Status.EXACT
    assert us.distance(found.model, truth) < 1e-9
    assert all(np.issubdtype(ids.dtype, np.integer) and ids.min() >= 0 and ids.max() < 40 for ids in sent)


def test_all_probes_may_be_drawn_before_the_first_answer():
    asked = []

    def watched(truth):
        def target(X):
            asked.append(X.copy())
            return truth(X)

        return target

    found = us.recover(watched(head(seed=1)), width=5, adaptive=False)
    assert us.distance(found.model, head(seed=1)) < 1e-10
    first = asked[: len(asked) // 2 + 1]
    asked = []
    us.recover(watched(head(seed=2)), width=5, adaptive=False)
    assert all(np.array_equal(a, b) for a, b in zip(first[:2], asked[:2], strict=True))  # other answers, same questions


def test_answers_promised_within_a_tolerance_give_certified_bounds():
    truth = head(4)
    rng = np.random.default_rng(3)
    target, seen = longest(truth)
    found = us.recover(lambda X: target(X) + rng.uniform(-1e-4, 1e-4, size=len(X)), width=4, tolerance=1e-4, max_norm=3.0)
    assert found.status is us.Status.WITHIN_TOLERANCE
    assert found.bounds.kind == "certified"
    assert np.all(np.abs(found.model.W - truth.W) <= found.bounds.W)
    assert np.all(np.abs(found.model.V - truth.V) <= found.bounds.V)
    assert seen[0] <= 3.0


def test_noise_between_bounded_tokens_gives_error_bars():
    truth = head(4)
    target, seen = longest(Noisy(CallableOracle(truth), scale=1e-4, seed=5))
    found = us.recover(target, width=4, max_norm=3.0, budget=4000)
    assert found.status is us.Status.WITHIN_TOLERANCE
    assert found.bounds.kind == "estimated"
    assert np.mean(np.abs(found.model.W - truth.W) <= found.bounds.W) > 0.7
    assert seen[0] <= 3.0


def test_long_tokens_beat_rounding():
    found = us.recover(Rounded(CallableOracle(head()), decimals=1))
    assert found.status.success
    assert us.distance(found.model, head()) < 1e-12


def test_a_target_that_shortens_tokens_is_asked_within_its_limit():
    found = us.recover(Clipped(CallableOracle(head(4)), max_norm=4.0), on_failure="return")
    assert not found.status.success or us.distance(found.model, head(4)) < 1e-6


def test_weights_on_a_grid_cost_few_questions_and_come_out_to_the_last_bit():
    rng = np.random.default_rng(4)
    truth = us.Attention.single(W=rng.integers(-127, 128, size=(8, 8)) / 128.0, v=rng.normal(size=8))
    found = us.recover(truth, grid=1 / 128)
    assert found.status is us.Status.EXACT
    assert np.array_equal(found.model.W, truth.W)
    assert found.queries < us.recover(truth).queries


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"family": "perceptron"}, "perceptron"),
        ({"rank": -1}, "rank"),
        ({"rank": 6}, "width is only 5"),
        ({"heads": 0}, "heads"),
        ({"heads": 1.5}, "heads"),
        ({"budget": True}, "budget"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"max_norm": float("inf")}, "max_norm"),
        ({"accuracy": -1.0}, "accuracy"),
        ({"grid": 0.0}, "grid"),
        ({"grid": [1.0, 2.0]}, "one for each of the 5 rows"),
        ({"on_failure": "ignore"}, "on_failure"),
    ],
)
def test_misuse_is_told_before_anything_is_asked(settings, reason):
    def target(X):
        raise AssertionError("asked")

    with pytest.raises(ValueError, match=reason):
        us.recover(target, width=5, **settings)
