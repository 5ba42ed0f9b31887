"""Diagnosis: whether one head stands before a smooth network, with or without residual (about 75 queries, or 100)."""

from __future__ import annotations

from unsoftmax.desk import Desk
from unsoftmax.recognition.case import Case, Shape, Verdict
from unsoftmax.recognition.floor import measure_answers
from unsoftmax.recognition.line import behind_network
from unsoftmax.recognition.names import many_copies
from unsoftmax.recognition.one_token import ignores_length, pilot
from unsoftmax.recognition.piecewise import transformer
from unsoftmax.recognition.settings import TESTS
from unsoftmax.recognition.standing import opened
from unsoftmax.results import Fact

NAME = "one head before it"


def one_head_before(desk: Desk) -> Fact:
    """Without a residual sequences on a line are answered like their weighted mean; with one, those far out that share a mean.

    Gates and networks on the values pass the second without a residual, and fail the first; a norm before attention passes it from
    afar as well, but ignores the length of tokens near by.
    """
    case = opened(desk, alone=True)
    found = case.tried(lambda: _passed(case))
    if isinstance(found, Verdict):  # out of questions, or tokens would be too long
        return Fact(NAME, 0.0, 1.0, None, found.reason)
    words = {
        True: "One head stands before the network.",
        False: "No one head stands before the network.",
        None: "Whether one head stands before the network was not told.",
    }
    return Fact(NAME, float(bool(found)), 1.0, found, words[found])


def _passed(case: Case) -> bool | None:
    measure_answers(case)
    point = pilot(case)
    if point.flat or point.hard or not point.listens:
        return None
    line = behind_network(case, Shape.SMOOTH, point.scale)
    if line.passed is not False:
        return line.passed
    p, x = case.cap(point.scale, 5.0) * case.draw(2) / 4
    if many_copies(case, p, x) <= 1 or ignores_length(case, point.scale):  # nothing is added that could excuse the line; a norm
        return False
    far, residual = transformer(case, point.scale * 0.4 / max(0.4, point.strength), TESTS.afar)
    return True if far.passed and residual else None
