"""What a run took from its journal, and whether the target still says so today."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from unsoftmax.errors import DriftingError
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.oracles.contradiction import Precision, Remembered, Spread, confirm
from unsoftmax.oracles.drift import Sizes

SENTINELS = 32  # replayed questions that are asked again, at least
SHORT = 12  # digits up to which answers count as rounded: float64 numbers have 15 to 17
CHANGED = 0.25  # share of rounded answers that may fall to the other side of a step
MOST = 0.5  # share of answers that got longer or shorter: last bits alone change fewer
CALMER = 0.4  # of the earlier noise: 32 answers of the same noise fall below this once in a million runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a journal says of a run: what it replayed, of which dates, what was asked now, and what may have been billed twice.

    Attributes:
        sha256: over all answers.
        possibly_asked_twice: sequences that were under way when an earlier run was killed.
        asked_now: sequences asked of the target in this run.
        confirmed: sequences asked again to confirm what was replayed.
        replaced: answers that were asked anew, as they had come to another question.
        replayed: sequences whose answers came from the journal.
        answers_from: when the oldest of these was answered, as ISO 8601 in UTC.
        answers_to: the same of the newest.
    """

    sha256: str
    possibly_asked_twice: int
    asked_now: int
    confirmed: int
    replaced: int
    replayed: int
    answers_from: str | None
    answers_to: str | None


