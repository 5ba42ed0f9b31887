"""Why a model that fits all answers is not announced: reasons as values, their words in one place."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import (
    OR_NO_HEADS,
    DriftingError,
    InconclusiveError,
    NotIdentifiableError,
    NotInFamilyError,
    RefusalError,
    Sign,
    TooNoisyError,
)
from unsoftmax.learners.one_head.settings import HEAD
from unsoftmax.linalg import on_host
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.precision.law import Floor
from unsoftmax.precision.settings import READING
from unsoftmax.proof.compare import Compared
from unsoftmax.proof.judge import relative_errors
from unsoftmax.proof.limits import LIMITS
from unsoftmax.proof.noisy import NoisyCheck
from unsoftmax.proof.settings import PROOF
from unsoftmax.results import Check, Learned


def one_token_alone(learned: Learned) -> RefusalError:
    """A layer that mixes tokens, and a check that may not send two."""
    return NotIdentifiableError(
        "The check may send one token only (`max_length`), and sequences of one token show nothing of attention weights: whatever "
        "was found, nothing confirms it. Allow at least 2 tokens.",
        model=learned.model,
    )


def hardly_varies(seen: Compared, learned: Learned) -> RefusalError:
    """Answers that agree because they are all alike."""
    return NotIdentifiableError(
        f"Fresh answers of about {np.abs(seen.answers).max():.3g} vary by {seen.spreads.max():.2g} only, hardly more than their "
        "rounding: that they agree proves nothing. Ask a target whose answers depend on its tokens.",
        model=learned.model,
    )


def hidden_by_errors(floor: Floor, spread: float, learned: Learned) -> RefusalError:
    """Answers that vary less than they err."""
    return TooNoisyError(
        f"Answers carry errors of about {floor.absolute:.2g} where they vary by {spread:.2g}: fresh sequences "
        "cannot tell a right model from a wrong one. Allow longer tokens, or average the target's answers.",
        model=learned.model,
    )


def hidden_by_arithmetic(floor: Floor, largest: float, learned: Learned) -> RefusalError:
    """Half precision in which natural errors are as large as the answers."""
    return TooNoisyError(
        f"{floor.kind} arithmetic hides the target: fresh answers differ by up to {largest:.2g} of their spread, as "
        "such numbers let expect. Send shorter tokens (`max_norm`), or ask for answers in float64.",
        model=learned.model,
    )


def faint_output(output: int, worst: float, learned: Learned) -> RefusalError:
    """An output that is not known beside the others."""
    return NotIdentifiableError(
        f"Output {output} is so faint beside the others that fresh answers of it miss by {worst:.2g} of their own spread. "
        "Scale that output up, or ask for it alone.",
        model=learned.model,
        evidence={"output": output, "own_error": worst},
    )


def open_beside_ties(seen: Compared, expected: float, learned: Learned) -> RefusalError:
    """Error bars that say nothing about natural sequences."""
    largest, spread = float(np.abs(seen.predicted).max()), float(seen.spreads[~seen.natural].max(initial=0.0))
    return TooNoisyError(
        f"Answers of up to {largest:.3g} vary by {spread:.2g} only, so that their rounding hides the head: by the error "
        f"bars of its scores, natural sequences may differ by {expected:.1g} of their spread. Take the constant off the "
        "answers inside the target, where they are still precise, or make a large query bias smaller.",
        model=learned.model,
        evidence={"expected_error": expected, "constant": largest},
    )


def answered_otherwise(
    oracle: Oracle, seen: Compared, floor: Floor, learned: Learned, share: float = LIMITS.half
) -> RefusalError | None:
    """The worst fresh questions asked again: another answer means a random target, or a reply that was not its own.

    It is another one that differs by more than a ``share`` of what the model misses.
    Answers taken for exact that differ in their last digits all the same, from call to call, leave a faint misfit open.
    """
    offs = []
    worst = np.argsort(seen.deviations.max(axis=1))[::-1][: LIMITS.asked_again]
    places = np.array(seen.positions or (1,) * len(seen.batches))
    starts = np.cumsum([0, *(places * [len(batch.sequences) for batch in seen.batches])])
    for row in worst:
        batch = int(np.searchsorted(starts, row, side="right")) - 1
        number, position = divmod(int(row - starts[batch]), int(places[batch]))
        question = on_host(seen.batches[batch].sequences)[number][None]
        told = oracle(question)
        if told.ndim == 3:
            looked = learned.model.answer_at(question, causal=bool(seen.causal))[0]
            told = told[:, -1 if seen.causal is None else looked[position]]
        again = told.reshape(-1)
        off = float(np.abs(again - seen.answers[row]).max())
        offs.append(off)
        if off > max(share * float(seen.deviations[row].max()), 2 * floor.of(float(np.abs(again).max()))):
            return DriftingError(
                f"A fresh question of {question.shape[1]} tokens was answered {seen.answers[row][0]:.9g}, and {again[0]:.9g} "
                "when asked again: the answers are random now and then (dropout, replicas that differ, replies of others). "
                "Switch dropout off (`eval()`), or ask one replica.",
                model=learned.model,
                evidence={"repeated_deviation": off},
            )
    jitter, size = sorted(offs)[1:2], float(np.abs(seen.answers).max())  # most of them differ by so much
    if floor.exact and jitter and READING.steady * size < jitter[0] and seen.deviations.max() <= LIMITS.grows * jitter[0]:
        return InconclusiveError(
            f"Fresh sequences differ by up to {float(seen.deviations.max()):.1g} from what was learned, and by {jitter[0]:.1g} "
            "from their own answers when asked again: the first questions were answered alike by chance. Whether such jitter "
            "explains the difference stays open. Start again, or vouch for a `tolerance`.",
            model=learned.model,
            evidence={"repeated_deviation": jitter[0]},
        )
    return None


def hidden_by_constant(seen: Compared, check: Check, learned: Learned, tolerance: float) -> RefusalError | None:
    """One head beside a constant so large that its rounding explains the misfit: what is known is not known well enough."""
    width = learned.model.width
    largest = float(np.abs(seen.predicted[~seen.natural]).max(initial=0.0))
    growth = 1.0 if (learned.ranks or (width,))[0] == width else HEAD.low_rank_growth
    off = float(seen.deviations[~seen.natural].max(initial=0.0))
    natural = relative_errors(seen).natural
    if off > growth * LIMITS.constant * largest or (natural > LIMITS.loosest):
        return None
    spread = float(seen.spreads[~seen.natural].max(initial=0.0))
    return TooNoisyError(
        f"Answers of about {largest:.3g} vary by {spread:.2g} only, so that their rounding hides the head: fresh sequences "
        f"agree to {check.relative_error:.1g} of that, where {tolerance:.0e} is wanted. Take the constant off the "
        "answers inside the target, where they are still precise.",
        model=learned.model,
        evidence={"relative_error": check.relative_error, "constant": largest},
    )


def mismatch(
    seen: Compared, check: Check, learned: Learned, floor: Floor, *, heads: int, asked: int, allowed: Floats, rank: int | None
) -> RefusalError:
    """Why a model fails on fresh sequences that fits all ``asked`` answers before; ``heads`` it has, 0 if it is no such layer."""
    spread = seen.spreads[:, None]
    share = float((allowed[spread > 0] / spread[spread > 0]).max())
    several = f"{heads} heads explain fresh sequences to {check.relative_error:.1g} of their spread, where {share:.1g} is allowed"
    if heads > 1 and floor.exact and check.relative_error <= LIMITS.almost:
        return NotIdentifiableError(
            f"{several}: two heads lie too close together, and are known only merged, within that, "
            f"or one is too faint beside the others. {OR_NO_HEADS}",
            model=learned.model,
            evidence={"merged_within": check.relative_error, "by_length": check.by_length},
        )
    if heads > 1 and not floor.exact and check.relative_error <= LIMITS.loosest:
        return TooNoisyError(
            f"{several}: the answers ({floor.kind}) are too coarse to tell these heads. Ask for answers in float64.",
            model=learned.model,
        )
    errors = relative_errors(seen)
    where = ""
    if errors.natural > 10 * errors.sized:
        where = " It shows on tokens of natural size and on long sequences, not on those sized by the model."
    missed = f"relative error {check.relative_error:.2g}, where {share:.1g} is allowed."
    if check.relative_error <= share:  # each is within what is allowed; judged is the distribution of them all
        most = f"none misses by more than {check.relative_error:.2g}"
        missed = f"{most}, but all together miss by more than {floor.kind} answers explain."
    return NotInFamilyError(
        f"The model that fits all {asked} answers fails on fresh sequences: {missed}{where} {or_else(heads, floor, rank)} "
        "`unsoftmax diagnose` tells what it may be.",
        model=learned.model,
        evidence={"relative_error": check.relative_error, "by_length": check.by_length},
        signs=left_open(
            heads, rank, floor, check, pairs=bool((seen.deviations[seen.lengths <= 2] > allowed[seen.lengths <= 2]).any())
        ),
    )


def left_open(heads: int, rank: int | None, floor: Floor, check: Check, *, pairs: bool) -> tuple[Sign, ...]:
    """The sign that a misfit of one model, which ``pairs`` of tokens show or do not, does not exclude every family.

    Several heads are not excluded through coarse answers, nor where what one head misses by is faint and shows in pairs, as each
    head does; and a network that is read piece by piece may be known no better.
    """
    faint = check.relative_error <= LIMITS.almost and pairs
    return (Sign.OPEN,) if heads == 0 or (heads == 1 and (rank is not None or not floor.exact or faint)) else ()


def something_else(seen: Compared, check: Check, learned: Learned, strange: Floats, *, heads: int) -> RefusalError:
    """A misfit within the tolerance that nothing of the family explains: rows that are ``strange`` beyond 1 show it."""
    lengths = seen.lengths[strange > 1]
    norms = [np.linalg.norm(on_host(batch.sequences), axis=-1).max() for batch in seen.batches if batch.natural]
    reach = f", max_norm={max(norms):.2g}" * bool(norms)
    where = "" if lengths.min() <= 2 else f" It shows in sequences of {lengths.min()} to {lengths.max()} tokens."
    return NotInFamilyError(
        f"{heads} head{'s' * (heads != 1)} explain{'s' * (heads == 1)} fresh sequences to {check.relative_error:.1g} of their "
        "spread, but rounding and the error bars would explain them far better: something else takes part, which is faint here "
        f"and may be large elsewhere.{where} `unsoftmax diagnose` tells what it may be. Where the model is near enough, say how "
        f"near answers are to it, and for which tokens: `tolerance={2 * check.max_abs_error:.0e}{reach}`.",
        model=learned.model,
        evidence={"relative_error": check.relative_error, "strangeness": float(strange.max()), "by_length": check.by_length},
        signs=left_open(heads, None, Floor(), check, pairs=bool(lengths.min() <= 2)),
    )


def very_long_ones_miss(far: Compared, learned: Learned, heads: int) -> RefusalError:
    """A model that explains all other sequences, but not those of very many tokens."""
    worst = int(far.deviations.max(axis=1).argmax())
    off, tokens = float(far.deviations[worst].max()), int(far.lengths[worst])
    return InconclusiveError(
        f"{heads} head{'s' * (heads != 1)} explain{'s' * (heads == 1)} all fresh sequences of up to {PROOF.longest} tokens, but "
        f"one of {tokens:,} tokens is off by {off:.2g}, far more than rounding explains: either the target treats very long "
        "sequences otherwise, or something strikes one token in thousands. If shorter sequences are all that matters, say so: "
        f"`max_length={PROOF.longest}`.",
        model=learned.model,
        evidence={"tokens": tokens, "off": off},
    )


def or_else(heads: int, floor: Floor, rank: int | None) -> str:
    """What explains a misfit: a target of another family, and what else may."""
    if rank is not None:
        return f"Either rank={rank} is too small (leave it out), or the target is not a model of this family."
    if heads == 1 and not floor.exact:
        return "Either there are several heads (ask for float64 answers), or the target is not a model of this family."
    return "The target is not a model of this family."


def steady_misfit(steps: float, by_chance: float, learned: Learned) -> RefusalError:
    """A misfit beyond rounding that does not change from call to call, as noise would."""
    return NotInFamilyError(
        f"Answers miss the model by {steps:.2g} rounding steps (rms), where rounding leaves 0.29, and noise before the rounding "
        f"does not explain it: {LIMITS.repetitions} fresh questions asked again got the same answers to the last digit, "
        f"which has a chance of {by_chance:.0e}. Something faint takes part. `unsoftmax diagnose` tells what it may be.",
        model=learned.model,
        evidence={"steps": steps, "by_chance": by_chance},
        signs=(Sign.OPEN,),
    )


def through_noise(found: NoisyCheck, check: Check, learned: Learned, *, noise: float, asked: int) -> RefusalError | None:
    """What fresh answers full of noise say against a model; None where they agree, and could have disagreed."""
    if not found.agrees:
        return NotInFamilyError(
            f"The model that fits all {asked} answers fails on fresh sequences: against its predictions the answers "
            f"have a slope of {found.slope:.2f} ± {found.slope_error:.2f}, and deviations {found.excess:.2f} times the largest "
            "that noise explains. The target is not a model of this family. `unsoftmax diagnose` tells what it may be.",
            model=learned.model,
            evidence={"slope": found.slope, "excess": found.excess},
            signs=(Sign.OPEN,),
        )
    if found.missed > LIMITS.half:
        return TooNoisyError(
            f"Fresh answers miss the model by {found.missed:.2g} of their spread, which only its error bars explain, not noise of "
            f"about {noise:.2g}: nothing of it is confirmed. Either the noise grows with the tokens (dropout, tokens rounded by "
            "chance: switch that off), or a larger `budget` or shorter tokens (`max_norm`) are needed.",
            model=learned.model,
            evidence={"missed": found.missed},
        )
    if not found.conclusive:
        needed = int(1.3 * (found.slope_error / PROOF.slope_error) ** 2 * check.sequences / PROOF.share)
        return TooNoisyError(
            f"Answers carry errors of about {noise:.2g}: {check.sequences} fresh sequences cannot tell a right model "
            f"from a wrong one. A budget of about {needed} would do; raise `budget` or allow longer tokens (`max_norm`).",
            model=learned.model,
            evidence={"queries": needed},
        )
    return None
