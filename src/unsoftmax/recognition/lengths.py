"""Diagnosis: whether sequences of all lengths are answered by one law; a target may change with the number of its tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import Sign
from unsoftmax.models import Floats
from unsoftmax.oracles.contradiction import BY_CHANCE
from unsoftmax.proof.settings import PROOF
from unsoftmax.recognition.case import Case, DecidedError, Verdict, inconclusive, outside
from unsoftmax.recognition.names import NOT_BILINEAR
from unsoftmax.recognition.one_head import Outcome, against, corners, natural_plane
from unsoftmax.recognition.plane import Plane, random_coordinates
from unsoftmax.recognition.positions import compare_elsewhere
from unsoftmax.recognition.settings import TESTS

OTHER_LENGTHS = outside(
    "another law at other lengths",
    "Some sequences are answered as one head foretells, but longer ones or such whose tokens repeat each other are not: a head, a "
    "temperature or a cut that depends on the number of tokens, or repeats that count less.",
    Sign.OTHER_SCORES,
)


@dataclass(frozen=True, slots=True)
class Missed:
    """The largest miss of what was foretold, of what is allowed, and at which length.

    ``natural``: the largest among sequences of natural tokens, of which alone a recovery says something. ``by_number``: whether
    what was missed hangs on the number of tokens, and not on the tokens; None where that was not told.
    """

    worst: float = 0.0
    at: int = 0
    natural: float = 0.0
    by_number: bool | None = None

    def and_also(self, share: float, length: int, *, natural: bool = True, by_number: bool | None = None) -> Missed:
        """With one sequence more."""
        worst, at = max((self.worst, self.at), (share, length))
        told = [each for each in (self.by_number, by_number) if each is not None]
        return Missed(worst, at, max(self.natural, share) if natural else self.natural, all(told) if told else None)

    @property
    def far(self) -> bool:
        """Only tokens longer than natural ones show it."""
        return self.natural <= 1 < self.worst and not self.by_number

    def verdict(self, words: str, faint: float) -> Verdict | None:
        """What that says of a target that passed for one of a family; None where nothing was missed."""
        if self.worst <= 1:
            return None
        if self.worst <= faint:
            return inconclusive("power", words)
        if self.far:
            longer = f"{words} That shows in tokens longer than natural ones alone: `max_norm` keeps to short ones."
            return inconclusive("token length", longer, Sign.CUT)
        return NOT_BILINEAR if self.by_number is False else replace(OTHER_LENGTHS, reason=words)


def at_other_lengths(case: Case, plane: Plane) -> Missed:
    """Whether longer sequences are answered as the scores of a plane foretell, and those whose tokens repeat each other too.

    Lengths are drawn, the longest among them. 6 queries, as far as they last.
    """
    case.begin("other lengths")
    longest = min(case.longest, case.most)
    if longest < TESTS.least_further:
        return Missed()
    drawn = np.exp(case.rng.uniform(math.log(TESTS.least_further), math.log(longest), size=TESTS.further - 1)).astype(int)
    missed = _missed(case, [plane], [longest, *drawn.tolist()])
    words = "Longer sequences are answered as short ones foretell."
    if missed.worst > 1:
        words = f"A sequence of {missed.at} tokens is answered otherwise than shorter ones foretell."
    case.record("other lengths", missed.worst, 1.0, missed.worst <= 1, words)
    return missed


def every_length(case: Case, scale: float, plane: Plane | None) -> Verdict | None:
    """The verdict that some length from 2 to 64 follows another law, where one does; each length that no test foretold is asked.

    On a ``plane`` of one head every answer is foretold, and on a second one where questions are left for that. Of any family copies
    of two tokens in equal shares are answered alike, whatever their number. One query a length, as far as they last, where the
    target runs in this process and no learner follows, whose check asks as many.
    """
    if not (case.alone and case.cheap):
        return None
    case.begin("every length")
    longest = min(case.longest, case.most)
    wanted = [n for n in range(2, min(longest, PROOF.moderate) + 1) if n not in case.foretold]
    if plane is None:
        missed = _uneven(case, scale, wanted)
    else:
        another = natural_plane(case, scale, len(wanted))
        if isinstance(another, Outcome):
            return inconclusive("power", f"On another plane {another.why}, by little.") if another.faint else NOT_BILINEAR
        missed = _missed(case, [plane] if another is None else [plane, another], case.rng.permutation(wanted).tolist())
    missing = [n for n in wanted if n not in case.foretold]
    words = f"Sequences of every length from 2 to {min(longest, PROOF.moderate)} are answered by one law."
    if missing:
        words = f"{len(missing)} of the lengths from 2 to {min(longest, PROOF.moderate)} were not asked, for want of questions."
    if missed.worst > 1:
        words = f"Sequences of {missed.at} tokens are answered otherwise than those of other lengths foretell."
    case.record("every length", missed.worst, 1.0, missed.worst <= 1, words)
    return missed.verdict(words, TESTS.faint_coarse if case.coarse else TESTS.faint if plane is not None else TESTS.faint_bent)


def _missed(case: Case, planes: list[Plane], lengths: Iterable[int]) -> Missed:
    """The largest miss of what the planes foretell in turn; one query for each length, while they last.

    Both the last token and the others lie far away in turn.
    """
    missed, bases = Missed(), [corners(case, plane) for plane in planes]
    for number, length in enumerate(lengths):
        if case.left() < 1:
            break
        turn, which = divmod(number, len(planes))
        plane, base = planes[which], bases[which]
        away = (*TESTS.asked_from, max(TESTS.asked_from[-1], plane.across))
        wider, coordinates = TESTS.wider[turn % len(TESTS.wider)], random_coordinates(case.rng, len(plane.axes), length)
        if turn % 2 and length > 3:
            coordinates[:-1] = coordinates[case.rng.integers(0, length // 2, size=length - 1)]
        coordinates += (away[turn // len(TESTS.wider) % len(away)] - 1.0) * coordinates[-1]
        last = coordinates[-1]
        steep = float(np.abs((coordinates - last) @ plane.slope(last)).max())
        coordinates = last + min(wider, max(TESTS.steepest_further / max(steep, 1e-9), 1.0 / plane.unit)) * (coordinates - last)
        told = against(case, plane, coordinates, base)
        if told is None:
            continue
        case.foretold.add(length)
        compare_elsewhere(case, plane, coordinates, base)
        by_number = None
        if told.share > max(1.0, missed.worst) and case.left() > 0:
            again = against(case, plane, coordinates, base)
            if again is not None and abs(again.share - told.share) > 1:
                _count_by_chance(case, length)
                continue
            by_number = _hangs_on_number(case, plane, coordinates, base)
        missed = missed.and_also(told.share, length, natural=told.natural, by_number=by_number)
    return missed


def _hangs_on_number(case: Case, plane: Plane, coordinates: Floats, base: Floats) -> bool | None:
    """Whether a sequence is missed for the number of its tokens, or for repeats: a few of them, or all of them twice, are not.

    The few have the highest scores and the lowest, where bends and cuts show. 2 queries; None where too few are left.
    """
    last = coordinates[-1]
    distinct = np.unique(coordinates[:-1], axis=0)
    order = np.argsort((distinct - last) @ plane.slope(last))
    few = (
        [distinct[order[[0, -2, -1]]], distinct[order[-4:]]]
        if len(order) >= 4
        else [np.concatenate([coordinates, coordinates[:-1]])]
    )
    if case.left() < len(few):
        return None
    told = [against(case, plane, np.vstack([each, last]), base) for each in few]
    return any(each.share <= 1 for each in told if each is not None)


def _uneven(case: Case, scale: float, lengths: list[int]) -> Missed:
    """The largest difference between lengths at which the same shares of two tokens were sent, of what is allowed."""
    room = 1 if case.coarse else 20  # as where tokens are doubled
    longest, missed = min(case.longest, case.most), Missed()
    odd = sorted({n // (n & -n) for n in lengths})
    for part in case.rng.permutation(odd).tolist():
        mine = [n for n in lengths if n // (n & -n) == part]
        if len(mine) == 1:  # one more of the same shares to compare with
            other = 2 * mine[0] if 2 * mine[0] <= longest else mine[0] // 2
            if other < 2 or (mine[0] % 2 and other < mine[0]):
                continue
            mine.append(other)
        if case.left() < len(mine):
            continue
        first, last = case.cap(scale, 1.5) * case.draw(2)
        unit = max(part, 2)
        one = np.stack([*[first] * ((unit + 1) // 2), *[last] * (unit // 2)])
        answers = np.concatenate([case.ask(np.tile(one, (n // unit, 1))[None]) for n in mine])
        off = np.abs(answers - np.median(answers, axis=0)).max(axis=1) / (room * case.tolerance(answers))
        case.foretold.update(mine)
        missed = missed.and_also(float(off.max()), mine[int(off.argmax())])
    return missed


def _count_by_chance(case: Case, length: int) -> None:
    """Remember a sequence of such a length that got two answers; raises ``DecidedError`` at the second."""
    case.by_chance.append(length)
    if len(case.by_chance) > 1:
        words = f"Sequences of {' and '.join(map(str, case.by_chance))} tokens, asked twice, got two answers: {BY_CHANCE}"
        raise DecidedError(outside("random answers", words, Sign.RANDOM))


def rarely_by_chance(case: Case) -> Verdict | None:
    """The verdict where one sequence of all got two answers: a recovery, which asks more, may or may not meet another."""
    if not case.by_chance:
        return None
    words = f"One sequence, of {case.by_chance[0]} tokens, asked twice, got two answers, and no other did: {BY_CHANCE}"
    case.record("asked twice", 1.0, 2.0, False, words)
    return inconclusive("power", words, Sign.RANDOM)
