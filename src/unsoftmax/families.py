"""Which learner for which target: the few questions that decide, and the learners tried in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from unsoftmax.checks.first_look import FirstLook, first_look
from unsoftmax.checks.held_out import Predict, fresh_sequences, predictor
from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, RefusalError, TooNoisyError, check_positive
from unsoftmax.learners.one_head import OneHeadLearner
from unsoftmax.linalg import on_host
from unsoftmax.models import Attention, Model
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.results import Floor, Learned

if TYPE_CHECKING:
    from unsoftmax.checks.calibration import Calibration
    from unsoftmax.checks.diagnosis import Diagnosis

# learners other than the one for one head are imported where they are needed: a run pays for the one that it uses
FAMILIES = ("auto", "attention", "transformer", "ffn", "attention-behind-network")
NOISY_CHECK_RESERVE = 256  # queries that a budget leaves to the held-out check under noise; of large ones, a share
CHECK_SHARE = 0.02
ALMOST_ALIKE = 1e-3  # a misfit of merged heads below this tells heads almost alike, not a target of another kind
WIDE = 96  # layers wider than this are asked at several token lengths whether one head can be
PLAINLY, ROUGHLY = 1e-9, 2.0**13  # distance from the line that no rounding explains: of the line, and of the rounding
ROUNDED = 64.0  # units of the floor, of answers themselves, that no model explains
COARSELY = 2.0**11  # misfit of one right head on a few float32 answers, in units of the floor
NEARLY = 2.0**24  # what a fit of heads may miss by, in units of what rounding explains; other targets miss by 1e10 or so
FIRST_QUESTIONS = 64  # and to the questions before a noisy head is fitted
ASKED_BEFORE = 40  # the first look, calibration and sentinels
PLENTY = 1000  # queries that a narrow target is given in any case
GENEROUS = 60  # queries per parameter that noisy answers are given of a large budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the caller asked for, checked."""

    family: str = "auto"
    rank: int | None = None
    heads: int | None = None
    tolerance: float | None = None
    max_norm: float | None = None
    budget: int | None = None
    accuracy: float | None = None
    adaptive: bool = True
    grid: Any = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family is {self.family!r}; it must be one of {', '.join(FAMILIES)}.")
        for name, lowest in (("rank", 0), ("heads", 1), ("budget", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or int(value) != value or value < lowest):
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {lowest}.")
        check_positive(tolerance=self.tolerance, max_norm=self.max_norm, accuracy=self.accuracy)
        if (
            self.grid is not None
            and self.grid != "auto"
            and not (np.all(np.isfinite(self.grid)) and np.all(np.asarray(self.grid) > 0))
        ):
            raise ValueError(f"grid is {self.grid!r}; it must be a positive step, one per row, or 'auto'.")


@dataclass(slots=True)
class Found:
    """What is known about a target, filled in as it is learned."""

    family: str = "attention"
    floor: Floor = field(default_factory=Floor)
    look: FirstLook | None = None
    calibration: Calibration | None = None
    max_norm: float | None = None  # a limit on tokens that the target itself imposes
    predict: Predict | None = None  # the model that was learned, where it had to predict already
    notes: list[str] = field(default_factory=list)


def learn(oracle: Oracle, options: Options, found: Found, rng: np.random.Generator, on_floor: Callable[[Floor], None]) -> Learned:
    """Look at the target, choose its learner, run it; ``found`` tells what was seen, also after a refusal."""
    if hasattr(oracle, "embeddings"):
        from unsoftmax.learners.tokens import TokensLearner

        found.notes.append("Only known tokens can be sent; everything said holds for sequences of them.")
        return TokensLearner().run(oracle, rng=rng)
    if not options.adaptive:
        from unsoftmax.learners.non_adaptive import NonAdaptiveLearner

        found.notes.append("All probes were drawn before the first answer.")
        return NonAdaptiveLearner(rank=options.rank, max_norm=options.max_norm).run(oracle, rng=rng)
    look = found.look = first_look(oracle, rng=rng, max_norm=options.max_norm)
    found.floor = look.floor
    on_floor(look.floor)
    # four answers, each within the tolerance that the caller vouches for
    vouched = options.tolerance is not None and look.bend * look.size <= 4 * options.tolerance
    affine = look.floor.kind != "coarse" or vouched
    if options.family in ("auto", "attention") and not affine:
        decimals = look.grid.step is not None and look.bend * look.size <= 2 * look.grid.step and look.repeats
        if decimals and options.max_norm is None:  # plainly rounded: long tokens beat that without further questions
            found.floor, affine = look.grid, True
        else:
            affine = _look_closer(oracle, options, found, rng)
        on_floor(found.floor)
    if options.family == "attention" or (options.family == "auto" and affine):
        return _attention(oracle, options, found, rng)
    return _network(oracle, options, found, rng, on_floor)


def _look_closer(oracle: Oracle, options: Options, found: Found, rng: np.random.Generator) -> bool:
    """Coarse answers: noise, rounding, or not affine in one token? 30 queries."""
    from unsoftmax.checks.calibration import examine

    calibration = found.calibration = examine(LastPosition(oracle), rng=rng, max_norm=options.max_norm)
    found.floor = calibration.floor
    if calibration.summary:
        found.notes.append(f"Answers: {calibration.summary}.")
    return calibration.affine


def _attention(oracle: Oracle, options: Options, found: Found, rng: np.random.Generator) -> Learned:
    """A layer of heads: as the options ask, by statistics, or first as one head and then as several."""
    found.family = "attention"
    look = found.look
    assert look is not None
    if options.max_norm is None and _clip_norm(found) is not None:
        found.max_norm = _clip_norm(found)
        options = replace(options, max_norm=found.max_norm)
    if options.tolerance is not None:
        found.floor = Floor(kind="noisy", relative=0.0, absolute=options.tolerance, given=True)
        if options.max_norm is not None:
            from unsoftmax.learners.noisy import CertifiedHeadLearner, certify_vector

            certified = CertifiedHeadLearner(options.tolerance, options.max_norm)
            return certified.run(oracle, rng=rng) if look.outputs == 1 else certify_vector(certified, oracle, rng)
    if options.grid is not None:
        from unsoftmax.learners.grid import GridLearner

        return GridLearner(grid=options.grid, floor=found.floor, max_norm=options.max_norm).run(oracle, rng=rng)
    if _needs_statistics(options, found):
        return _noisy(oracle, options, found, rng)
    one_head = None
    several = look.cancelled or _plainly_several(oracle, options, found)
    if options.heads == 1 or (options.heads is None and not several):
        one_head, fits = _one_head(oracle, options, found, rng)
        if one_head is not None and fits:
            return one_head
    try:
        return _many_heads(oracle, options, found, rng)
    except NotIdentifiableError as refusal:
        if one_head is None or _almost_alike(refusal):
            raise
        return one_head  # neither fits; the held-out check tells by how much
    except NotInFamilyError:
        if not several or options.heads is not None or not _closer_look_helps(oracle, options, found, rng):
            raise
    return _attention(oracle, options, found, rng)


def _one_head(oracle: Oracle, options: Options, found: Found, rng: np.random.Generator) -> tuple[Learned | None, bool]:
    """One head, or what the target turns out to be on the way; None if neither. And whether that explains the answers."""
    look, floor, learned = found.look, found.floor, None
    assert look is not None
    learner = OneHeadLearner(rank=options.rank, max_norm=options.max_norm, floor=floor, zero_answer=look.zero_answer)
    try:
        learned = learner.run(oracle, rng=rng)
        if floor.absolute:
            learned = _beyond_noise(oracle, learned, options, found, rng)
        return learned, options.heads == 1 or _explains(oracle, learned.model, options, found, rng)
    except NotInFamilyError as refusal:
        if floor.kind == "noisy" and not floor.given:  # long tokens beat the noise only without a query bias
            return _noisy(oracle, options, found, rng), True
        if np.isfinite(refusal.evidence.get("copies_deviation", 0.0)) and _closer_look_helps(oracle, options, found, rng):
            return _attention(oracle, options, found, rng), True
        if options.heads == 1:
            raise
        if options.family == "auto" and "copies_deviation" not in refusal.evidence:  # stranger than several heads
            told = _diagnosed(oracle, options, rng)
            if _stranger(told) and "saturated_keys" in refusal.evidence:  # several heads with biases do that too
                told = _diagnosed(oracle, options, rng)
            if _stranger(told):
                return _as_told(oracle, told, options, found, refusal, rng), True
    return learned, False


def _closer_look_helps(oracle: Oracle, options: Options, found: Found, rng: np.random.Generator) -> bool:
    """Heads do not fit: are tokens clipped, or answers coarser than they seemed? Looked for once; 30 queries."""
    if found.calibration is not None:
        return False
    floor = found.floor
    if _look_closer(oracle, options, found, rng) and (_clip_norm(found) is not None or _needs_statistics(options, found)):
        return True
    found.floor = floor
    return False


def _plainly_several(oracle: Oracle, options: Options, found: Found) -> bool:
    """Whether two tokens are answered off the line through their own answers, on which one head keeps them.

    One query, of the two tokens that the first look asked one by one; wide layers, where trying one head first would cost
    hundreds, are asked for up to four lengths of them.
    """
    look = found.look
    assert look is not None
    if look.outputs == 1 or options.heads is not None or found.floor.absolute:
        return False
    phase(oracle, "one head?")
    b = look.zero_answer.reshape(-1)
    first, second = look.pair_answers - b
    apart = float(np.linalg.norm(first - second))
    if apart == 0.0:
        return False
    line = (first - second) / apart
    for size in (1.0, 0.25, 4.0, 16.0) if oracle.width > WIDE else (1.0,):
        if options.max_norm is not None and size > 1.0:  # the first look chose tokens that fit
            break
        told = LastPosition(oracle)(size * look.pair[None])[0].reshape(-1)
        off = (told - b) / size - second
        rounding = found.floor.relative * max(float(np.abs(told).max()) / size, float(np.abs(look.pair_answers).max()))
        if np.linalg.norm(off - (off @ line) * line) > max(PLAINLY * apart, ROUGHLY * rounding):
            return True
    return False


def _explains(oracle: Oracle, model: Model, options: Options, found: Found, rng: np.random.Generator) -> bool:
    """Whether one head also explains two sequences of four tokens, which several heads that pass for one do not. 2 queries."""
    floor, look = found.floor, found.look
    assert look is not None
    coarse = floor.kind == "float32" and look.outputs > 1  # several heads can still be read then
    if not (floor.kind == "exact" or coarse) or options.rank is not None:
        return True  # left to the held-out check
    phase(oracle, "one head?")
    (batch,) = fresh_sequences(model, rng, per_length=2, lengths=(4,), max_norm=options.max_norm)
    told = LastPosition(oracle)(batch)
    predict = predictor(model, getattr(oracle, "like", None))
    size = np.abs(told - look.zero_answer.reshape(-1)).max()  # without the constant, which every model gets right
    rounding = ROUNDED * floor.relative * np.abs(told).max()
    if not np.abs(on_host(predict([batch])) - told).max() <= max((COARSELY * floor.relative if coarse else 1e-10) * size, rounding):
        return False
    if not coarse:
        found.predict = predict
    return True


def _many_heads(oracle: Oracle, options: Options, found: Found, rng: np.random.Generator) -> Learned:
    from unsoftmax.learners.scalar_heads import ScalarHeadsLearner
    from unsoftmax.learners.vector_heads import VectorHeadsLearner

    assert found.look is not None
    limit, floor = options.max_norm, found.floor
    try:
        _refuse_order(LastPosition(oracle), floor, limit, rng)
        if found.look.outputs == 1:
            return ScalarHeadsLearner(heads=options.heads, max_norm=limit, floor=floor).run(_Scalar(oracle), rng=rng)
        return VectorHeadsLearner(floor=floor, heads=options.heads, rank=options.rank, max_norm=limit).run(oracle, rng=rng)
    except (NotInFamilyError, NotIdentifiableError) as refusal:
        known = {"estimated_error", "too_many"} & set(refusal.evidence)  # the heads are, but not all of them well, or they are more
        if options.family != "auto" or known or _almost_alike(refusal):
            raise
        told = _diagnosed(oracle, options, rng)
        if told.family == "attention" or _nearly_heads(told):
            raise
        return _as_told(oracle, told, options, found, refusal, rng)


def _almost_alike(refusal: RefusalError) -> bool:
    """Whether the heads found explain the answers so well that they are heads, two of them merged."""
    return any(refusal.evidence.get(name, 1.0) < ALMOST_ALIKE for name in ("merged_within", "own_check"))


def _refuse_order(oracle: Oracle, floor: Floor, max_norm: float | None, rng: np.random.Generator) -> None:
    """Heads do not see the order of earlier tokens; a target that does is none of them, whatever else it is. 2 queries."""
    tokens = rng.normal(size=(3, oracle.width)) / np.sqrt(oracle.width)
    if max_norm is not None:
        tokens *= min(1.0, 0.9 * max_norm / float(np.linalg.norm(tokens, axis=1).max()))
    first, second, last = tokens
    answers = oracle(np.array([[first, second, last], [second, first, last]])).reshape(2, -1)
    change, size = float(np.abs(answers[0] - answers[1]).max()), float(np.abs(answers).max())
    if change > 1024 * floor.relative * size + 8 * floor.absolute:
        raise NotInFamilyError(
            f"Exchanging two earlier tokens changes the answer by {change:.2g}: the target sees positions, which no attention "
            "layer of this family does.",
            evidence={"order_deviation": change},
        )


def _diagnosed(oracle: Oracle, options: Options, rng: np.random.Generator) -> Diagnosis:
    from unsoftmax.checks.diagnosis import diagnose_oracle

    return diagnose_oracle(oracle, rng=rng, max_norm=options.max_norm)


def _stranger(told: Diagnosis) -> bool:
    """Whether a target is told to be other than a layer of heads."""
    return told.family != "attention" and "inconclusive" not in told.family and not _nearly_heads(told)


def _nearly_heads(told: Diagnosis) -> bool:
    """Whether a few heads explain the answers almost, but not quite, to rounding: the fit of heads almost alike ends there."""
    return any(entry.test == "heads fit" and not entry.passed and entry.number <= NEARLY for entry in told.evidence)


def _as_told(
    oracle: Oracle, told: Diagnosis, options: Options, found: Found, refusal: RefusalError, rng: np.random.Generator
) -> Learned:
    """The target is neither one head nor a layer of heads: go by what the family tests say it is."""
    found.notes.append(told.reason)
    if not told.inside:
        raise NotInFamilyError(f"{told.reason} ({refusal})", evidence={**refusal.evidence, "diagnosis": told.family}) from refusal
    return _behind(oracle, told.family, options, found, rng)


class _Scalar(LastPosition):
    """Answers of one number as plain numbers."""

    def __call__(self, sequences: Any, /) -> Any:
        answers = super().__call__(sequences)
        return answers.reshape(len(answers))


def _needs_statistics(options: Options, found: Found) -> bool:
    """Whether scale alone cannot beat the errors of the answers: they are relative, or tokens are bounded."""
    floor = found.floor
    if floor.kind in ("exact", "float32"):
        return False
    return options.max_norm is not None or floor.relative > 1e-6 or not floor.absolute


def _noisy(oracle: Oracle, options: Options, found: Found, rng: np.random.Generator) -> Learned:
    from unsoftmax.learners.noisy import NoisyHeadLearner, learn_vector

    assert found.look is not None
    plenty = max(GENEROUS * (oracle.width**2 + oracle.width), PLENTY)
    most, reserve = plenty, NOISY_CHECK_RESERVE + FIRST_QUESTIONS
    if options.budget is not None:
        most = max(1, min(options.budget - reserve, int((options.budget - FIRST_QUESTIONS) / (1 + CHECK_SHARE))))
    queries = None if options.budget is None else most if options.accuracy is not None else min(most, plenty)
    learner = NoisyHeadLearner(
        max_norm=options.max_norm,
        queries=queries,
        most=None if options.accuracy is not None else most,
        already=ASKED_BEFORE,
        beside=reserve,
        accuracy=options.accuracy,
        rank=options.rank,
        floor=found.floor,
    )
    return learner.run(_Scalar(oracle), rng=rng) if found.look.outputs == 1 else learn_vector(learner, oracle, rng)


def _beyond_noise(oracle: Oracle, learned: Learned, options: Options, found: Found, rng: np.random.Generator) -> Learned:
    """One head that long tokens gave exactly in spite of noise or rounding: all but its constant, and all but a query bias."""
    from unsoftmax.learners.noisy import with_constant

    model = learned.model
    assert isinstance(model, Attention)
    if model.has_c:  # long tokens saturate through it
        return _noisy(oracle, options, found, rng)
    return with_constant(oracle, learned, found.floor, rng) if model.has_b or found.floor.kind == "noisy" else learned


def _clip_norm(found: Found) -> float | None:
    """The length that tokens should keep to because the target shortens longer ones."""
    if found.calibration is None or found.calibration.clip_norm is None:
        return None
    return 0.9 * found.calibration.clip_norm


def _network(
    oracle: Oracle, options: Options, found: Found, rng: np.random.Generator, on_floor: Callable[[Floor], None]
) -> Learned:
    """Targets whose one-token answers are not affine."""
    family = options.family
    if family == "auto":
        from unsoftmax.checks.diagnosis import RESIDUAL

        told = _diagnosed(oracle, options, rng)
        found.notes.append(told.reason)
        found.floor = told.floor
        if told.family == RESIDUAL:
            on_floor(found.floor)
            return _behind_unknown(oracle, options, found, NotInFamilyError(told.reason, evidence={"diagnosis": told.family}), rng)
        if not told.inside:
            raise NotInFamilyError(told.reason, evidence={"diagnosis": told.family})
        family = told.family
    else:
        assert found.look is not None
        found.floor = found.look.grid
    on_floor(found.floor)
    if family == "attention":
        return _attention(oracle, options, found, rng)
    return _behind(oracle, family, options, found, rng)


def _behind(oracle: Oracle, family: str, options: Options, found: Found, rng: np.random.Generator) -> Learned:
    from unsoftmax.ffn import FFNLearner
    from unsoftmax.learners.behind_network import BehindNetworkLearner
    from unsoftmax.learners.transformer import TransformerLearner

    found.family = family
    limit, floor = options.max_norm, found.floor
    learners: dict[str, Any] = {
        "ffn": FFNLearner(floor=floor, max_norm=limit),
        "transformer": TransformerLearner(floor=floor, max_norm=limit),
        "attention-behind-network": BehindNetworkLearner(floor=floor, max_norm=limit),
    }
    try:
        learned: Learned = learners[family].run(LastPosition(oracle), rng=rng)
    except (NotInFamilyError, TooNoisyError) as refusal:
        settled = "rank" in refusal.evidence and floor.kind == "exact"  # the network was learned, and no head before it fits
        if options.family != "auto" or family != "transformer" or settled:
            raise
        found.notes.append(str(refusal))
        return _behind_unknown(oracle, options, found, refusal, rng)
    return learned


def _behind_unknown(oracle: Oracle, options: Options, found: Found, refusal: RefusalError, rng: np.random.Generator) -> Learned:
    """The network was refused, or not learned at all: the attention in front of it alone, which any network shows."""
    from unsoftmax.learners.behind_network import BehindNetworkLearner

    try:
        learned = BehindNetworkLearner(floor=found.floor, max_norm=options.max_norm).run(LastPosition(oracle), rng=rng)
    except (NotInFamilyError, NotIdentifiableError, TooNoisyError) as other:
        raise type(refusal)(
            f"{refusal} Nor could the attention be read without knowing the network: {other}",
            evidence={**other.evidence, **refusal.evidence},
        ) from other
    found.family = "attention-behind-network"
    return learned
