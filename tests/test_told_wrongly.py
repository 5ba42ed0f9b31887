"""What a caller said wrongly, or a mode that knows some models of a family alone, excludes nobody from the family."""

import numpy as np
import pytest

import unsoftmax as us


def layer(heads: int = 1, bias: bool = False, width: int = 4) -> us.Attention:
    rng = np.random.default_rng(heads)
    W, V = rng.normal(size=(heads, width, width)) / 2, rng.normal(size=(heads, width))
    return us.Attention(W, V, rng.normal(size=(heads, width)) if bias else None)


def shifted(X):
    """Two heads, off by less than a tolerance of 1e-4."""
    answers = layer(2)(X)
    return answers + 1e-4 * np.sin(1e3 * answers)


@pytest.mark.parametrize(
    ("target", "wishes"),
    [
        (layer(bias=True), {"adaptive": False}),
        (layer(2), {"adaptive": False}),
        (layer(2), {"grid": 0.01}),
        (layer(), {"grid": 0.01}),
        (layer(), {"rank": 2}),
        (layer(2), {"tolerance": 1e-4, "max_norm": 6.0}),
        (shifted, {"tolerance": 1e-4, "max_norm": 6.0}),
    ],
)
def test_heads_are_not_called_strangers(target, wishes):
    found = us.recover(target, width=4, seed=1, on_failure="return", **wishes)
    assert found.status is us.Status.INCONCLUSIVE
    assert us.diagnose(target, width=4, seed=1).inside or target is shifted


def test_positions_stay_strangers_where_a_rank_is_told():
    def slanted(X):
        return layer()(X) + X[:, 0, 0] / len(X[0])

    found = us.recover(slanted, width=4, rank=2, seed=1, on_failure="return")
    assert found.status is us.Status.NOT_IN_FAMILY


def network(X, gated):
    rng = np.random.default_rng(3)
    A, B, out = rng.normal(size=(3, 6, 4))
    z = X[:, -1] @ A.T
    return (z / (1 + np.exp(-np.clip(z, -700, 700))) * (X[:, -1] @ B.T if gated else 1)) @ out


@pytest.mark.parametrize(
    "target",
    [lambda X: network(X, gated=True).astype(np.float32), lambda X: network(X, gated=False).round(6)],
    ids=["float32", "rounded"],
)
def test_networks_whose_answers_are_coarse_are_not_called_strangers(target):
    found = us.recover(target, width=4, seed=1, on_failure="return")
    assert found.status.name in ("INCONCLUSIVE", "TOO_NOISY")
    assert "inconclusive" in us.diagnose(target, width=4, seed=1).family
