"""Several heads behind scalar answers: heads found by walking, told apart by saturation, measured one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from unsoftmax.errors import (
    OR_NO_HEADS,
    NotIdentifiableError,
    NotInFamilyError,
    RefusalError,
    Sign,
    TooNoisyError,
    alike_within,
    tried,
)
from unsoftmax.learners.scalar_heads.build import Measured, measure_heads, refine, sketch_heads
from unsoftmax.learners.scalar_heads.clusters import members_error
from unsoftmax.learners.scalar_heads.flat import flat_heads, lone_bias, narrow_heads, refine_bias
from unsoftmax.learners.scalar_heads.measure import Heads, Readings, better_station, contradiction, expected_error, measure
from unsoftmax.learners.scalar_heads.pairs import Pairs, run_together
from unsoftmax.learners.scalar_heads.polish import Together, count_parameters, polished, rounding_error
from unsoftmax.learners.scalar_heads.settings import SCALAR
from unsoftmax.learners.scalar_heads.sketch import Sketch, read_values, read_values_again
from unsoftmax.learners.scalar_heads.walk import Line, find_scales, telling, walk
from unsoftmax.linalg import INSIDE
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned
from unsoftmax.symmetry import canonical, head_gap

T = TypeVar("T")


class Walked(NamedTuple):
    """Heads that a walk found, the error to expect of their W, how many jumps it met, and whether scores have biases."""

    heads: Heads
    expected: float
    crossings: int = 0
    biased: bool = False


class Fit(NamedTuple):
    """A model with its misfit on fresh sequences and the error to expect of its W; ``walked`` is what it was made from."""

    model: Attention
    misfit: float
    expected: float
    walked: Walked

    @property
    def holds(self) -> bool:
        """Whether fresh sequences are explained."""
        return _fits(self.misfit, self.expected)

    @property
    def numbers(self) -> dict[str, Any]:
        """For the report."""
        walked = self.walked
        return {
            "expected_error": self.expected,
            "biased": walked.biased,
            "crossings": walked.crossings,
            "own_check": self.misfit,
        }


@dataclass(frozen=True, slots=True)
class ScalarHeadsLearner:
    """Recover any number of heads, with biases c and constant b, from exact scalar answers.

    With H heads of width d about ``H * (d**2 + 2 * d + 16) + d + 60`` questions (see ``price``), where the parameters alone are
    ``H * (d**2 + d)``. A long step u turns each sigmoid of a two-token answer into a jump; along a line of x each head jumps once,
    and where one head is between its levels all others are 0 or 1, so that it is read alone, to rounding. Heads that share all
    hyperplanes are split by copies of the tokens. Assumes exact float64 answers and tokens as long as it likes.

    Attributes:
        heads: how many heads there are at most; None finds the number (always done).
        accuracy: heads whose expected relative error is larger are measured again from a better place.
        max_norm: no longer token is sent; the method needs long tokens and refuses where they are forbidden.
        floor: how coarse the answers are.
        values: the constant and the sum of all V, ``(1,)`` and ``(width, 1)``, where one-token answers have told them already.
        attempts: lines tried before giving up.
    """

    heads: int | None = None
    accuracy: float = 5e-13
    max_norm: float | None = None
    floor: Floor = field(default_factory=Floor)
    values: tuple[Floats, Floats] | None = None
    attempts: int = 3

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Ask, and return the heads in canonical form."""
        if not self.floor.exact:
            raise TooNoisyError(
                f"Answers are {self.floor.kind}; several heads behind scalar answers are told apart only by exact float64 answers."
            )
        pairs, shape = _one_token(oracle, self.max_norm, self.values, rng)
        together = Together(oracle, self.max_norm)
        refusals: list[RefusalError] = []
        for attempt in range(self.attempts):
            found_heads = separated(partial(self._attempt, pairs, rng, points=24 * 2**attempt))
            if isinstance(found_heads, RefusalError):
                refusals.append(found_heads)
                continue
            fit = _checked(pairs, found_heads, shape, together, rng)
            if fit.holds:
                return self._learned(fit, attempt + 1)
            refusals.append(_mismatch(fit))
        hidden = [refusal for refusal in refusals if Sign.POORLY_KNOWN in refusal.signs]
        if hidden:  # all heads are there
            raise min(hidden, key=lambda refusal: refusal.within)
        merged = [refusal for refusal in refusals if Sign.MERGED in refusal.signs]
        if not merged:
            # models that explain nothing tell a target of another kind, unless heads almost alike were shared out wrongly
            within = SCALAR.related if any(refusal.model is None for refusal in refusals) else SCALAR.almost
            for fit in self._merged(pairs, shape, together, within, rng):
                if fit.holds:  # no two were merged after all
                    return self._learned(fit, self.attempts + 1)
                merged = [_too_close(fit, fit.misfit)]
        raise min(merged, key=lambda refusal: refusal.within, default=refusals[-1])

    def _merged(
        self, pairs: Pairs, shape: tuple[int, ...], together: Together, within: float, rng: np.random.Generator
    ) -> list[Fit]:
        """Heads that cannot be told apart, read as one: the merged model, if it explains answers ``within`` that, and how far."""
        # magnified as far as possible heads show two jumps to merge, else one jump for all, on most lines
        for limit in (SCALAR.zoom_limit, SCALAR.zoom, SCALAR.zoom):
            found_heads = separated(partial(self._attempt, pairs, rng, points=24, limit=limit, merge=True))
            if isinstance(found_heads, RefusalError):
                continue
            fit = _checked(pairs, found_heads, shape, together, rng)
            if fit.misfit < within:
                return [fit]
        return []

    def _attempt(
        self, pairs: Pairs, rng: np.random.Generator, *, points: int, limit: float = SCALAR.zoom_limit, merge: bool = False
    ) -> Walked:
        oracle, width = pairs.oracle, len(pairs.total)
        direction, start, along = (v / np.linalg.norm(v) for v in rng.normal(size=(3, width)))
        phase(oracle, "scales")
        if abs(pairs.total @ direction) <= SCALAR.cancelled * pairs.size:
            direction, start = telling(pairs, rng)
        scales = find_scales(pairs, direction, start)
        if width == 1 and not scales.biased and not scales.flat:
            narrow, error = narrow_heads(pairs, scales, rng=rng)
            return Walked(narrow, error)
        if scales.flat:
            flat, error = flat_heads(pairs, scales, direction, rng=rng)
            return Walked(flat, error, biased=scales.biased)
        phase(oracle, "walk")
        for _ in range(1 if merge else SCALAR.lines):  # two heads may jump at one place by chance; on another line they do not
            line = Line(direction, start, along, scales.step, scales.reach)
            crossings, levels = walk(pairs, line, points, limit)
            if all(crossing.single for crossing in crossings):
                break
            along = rng.normal(size=width)
            along /= np.linalg.norm(along)
        phase(oracle, "hyperplanes")
        sketch = sketch_heads(pairs, line, crossings, levels, scales, merge=merge)
        phase(oracle, "values")
        values, off = read_values(pairs, sketch, rng=rng)
        lone = len(sketch.extra) and sketch.extra[0] != 0.5
        bias = lone_bias(pairs, sketch, values, rng=rng) if lone else None
        phase(oracle, "scores")
        measured = refine(measure_heads(pairs, sketch, values, off, bias, rng=rng), biased=sketch.biased)
        if merge:
            return Walked(measured.heads, np.inf, len(crossings), scales.biased)
        phase(oracle, "again")
        measured, error = self._again(pairs, measured, sketch, rng)
        heads = refine_bias(pairs, measured.heads, len(measured.heads.values) - 1) if lone else measured.heads
        return Walked(heads, error, len(crossings), scales.biased)

    def _again(self, pairs: Pairs, measured: Measured, sketch: Sketch, rng: np.random.Generator) -> tuple[Measured, float]:
        """Measure again what is known too coarsely: values without small differences, heads from a better place."""
        biased = sketch.biased
        measured = self._values_again(pairs, measured, sketch, rng)
        errors, best = _errors(measured, biased), _errors(measured, biased, complete=True)
        readings = dict(measured.readings)
        short = [h for h, error in errors.items() if best[h] <= self.accuracy < error]
        tasks = [readings[h].complete(measured.heads.scores[h]) for h in short]
        readings |= zip(short, run_together(tasks, pairs.respond_to), strict=True)
        weak = [h for h, error in best.items() if error > self.accuracy]
        for h, taken in _read_again(pairs, measured.heads, weak, rng, reach=sketch.reach, biased=biased).items():
            if _expected_apart(measured.heads, h, taken, measured.off, biased) < errors[h]:
                readings[h] = taken
        if short or weak:
            measured = _steadier(measured, replace(measured, readings=readings), errors, biased)
            measured = self._values_again(pairs, measured, sketch, rng)
        found = measured.heads
        together = [
            members_error(found.scores[m], found.values[m], sample, SCALAR.rounding, biased=biased)
            for m, sample in measured.samples
        ]
        return measured, max([*_errors(measured, biased).values(), *together], default=0.0)

    def _values_again(self, pairs: Pairs, measured: Measured, sketch: Sketch, rng: np.random.Generator) -> Measured:
        """The values once more, without small differences, where it is mostly their error that keeps a head from being known."""
        heads, biased = measured.heads, sketch.biased
        if measured.samples or len(heads.values) < 2:
            return measured
        known = replace(measured, off=np.zeros_like(heads.values))
        errors, best = (_errors(these, biased, complete=True) for these in (measured, known))
        if not any(error > max(self.accuracy, 2.0 * best[h]) for h, error in errors.items()):
            return measured
        values = read_values_again(pairs, heads, rng=rng, reach=sketch.reach, biased=biased)
        return measured if values is heads else _steadier(measured, replace(known, heads=values), _errors(measured, biased), biased)

    def _learned(self, fit: Fit, attempts: int) -> Learned:
        form = canonical(fit.model)
        if self.heads is not None and form.heads > self.heads:
            raise NotInFamilyError(
                f"Found {form.heads} heads, but heads={self.heads} was asked for. Leave `heads` out, or raise it.",
                model=form,
                evidence={**fit.numbers, "attempts": attempts},
            )
        count = f"{form.heads} head{'s' * (form.heads != 1)}"
        notes = (f"{count}, found by walking; expected error of W {fit.expected:.1g}.",)
        words, interval = unseen_gap(max(fit.misfit, fit.expected))
        return Learned(
            model=form,
            ambiguity=f"equal up to the order of the heads; heads with V = 0 do not show; {words}",
            notes=notes,
            evidence={**fit.numbers, "attempts": attempts, "heads": form.heads, "merged_below": interval},
            known_to=fit.expected,
        )


