"""Diagnosis: whether sequences of all lengths are answered by one law; a target may change with the number of its tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from unsoftmax.errors import Sign
from unsoftmax.oracles.contradiction import BY_CHANCE
from unsoftmax.proof.settings import PROOF
from unsoftmax.recognition.case import Case, DecidedError, Verdict, inconclusive, outside
from unsoftmax.recognition.one_head import against, corners
from unsoftmax.recognition.plane import Plane, random_coordinates
from unsoftmax.recognition.positions import compare_elsewhere
from unsoftmax.recognition.settings import TESTS


def at_other_lengths(case: Case, plane: Plane) -> bool | None:
    """Whether longer sequences are answered as the scores of a plane foretell, and those whose tokens repeat each other too.

    None where they miss that too faintly to tell. Lengths are drawn, the longest among them. 6 queries, as far as they last.
    """
    case.begin("other lengths")
    longest = min(case.longest, case.most)
    if longest < TESTS.least_further:
        return True
    drawn = np.exp(case.rng.uniform(math.log(TESTS.least_further), math.log(longest), size=TESTS.further - 1)).astype(int)
    worst, at = _missed(case, plane, [longest, *drawn.tolist()])
    words = "Longer sequences are answered as short ones foretell."
    if worst > 1:
        words = f"A sequence of {at} tokens is answered otherwise than shorter ones foretell."
    return case.record("other lengths", worst, 1.0, worst <= 1, words) or (None if worst <= TESTS.faint else False)


def every_length(case: Case, scale: float, plane: Plane | None) -> Verdict | None:
    """The verdict that some length from 2 to 64 follows another law, where one does; each length that no test foretold is asked.

    On a ``plane`` of one head every answer is foretold. Of any family copies of two tokens in equal shares are answered alike,
    whatever their number. One query a length, as far as they last, where the target runs in this process and no learner follows,
    whose check asks as many.
    """
    if not (case.alone and case.cheap):
        return None
    case.begin("every length")
    longest = min(case.longest, case.most)
    wanted = [n for n in range(2, min(longest, PROOF.moderate) + 1) if n not in case.foretold]
    worst, at = _missed(case, plane, case.rng.permutation(wanted).tolist()) if plane is not None else _uneven(case, scale, wanted)
    missing = [n for n in wanted if n not in case.foretold]
    words = f"Sequences of every length from 2 to {min(longest, PROOF.moderate)} are answered by one law."
    if missing:
        words = f"{len(missing)} of the lengths from 2 to {min(longest, PROOF.moderate)} were not asked, for want of questions."
    if worst > 1:
        words = f"Sequences of {at} tokens are answered otherwise than those of other lengths foretell."
    if case.record("every length", worst, 1.0, worst <= 1, words):
        return None
    faint = TESTS.faint_coarse if case.coarse else TESTS.faint if plane is not None else TESTS.faint_bent
    return inconclusive("power", words) if worst <= faint else outside("another law at other lengths", words, Sign.OTHER_SCORES)


def _missed(case: Case, plane: Plane, lengths: Iterable[int]) -> tuple[float, int]:
    """The largest miss of what the plane foretells, of what is allowed, and at which length; one query each, while they last."""
    base, worst, at = corners(case, plane), 0.0, 0
    for number, length in enumerate(lengths):
        if case.left() < 1:
            break
        wider, coordinates = TESTS.wider[number % len(TESTS.wider)], random_coordinates(case.rng, len(plane.axes), length)
        if number % 2 and length > 3:
            coordinates[:-1] = coordinates[case.rng.integers(0, length // 2, size=length - 1)]
        last = coordinates[-1]
        steep = float(np.abs((coordinates - last) @ plane.slope(last)).max())
        coordinates = last + min(wider, TESTS.steepest_further / max(steep, 1e-9)) * (coordinates - last)
        told = against(case, plane, coordinates, base)
        if told is None:
            continue
        case.foretold.add(length)
        compare_elsewhere(case, plane, coordinates, base)
        if told.share > 1 and case.left() > 0:
            again = against(case, plane, coordinates, base)
            if again is not None and abs(again.share - told.share) > 1:
                raise _random(length)
        if told.share > worst:
            worst, at = told.share, length
    return worst, at


def _uneven(case: Case, scale: float, lengths: list[int]) -> tuple[float, int]:
    """The largest difference between lengths at which the same shares of two tokens were sent, of what is allowed."""
    room = 1 if case.coarse else 20  # as where tokens are doubled
    longest, worst, at = min(case.longest, case.most), 0.0, 0
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
        if off.max() > worst:
            worst, at = float(off.max()), mine[int(off.argmax())]
    return worst, at


def _random(length: int) -> DecidedError:
    words = f"A sequence of {length} tokens, asked twice, got two answers: {BY_CHANCE}"
    return DecidedError(outside("random answers", words, Sign.RANDOM))
