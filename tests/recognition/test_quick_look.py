"""The cheap looks that decide what is tried first."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.demo import demo_oracle
from unsoftmax.desk import Desk
from unsoftmax.oracles import CallableOracle, Rounded
from unsoftmax.recognition.heads_or_not import blind_to_order, chooses, clipped, plainly_several
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


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("kind", ["plain", "bias", "flat beside others", "flat", "low rank", "tiny"])
def test_heads_of_the_family_choose_among_long_tokens(kind, outputs):
    W, c = RNG.normal(size=(3, D, D)), RNG.normal(size=(3, D)) if kind == "bias" else None
    W[: {"flat": 3, "flat beside others": 1}.get(kind, 0)] = 0.0
    if kind == "low rank":
        W = RNG.normal(size=(3, D, 1)) @ RNG.normal(size=(3, 1, D))
    layer = us.Attention(W * (1e-6 if kind == "tiny" else 1.0), RNG.normal(size=(3, D, outputs)), c)
    for seed in range(5):
        desk = desk_of(layer, seed)
        assert chooses(desk).passed
        assert desk.meter.phases["choice"].queries == (4 if "flat" in kind else 2)


BOUNDED = {
    "soft-cap": lambda X, W: 30 * np.tanh(np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T) / 30),
    "distance": lambda X, W: -0.5 * ((X - (X[:, -1] @ W.T)[:, None]) ** 2).sum(axis=2),
    "QK-norm": lambda X, W: 8 * np.einsum("bnd,bd->bn", unit(X), unit(X[:, -1] @ W.T)),
}


def unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)


@pytest.mark.parametrize("name", BOUNDED)
def test_other_scores_do_not_choose_the_outermost_of_long_tokens(name):
    layer = bounded(BOUNDED[name], 3, 4)
    assert all(chooses(desk_of(layer, seed)).passed is False for seed in range(5))
    assert chooses(desk_of(layer, max_norm=2.0)).passed is None


@pytest.mark.parametrize("window", [2, 3, 5, 8, 20, 60])
def test_a_window_hides_the_outermost_of_long_tokens(window):
    layer = us.Attention(RNG.normal(size=(3, D, D)), RNG.normal(size=(3, D, 4)))
    assert chooses(desk_of(lambda X: layer(X[:, -window:]))).passed is False


def bounded(scores, heads, outputs, width=D, rng=RNG):
    W, V = rng.normal(size=(heads, width, width)) / np.sqrt(width), rng.normal(size=(heads, width, outputs))

    def answer(X):
        raised = [np.exp(s - s.max(axis=1, keepdims=True)) for s in (scores(X, each) for each in W)]
        return sum(np.einsum("bn,bnd->bd", r / r.sum(axis=1, keepdims=True), X) @ v for r, v in zip(raised, V, strict=True))

    return answer


TABLE = np.random.default_rng(12).normal(size=(600, 8))


def turned(X):
    """Rotary positions: pairs of entries turn with the place of their token."""
    angle = np.arange(X.shape[1])[:, None] / 10.0 ** np.arange(4)
    even, odd = X[..., ::2], X[..., 1::2]
    return np.concatenate([even * np.cos(angle) - odd * np.sin(angle), even * np.sin(angle) + odd * np.cos(angle)], axis=-1)


STRANGERS = {
    "soft-cap": BOUNDED["soft-cap"],
    "QK-norm": BOUNDED["QK-norm"],
    "rotary": lambda X, W: np.einsum("bnd,bd->bn", turned(X), turned(X)[:, -1] @ W.T),
    "window": lambda X, W: np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T) + np.where(np.arange(X.shape[1])[::-1] < 12, 0.0, -np.inf),
    "kernel": BOUNDED["distance"],
    "slope": lambda X, W: np.einsum("bnd,bd->bn", X, X[:, -1] @ W.T) - 0.1 * np.arange(X.shape[1])[::-1],
}


@pytest.mark.parametrize("outputs", [1, 8])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_of_any_number_of_heads_are_refused_within_300_questions(name, heads, outputs):
    target = bounded(STRANGERS[name], heads, outputs, width=8, rng=np.random.default_rng(0))  # the same in whatever order tests run
    found = us.recover(target, width=8, seed=5, on_failure="return")
    assert found.status is us.Status.NOT_IN_FAMILY
    looked_back = found.account.phases["sentinels"].queries  # closer where chance wants it
    assert found.queries - looked_back + (found.check.sequences if found.check else 0) <= 290


@pytest.mark.parametrize("name", ["sink", "positions"])
def test_tokens_that_nobody_sent_are_seen_within_300_questions(name):
    W, v = RNG.normal(size=(8, 8)) / np.sqrt(8), RNG.normal(size=8)
    head = us.Attention.single(W, v)

    def answer(X):
        return head(X + TABLE[: X.shape[1]] if name == "positions" else np.concatenate([np.zeros_like(X[:, :1]), X], axis=1))

    for seed in range(2):
        found = us.recover(answer, width=8, seed=seed, on_failure="return")
        assert found.status is us.Status.NOT_IN_FAMILY
        assert found.queries <= 300


def test_three_scalar_heads_pay_no_calibration():
    found = us.recover(demo_oracle("attention", width=6, heads=3), seed=1)
    assert found.status is us.Status.EXACT
    assert "calibration" not in found.facts["phases"]