def separated(step: Callable[[], T]) -> T | RefusalError:
    """What a step finds, or the refusal of heads that do not separate; readings that determine no W are such."""
    try:
        return tried(step, NotIdentifiableError)
    except np.linalg.LinAlgError:
        return NotIdentifiableError("The heads found do not separate: their readings determine no W.")


def unseen_gap(misfit: float) -> tuple[str, float]:
    """In words and as a number, how close two heads may lie, or how faint one may be, where fresh answers agree to ``misfit``.

    Moving W and c of one head by a small part g of their size changes answers by about 0.1 g to g of their spread. Where the
    values of the two are parallel the merged head takes that up by a mean W, and only a change of about g**2 / 10 is left.
    """
    interval = float(10.0 * max(misfit, 2.0**-52))
    return (
        "heads with equal W and c appear as one head with the sum of their V, and so would heads whose W and c differ by less than "
        f"about {interval:.0e} of their size ({np.sqrt(interval):.0e} if their V are parallel); "
        f"nor would a head show whose V is below about {interval:.0e} of the others'"
    ), interval


def price(width: int, heads: int, *, biased: bool = False) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
    """Questions and tokens by phase, as (low, high) ranges: ``(name, queries, tokens)``; heads in general position."""
    columns = width + biased
    scores = heads * width * columns
    rows = [
        ("one token", (width + 2, width + 2), 1),
        ("scales", (34, 34) if biased else (5, 6), 2),
        ("walk", (11 + 9 * heads, 27 + 40 * heads), 2),
        ("hyperplanes", (heads * width, heads * (width + 10)), 2),
        (
            "values",
            ((heads - 1) * (width + 1),) * 2 if heads == 1 else ((heads - 1) * (width + 1), 3 * (heads - 1) * (width + 1)),
            2,
        ),
        ("scores", (scores, int(1.15 * scores) + heads * (width + 8)), 2),
        ("again", (0, 2 * (heads - 1) * width + int(1.1 * scores) + heads * (width + 8)), 2),
        ("check", (SCALAR.fresh, SCALAR.fresh), 5),
    ]
    return [(name, (low, high), (low * tokens, high * tokens)) for name, (low, high), tokens in rows]


