"""Two answers to one question: rounding, noise, or a contradiction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from unsoftmax.errors import DriftingError, Sign
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle

RELATIVE_SLACK = 1024.0  # the last bits of an answer grow with its scores (tens to hundreds) and with the width, batch by batch
ABSOLUTE_SLACK = 10.0  # noise: two draws differ by 10 standard deviations once in 1e12
CONFIRMED = 6  # changed answers that are looked at more closely
NUDGES = 4  # copies of a question, each moved by the rounding of its numbers
COPIES = 3  # of the same question beside them, not moved at all
NUDGE = 8.0  # times the relative precision: what sums over a token's numbers may lose
TOUCHY = 64.0  # a question whose answer moves by this share of the change under such nudges proves nothing
SINGLE_AGAINST_DOUBLE = 2.0**19  # a few roundings of float32 in what two answers of float64 may differ by
INSIDE_SINGLE = " (Or it computes in float32 inside, where the last digits depend on the batch; then let it answer in float32.)"

BY_CHANCE = (
    "several versions of the model answer, answers depend on what was asked before, or they are rounded up and down by chance. Pin "
    "one version of it, switch off what is random, and start again."
)


class Precision(Protocol):
    """How coarse answers are; ``unsoftmax.results.Floor`` is one."""

    @property
    def relative(self) -> float:
        """Error relative to the values behind an answer."""

    @property
    def absolute(self) -> float:
        """Error that does not shrink with the answers."""

    @property
    def step(self) -> float | None:
        """Rounding step, where answers are rounded."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The precision of answers whose repetitions lie ``absolute`` apart, and that nobody understood: no finer than float32."""

    absolute: float = 0.0
    relative: float = 2.0**-22
    step: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """One question ``(length, width)``, its answer, and the size of the numbers behind that answer."""

    question: Floats
    answer: Floats
    size: float


def tolerance(floor: Precision, size: float) -> float:
    """How far two answers to the same question may differ without a contradiction, for values of magnitude ``size``."""
    return RELATIVE_SLACK * floor.relative * size + ABSOLUTE_SLACK * floor.absolute + (floor.step or 0.0)