@dataclass(slots=True)
class Replayed:
    """Counts what was replayed and remembers a fair sample of it, drawn by the operating system: no target can foresee which.

    Attributes:
        sequences: replayed in this run.
        oldest: when the oldest of them was answered, in seconds since 1970.
        newest: the same for the latest.
    """

    sequences: int = 0
    oldest: float | None = None
    newest: float | None = None
    _sample: list[tuple[Floats, Floats]] = field(default_factory=list)
    _sizes: Sizes = field(default_factory=Sizes)
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(secrets.randbits(256)))

    def take(self, sequences: Floats, answers: Floats, time: float) -> None:
        """Count sequences whose answers were kept at ``time``."""
        self.oldest = time if self.oldest is None else min(time, self.oldest)
        self.newest = time if self.newest is None else max(time, self.newest)
        some = slice(None, None, len(sequences) // SENTINELS + 1)
        self._sizes.learn(np.array(sequences[some]), np.array(answers[some]))
        for place in self._places(len(sequences)):
            kept = np.array(sequences[place]), np.array(answers[place])
            if len(self._sample) < SENTINELS:
                self._sample.append(kept)
            else:
                self._sample[int(self._rng.integers(SENTINELS))] = kept
        self.sequences += len(sequences)

    def _places(self, count: int) -> list[int]:
        """Which of the next ``count`` sequences enter the sample: those that fill it, and then each with its fair chance."""
        first = min(count, max(0, SENTINELS - len(self._sample)))
        seen = self.sequences + np.arange(first, count)
        lucky = self._rng.random(count - first) < SENTINELS / (seen + 1.0)
        return [*range(first), *(first + np.flatnonzero(lucky)).tolist()]

    @property
    def dates(self) -> tuple[str | None, str | None]:
        """When the oldest and the newest of these answers were given, as ISO 8601 in UTC."""
        return _date(self.oldest), _date(self.newest)

    def confirm(self, oracle: Oracle, floor: Precision | None) -> None:
        """Ask the sample again and compare with what the journal said.

        Price: as many queries as were replayed, ``SENTINELS`` at most; twice that where answers vary or their precision is unknown,
        and those of ``contradiction.confirm`` where one changed.

        Args:
            oracle: reaches the target, not the journal.
            floor: how coarse the answers are; None where that is not known.

        Raises:
            DriftingError: the target does not say today what the journal holds.
        """
        if not self._sample:
            return
        phase(oracle, "sentinels")
        sample, self._sample = self._sample, []
        order = self._rng.permutation(len(sample))
        questions, before = [sample[i][0] for i in order], [sample[i][1] for i in order]
        now = self._asked(oracle, questions)
        again: list[Floats] | None = None
        if floor is None:
            again = self._asked(oracle, questions)
            floor = Spread(max(float(np.abs(a - b).max()) for a, b in zip(now, again, strict=True)))
        items = [Remembered(q, a, self._sizes.of(q[None])[0]) for q, a in zip(questions, before, strict=True)]
        confirm(oracle, list(zip(items, now, strict=True)), floor)
        self._same_digits(before, now)
        noisy = floor.absolute > Spread().relative * max(item.size for item in items) and _moved(before, now) > floor.absolute / 4
        if _rounded(before) and _apart(before, now) > CHANGED:
            again = again or self._asked(oracle, questions)
            if _apart(now, again) < _apart(before, now) / 4:
                raise self._changed("other rounded answers than the journal holds", CHANGED, _apart(before, now))
        elif noisy and not _rounded(before):
            again = again or self._asked(oracle, questions)
            if _moved(now, again) < CALMER * _moved(before, now):
                raise self._changed("answers that vary less than those in the journal", _moved(before, now), _moved(now, again))

    def _asked(self, oracle: Oracle, questions: list[Floats]) -> list[Floats]:
        """Answers in the order of the questions; those of one length ride together."""
        answers: dict[int, Floats] = {}
        for length in sorted({len(question) for question in questions}):
            places = [i for i, question in enumerate(questions) if len(question) == length]
            answers |= zip(places, oracle(np.stack([questions[i] for i in places])), strict=True)
        return [np.asarray(answers[i]) for i in range(len(questions))]

    def _same_digits(self, before: list[Floats], now: list[Floats]) -> None:
        """Rounded answers must stay rounded the same way: a finer step is within any tolerance, and yet another target."""
        for name, length in FORMS.items():
            earlier, later = ([length(number) for answer in answers for number in np.ravel(answer)] for answers in (before, now))
            if max(earlier) <= SHORT and np.mean(np.array(later) > max(earlier)) > MOST:
                raise self._changed(f"answers with more {name} than those in the journal", max(earlier), max(later))
            if max(later) <= SHORT and np.mean(np.array(earlier) > max(later)) > MOST:
                raise self._changed(f"answers with fewer {name} than those in the journal", max(earlier), max(later))

    def _changed(self, what: str, before: float, now: float) -> DriftingError:
        return DriftingError(
            f"The target gives {what} ({now:.3g} now, {before:.3g} in those up to {_date(self.newest)}): it is another one today. "
            "Start afresh in another folder.",
            evidence={"before": before, "now": now, "asked_again": SENTINELS},
        )


def _moved(before: list[Floats], now: list[Floats]) -> float:
    """Root mean square difference."""
    return float(np.sqrt(np.mean(np.concatenate([np.ravel(a - b) ** 2 for a, b in zip(before, now, strict=True)]))))


def _apart(before: list[Floats], now: list[Floats]) -> float:
    """The share of answers that are not the same."""
    return float(np.mean([not np.array_equal(a, b) for a, b in zip(before, now, strict=True)]))


def _rounded(answers: list[Floats]) -> bool:
    """Whether all answers have few decimals or few digits."""
    numbers = [number for answer in answers for number in np.ravel(answer)]
    return max(map(_decimals, numbers)) <= SHORT or max(map(_digits, numbers)) <= SHORT


def _decimals(number: float) -> int:
    """Decimals of the shortest way to write a number.

    >>> _decimals(0.125), _decimals(3.0), _decimals(1e-7)
    (3, 0, 7)
    """
    mantissa, exponent = f"{float(number)!r}e0".split("e")[:2]
    return max(0, len(mantissa.rstrip("0").partition(".")[2]) - int(exponent))


def _digits(number: float) -> int:
    """Significant digits of the shortest way to write a number.

    >>> _digits(0.00125), _digits(1500.0)
    (3, 2)
    """
    return len(repr(float(number)).partition("e")[0].replace(".", "").lstrip("-").strip("0"))


def _bits(number: float) -> int:
    """Pairs of bits in a number's fraction: at most 4 for bfloat16, 5 for float16, 12 for float32, and 26 for float64."""
    fraction = int(np.float64(number).view(np.uint64)) & (2**52 - 1)
    return 0 if fraction == 0 else -(-(52 - ((fraction & -fraction).bit_length() - 1)) // 2)


FORMS = {"decimals": _decimals, "digits": _digits, "bits": _bits}


def _date(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
