"""The cheap looks that decide what is tried first."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.demo import demo_oracle
from unsoftmax.desk import Desk
from unsoftmax.oracles import CallableOracle, Rounded
from unsoftmax.recognition.heads_or_not import blind_to_order, clipped, plainly_several
from unsoftmax.recognition.quick_relu import ALIKE, KINKS, quick_look
from unsoftmax.wishes import Wishes

RNG = np.random.default_rng(11)
D = 6


def desk_of(target, seed=0, **wishes):
    return Desk(target if hasattr(target, "width") else CallableOracle(target, width=D), Wishes(seed=seed, **wishes))


def facts(look):
    return {fact.test: fact.passed for fact in look.facts}


@pytest.mark.parametrize("residual", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_a_transformer_with_relu_is_known_for_less_than_a_hundred_questions(seed, residual):
    desk = desk_of(demo_oracle("transformer", width=8, hidden=16, residual=residual, seed=seed), seed)
    look = quick_look(desk)
    if look.holds:  # where kinks crowd, the whole diagnosis decides
        assert look.listens
        assert desk.meter.spent <= 100
    else:
        assert facts(look).get(ALIKE) is not False


def test_most_transformers_are_known_at_once():
    known = [quick_look(desk_of(demo_oracle("transformer", width=8, hidden=16, seed=s), s)).holds for s in range(12)]
    assert sum(known) >= 10


def test_a_network_is_deaf_to_earlier_tokens():
    looks = [quick_look(desk_of(demo_oracle("ffn", width=8, hidden=16, seed=s), s)) for s in range(6)]
    assert sum(look.holds for look in looks) >= 4
    assert not any(look.listens for look in looks)


SMOOTH = RNG.normal(size=(D, 12)), RNG.normal(size=12)


@pytest.mark.parametrize("bend", [np.tanh, lambda z: z / (1 + np.exp(-z)), lambda z: np.logaddexp(0, z)])
def test_smooth_networks_are_left_to_others_early(bend):
    desk = desk_of(lambda X: bend(X.mean(axis=1) @ SMOOTH[0]) @ SMOOTH[1])
    look = quick_look(desk)
    assert facts(look)[KINKS] is not True
    assert desk.meter.spent <= 45


def test_positions_behind_a_network_are_seen():
    inner = demo_oracle("transformer", width=D, hidden=10, seed=3)
    look = quick_look(desk_of(lambda X: inner(X * (1 + np.arange(X.shape[1]))[None, :, None])))
    assert not look.holds


@pytest.mark.parametrize(
    "wrap", [lambda o: Rounded(o, decimals=6), lambda o: CallableOracle(lambda X: o(X).astype(np.float32), width=8)]
)
def test_coarse_answers_need_a_longer_look(wrap):
    assert not quick_look(desk_of(wrap(demo_oracle("transformer", width=8, hidden=16)))).holds


def test_one_head_keeps_two_tokens_on_the_line_of_their_answers_and_two_heads_do_not():
    for seed in range(5):
        one, two = (demo_oracle("attention", width=D, heads=h, outputs=4, seed=seed) for h in (1, 2))
        assert plainly_several(desk_of(one)).passed is True
        assert plainly_several(desk_of(two)).passed is False
        assert plainly_several(desk_of(demo_oracle("attention", width=D, heads=2, seed=seed))).passed is None


def test_order_shows_where_it_matters():
    head = us.Attention.single(RNG.normal(size=(D, D)), RNG.normal(size=D))
    assert blind_to_order(desk_of(head)).passed
    assert blind_to_order(desk_of(lambda X: head(X + np.arange(X.shape[1])[None, :, None]))).passed is False


def test_clipped_tokens_show_at_once():
    head = us.Attention.single(RNG.normal(size=(D, D)), RNG.normal(size=D), b=2.0)

    def clipping(X):
        norms = np.linalg.norm(X, axis=-1, keepdims=True)
        return head(X * np.minimum(1.0, 5.0 / np.maximum(norms, 1e-9)))

    assert clipped(desk_of(head)).passed
    assert clipped(desk_of(clipping)).passed is False


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("soft-cap", lambda s, X: 20 * np.tanh(s / 20)),
        ("sink", None),
        ("positions", None),
    ],
)
def test_strangers_that_look_like_one_head_are_refused_within_300_questions(name, target):
    W, v = RNG.normal(size=(8, 8)) / np.sqrt(8), RNG.normal(size=8)
    table = RNG.normal(size=(600, 8))

    def answer(X):
        if name == "positions":
            X = X + table[: X.shape[1]]
        if name == "sink":
            X = np.concatenate([np.zeros_like(X[:, :1]), X], axis=1)
        scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T)
        scores = scores if target is None else target(scores, X)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("bn,bnd->bd", weights / weights.sum(axis=1, keepdims=True), X) @ v

    for seed in range(2):
        found = us.recover(answer, width=8, seed=seed, on_failure="return")
        assert found.status is us.Status.NOT_IN_FAMILY
        assert found.queries <= 300


def test_three_scalar_heads_pay_no_calibration():
    found = us.recover(demo_oracle("attention", width=6, heads=3), seed=1)
    assert found.status is us.Status.EXACT
    assert "calibration" not in found.facts["phases"]
