"""Diagnosis: whether a target that answers at every position answers the earlier ones by the law of the last."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import Sign
from unsoftmax.models import Floats
from unsoftmax.proof.settings import PROOF
from unsoftmax.recognition.case import Case, Verdict, inconclusive, outside
from unsoftmax.recognition.plane import Plane
from unsoftmax.recognition.settings import TESTS


def every_position(case: Case, scale: float, *, causal: bool | None, foretold: bool) -> Verdict | None:
    """The verdict that some earlier position is answered otherwise than the last one would be, where one is.

    Where the scores of one head ``foretold`` all positions, that costs nothing. Of any family a layer that sees all tokens answers
    each alike wherever it stands, and a causal one as if nothing came after it: up to 14 queries, and what the lengths leave,
    where no learner follows, whose check compares every position.
    """
    if not (case.alone and case.everywhere) or (causal is None and not foretold):
        return None
    if not foretold and causal is not None:
        case.begin("every position")
        worst = _otherwise(case, case.cap(scale, 1.5), causal=causal)
    else:
        worst = min(case.elsewhere.values(), default=0.0)
    words = "Earlier positions are answered by the law of the last one."
    if worst > 1:
        words = "Some earlier position is answered otherwise than the last one foretells: another law holds there."
    if case.record("every position", worst, 1.0, worst <= 1, words):
        return None
    faint = TESTS.faint_coarse if case.coarse else TESTS.faint if foretold else TESTS.faint_bent
    return inconclusive("power", words) if worst <= faint else outside("another law at other positions", words, Sign.OTHER_SCORES)


def compare_elsewhere(case: Case, plane: Plane, coordinates: Floats, base: Floats) -> None:
    """The answers just given at every position against what the scores of a plane foretell there, where these are not too steep."""
    if not (case.alone and case.whole is not None):
        return
    chord = base[1:] - base[0]
    size = case.tolerance(base[0] + coordinates @ chord, base) * (1 + float(np.abs(coordinates).max()))
    for causal in (False, True):  # whichever form fits
        centres, steep = plane.centres(coordinates, causal=causal)
        allowed = size + 10 * plane.uncertainties(coordinates, causal=causal) @ np.abs(chord).max(axis=1)
        off = np.abs(case.whole[0] - base[0] - centres @ chord).max(axis=1) / allowed
        missed = float(off[steep <= TESTS.steepest_further].max(initial=0.0))
        case.elsewhere[causal] = max(case.elsewhere.get(causal, 0.0), missed)


def _otherwise(case: Case, scale: float, *, causal: bool) -> float:
    """How far two answers that should be alike differ at most, of what is allowed."""
    longest = min(case.longest, case.most, PROOF.moderate)
    unasked = sum(n not in case.foretold for n in range(2, longest + 1)) if case.cheap else 0
    most = min(case.left(), max(TESTS.positions, case.left() - 2 * unasked))  # lengths may take two questions each
    if not causal:
        return _turned(case, scale, longest, most)
    worst = _beginnings(case, scale, longest, most - 2)
    # later tokens may have been too faint to be seen
    return min(worst, _turned(case, scale, longest, 2)) if worst > 1 and most >= 2 else worst


def _turned(case: Case, scale: float, longest: int, most: int) -> float:
    """Sequences, and the same begun elsewhere: each token must be answered alike in both."""
    worst = 0.0
    for length in [longest, *case.rng.permutation(np.arange(2, longest)).tolist()][: most // 2]:
        tokens, turn = scale * case.draw(length), int(case.rng.integers(1, length))
        one, other = _answers(case, np.stack([tokens, np.roll(tokens, turn, axis=0)]))
        worst = max(worst, _apart(case, np.roll(one, turn, axis=0), other))
    return worst


def _beginnings(case: Case, scale: float, longest: int, most: int) -> float:
    """One sequence and its beginnings, each of which must be answered as the whole one is there."""
    tokens, worst = scale * case.draw(longest), 0.0
    if most < 2:
        return worst
    (whole,) = _answers(case, tokens[None])
    for length in [1, *case.rng.permutation(np.arange(2, longest)).tolist()][: most - 1]:
        (part,) = _answers(case, tokens[None, :length])
        worst = max(worst, _apart(case, part, whole[:length]))
    return worst


def _answers(case: Case, sequences: Floats) -> Floats:
    """Answers ``(batch, length, outputs)`` at every position."""
    case.ask(sequences)
    assert case.whole is not None, "the target answers at every position"
    return case.whole


def _apart(case: Case, one: Floats, other: Floats) -> float:
    room = 1 if case.coarse else 20  # as where tokens are doubled
    return float(np.abs(one - other).max()) / (room * case.tolerance(one))