def _one_token(
    oracle: Oracle, max_norm: float | None, values: tuple[Floats, Floats] | None, rng: np.random.Generator
) -> tuple[Pairs, tuple[int, ...]]:
    """The constant b and the sum of all V, from ``width + 1`` one-token questions, or known; one more checks that they suffice."""
    phase(oracle, "one token")
    width = oracle.width
    length = SCALAR.long if max_norm is None else min(SCALAR.long, max_norm)
    extra = rng.normal(size=width)
    tokens = np.concatenate([np.zeros((1, width)), length * np.eye(width), (length / np.linalg.norm(extra) * extra)[None] * 0.75])
    fresh = tokens if values is None else tokens[-1:]
    answers = np.asarray(oracle(fresh[:, None]))
    shape = answers.shape[1:]
    if answers.size != len(fresh):
        raise ValueError(f"Answers have shape {answers.shape}: this learner takes one number per sequence.")
    answers = answers.reshape(-1)
    if values is not None:
        answers = np.concatenate([values[0], values[0] + length * values[1][:, 0], answers])
    total = (answers[1:-1] - answers[0]) / length if values is None else values[1][:, 0]
    size = float(np.abs(total).max())
    off = abs(answers[-1] - answers[0] - tokens[-1] @ total)
    terms = np.abs(answers).max() + np.abs(total * tokens[-1]).sum()
    if off > 2.0**-36 * terms or size * length <= SCALAR.cancelled * np.abs(answers).max():  # only rounding is left of the values?
        size = max(size, _hidden_size(oracle, float(answers[0]), max_norm, rng))
    if size * length <= 2.0**-46 * np.abs(answers).max():
        raise NotIdentifiableError("Every answer is the same: all V vanish, so nothing can be known about W and c.")
    if off > 2.0**-36 * (terms + size * length):
        raise NotInFamilyError(
            "The answer to a single token is not linear in it, as it is for attention. `unsoftmax diagnose` tells what it may be."
        )
    return Pairs(oracle, float(answers[0]), total, size, max_norm), shape


