"""Exceptions of unsoftmax.

UnsoftmaxError
├── RefusalError               an outcome nature may bring; carries the partial ``recovery``
│   ├── NotInFamilyError       the target is not a model of the family asked for
│   ├── InconclusiveError      the answers do not tell whether it is
│   ├── NotIdentifiableError   the answers cannot determine the parameters
│   ├── BudgetExceededError    the next question would exceed the budget
│   ├── TooNoisyError          the answers are too coarse for the accuracy asked for
│   ├── DriftingError          the target contradicts its earlier answers
│   └── TargetError            the target raised, is unreachable, or answered nonsense
├── JournalError               a journal that is corrupt or belongs to another run
├── FileFormatError            a file that is not what it should be
└── MissingExtraError          an optional package is not installed

Misuse of a function is a plain ``ValueError``; ``UnknownWidthError`` is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from numbers import Real
from typing import Any, ClassVar, TypeVar

import numpy as np

from unsoftmax.evidence import Evidence

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


class UnknownWidthError(ValueError):
    """A target that does not tell the length of its tokens, where nobody else did."""


class UnsoftmaxError(Exception):
    """Base of all exceptions that unsoftmax raises on purpose."""


class Sign(Enum):
    """What a refusal tells about the target beside its reason, for whoever chooses what to try next."""

    NO_MEAN = "answers to two tokens are no mean of the answers to one"
    OFF_COPIES = "copies of a token do not count as copies"
    SATURATED = "keys saturate whatever their length"
    POORLY_KNOWN = "heads were found, but not all of them well"
    TOO_MANY = "there are more heads than were allowed"
    ALMOST_ALIKE = "heads explain the answers almost: two of them are merged"
    NETWORK_KNOWN = "the network was learned, and no head before it fits"
    DIAGNOSED = "the family tests decided, and asked early questions again"
    ONE_HEAD = "one head was found that does not explain other answers"
    SHARP = "neurons are as sharp from near by as from afar"
    OPEN = "what failed excludes the model that was learned, and not every family"
    CUT = "long tokens, their values or their answers are cut"
    UNDECIDED = "the family tests could not decide"
    DEAF = "one token alone matters, so that there are no heads"
    RESIDUAL_OPEN = "one head with the last token added, before an unknown network, is not excluded"
    OTHER_SCORES = "scores follow another law than that of heads"
    RANDOM = "the same question gets other answers"
    CHANGED = "an early question got another answer at the end"
    MERGED = "two heads are known only merged"
    UNREADABLE = "nothing at all could be read there"
    WRONG_LABELS = "some labels lie on the wrong side of a boundary that fits the others"
    LAST_BITS = "an answer is off by no more than float32 inside the target explains"
    ROUNDS = "the target rounds inside"
    QUERY_BIAS = "a query bias c was found where none was looked for"
    RAISED = "the target itself raised an exception"
    OVERFLOWS = "the target answered with what is no finite number"


class RefusalError(UnsoftmaxError):
    """A recovery that ended without success.

    Attributes:
        status_name: name of the ``Status`` that this refusal stands for.
        evidence: numbers that led to the refusal, for reports; nothing is decided on them.
        signs: what it tells whoever chooses what to try next.
        model: what was found so far, if anything.
        within: relative error to which that model is known.
        values: constant and slopes of one-token answers, where those were read and are right whatever the target is.
        billed: sequences of the failed call that were sent; None where all of them were.
        check: what held-out examples said, where that is why.
        recovery: filled in by the driver: the partial ``Recovery``.
    """

    status_name: ClassVar[str]

    def __init__(
        self,
        message: str,
        *,
        evidence: Mapping[str, Any] | None = None,
        model: Any = None,
        signs: tuple[Sign, ...] = (),
        within: float = float("inf"),
        values: Any = None,
        billed: int | None = None,
        check: Any = None,
    ) -> None:
        super().__init__(message)
        self.evidence = Evidence(evidence)
        self.signs = signs
        self.model = model
        self.within = within
        self.values = values
        self.billed = billed
        self.check = check
        self.recovery: Any = None


class NotInFamilyError(RefusalError):
    """The target behaves unlike any model of the family asked for."""

    status_name = "NOT_IN_FAMILY"


class InconclusiveError(RefusalError):
    """Neither was a model found nor are the families excluded: what would decide was not seen."""

    status_name = "INCONCLUSIVE"


class NotIdentifiableError(RefusalError):
    """Different parameters give the same answers, so they cannot be told apart."""

    status_name = "NOT_IDENTIFIABLE"


class BudgetExceededError(RefusalError):
    """The next batch of questions would exceed the budget; it was not asked."""

    status_name = "BUDGET_SPENT"


class TooNoisyError(RefusalError):
    """The answers are too coarse for the accuracy asked for within the budget."""

    status_name = "TOO_NOISY"


class DriftingError(RefusalError):
    """The target answered the same question differently, beyond its own noise."""

    status_name = "DRIFTING"


class TargetError(RefusalError):
    """The target raised, could not be reached, or answered with NaN, infinity or a wrong shape."""

    status_name = "TARGET_FAILED"


def tried(step: Callable[[], T], *kinds: type[E]) -> T | E:
    """What a step hands back, or its refusal if it is one of these ``kinds``: what comes next is then decided on a value.

    >>> def refuse() -> int:
    ...     raise TooNoisyError("too coarse")
    >>> tried(lambda: 3, TooNoisyError), tried(refuse, TooNoisyError)
    (3, TooNoisyError('too coarse'))
    """
    try:
        return step()
    except kinds as refusal:
        return refusal


class JournalError(UnsoftmaxError):
    """A journal that is corrupt or was made by another run; it is left untouched."""


class FileFormatError(UnsoftmaxError):
    """A file that cannot be read as what it should be."""


class MissingExtraError(UnsoftmaxError):
    """An optional dependency is absent; the message holds the install line."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f'This needs the package `{package}`, which is not installed. Run: pip install "unsoftmax[{extra}]"')


