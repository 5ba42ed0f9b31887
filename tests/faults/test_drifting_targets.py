"""Whole runs against targets that change: always caught, with the reason; honest targets are never accused."""

import numpy as np
import pytest

import unsoftmax as us

WIDTH = 8


def head(seed):
    rng = np.random.default_rng(seed)
    return us.Attention.single(W=rng.normal(size=(WIDTH, WIDTH)), v=rng.normal(size=WIDTH))


class Swapped:
    """New weights after a number of questions."""

    width = WIDTH

    def __init__(self, seed):
        self.before, self.behind = head(2 * seed), head(2 * seed + 1)
        self.left = int(np.random.default_rng(seed).integers(2, WIDTH * WIDTH + WIDTH))

    def __call__(self, X):
        old = min(len(X), self.left)
        self.left -= old
        parts = [self.before(X[:old])] * (old > 0) + [self.behind(X[old:])] * (old < len(X))
        return np.concatenate(parts)


class RoundRobin:
    """Two replicas with different weights that take turns, call by call."""

    width = WIDTH

    def __init__(self, seed):
        self.models, self.calls = (head(2 * seed), head(2 * seed + 1)), 0

    def __call__(self, X):
        self.calls += 1
        return self.models[self.calls % 2](X)


@pytest.mark.parametrize("kind", [Swapped, RoundRobin])
@pytest.mark.parametrize("seed", range(50, 58))
def test_contradictions_are_called_drift(kind, seed):
    with pytest.raises(us.errors.DriftingError) as caught, np.errstate(all="ignore"):
        us.recover(kind(seed), seed=seed)
    assert caught.value.recovery.status is us.Status.DRIFTING
    assert caught.value.evidence["asked_again"] > 0


@pytest.mark.parametrize("seed", range(50, 54))
def test_an_honest_float32_target_is_never_accused(seed):
    torch = pytest.importorskip("torch")
    model = head(seed)
    W, v = (torch.tensor(np.array(value[0]), dtype=torch.float32) for value in (model.W, model.V))

    def answer(X):
        x = torch.tensor(X, dtype=torch.float32)
        scores = torch.einsum("bij,bj->bi", x, x[:, -1] @ W.T)
        return (torch.softmax(scores, -1) * (x @ v)).sum(-1).double().numpy()

    assert us.recover(answer, width=WIDTH, seed=seed).status is us.Status.WITHIN_TOLERANCE