def _hidden_size(oracle: Oracle, constant: float, max_norm: float | None, rng: np.random.Generator) -> float:
    """Size of values that cancel: how far three tokens move the answer, per length, over many lengths; 8 questions."""
    lengths = np.minimum(2.0 ** np.arange(5.0, 45.0, 5.0), max_norm or np.inf)
    tokens = rng.normal(size=(len(lengths), 3, oracle.width))
    tokens *= lengths[:, None, None] / np.linalg.norm(tokens, axis=2, keepdims=True) * INSIDE
    return float((np.abs(np.asarray(oracle(tokens)).reshape(-1) - constant) / lengths).max())


def _read_again(
    pairs: Pairs, heads: Heads, chosen: list[int], rng: np.random.Generator, *, reach: float, biased: bool
) -> dict[int, Readings]:
    """Fresh readings of the chosen heads, each from the best place to see it, now that all are known."""
    places = [better_station(heads, h, rng=rng, reach=reach) for h in chosen]
    tasks = [measure(place, heads.values[place.head], biased=biased, estimate=heads.scores[place.head]) for place in places]
    return {h: taken for h, (_, taken) in zip(chosen, run_together(tasks, pairs.respond_to), strict=True)}


def _separated(pairs: Pairs, model: Attention, rng: np.random.Generator) -> tuple[Attention, float]:
    """Heads almost alike whose sum is known to rounding: values and scores once more where only one of the two speaks.

    Returns the model and its expected error. About ``heads * width * (width + 2)`` questions.
    """
    assert model.V is not None
    sizes = np.linalg.norm(model.W, axis=(1, 2))
    if (sizes < 1e-6 * sizes.max()).any():  # nothing switches such a head
        return model, np.inf
    biased = model.has_c
    heads = Heads(np.concatenate([model.W, model.c[:, :, None]], axis=2), model.V.reshape(model.heads, -1))
    reach = float(np.median(np.linalg.norm(model.c, axis=1) / sizes)) if biased else 1.0
    known, heads = heads, read_values_again(pairs, heads, rng=rng, reach=reach, biased=biased, within=SCALAR.within)
    if heads is known:
        return model, np.inf
    readings = _read_again(pairs, heads, list(range(model.heads)), rng, reach=reach, biased=biased)
    measured = refine(Measured(heads, readings, [], np.zeros_like(heads.values)), biased=biased)
    heads, error = measured.heads, max(_errors(measured, biased).values())
    if any(contradiction(heads, h, taken) > SCALAR.consistent for h, taken in readings.items()):
        return model, np.inf
    return _model(heads, pairs.constant, model.b.shape), error


