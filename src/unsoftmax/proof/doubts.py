"""How far predictions are in doubt by what is not known of the parameters; nothing is asked of the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from array_api_compat import array_namespace

from unsoftmax.linalg import alike, on_host, short
from unsoftmax.models import Floats, Model
from unsoftmax.precision.law import Floor
from unsoftmax.proof.compare import Compared, computed_in, predicted_as, predictor
from unsoftmax.proof.drawn import natural_ones
from unsoftmax.proof.first_order import Variances, first_order, one_number
from unsoftmax.proof.fresh import Fresh, ordinary
from unsoftmax.proof.limits import LIMITS
from unsoftmax.proof.noisy import doubt
from unsoftmax.proof.settings import PROOF
from unsoftmax.results import Bounds, Learned


def moved(seen: Compared, model: Model, other: Model) -> Floats:
    """How far another model's predictions lie from those of ``model``, for every answer compared ``(rows, outputs)``."""
    apart: Floats = np.abs(predicted_as(seen, other) - predicted_as(seen, model))
    return apart


def doubts(seen: Compared, learned: Learned, rng: np.random.Generator) -> Floats | None:
    """How far every prediction may be off by what is not known of the parameters; None where nothing is said about that."""
    if learned.known_to > 0:
        return moved(seen, learned.model, learned.model.shaken(learned.known_to, rng))
    if learned.bounds is None or learned.bounds.W is None:
        return None
    return np.sqrt(doubt(learned.model, learned.bounds, rng, lambda other: predicted_as(seen, other)))


def by_rounding(seen: Compared, learned: Learned, floor: Floor, rng: np.random.Generator) -> Floats:
    """All that rounding of answers and of scores explains of each deviation ``(rows, outputs)``."""
    inside = moved(seen, learned.model, learned.model.shaken(LIMITS.shake * floor.relative, rng))
    explained: Floats = np.maximum(_of_answers(seen, floor) + LIMITS.shaken * inside, np.finfo(float).tiny)
    return explained


def _of_answers(seen: Compared, floor: Floor) -> Floats:
    """What rounding of the largest answers of each kind explains of an answer."""
    sizes = np.abs(seen.answers)
    largest = np.where(seen.natural[:, None], *(sizes[rows].max(axis=0, initial=0.0) for rows in (seen.natural, ~seen.natural)))
    return np.asarray(PROOF.unremarkable * floor.relative * largest)


def strangeness(
    seen: Compared, learned: Learned, floor: Floor, rng: np.random.Generator, *, allowed: float, like: Floats | None = None
) -> Floats:
    """Each row's deviation, of ``allowed`` times all that rounding of answers and scores and the error bars explain.

    What they do not explain no model of the family does, and nothing bounds it on other sequences, however faint it is here.
    Zeros where there are no bars; where rounding of the answers explains all, it is no more than that which is counted. With
    ``like`` scalar answers are looked at on its device.
    """
    explained = _of_answers(seen, floor)
    if (seen.deviations <= allowed * explained).all():
        return np.asarray((seen.deviations / np.maximum(allowed * explained, np.finfo(float).tiny)).max(axis=1))
    bounds, (layer, *_) = learned.bounds, learned.model.attentions
    scalar = seen.causal is None and layer.scalar
    if bounds is not None and bounds.W is not None and not learned.known_to and scalar:
        of_scores = Variances.of_scores(layer, LIMITS.shake * floor.relative, like)
        inside, bars = np.sqrt(first_order(seen, layer, like, of_scores, Variances.within(bounds, like)))[:, :, None]
    else:
        drawn = doubts(seen, learned, rng)
        if drawn is None:
            return np.zeros(len(seen.answers))
        inside, bars = moved(seen, learned.model, learned.model.shaken(LIMITS.shake * floor.relative, rng)), drawn
    explained = explained + LIMITS.shaken * inside + LIMITS.doubts * bars
    times: Floats = (seen.deviations / (allowed * np.maximum(explained, np.finfo(float).tiny))).max(axis=1)
    return times


def largest(bars: Floats) -> float:
    """The largest of some bars, which are often one number seen many times."""
    return float(bars.flat[0] if one_number(bars) else np.max(bars))


def scores_in_doubt(learned: Learned, bounds: Bounds | None, tolerance: float) -> bool:
    """Whether the error bars leave scores of natural tokens open by so much that answers might differ by the tolerance."""
    if learned.known_to > 0:
        return True
    if bounds is None or bounds.W is None:
        return False
    width = learned.model.width
    of_c = 0.0 if bounds.c is None else largest(bounds.c) * width**0.5
    return largest(bounds.W) * width + of_c > tolerance / 4


