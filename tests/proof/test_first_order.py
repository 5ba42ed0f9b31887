"""How far scalar answers may be off to first order: as many draws say, and the same on a device."""

from dataclasses import replace

import numpy as np
import pytest

from unsoftmax.models import Attention
from unsoftmax.precision.law import Floor
from unsoftmax.proof.compare import Compared, predicted_as
from unsoftmax.proof.doubts import strangeness
from unsoftmax.proof.first_order import Variances, first_order
from unsoftmax.proof.fresh import Fresh, fresh_batches
from unsoftmax.proof.limits import LIMITS
from unsoftmax.proof.noisy import doubt
from unsoftmax.proof.settings import PROOF
from unsoftmax.results import Bounds, Learned

SIZE = 1e-6  # of the errors; the second order is as small beside the first


def compared(rng, heads):
    layer = Attention(rng.normal(size=(heads, 6, 6)) / 3, rng.normal(size=(heads, 6)), c=rng.normal(size=(heads, 6)), b=0.3)
    batches = tuple(fresh_batches(layer, rng))
    answers = np.concatenate([layer.answer(batch.sequences) for batch in batches])
    return layer, Compared(answers, answers, batches)


def bars(rng, layer, alike):
    return Bounds(
        kind="estimated",
        **{
            name: np.broadcast_to(SIZE, block.shape) if alike else SIZE * rng.random(block.shape)
            for name, block in (("W", layer.W), ("V", layer.V), ("c", layer.c), ("b", layer.b))
        },
    )


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("alike", [True, False])
def test_variances_are_those_of_many_draws(alike, heads):
    rng = np.random.default_rng(5)
    layer, seen = compared(rng, heads)
    bounds = bars(rng, layer, alike)
    foretold = first_order(seen, layer, None, Variances.within(bounds, None))[0]
    drawn = np.mean([doubt(layer, bounds, rng, lambda other: predicted_as(seen, other))[:, 0] for _ in range(60)], axis=0)
    assert 0.8 < np.median(foretold / drawn) < 1.2
    assert np.all((foretold / drawn > 0.6) & (foretold / drawn < 1.7))  # 480 draws know a variance to a fifteenth


def test_shaken_scores_move_answers_as_foretold():
    rng = np.random.default_rng(6)
    layer, seen = compared(rng, 1)
    foretold = first_order(seen, layer, None, Variances.of_scores(layer, SIZE, None))[0]
    moved = [(predicted_as(seen, layer.shaken(SIZE, rng)) - predicted_as(seen, layer))[:, 0] ** 2 for _ in range(300)]
    np.testing.assert_allclose(foretold, np.mean(moved, axis=0), rtol=0.5, atol=1e-20)


def test_a_device_says_the_same():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    layer, seen = compared(rng, 1)
    bounds, like = bars(rng, layer, False), torch.empty(0, dtype=torch.float64)
    there = replace(seen, batches=tuple(Fresh(torch.tensor(batch.sequences), batch.natural) for batch in seen.batches))
    here = first_order(seen, layer, None, Variances.within(bounds, None))
    np.testing.assert_allclose(first_order(there, layer, like, Variances.within(bounds, like)), here, rtol=1e-10)


@pytest.mark.parametrize("times", [0.5, 40.0])
def test_error_bars_are_asked_only_where_rounding_of_the_answers_does_not_explain_all(times, monkeypatch):
    rng = np.random.default_rng(8)
    layer, seen = compared(rng, 1)
    floor = Floor(kind="exact", relative=2.0**-50)
    largest = np.abs(seen.answers).max(initial=0.0, where=seen.natural[:, None])
    off = times * LIMITS.foreign * PROOF.unremarkable * floor.relative * largest
    at = np.flatnonzero(seen.natural)[0]
    seen = replace(seen, predicted=seen.predicted + off * (np.arange(len(seen.answers)) == at)[:, None])
    exact = Bounds(kind="estimated", W=np.broadcast_to(1e-30, layer.W.shape), V=np.zeros(layer.V.shape))
    learned = Learned(model=layer, ambiguity="", bounds=exact)
    called = []
    monkeypatch.setattr("unsoftmax.proof.doubts.first_order", lambda *some: called.append(some) or first_order(*some))
    strange = strangeness(seen, learned, floor, rng, allowed=LIMITS.foreign)
    assert bool(called) == (times > 1)
    assert (strange > 1).any() == (times > 1)
    assert int(strange.argmax()) == at