OR_NO_HEADS = "Or something else than heads takes part, as faint as that: `unsoftmax diagnose` tells."
NEARLY = 1e-3  # a misfit of heads below this tells heads almost alike, not a target of another kind


def alike_within(misfit: float) -> tuple[Sign, ...]:
    """The sign of heads that explain the answers up to ``misfit``, if that is so little that they are heads, two of them merged."""
    return (Sign.ALMOST_ALIKE,) if misfit < NEARLY else ()


def rounding_inside(what: str, before: RefusalError | None = None) -> NotInFamilyError:
    """The reason that a target rounds inside, and what was said ``before`` that was known."""
    return NotInFamilyError(
        f"The target rounds inside: {what}. Answers do not follow a token that moves a little, and then jump. "
        f"Switch that off, or ask for answers that are rounded at the end alone.{'' if before is None else f' ({before})'}",
        evidence={**({} if before is None else before.evidence), "rounds": what},
        model=None if before is None else before.model,
        signs=(Sign.DIAGNOSED, Sign.ROUNDS),
    )


LENGTHS = (1e-100, 1e100)  # of tokens: their squares, and a learner's shares of them, are still float64 numbers


def check_positive(**values: float | None) -> None:
    """Raise a ``ValueError`` for the first value that is no positive number, or no length where it is a ``max_norm``; None passes.

    >>> check_positive(max_norm=2.0, tolerance=None)
    >>> check_positive(tolerance=-1.0)
    Traceback (most recent call last):
    ValueError: tolerance is -1.0; it must be a positive number.
    """
    for name, value in values.items():
        if value is None:
            continue
        if not is_number(value) or not 0 < value < float("inf"):
            raise ValueError(f"{name} is {value!r}; it must be a positive number.")
        if name == "max_norm" and not LENGTHS[0] <= value <= LENGTHS[1]:
            raise ValueError(f"max_norm is {value!r}; it must lie between {LENGTHS[0]:g} and {LENGTHS[1]:g}.")


def is_number(value: object) -> bool:
    """Whether something is one real number, of Python or NumPy, and no truth value."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "fiu"
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def is_whole(value: Any, least: int) -> bool:
    """Whether something is a whole number of at least that."""
    return is_number(value) and bool(least <= value < float("inf") and value == int(value))
