"""What a decision does at the desk: look, look closer, open a diagnosis, take down what is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.desk import Desk
from unsoftmax.errors import DriftingError, RefusalError, Sign, TargetError, tried
from unsoftmax.oracles.base import is_local
from unsoftmax.precision.calibration import Calibration
from unsoftmax.precision.first_look import FirstLook
from unsoftmax.precision.law import Floor
from unsoftmax.recognition.case import Case
from unsoftmax.recognition.diagnosis import Diagnosis
from unsoftmax.results import Fact


@dataclass(frozen=True, slots=True)
class Standing:
    """How coarse answers are taken to be, and how long tokens may be."""

    precision: Floor
    max_norm: float | None


def standing(desk: Desk) -> Standing:
    """What is known by now; nothing is asked."""
    return Standing(desk.precision, desk.max_norm)


def looked(desk: Desk, *, strict: bool) -> FirstLook | str | None:
    """The first answers; where the caller is not ``strict`` None if the target fails on them, and in words that it changes."""
    if strict:
        return desk.first_look()
    look = tried(desk.first_look, DriftingError, TargetError)
    if isinstance(look, RefusalError):
        return str(look) if Sign.CHANGED in look.signs else None
    return look


def closer(desk: Desk) -> Calibration:
    """A closer look at the answers' precision, which counts from now on."""
    calibration = desk.look_closer()
    desk.known(calibration.floor)
    return calibration


def coarser(desk: Desk) -> bool:
    """Heads do not fit: are tokens clipped, or answers coarser than they seemed? Looked for once; 30 queries."""
    if desk.calibration is not None:
        return False
    before, calibration = desk.precision, desk.look_closer()
    desk.precision = calibration.floor
    limit = desk.max_norm if calibration.clip_norm is None else calibration.clip_norm
    if calibration.affine and (calibration.clip_norm is not None or desk.precision.needs_statistics(limit)):
        return True
    desk.precision = before
    return False


def bounded(desk: Desk) -> None:
    """Where the target cuts tokens, stay below that length."""
    if desk.wishes.max_norm is None and desk.calibration is not None and desk.calibration.clip_norm is not None:
        desk.clip = 0.9 * desk.calibration.clip_norm


def known(desk: Desk, precision: Floor) -> None:
    """From now on answers are this coarse."""
    desk.known(precision)


def sharpened(desk: Desk, noise: float) -> FirstLook:
    """The first look with the noise of one-token answers, once that was measured: a diagnosis need not do that again."""
    desk.look = replace(desk.first_look(), floor=Floor(relative=max(Floor().relative, noise)))
    return desk.look


def recorded(desk: Desk, *facts: Fact) -> None:
    """Keep facts."""
    desk.facts.extend(facts)


def noted(desk: Desk, words: str) -> None:
    """A sentence for the report."""
    desk.notes.append(words)


def opened(desk: Desk, *, alone: bool) -> Case:
    """Open a diagnosis, or go on with the one that is open where that is all.

    Args:
        desk: where it asks.
        alone: the diagnosis is all that is wanted: what was asked before counts towards its limit, but moves none of its questions,
            so that another test in the law of some family changes no verdict.
    """
    alone = alone and not desk.outcomes  # after a learner the questions are new ones, and counted anew
    if alone and desk.case is not None:
        return desk.case
    desk.case = Case(desk, np.random.default_rng(desk.seed) if alone else desk.rng, desk.max_norm)
    desk.case.longest = desk.longest
    desk.case.cheap = is_local(desk) and desk.like is None
    desk.case.alone = alone
    if alone:
        desk.case.most, desk.case.asked = desk.longest, desk.meter.spent
    return desk.case


def kept(desk: Desk, told: Diagnosis) -> None:
    """Keep what a diagnosis told, and every fact of it."""
    desk.told = told
    desk.facts.extend(fact for fact in told.evidence if fact not in desk.facts)