def _errors(measured: Measured, biased: bool, *, complete: bool = False) -> dict[int, float]:
    """Relative error to expect of each head that was measured alone; or what it would be if its readings were ``complete``."""
    heads, readings = measured.heads, measured.readings
    if complete:
        readings = {h: taken.completed(heads.scores[h]) for h, taken in readings.items()}
    return {h: _expected_apart(heads, h, taken, measured.off, biased) for h, taken in readings.items()}


def _steadier(measured: Measured, renewed: Measured, errors: dict[int, float], biased: bool) -> Measured:
    """What was measured again, refined; the old where scores leave that by far more than its ``errors``: heads almost alike may."""
    found, old = refine(renewed, biased=biased), measured.heads.scores
    moved = np.linalg.norm(found.heads.scores - old, axis=(1, 2)) / np.maximum(np.linalg.norm(old, axis=(1, 2)), 1e-300)
    return found if all(moved[h] <= SCALAR.steady * error for h, error in errors.items()) else measured


def _expected_apart(heads: Heads, head: int, taken: Readings, off: Floats, biased: bool) -> float:
    """The error of a head's W or of its c, whichever is known less well; c against the largest of all, since one may have none."""
    width = heads.values.shape[1]
    fixed = np.random.default_rng(0)  # the draw is no part of the questions
    draw = expected_error(heads, head, taken, off, SCALAR.rounding, biased=biased, rng=fixed)
    largest = float(np.linalg.norm(heads.scores[:, :, width], axis=1).max())
    of_bias = float(np.linalg.norm(draw[:, width])) / largest if largest else 0.0
    return max(float(np.linalg.norm(draw[:, :width]) / np.linalg.norm(heads.scores[head, :, :width])), of_bias)


def _model(heads: Heads, constant: float, shape: tuple[int, ...]) -> Attention:
    """The layer, in the shape of the target's answers; biases and constants of exactly zero are none."""
    width = heads.values.shape[1]
    c = heads.scores[:, :, width]
    V = heads.values if not shape else heads.values[:, :, None]
    b = np.full(shape, constant) if constant else None
    return Attention(heads.scores[:, :, :width], V, c if c.any() else None, b)


