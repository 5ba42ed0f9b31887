"""Noticing a target that contradicts itself: changed weights, mixed replicas, answers that depend on anything but the question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from unsoftmax.errors import BudgetExceededError, DriftingError
from unsoftmax.linalg import all_on_host, array_namespace, on_host
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, Wrapper, phase
from unsoftmax.oracles.contradiction import (
    RELATIVE_SLACK,
    Precision,
    Remembered,
    Spread,
    confirm,
    post_mortem,
    replicas,
    tolerance,
)
from unsoftmax.oracles.local import checked_answers

__all__ = ["Sizes", "Watched", "post_mortem", "replicas", "tolerance"]

SIZED = 4  # questions of a batch whose size is measured
UNSEEN = 256  # batches that may wait to be looked at
SENTINELS = "sentinels"  # the phase that meters book them under
FIRST = 64  # questions kept for ever: a target that changed early shows it on them alone
ASKED_AGAIN = 24  # questions at most that a look back repeats
SIZED_CALLS = 16  # large calls of a phase whose sizes are measured one by one; later every so manieth, since they are of one kind
SMALL = 64  # sequences of a call that is not large


@dataclass(slots=True)
class Sizes:
    """The largest answer seen to tokens up to each size: what the rounding of an answer is relative to.

    An answer near zero may be a difference of large values, so its own size says little about its last bits.
    """

    largest: dict[int, float] = field(default_factory=dict)
    _seen: list[tuple[Floats, Floats]] = field(default_factory=list)  # questions and answers, where they lie

    def learn(self, questions: Floats, answers: Floats) -> None:
        """Take in questions and answers that stay as they are: they are looked at when needed, and no device is waited for."""
        self._seen.append((questions, answers))
        if len(self._seen) >= UNSEEN:
            self._look()

    def of(self, questions: Floats) -> list[float]:
        """For each question the size of the values that may enter its answer."""
        return self.up_to(on_host(_largest(questions)))

    def up_to(self, largest: Floats) -> list[float]:
        """The same for questions whose largest numbers are these."""
        self._look()
        exponents = np.frexp(largest)[1].tolist()
        known = {e: max((size for reach, size in self.largest.items() if reach <= e), default=0.0) for e in set(exponents)}
        return [known[e] for e in exponents]

    def _look(self) -> None:
        kinds = [_largest(array) for _, *pair in _joined(self._seen) for array in pair]
        sizes = iter(all_on_host(kinds))
        for largest, told in zip(sizes, sizes, strict=True):
            reach = np.frexp(largest)[1]
            for exponent in np.unique(reach):
                self.largest[int(exponent)] = max(self.largest.get(int(exponent), 0.0), float(told[reach == exponent].max()))
        self._seen.clear()


def _largest(batch: Floats) -> Floats:
    """The largest number of each item of a batch, sign aside."""
    flat = batch.reshape(len(batch), -1)
    largest: Floats
    if isinstance(flat, np.ndarray):  # no copy without signs, which takes longer than to look twice
        largest = np.maximum(flat.max(axis=1), -flat.min(axis=1))
    else:
        largest = array_namespace(flat).linalg.vector_norm(flat, ord=np.inf, axis=1)
    return largest


class _Kept(NamedTuple):
    """One of the questions that were copied together, and its answer; on a device perhaps, until someone looks at it."""

    questions: Floats
    answers: Floats
    row: int

    @property
    def pair(self) -> tuple[Floats, Floats]:
        """The question and its answer, as batches of one."""
        return self.questions[self.row : self.row + 1], self.answers[self.row : self.row + 1]


def _joined(pairs: list[tuple[Floats, Floats]]) -> Iterator[tuple[list[int], Floats, Floats]]:
    """Questions and answers of one kind together, where they lie; and the numbers of those pairs."""
    alike: dict[object, list[int]] = {}
    for number, (questions, answers) in enumerate(pairs):
        alike.setdefault((type(questions), questions.shape[1:], answers.shape[1:]), []).append(number)
    for numbers in alike.values():
        yield numbers, _concat([pairs[i][0] for i in numbers]), _concat([pairs[i][1] for i in numbers])


def _concat(parts: list[Floats]) -> Floats:
    joined: Floats = parts[0] if len(parts) == 1 else array_namespace(parts[0]).concat(parts)
    return joined


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
        memory: int = 128,
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
        self._sample: list[_Kept] = []
        self._repeated: list[tuple[Floats, Floats, Floats, Precision]] = []  # questions, answers then and now, and how coarse
        self._sizes = Sizes()
        self._phase = "asked"
        self._calls = 0
        self._next = self._gap()

    def begin_phase(self, name: str) -> None:
        """Pass the name on, and remember it for after the sentinels."""
        self._phase, self._calls = name, 0
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
        pairs = self._brought(self._picked(count, rng))
        return [Remembered(question, answer, self._sizes.of(question[None])[0]) for question, answer in pairs]

    def settle(self) -> None:
        """Compare the answers to sentinels on a device with the earlier ones: there nobody waits for them before it is due.

        Raises:
            DriftingError: an answer changed by more than the precision of the answers explains.
        """
        kinds: dict[object, list[tuple[Floats, Floats, Floats, Precision]]] = {}
        for entry in self._repeated:
            kinds.setdefault((id(entry[3]), *((type(array), array.shape[1:]) for array in entry[:3])), []).append(entry)
        self._repeated = []
        for alike in kinds.values():
            *columns, floors = zip(*alike, strict=True)
            questions, before, after = all_on_host([_concat(list(parts)) for parts in columns])
            floor = floors[0]
            self._sizes.learn(questions, before)
            items = map(Remembered, questions, before, self._sizes.of(questions))
            with self._sentinels():
                answers = checked_answers(after, questions.shape)
                self.sentinels += confirm(self.inner, list(zip(items, answers, strict=True)), floor)

    def unexplained(self, predict: Callable[[list[Floats]], Floats], error: float) -> list[Remembered]:
        """Earlier questions whose answers a model does not explain, although it is right on fresh ones up to ``error`` (relative).

        ``predict`` tells all answers to several batches. Costs no query. A target that changed during the first questions shows
        here; asking them again (``post_mortem``) proves it.
        """
        allowed = RELATIVE_SLACK * max(error, np.finfo(np.float64).eps)
        copied = {id(kept.questions): kept for kept in self._sample}.values()  # many were copied together
        joined = list(_joined([(kept.questions, kept.answers) for kept in copied]))
        asked, answers = [questions for _, questions, _ in joined], [told for _, _, told in joined]
        predicted, *brought = all_on_host([predict(asked), *answers, *map(_largest, asked)])
        puzzling = []
        for questions, told, largest in zip(asked, brought[: len(asked)], brought[len(asked) :], strict=True):
            expected, predicted = predicted[: len(questions)], predicted[len(questions) :]
            sizes = self._sizes.up_to(largest)
            last = told[:, -1] if told.ndim == 3 else told
            off = np.abs(expected.reshape(len(told), -1) - last.reshape(len(told), -1)).max(axis=1)
            puzzling += [
                Remembered(on_host(questions[i]), told[i], sizes[i]) for i in np.flatnonzero(off > allowed * np.array(sizes))
            ]
        return puzzling

    def look_for_replicas(self, times: int = 8, again: int = ASKED_AGAIN) -> None:
        """Where repeated questions get different answers: tell replicas, or weights that just changed, from noise.

        Price: ``times`` queries, and one for each question asked so far (at most ``again``).

        Raises:
            DriftingError: the same few answers come in turn, or answers differ from earlier ones far more than from each other.
        """
        self.settle()
        question, _ = max(self._brought(self._sample), key=lambda pair: float(np.abs(pair[1]).max()))
        phase(self.inner, SENTINELS)
        try:
            count, spread = replicas(self.inner, question, times=times)
            if count > 1:
                raise DriftingError(
                    f"One question, asked {times} times, got {count} fixed answers in turn: so many versions of the model answer. "
                    "Pin one version of it and start again.",
                    evidence={"replicas": count, "asked_again": times},
                )
            known = self.floor or Spread()
            floor = Spread(max(spread, known.absolute), known.relative, known.step)
            post_mortem(self.inner, self.sample(again, self._rng), floor, calls=1)
        finally:
            phase(self.inner, self._phase)

    def _brought(self, picked: list[_Kept]) -> list[tuple[Floats, Floats]]:
        """Questions and answers on this machine; their sizes are learned."""
        brought: dict[int, tuple[Floats, Floats]] = {}
        for numbers, *joined in _joined([kept.pair for kept in picked]):
            questions, answers = map(on_host, joined)
            self._sizes.learn(questions, answers)
            brought |= zip(numbers, zip(questions, answers, strict=True), strict=True)
        return [brought[number] for number in range(len(picked))]

    def _ask_again(self, count: int, floor: Precision) -> None:
        with self._sentinels():
            for _, questions, answers in _joined([kept.pair for kept in self._picked(count, self._rng)]):
                self._repeated.append((questions, answers, self.inner(questions), floor))
                self.sentinels += len(questions)
        if all(isinstance(after, np.ndarray) for _, _, after, _ in self._repeated):
            self.settle()

    @contextmanager
    def _sentinels(self) -> Iterator[None]:
        """Book what is asked as sentinels; where no budget is left for them, there are none."""
        phase(self.inner, SENTINELS)
        try:
            yield
        except BudgetExceededError:
            pass  # the learner's own next question will meet the same wall, and say so
        finally:
            phase(self.inner, self._phase)

    def _picked(self, count: int, rng: np.random.Generator) -> list[_Kept]:
        """Up to ``count`` different questions; a quarter of them from the very first."""
        early = min(FIRST, count // 4, len(self._sample))
        others = early + rng.permutation(len(self._sample) - early)[: count - early]
        return self._sample[:early] + [self._sample[i] for i in others]

    def _gap(self) -> float:
        """Questions until the next sentinel."""
        mean = 1.0 / self.share
        if self.cap is not None and self.expected is not None:
            mean = max(mean, self.expected / (self.cap + 1))
        return mean * self._rng.uniform(0.5, 1.5)

    def _remember(self, sequences: Floats, answers: Floats) -> None:
        """Keep the first questions for ever, and of the others a fair sample: as many of each call as a reservoir would."""
        kept = []
        self._calls += 1
        first = max(0, min(len(sequences), self._memory - self.asked))
        if first:
            kept.append(self._keep(range(self.asked, self.asked + first), sequences[:first], answers[:first]))
        others = self._memory - FIRST
        if first < len(sequences) and others > 0:
            expected = others * np.log((self.asked + len(sequences)) / (self.asked + first))  # replaced by a reservoir
            count = min(int(self._rng.poisson(expected)), others, len(sequences) - first)
            if count:
                places = (FIRST + self._rng.permutation(others)[:count]).tolist()
                kept.append(self._keep(places, sequences[first:], answers[first:]))
        few = sum(len(questions) for questions, _ in kept) < SIZED
        if few and (len(sequences) < SMALL or self._calls <= SIZED_CALLS or self._calls % SIZED_CALLS == 0):
            step = max(1, -(-len(sequences) // SIZED))  # of a large batch a few tell as much
            kept.append(_copied(sequences, answers, slice(None, None, step)))
        for pair in kept:
            self._sizes.learn(*pair)
        self.asked += len(sequences)

    def _keep(self, places: Sequence[int], sequences: Floats, answers: Floats) -> tuple[Floats, Floats]:
        """Copy some questions for these places, at even distances, and their answers; one copy for all."""
        apart = len(sequences) // len(places)
        start = int(self._rng.integers(len(sequences) - apart * (len(places) - 1)))
        copied = _copied(sequences, answers, slice(start, start + apart * (len(places) - 1) + 1, apart))
        for row, place in enumerate(places):
            self._sample[place : place + 1] = [_Kept(*copied, row)]
        return copied


def _copied(sequences: Floats, answers: Floats, some: slice) -> tuple[Floats, Floats]:
    copy = array_namespace(sequences).asarray
    return copy(sequences[some], copy=True), copy(answers[some], copy=True)