def post_mortem(oracle: Oracle, sample: Sequence[Remembered], floor: Precision, *, calls: int = 4) -> int:
    """Ask earlier questions again, in at least ``calls`` small calls so that replicas take turns; return how many were asked.

    Price: ``len(sample)`` queries, and those of ``confirm``.

    Raises:
        DriftingError: an answer changed by more than ``floor`` explains; the evidence holds both answers.
    """
    per_call = max(1, -(-len(sample) // calls))
    by_length: dict[int, list[Remembered]] = {}
    for item in sample:
        by_length.setdefault(len(item.question), []).append(item)
    repeated: list[tuple[Remembered, Floats]] = []
    for items in by_length.values():
        for start in range(0, len(items), per_call):
            group = items[start : start + per_call]
            repeated.extend(zip(group, oracle(np.stack([item.question for item in group])), strict=True))
    return len(repeated) + confirm(oracle, repeated, floor)


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A question that got another answer than before, by more than rounding, noise or a nudge of its numbers explain."""

    item: Remembered
    now: Floats
    deviation: float
    allowed: float


def changes(oracle: Oracle, repeated: Sequence[tuple[Remembered, Floats]], floor: Precision) -> Iterator[Change | None]:
    """Earlier answers that ``floor`` does not explain beside new ones; None for each that a nudge explains.

    Questions of small tokens come first: one change is enough, and large tokens make scores that the last bits decide.

    Price: ``COPIES + NUDGES`` queries for each of at most ``CONFIRMED`` answers that changed.
    """
    suspects: list[Change] = []
    for item, answer in repeated:
        deviation = _deviation(answer, item.answer)
        allowed = tolerance(floor, max(item.size, float(np.abs(answer).max())))
        # values on the edge of a rounding step may fall to either side
        if deviation > allowed and not _neighbours([np.atleast_1d(answer), np.atleast_1d(item.answer)]):
            suspects.append(Change(item, answer, deviation, allowed))
    for change in sorted(suspects, key=lambda change: float(np.abs(change.item.question).max()))[:CONFIRMED]:
        edge = touchiness(oracle, change.item.question, floor) > change.deviation / TOUCHY
        yield None if edge else change  # on an edge the last bits of a batch decide


def confirm(oracle: Oracle, repeated: Sequence[tuple[Remembered, Floats]], floor: Precision) -> int:
    """Compare earlier answers with new ones to the same questions; look closer at those that changed, and return what that asked.

    Price: that of ``changes``.

    Raises:
        DriftingError: an answer changed by more than ``floor`` explains; the evidence holds both answers.
    """
    asked = 0
    for change in changes(oracle, repeated, floor):
        asked += COPIES + NUDGES
        if change is None:
            continue
        item, answer, deviation, allowed = change.item, change.now, change.deviation, change.allowed
        last_bits = deviation <= SINGLE_AGAINST_DOUBLE * allowed
        raise DriftingError(
            f"The target answered a question of {len(item.question)} tokens with {_shown(answer)}, "
            f"and earlier with {_shown(item.answer)}: a change of {deviation:.3g}, where its precision explains {allowed:.1g}. "
            "Its weights changed, or several versions answer in turn. Pin one version of it and start again."
            + (INSIDE_SINGLE if floor.relative < 2.0**-40 and last_bits else ""),
            signs=(Sign.LAST_BITS,) if last_bits else (),
            evidence={
                "before": np.asarray(item.answer).ravel()[:16].tolist(),
                "after": np.asarray(answer).ravel()[:16].tolist(),
                "deviation": deviation,
                "allowed": allowed,
                "asked_again": len(repeated) + asked,
            },
        )
    return asked


def touchiness(oracle: Oracle, question: Floats, floor: Precision) -> float:
    """How much the answer to ``question (length, width)`` moves when its numbers move by their rounding.

    0 where it moves as much when nothing does: that is chance. One call of ``COPIES + NUDGES``.
    """
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(NUDGES, *question.shape))  # fixed: a verdict must be repeatable
    nudge = NUDGE * max(floor.relative, np.finfo(np.float64).eps)
    nudged = question * ((1.0 + nudge * signs) / (1.0 + nudge))  # never outwards: tokens may have a limit
    answers = np.asarray(oracle(np.concatenate([np.repeat(question[None], COPIES, axis=0), nudged])))
    still, moved = (float(np.ptp(part, axis=0).max()) for part in (answers[:COPIES], answers[COPIES:]))
    return moved if still <= moved / 2 else 0.0


def replicas(oracle: Oracle, question: Floats, *, times: int = 12) -> tuple[int, float]:
    """How many fixed answers one question ``(length, width)`` gets in turn (1 unless replicas are mixed), and their spread.

    Noise gives a new answer each time; a pool of different replicas gives the same few again and again.

    Price: ``times`` queries, each in a call of its own.
    """
    answers = [np.atleast_1d(oracle(question[None])[0]).ravel() for _ in range(times)]
    scale = max(float(np.abs(answer).max()) for answer in answers)
    groups: list[list[Floats]] = []
    for answer in answers:
        home = next((group for group in groups if np.abs(group[0] - answer).max() <= 1e-6 * scale), None)
        groups.append([answer]) if home is None else home.append(answer)
    few = 1 < len(groups) <= times // 3 and all(len(group) > 1 for group in groups)
    spread = float(np.ptp(np.stack(answers), axis=0).max())
    return (len(groups) if few and not _neighbours([group[0] for group in groups]) else 1), spread


def _neighbours(values: list[Floats]) -> bool:
    """Whether all values lie within a few steps of one decimal grid: rounding, and perhaps noise before it."""
    stacked = np.stack(values)
    for decimals in range(9):
        steps = stacked * 10.0**decimals
        if np.abs(steps - np.round(steps)).max() < 1e-6:
            return bool(np.ptp(steps, axis=0).max() < 4.5)
    return False


def _deviation(answer: Floats, other: Floats) -> float:
    """The largest difference; a model's answer at the last position is compared with that position alone."""
    a, b = np.atleast_1d(answer), np.atleast_1d(other)
    return float(np.abs(a - (b[-1] if b.ndim > a.ndim else b)).max())


def _shown(answer: Floats) -> str:
    flat = np.asarray(answer).ravel()
    return f"{flat[0]:.17g}" + (" …" if flat.size > 1 else "")
