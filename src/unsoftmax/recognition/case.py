"""One diagnosis in progress: what may still be asked, what was seen, and how coarse the answers are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from unsoftmax.errors import RefusalError, Sign, TargetError, tried
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.precision.first_look import FirstLook
from unsoftmax.recognition.settings import TESTS
from unsoftmax.results import Fact, Floor

P = ParamSpec("P")
T = TypeVar("T")


class Shape(Enum):
    """How one-token answers run."""

    AFFINE = "straight everywhere"
    PIECEWISE = "straight, with kinks"
    SMOOTH = "bending everywhere"
    UNCLEAR = "neither straight nor evenly bent, as far as answers tell"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a target is.

    Attributes:
        family: as people read it; that of a family of ours by its name.
        reason: in a sentence.
        signs: what it tells beside that, for whoever chooses what to try next.
        inside: whether it is a family of ours.
    """

    family: str
    reason: str
    signs: tuple[Sign, ...] = ()
    inside: bool = True


def most_asked(width: int) -> int:
    """Sequences that a diagnosis asks at most."""
    return 200 + 4 * width


class DecidedError(Exception):
    """Leaves a test from deep within: the verdict is known. ``Case.tried`` makes a value of it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


def outside(kind: str, reason: str, *signs: Sign) -> Verdict:
    """The verdict that the target is not in the family."""
    return Verdict(f"outside: {kind}", reason, signs, inside=False)


def inconclusive(why: str, reason: str, *signs: Sign) -> Verdict:
    """The verdict that the answers do not tell."""
    return Verdict(f"outside: inconclusive ({why})", reason, (Sign.UNDECIDED, *signs), inside=False)


def asked_once(test: Callable[Concatenate[Case, P], T]) -> Callable[Concatenate[Case, P], T]:
    """A test that finds the same whenever it is made in one diagnosis: it is made once, and remembered."""

    def remembered(case: Case, /, *settings: P.args, **named: P.kwargs) -> T:
        for known, finding in case.findings:
            if known is test:
                found: T = finding
                return found
        found = test(case, *settings, **named)
        case.findings.append((test, found))
        return found

    return update_wrapper(remembered, test)


class Case:
    """Asks, counts and remembers; no token longer than ``max_norm`` and no more than ``limit`` sequences leave it.

    Attributes:
        limit: most sequences that this diagnosis may ask, 200 + 4 width.
        asked: sequences asked so far.
        findings: tests that are asked once, and what they found.
        floor: how coarse the answers are, once measured.
        finer: answers are written in float64, but computed more coarsely.
        everywhere: the target answers at every position; the last answer is used.
        whole: the latest answers at every position, ``(batch, length, outputs)``, where the target gives them.
        elsewhere: how far earlier positions missed what scores foretell, of what is allowed, at most, where they see all tokens
            (False) and where later ones are hidden (True).
        longest: longest sequence that the target takes, as far as tried.
        most: no sequence of more tokens than this is sent.
        cheap: the target runs in this process, so that sequences of many lengths may be asked one by one.
        alone: no learner follows, whose check tells more.
        foretold: lengths of sequences whose answers were foretold.
        by_chance: lengths of sequences that, asked twice, got two answers.
        recent: the latest answers, for their size.
        unit: what answers are multiplied by, a power of two, where they are so large or small that their squares are no numbers.
        cancelled: size of what cancels in one-token answers, whose rounding shows in them; 0 where they vary.
        bend: how far one-token answers miss a straight line, of their change, where they do.
        bent: four tokens whose sums of two are alike, and their answers, where those are not.
        reach: largest token scale (root mean square entry) to use; shrinks when the target overflows.
    """

    def __init__(self, oracle: Oracle, rng: np.random.Generator, max_norm: float | None) -> None:
        self.oracle = oracle
        self.rng = rng
        self.width = oracle.width
        self.max_norm = max_norm
        self.limit = most_asked(self.width)
        self.reserve = 2  # kept for the two sentinels at the end
        self.asked = 0
        self.floor = Floor()
        self.evidence: list[Fact] = []
        self.findings: list[tuple[Callable[..., Any], Any]] = []
        self.finer = False
        self.everywhere = False
        self.whole: Floats | None = None
        self.elsewhere: dict[bool, float] = {}
        self.outputs: int | None = None
        self.longest = self.most = 256
        self.cheap = self.alone = False
        self.foretold: set[int] = set()
        self.by_chance: list[int] = []
        self.unit = 1.0
        self.cancelled = 0.0
        self.bend = 0.0
        self.bent: tuple[Floats, Floats] | None = None
        self.reach = math.inf if max_norm is None else max_norm / (math.sqrt(self.width) + 3)
        self.recent: tuple[Floats, ...] = ()
        self.sentinels: list[tuple[Floats, Floats]] = []

    def known_from(self, look: FirstLook) -> bool:
        """Take shape and precision from the first answers; False where these leave too much open (one number at all positions)."""
        if look.cancelled or float(np.abs(look.pair_answers).max()) > TESTS.huge or not np.ptp(look.pair_answers, axis=0).any():
            return False
        self.everywhere = look.layout == "all positions"
        self.outputs = None if look.layout == "scalar" else look.outputs
        self.floor = look.floor
        self.sentinels.append((look.pair[:1, None], look.pair_answers[:1]))
        self.record("floor", self.noise(look.pair_answers), look.size, True, f"Answers are {self.floor.words}.")
        return True

    @property
    def coarse(self) -> bool:
        """Whether answers carry less than about 40 bits."""
        return self.floor.relative > 2.0**-40 or self.floor.absolute > 0

    def begin(self, name: str) -> None:
        """Book the following questions under ``name``."""
        phase(self.oracle, name)

    def left(self) -> int:
        """Sequences that may still be asked."""
        return self.limit - self.reserve - self.asked

    def ask(self, sequences: Floats) -> Floats:
        """Answers ``(batch, outputs)`` at the last position; raises ``DecidedError`` before a limit would be passed."""
        if len(sequences) > self.left():
            raise DecidedError(inconclusive("budget", f"The {self.limit} queries of a diagnosis were not enough to decide."))
        if self.max_norm is not None and float(np.linalg.norm(sequences, axis=-1).max()) > self.max_norm:
            raise DecidedError(
                inconclusive("token length", f"The next test needs tokens longer than max_norm = {self.max_norm:g}.")
            )
        if sequences.shape[1] > self.most:
            raise DecidedError(
                inconclusive("length", f"The next test needs sequences of more than max_length = {self.most} tokens.")
            )
        if sequences.shape[1] > self.longest:
            raise DecidedError(
                inconclusive("length", f"The next test needs longer sequences than the {self.longest} tokens taken.")
            )
        self.asked += len(sequences)  # counted before: a question that made the target fail was asked all the same
        answers = self.last(self.oracle(np.ascontiguousarray(sequences)), sequences.shape[1])
        self.recent = (answers,)
        return answers

    def tried(self, step: Callable[[], T]) -> T | Verdict:
        """What a step finds, or the verdict where it ends the diagnosis: decided there, out of questions, tokens too long."""
        try:
            return step()
        except DecidedError as end:
            return end.verdict

    def measure(self, answers: Floats) -> Floats:
        """Choose ``unit`` by the first answers; returns them in it."""
        size = float(np.abs(answers).max())
        if size > TESTS.huge or 0 < size < 1 / TESTS.huge:
            self.unit = 2.0 ** -math.frexp(size)[1] if size > TESTS.huge else 2.0 ** min(1000, -math.frexp(size)[1])
        return answers * self.unit

    def last(self, answers: Floats, length: int) -> Floats:
        """The answers at the last position, as ``(batch, outputs)``."""
        answers = answers * self.unit
        self.whole = answers if answers.ndim == 3 else None
        if answers.ndim == 3:
            return answers[:, -1]
        if answers.ndim == 1:
            return answers[:, None]
        return answers[:, -1:] if self.everywhere and answers.shape[1] == length else answers

    def attempt(self, sequences: Floats) -> Floats | None:
        """As ``ask``, or None where the target fails on these sequences (overflow, too long)."""
        answers = tried(lambda: self.ask(sequences), TargetError)
        return None if isinstance(answers, RefusalError) else answers

    def tolerance(self, *answers: Floats) -> float:
        """What two answers may differ by, from how coarse answers of this size are."""
        return TESTS.safety * self.noise(*answers)

    def noise(self, *answers: Floats) -> float:
        """Floor of answers of this size."""
        size = max((float(np.abs(a).max()) for a in answers if a.size), default=0.0)
        return max(self.floor.of(max(size, self.cancelled)), 1e-300)

    def draw(self, *shape: int) -> Floats:
        """Random tokens of root mean square one, each at most 1.5 times that long, so that scales are kept."""
        tokens = self.rng.normal(size=(*shape, self.width))
        size = np.sqrt((tokens**2).mean(axis=-1, keepdims=True))
        bound: Floats = tokens * np.clip(size, 0.5, 1.5) / np.maximum(size, 1e-300)
        return bound

    def cap(self, scale: float, longest: float) -> float:
        """``scale``, or less where a token of ``longest`` times it would pass ``reach``."""
        return min(scale, self.reach / longest)

    def record(self, test: str, number: float, threshold: float, passed: bool, sentence: str) -> bool:
        """Keep one piece of evidence; returns ``passed``."""
        finite = [float(np.nan_to_num(v, nan=1e300, posinf=1e300)) for v in (number, threshold)]  # JSON knows no infinity
        self.evidence.append(Fact(test, finite[0], finite[1], bool(passed), sentence))
        return bool(passed)
