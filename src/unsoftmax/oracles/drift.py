"""Noticing a target that contradicts itself: changed weights, mixed replicas, answers that depend on anything but the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import BudgetExceededError, DriftingError
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, Wrapper, phase

SIZED = 16  # questions of a batch whose size is measured
RELATIVE_SLACK = 1024.0  # the last bits of an answer grow with its scores (tens to hundreds) and with the width, batch by batch
ABSOLUTE_SLACK = 10.0  # noise: two draws differ by 10 standard deviations once in 1e12
UNKNOWN_RELATIVE = 2.0**-22  # of a target whose precision was not understood: no finer than float32
SENTINELS = "sentinels"  # the phase that meters book them under
FIRST = 16  # questions kept for ever: a target that changed early shows it on them alone


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


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """One question ``(length, width)``, its answer, and the size of the numbers behind that answer."""

    question: Floats
    answer: Floats
    size: float


@dataclass(slots=True)
class Sizes:
    """The largest answer seen to tokens up to each size: what the rounding of an answer is relative to.

    An answer near zero may be a difference of large values, so its own size says little about its last bits.
    """

    largest: dict[int, float] = field(default_factory=dict)

    def learn(self, questions: Floats, answers: Floats) -> None:
        """Take in a batch of questions and answers; a sample of a large one tells as much, at a fraction of the time."""
        step = max(1, -(-len(questions) // SIZED))
        questions, answers = questions[::step], answers[::step]
        reach = _exponents(questions)
        values = np.abs(answers.reshape(len(answers), -1)).max(axis=1)
        for exponent in np.unique(reach):
            self.largest[int(exponent)] = max(self.largest.get(int(exponent), 0.0), float(values[reach == exponent].max()))

    def of(self, questions: Floats) -> list[float]:
        """For each question the size of the values that may enter its answer."""
        return [max((size for reach, size in self.largest.items() if reach <= e), default=0.0) for e in _exponents(questions)]


def tolerance(floor: Precision, size: float) -> float:
    """How far two answers to the same question may differ without a contradiction, for values of magnitude ``size``."""
    return RELATIVE_SLACK * floor.relative * size + ABSOLUTE_SLACK * floor.absolute + (floor.step or 0.0)


@dataclass(frozen=True, slots=True)
class _Spread:
    """The precision of answers whose repetitions lie ``absolute`` apart."""

    absolute: float
    relative: float
    step: float | None = None


class Watched(Wrapper):
    """Asks a few earlier questions again, at moments drawn from ``rng``, and compares.

    Questions pass through unchanged and in their own calls, so that the learner sees the same answers to the last bit as without
    it. Sentinels start once ``floor`` is known. They cost at most ``share`` of the questions, and never more than ``cap``.

    Args:
        inner: the oracle to watch.
        rng: draws moments and questions.
        share: sentinels per question asked.
        cap: sentinels in all; None for no other limit than ``share``.
        expected: questions that the run is expected to ask; with ``cap`` it spreads the sentinels over the run.
        floor: how coarse the answers are; None until it was measured.
        memory: questions kept for asking again: the first few, and a fair sample of all.

    Attributes:
        sentinels: sentinels asked so far.
        asked: questions passed on so far.
    """

    def __init__(
        self,
        inner: Oracle,
        rng: np.random.Generator,
        *,
        share: float = 0.01,
        cap: int | None = None,
        expected: int | None = None,
        floor: Precision | None = None,
        memory: int = 64,
    ) -> None:
        super().__init__(inner)
        self.floor = floor
        self.sentinels = 0
        self.asked = 0
        self.share = share
        self.cap = cap
        self.expected = expected
        self._rng = rng
        self._memory = memory
        self._sample: list[tuple[Floats, Floats]] = []
        self._sizes = Sizes()
        self._phase = "asked"
        self._next = self._gap()

    def begin_phase(self, name: str) -> None:
        """Pass the name on, and remember it for after the sentinels."""
        self._phase = name
        phase(self.inner, name)

    def __call__(self, sequences: Floats, /) -> Floats:
        """Pass the question on; then, now and then, ask something again."""
        answers = self.inner(sequences)
        self._remember(sequences, answers)
        due = 0
        while self._next <= self.asked:
            self._next += self._gap()
            due += 1
        room = int(self.share * self.asked) if self.cap is None else min(self.cap, int(self.share * self.asked))
        count = min(due, room - self.sentinels, self._memory)
        if count > 0 and self.floor is not None:
            self._ask_again(count, self.floor)
        return answers

    def sample(self, count: int, rng: np.random.Generator) -> list[Remembered]:
        """Up to ``count`` different questions asked so far, with their answers; a quarter of them from the very first."""
        early = min(FIRST, count // 4, len(self._sample))
        others = early + rng.permutation(len(self._sample) - early)[: count - early]
        picked = self._sample[:early] + [self._sample[i] for i in others]
        return [Remembered(question, answer, self._sizes.of(question[None])[0]) for question, answer in picked]

    def unexplained(self, predict: Callable[[Floats], Floats], error: float) -> list[Remembered]:
        """Earlier questions whose answers a model does not explain, although it is right on fresh ones up to ``error`` (relative).

        Costs no query. A target that changed during the first questions shows here; asking them again (``post_mortem``) proves it.
        """
        sample = self.sample(len(self._sample), self._rng)
        allowed = RELATIVE_SLACK * max(error, np.finfo(np.float64).eps)
        return [item for item in sample if _deviation(predict(item.question[None])[0], item.answer) > allowed * item.size]

    def look_for_replicas(self, times: int = 12) -> None:
        """Where repeated questions get different answers: tell replicas, or weights that just changed, from noise.

        Price: ``times`` queries, and one for each question asked so far (at most ``memory``).

        Raises:
            DriftingError: the same few answers come in turn, or answers differ from earlier ones far more than from each other.
        """
        question, _ = max(self._sample, key=lambda pair: float(np.abs(pair[1]).max()))
        phase(self.inner, SENTINELS)
        try:
            count, spread = replicas(self.inner, question, times=times)
            if count > 1:
                raise DriftingError(
                    f"One question, asked {times} times, got {count} fixed answers in turn: so many versions of the model answer. "
                    "Pin one version of it and start again.",
                    evidence={"replicas": count, "asked_again": times},
                )
            known = self.floor or _Spread(0.0, UNKNOWN_RELATIVE)
            floor = _Spread(max(spread, known.absolute), known.relative, known.step)
            post_mortem(self.inner, self.sample(self._memory, self._rng), floor, calls=1)
        finally:
            phase(self.inner, self._phase)

    def _ask_again(self, count: int, floor: Precision) -> None:
        sample = self.sample(count, self._rng)
        phase(self.inner, SENTINELS)
        try:
            self.sentinels += post_mortem(self.inner, sample, floor, calls=1)
        except BudgetExceededError:
            pass  # the learner's own next question will meet the same wall, and say so
        finally:
            phase(self.inner, self._phase)

    def _gap(self) -> float:
        """Questions until the next sentinel."""
        mean = 1.0 / self.share
        if self.cap is not None and self.expected is not None:
            mean = max(mean, self.expected / (self.cap + 1))
        return mean * self._rng.uniform(0.5, 1.5)

    def _remember(self, sequences: Floats, answers: Floats) -> None:
        """Keep the first questions for ever, and of the others a fair sample (reservoir sampling)."""
        self._sizes.learn(sequences, answers)
        slots = self._rng.integers(0, np.arange(self.asked + 1, self.asked + len(sequences) + 1))
        for i in np.flatnonzero((slots < self._memory) | (np.arange(len(slots)) + self.asked < self._memory)):
            place = int(slots[i])
            pair = (np.array(sequences[i]), np.array(answers[i]))
            if len(self._sample) < self._memory:
                self._sample.append(pair)
            elif place >= FIRST:
                self._sample[place] = pair
        self.asked += len(sequences)


def post_mortem(oracle: Oracle, sample: Sequence[Remembered], floor: Precision, *, calls: int = 4) -> int:
    """Ask earlier questions again, in at least ``calls`` small calls so that replicas take turns; return how many were asked.

    Price: ``len(sample)`` queries.

    Raises:
        DriftingError: an answer changed by more than ``floor`` explains; the evidence holds both answers.
    """
    per_call = max(1, -(-len(sample) // calls))
    by_length: dict[int, list[Remembered]] = {}
    for item in sample:
        by_length.setdefault(len(item.question), []).append(item)
    asked, worst = 0, None
    for items in by_length.values():
        for start in range(0, len(items), per_call):
            group = items[start : start + per_call]
            answers = oracle(np.stack([item.question for item in group]))
            asked += len(group)
            for item, answer in zip(group, answers, strict=True):
                deviation = _deviation(answer, item.answer)
                allowed = tolerance(floor, max(item.size, float(np.abs(answer).max())))
                rounded = _neighbours([np.atleast_1d(answer), np.atleast_1d(item.answer)])  # a value on the edge of a rounding step
                if deviation > allowed and not rounded and (worst is None or deviation / allowed > worst[0]):
                    worst = (deviation / max(allowed, np.finfo(float).tiny), deviation, allowed, item, answer)
    if worst is not None:
        _, deviation, allowed, item, answer = worst
        raise DriftingError(
            f"The target answered a question of {len(item.question)} tokens with {_shown(answer)}, "
            f"and earlier with {_shown(item.answer)}: a change of {deviation:.3g}, where its precision explains {allowed:.1g}. "
            "Its weights changed, or several versions answer in turn. Pin one version of it and start again.",
            evidence={
                "before": np.asarray(item.answer).ravel()[:16].tolist(),
                "after": np.asarray(answer).ravel()[:16].tolist(),
                "deviation": deviation,
                "allowed": allowed,
                "asked_again": asked,
            },
        )
    return asked


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


def _exponents(questions: Floats) -> NDArray[np.int_]:
    """The binary exponent of each question's largest number."""
    exponents: NDArray[np.int_] = np.frexp(np.abs(questions).reshape(len(questions), -1).max(axis=1))[1].astype(np.int_)
    return exponents


def _deviation(answer: Floats, other: Floats) -> float:
    """The largest difference; a model's answer at the last position is compared with that position alone."""
    a, b = np.atleast_1d(answer), np.atleast_1d(other)
    return float(np.abs(a - (b[-1] if b.ndim > a.ndim else b)).max())


def _shown(answer: Floats) -> str:
    flat = np.asarray(answer).ravel()
    return f"{flat[0]:.17g}" + (" …" if flat.size > 1 else "")
