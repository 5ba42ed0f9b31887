"""What a verification of a deployment found, as values."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Verdict(enum.Enum):
    """The one verdict; its value is a sentence."""

    MATCHES = "The endpoint answers as these weights do, as far as its answers show."
    DIFFERS = "The endpoint does not answer as these weights do."
    REPLICAS_DIFFER = "The endpoint answers the same question in several ways: its replicas do not run the same weights."

    @property
    def code(self) -> int:
        """The exit code of a command."""
        return {"MATCHES": 0, "DIFFERS": 1, "REPLICAS_DIFFER": 5}[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is different.

    Attributes:
        kind: a short name: ``"rounded to bfloat16"``, ``"low-rank update"``, ``"one tensor changed"``, …
        where: layers or tensors that changed; ``["every layer"]`` for all of them.
        layer: the layer, where there is one.
        size: rms change of the weights there, relative to their own size, as estimated; None where only the kind is known.
        explained: share of the deviations' energy that this explains; 1 means all but rounding.
        exact: our own copy, changed in this way, answers as the endpoint does, as far as its answers show.
        rank: of a low-rank update.
        words: the finding as a sentence.
        others: other findings that fit nearly as well, in words.
    """

    kind: str
    where: list[str] = field(default_factory=list)
    layer: str | None = None
    size: float | None = None
    explained: float = 0.0
    exact: bool = False
    rank: int | None = None
    words: str = ""
    others: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One of several versions behind an endpoint: the share of requests that it answered, and whether it is the checkpoint's."""

    share: float
    matches: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """An endpoint held against a checkpoint.

    Attributes:
        verdict: the one verdict.
        precision: arithmetic of the endpoint, as its rounding shows: ``"float32"``, …, ``"coarse"``, or ``"hidden"``.
        noise: rounding of an answer relative to the spread of answers.
        deviation: rms deviation relative to the spread of answers, all answers.
        coherent: the part of it that twins share, which rounding does not explain; 0 where none was found.
        excess: the strongest coherent deviation over what rounding and chance explain; above 1 it differs.
        queries: sequences asked.
        calls: requests asked.
        smallest: relative change of a tensor that would show, the largest over the tensors of each layer; None: never shows.
        weakest: for each layer the tensor that shows least.
        unseen: tensors that have no influence on the answers, so that nothing is said about them.
        change: what is different, where it differs.
        versions: the versions found, where replicas differ.
        histogram: deviations of single answers in units of float32 rounding: lower edges of bins, and counts.
        threshold: where in the histogram a single answer begins to stand out from rounding.
        checkpoint, endpoint: their names.
        width: token length.
        outputs: numbers in an answer, at each position where all are answered.
        seed: of the questions.
        notes: what else to say.
    """

    verdict: Verdict
    precision: str
    noise: float
    deviation: float
    coherent: float
    excess: float
    queries: int
    calls: int
    smallest: dict[str, float | None]
    weakest: dict[str, str]
    unseen: list[str]
    change: Change | None
    versions: list[Version]
    histogram: list[tuple[float, int]]
    threshold: float
    checkpoint: str
    endpoint: str
    width: int
    outputs: int
    seed: int
    notes: list[str]

    @property
    def matches(self) -> bool:
        """Whether the verdict is that it matches."""
        return self.verdict is Verdict.MATCHES
