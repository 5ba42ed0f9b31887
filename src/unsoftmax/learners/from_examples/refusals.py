"""Why examples do not give a layer, in words, and how many would."""

from __future__ import annotations

from math import ceil

import numpy as np

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, RefusalError, TooNoisyError
from unsoftmax.learners.from_examples.data import Examples, Extras, Frame
from unsoftmax.learners.from_examples.search import PLAIN, Candidate
from unsoftmax.learners.from_examples.settings import EXAMPLES
from unsoftmax.learners.from_examples.verdict import Verdict
from unsoftmax.models import Attention
from unsoftmax.results import Check


def examples_needed(examples: Examples, heads: int, extras: Extras = PLAIN) -> int:
    """Sequences like the given ones that determine ``heads`` heads with some to spare, the held-out part included."""
    width, outputs, number = examples.tokens.shape[2], examples.answers.shape[2], len(examples.tokens)
    scores = heads * width * (width + extras.query_bias)
    unknowns = scores + heads * width * outputs + outputs * (extras.constant + width * extras.residual)
    equations = examples.counts.sum() * outputs / number
    patterns = np.minimum(heads * (examples.looks[examples.counts] - 1), outputs).sum() / number
    return ceil(float(max(EXAMPLES.comfort * unknowns / equations, 1.5 * scores / max(patterns, 1e-9))) / (1.0 - EXAMPLES.held_out))


def refuse_hopeless(examples: Examples, frame: Frame) -> None:
    """Refuse examples in which the scores cannot show at all."""
    if examples.rms == 0.0:
        raise NotIdentifiableError("All answers are zero, so the values V are zero and nothing shows of the scores W.")
    if examples.looks[examples.counts].max() < 2 or frame.key_map.shape[1] == 0:
        raise NotIdentifiableError(
            "Every answer depends on one token only (length 1, or all tokens of a sequence equal): all weights are 1 and nothing "
            "shows of the scores W. Record sequences of two or more different tokens."
        )


def refuse_two_tokens(examples: Examples, model: Attention, check: Check, exact: bool) -> None:
    """With at most two tokens, ``(W, V)`` equals ``(-W, -V)`` plus a head without scores ``(0, 2V)``: some layers have a twin."""
    if examples.looks[examples.counts].max() > 2:
        return
    assert model.V is not None  # a fit has values
    V = model.V.reshape(model.heads, -1)
    near = 1e-7 if exact else 0.05
    subsets = (np.arange(1, 2 ** min(model.heads, 12))[:, None] >> np.arange(model.heads)) & 1
    sums = np.linalg.norm(subsets @ V, axis=1)
    idle = np.linalg.norm(model.W, axis=(1, 2)).min() < near
    if idle or sums.min() < near * np.linalg.norm(V):
        raise NotIdentifiableError(
            "Sequences of at most two tokens leave two layers with the same answers here: turning the signs of some heads' W and V "
            "changes nothing. Record some sequences of three or more tokens.",
            model=model,
            check=check,
        )


def refuse_silent(candidate: Candidate) -> None:
    """Heads that explain no more than chance does, beside the constant and the residual, say nothing of their scores."""
    problem, error = candidate.problem, candidate.fit.point.error
    kept = 1.0 if problem.kept is None else problem.kept
    linear = problem.linear * kept
    alone = problem.answers - linear @ np.linalg.lstsq(linear, problem.answers, rcond=None)[0]
    left, free = float(np.sum(error**2)), max(problem.equations - candidate.unknowns, 1)
    rounding = (problem.equations * float(np.finfo(float).eps * np.abs(problem.answers).max())) ** 2  # of sums over all of them
    if float(np.sum(alone**2)) - left <= EXAMPLES.by_chance * candidate.unknowns * left / free + rounding:
        raise NotIdentifiableError(
            "The answers do not depend on the tokens beyond what their noise explains, so the values V may be zero and nothing "
            "shows of the scores W. Record answers that vary with the tokens."
        )


def too_few(examples: Examples, heads: int) -> NotIdentifiableError:
    """The refusal of examples that hold fewer equations than the layer has unknowns."""
    needed, given = examples_needed(examples, heads), len(examples.tokens)
    return NotIdentifiableError(
        f"{given} examples are too few for {heads} head{'s' * (heads > 1)} of width {examples.tokens.shape[2]}: about {needed} are "
        "needed (four equations per unknown). Record more and run again.",
        evidence={"examples_needed": needed},
    )


def refusal_of(examples: Examples, heads: int | None, verdict: Verdict, model: Attention, check: Check) -> RefusalError:
    """The reason in words, as the kind of refusal that fits it."""
    candidate = verdict.candidate
    assert candidate is not None  # the caller looked
    error, tried = candidate.fit.error, f"{candidate.heads} head{'s' * (candidate.heads > 1)}"
    # Unless they would settle a layer of four heads, or of twice those found, a larger layer may be all there is to it.
    enough_for = heads or (candidate.heads + 1 if verdict.reason == "count" else max(2 * candidate.heads, 4))
    needed = examples_needed(examples, enough_for)
    evidence = {"reason": verdict.reason, "examples_needed": needed}
    given = len(examples.tokens)
    if verdict.reason == "flat":
        return NotIdentifiableError(
            f"These examples fit to {error:.1e}, but other parameters fit them equally well (a push off the solution came back "
            f"different by {verdict.moved:.1e}). Record examples with more varied tokens or longer sequences.",
            evidence=evidence,
            model=model,
            check=check,
        )
    if verdict.reason == "count":
        return NotIdentifiableError(
            f"With {tried}, errors of {verdict.noise:.0%} are left, and {given} examples are too few to tell noise "
            f"from a missing head. Record about {max(needed, given + 1)}, or give `heads` if their number is known.",
            evidence=evidence,
            model=model,
            check=check,
        )
    if given < needed or verdict.reason == "examples":
        return NotIdentifiableError(
            f"No layer was found that also explains the held-out answers (best: {tried}, error {error:.1e} on the examples, "
            f"{check.relative_error:.1e} on held-out ones). {given} examples are few: about {max(needed, given + 1)} would settle "
            f"{enough_for} head{'s' * (enough_for > 1)}. Record more and run again.",
            evidence=evidence,
            model=model,
            check=check,
        )
    if verdict.reason == "noise":
        return TooNoisyError(
            f"Noise makes up {verdict.noise:.0%} of the answers with the best layer found ({tried}). "
            "Record more examples or less noisy answers.",
            evidence=evidence,
            model=model,
            check=check,
        )
    return NotInFamilyError(
        f"No attention layer found explains these examples: the best ({tried}) leaves {error:.1e} of the answers' size, and that "
        "is not noise: it depends on the tokens, or other starts end elsewhere. Check `causal` and `mask`, or give `heads`.",
        evidence=evidence,
        model=model,
        check=check,
    )