def _checked(pairs: Pairs, walked: Walked, shape: tuple[int, ...], together: Together, rng: np.random.Generator) -> Fit:
    """The model and its error on fresh sequences; one that is nearly right is refined first, as a whole and then head by head."""
    oracle = pairs.oracle
    phase(oracle, "check")
    model = _model(walked.heads, pairs.constant, shape)
    best = model, _misfit(oracle, model, rng), float(walked.expected)
    if not _fits(*best[1:]) and best[1] < SCALAR.related and count_parameters(model) <= SCALAR.largest_together:
        phase(oracle, "together")
        X, told = together.sample(model, rng)
        better = polished(model, X, told, steps=SCALAR.together_steps)
        found = better, _misfit(oracle, better, rng), 4.0 * rounding_error(better, X, told, SCALAR.rounding)  # from a single draw
        if found[1] < best[1] or _fits(*found[1:]):
            best = found
        if found[1] <= SCALAR.good < found[2] and head_gap(better) < SCALAR.alike:
            again = separated(lambda: _separated(pairs, better, rng))
            apart, error = (better, np.inf) if isinstance(again, RefusalError) else again
            if error < found[2]:  # what random sequences show better than that is taken from them
                apart = polished(
                    apart, X, told, steps=SCALAR.together_steps, smallest=SCALAR.rounding / max(error, SCALAR.rounding)
                )
                best = apart, _misfit(oracle, apart, rng), error
    return Fit(*best, walked)


def _fits(misfit: float, expected: float) -> bool:
    """Whether fresh sequences are explained as well as heads with the ``expected`` error do.

    A model with the right heads misses only by their errors; one with two heads merged by the distance between them.
    """
    return expected <= SCALAR.worst and misfit <= min(SCALAR.closest, SCALAR.good + 300.0 * expected)


def _misfit(oracle: Oracle, model: Attention, rng: np.random.Generator) -> float:
    """Largest error on fresh sequences of five tokens, relative to the spread of the answers, at scores of about 1."""
    size = float(np.median(np.linalg.norm(model.W, axis=(1, 2)))) / model.width
    length = 1.0 / np.sqrt(size) if size > 0.0 else 1.0
    sequences = rng.normal(size=(SCALAR.fresh, 5, model.width)) * length / np.sqrt(model.width)
    answers = np.asarray(oracle(sequences)).reshape(-1)
    spread = float(np.std(answers)) or 1.0
    return float(np.abs(model(sequences).reshape(-1) - answers).max() / spread)


def _mismatch(fit: Fit) -> RefusalError:
    """Why a model that explains all questions fails on fresh ones, or is not known: heads almost alike, or no heads at all."""
    model, misfit, expected = canonical(fit.model), fit.misfit, fit.expected
    if misfit <= SCALAR.closest and head_gap(model) > SCALAR.alike:
        return NotIdentifiableError(
            f"The answers tell the W or c of one of {model.heads} heads only to about {expected:.1g}: it is faint beside other "
            "parts of the scores, and the rounding of answers hides it. The model explains fresh sequences all the same.",
            model=model,
            evidence={**fit.numbers, "estimated_error": expected},
            signs=(Sign.POORLY_KNOWN,),
            within=expected,
        )
    if misfit < SCALAR.almost:
        return _too_close(fit, max(misfit, expected))
    return NotInFamilyError(
        f"{model.heads} heads explain the questions asked, but fresh sequences differ by {misfit:.1g} of their spread. "
        "The target is no sum of softmax heads. `unsoftmax diagnose` tells what it may be.",
        model=model,
        evidence=fit.numbers,
        signs=alike_within(misfit),
    )


def _too_close(fit: Fit, within: float) -> RefusalError:
    model = canonical(fit.model)
    return NotIdentifiableError(
        "Two heads lie too close together to be told apart by float64 answers. "
        f"With {model.heads} head{'s' * (model.heads > 1)} the answers are explained to about {within:.1g} of their spread; "
        f"the heads that are close are known only merged, within that. {OR_NO_HEADS}",
        model=model,
        evidence={**fit.numbers, "merged_within": within},
        signs=(Sign.MERGED, *alike_within(within)),
        within=within,
    )
