"""Error bars brought to the size that fresh answers show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import stdtrit

from unsoftmax.models import Floats
from unsoftmax.precision.law import Floor
from unsoftmax.proof.compare import Compared, predicted_as
from unsoftmax.proof.noisy import doubt
from unsoftmax.proof.settings import PROOF
from unsoftmax.results import Bounds, Learned


def fitting_bars(learned: Learned, floor: Floor, seen: Compared, own: Floats, rng: np.random.Generator) -> Bounds | None:
    """The bars of what was learned, as wide as fresh answers say; None where they stay as they are.

    Bars from rehearsals assume how far answers are off. The models of the rehearsals say how far fresh answers would then lie from
    the model; the target's lie nearer or farther, and so do the parameters. Other bars only grow, by the misfit that was let pass:
    effects below the tolerance must not hide behind bars of rounding.

    Args:
        learned: model and bars; nothing is done where there are none, or certified ones.
        floor: precision of the answers.
        seen: fresh answers beside predictions.
        own: how far each answer is off by its precision.
        rng: draws models within the bars.
    """
    bounds = learned.bounds
    if bounds is None or bounds.certified:
        return None
    if learned.rehearsals:
        written = PROOF.written * 2.0**-floor.bits
        scores, values, constant = _as_rehearsed(learned, seen, written, rng)
        scaled = _scaled(bounds, scores, 1.0 if learned.values_again else values, constant)
        return replace(scaled, b=_of_constants(scaled.b, learned, floor, seen))
    if floor.random:
        return None
    rounding = PROOF.unremarkable * max(floor.relative, 2.0**-50) * np.abs(seen.answers).max()
    left = np.maximum(seen.deviations - own - rounding, 0.0)
    if not left.any():
        return None
    doubts = doubt(learned.model, bounds, rng, lambda other: predicted_as(seen, other))
    growth = float(np.sqrt(np.mean(left**2) / max(float(np.mean(doubts)), np.finfo(float).tiny)))
    return _scaled(bounds, growth, growth, growth) if growth > 1.0 else None


def _as_rehearsed(learned: Learned, seen: Compared, written: float, rng: np.random.Generator) -> tuple[float, float, float]:
    """How far fresh answers lie from the model, in terms of what the rehearsals expect: all, those to one token, and these whole.

    Of all, median or mean, whichever is more. Few answers to one token are asked: their Student factor is in the number. Writing an
    answer down leaves out a share ``written`` of it, which hides the rest beside a large constant: what cannot show is as expected.
    A constant is itself an answer, and errs as whole ones do: counted is what writing it down does not bring.
    """
    models = (learned.model, *learned.rehearsals)
    whole = [predicted_as(seen, model) for model in models]
    hidden = (written * whole[0]) ** 2

    def expected(here: Floats, *others: Floats) -> Floats:
        off = learned.answers_off * np.abs(here)
        mean: Floats = np.mean([(other - here + off * rng.normal(size=off.shape)) ** 2 for other in others], axis=0)
        return mean

    mixed = [told - model.attentions[0].b for told, model in zip(whole, models, strict=True)]
    rows = np.maximum((expected(*mixed) + hidden).mean(axis=1), np.finfo(float).tiny)
    deviations = (seen.deviations**2).mean(axis=1)
    typical = float(np.median(np.sqrt(deviations / rows))) / (PROOF.normal if seen.deviations.shape[1] == 1 else 1.0)
    least = max(written / learned.answers_off, float(np.sqrt(hidden.mean() / rows.mean())))
    scores = max(least, typical, float(np.sqrt(deviations.mean() / rows.mean())))
    alone = seen.lengths == 1
    if not alone.any():
        return scores, scores, scores
    few = float(stdtrit(alone.sum() * seen.deviations.shape[1], 0.975)) / PROOF.two_sided
    all_of_them = np.maximum(expected(*whole).mean(axis=1), np.finfo(float).tiny)
    values, constant = (float(np.mean((deviations / sizes)[alone])) for sizes in (rows, all_of_them))
    beyond = max(constant - (written / learned.answers_off) ** 2, 0.0)
    return scores, max(least, few * float(np.sqrt(values))), few * float(np.sqrt(beyond))


def _sums(learned: Learned, floor: Floor) -> bool:
    """Whether values that were asked again err by more than writing them down explains: then answers are sums in short numbers."""
    if not learned.values_again or learned.bounds is None or learned.bounds.V is None:
        return False
    (layer,) = learned.model.attentions
    return bool(
        np.mean(learned.bounds.V**2) > PROOF.sums * np.mean((PROOF.two_sided * replace(floor, cast=True).written(layer.V)) ** 2)
    )


def _of_constants(bars: Floats | None, learned: Learned, floor: Floor, seen: Compared) -> Floats | None:
    """95% of half the last digit that a constant is written with, and ``bars``, what its answer errs by beyond that.

    A single one may be a sum that nearly cancels, and err as other answers do; several say by their sizes how large its terms are.
    """
    b = np.asarray(learned.model.attentions[0].b)
    if bars is None or not b.any():
        return bars
    alone = seen.deviations[seen.lengths == 1]
    if b.size == 1 and alone.size and (floor.exact or _sums(learned, floor)):
        bars = np.maximum(bars, float(stdtrit(alone.size, 0.975)) * np.sqrt(np.mean(alone**2)))
    last = PROOF.evenly * replace(floor, cast=True).written(b) * (b != 0)
    return np.asarray(np.sqrt(bars**2 + last**2))


def _scaled(bounds: Bounds, scores: float, values: float, constant: float) -> Bounds:
    blocks = {"W": (bounds.W, scores), "V": (bounds.V, values), "c": (bounds.c, scores), "b": (bounds.b, constant)}
    scaled = {name: None if bars is None else factor * np.asarray(bars) for name, (bars, factor) in blocks.items()}
    return Bounds(kind="estimated", **scaled)