def beside_ties(
    learned: Learned,
    bounds: Bounds | None,
    rng: np.random.Generator,
    natural: Floats | None,
    max_norm: float | None,
    like: Floats | None = None,
) -> float:
    """What the error bars of the scores leave open (95%) on the most sensitive of many natural sequences, of each output's spread.

    Sequences on which two tokens nearly tie are rare, and show every error of the scores; a check may meet none. Values and
    constants are as good on those as on all others, which a check does meet. With ``like`` all is predicted on its device.
    """
    model, worst = learned.model, 0.0

    def drawn(count: int, length: int) -> Floats:
        return natural_ones((count, length, model.width), rng, natural, max_norm, like, short=learned.known_to > 0)

    def answers(of: Model, X: Floats) -> Floats:
        return on_host(told(of, X, like))

    if learned.known_to > 0:  # a share of all scores, which bounds them and is no bar of each
        return _shared(learned, partial(drawn, length=LIMITS.shared), rng, like)
    if bounds is None or bounds.V is None:
        return 0.0
    of_scores = replace(bounds, V=np.zeros(np.shape(bounds.V)), b=None)
    if any(bars is not None and not np.isfinite(bars).all() for bars in (bounds.W, bounds.c)):
        return np.inf
    for length in LIMITS.foretold_lengths:
        X = drawn(min(LIMITS.ties, LIMITS.tied // length), length)
        centre, other = answers(model, X), model.within(of_scores, rng)
        spread = centre.std(axis=0)
        shown = spread > LIMITS.faintest * spread.max()
        if other is None or not shown.any():
            continue
        shares = (np.abs(answers(other, X) - centre)[:, shown] / spread[shown]).max(axis=1)
        some = X[np.argsort(shares)[-LIMITS.sensitive :]]
        apart_by = np.sqrt(doubt(model, of_scores, rng, partial(answers, X=some))).max(axis=0)
        worst = max(worst, PROOF.two_sided * float((apart_by[shown] / spread[shown]).max()))
    return worst


def told(model: Model, X: Floats, like: Floats | None) -> Floats:
    """What a model answers ``(batch, outputs)``, on the device of ``like``."""
    answers = predictor(model, like)([X])
    return answers.reshape(len(answers), -1)


def _shared(learned: Learned, drawn: Callable[[int], Floats], rng: np.random.Generator, like: Floats | None) -> float:
    """How far answers move, at most, by a share of all scores that is not known, of the largest spread of an output.

    As one difference, on the host in numbers of 4 bytes and a few sequences after the other; what is too large or too small for
    those, and scores that would be rounded to equal ones, are predicted twice.
    """
    model, known_to, width = learned.model, learned.known_to, learned.model.width
    forward = model.on_device(np.empty(0) if like is None else like)
    if forward is not None:
        few = -(-PROOF.large // (LIMITS.shared * width))  # drawn quickly all the same
        parts = 1 if like is not None else max(1, LIMITS.ties // few)
        counts = np.diff(np.linspace(0, LIMITS.ties, parts + 1).astype(int)).tolist()
        with np.errstate(over="ignore", invalid="ignore"):
            moved = forward.moved(known_to, rng, short(np.empty(0)) if like is None else like)
            centre, off, scores = zip(*(moved(_there(drawn(count), like)) for count in counts), strict=True)
            apart, spread = _largest_of(*map(array_namespace(centre[0]).concat, (centre, off)))
        if max(scores) < LIMITS.moderate and np.isfinite(apart) and 2.0**-64 < spread < np.inf:
            return apart / spread
    X = drawn(LIMITS.ties)
    here = told(model, X, like)
    apart, spread = _largest_of(here, told(model.shaken(known_to, rng), X, like) - here)
    return apart / max(spread, np.finfo(float).tiny)


def _there(X: Floats, like: Floats | None) -> Floats:
    return short(X) if like is None else alike(X, like) if isinstance(X, np.ndarray) else X


def _largest_of(centre: Floats, off: Floats) -> tuple[float, float]:
    """The largest of how far answers are off, and the largest spread of an output."""
    xp = array_namespace(centre)
    return float(xp.max(xp.abs(off))), float(xp.max(xp.std(xp.astype(centre, xp.float64), axis=0)))


def in_short_numbers(
    seen: Compared, learned: Learned, unit: float, rng: np.random.Generator, natural: Floats | None, max_norm: float | None
) -> float:
    """What arithmetic in numbers of this ``unit`` does to the most sensitive of many natural sequences (95%), of their spread.

    Those are the few on which large scores nearly tie; a check meets one or none. Asks nothing.
    """
    model, worst = learned.model, 0.0
    for length in LIMITS.foretold_lengths:
        X = ordinary(min(LIMITS.ties, LIMITS.foretold // length), length, model.width, rng, natural=natural, max_norm=max_norm)
        centre = model.answer(X)
        others = replace(seen, answers=centre, predicted=centre, batches=(Fresh(X, natural=True),), causal=None, positions=())
        bars = doubts(others, learned, rng)
        variance = computed_in(others, model, unit, rng) + (0.0 if bars is None else bars**2)
        spread = float(np.sqrt(np.mean(np.var(centre, axis=0))))
        worst = max(worst, PROOF.two_sided * float(np.sqrt(variance.max())) / max(spread, np.finfo(float).tiny))
    return worst


def faintest_output(seen: Compared) -> tuple[float, int]:
    """The largest deviation of an output over its own spread, rounding taken off, and which output that is; (0, -1) if none.

    One output far fainter than the others may be wrong although it hardly counts among them.
    """
    worst, output = 0.0, -1
    for kind in (False, True):
        rows = seen.natural == kind
        if not rows.any():
            continue
        spread, size = seen.answers[rows].std(axis=0), np.abs(seen.answers[rows]).max(axis=0)
        told = spread > LIMITS.faintest * spread.max()
        off = np.maximum(seen.deviations[rows].max(axis=0) - LIMITS.own_rounding * size, 0.0)
        share = np.where(told, off / np.where(told, spread, 1.0), 0.0)
        if share.max() > worst:
            worst, output = float(share.max()), int(np.argmax(share))
    return worst, output
