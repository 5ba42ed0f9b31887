"""The desk: the only thing that asks. It counts, watches for contradictions, and remembers what was seen."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unsoftmax.errors import DriftingError, RefusalError, tried
from unsoftmax.models import Floats
from unsoftmax.oracles.adapt import identity_of
from unsoftmax.oracles.base import LastPosition, Oracle, Wrapper, phase
from unsoftmax.oracles.contradiction import tolerance
from unsoftmax.oracles.drift import Watched
from unsoftmax.oracles.guard import NormGuard
from unsoftmax.oracles.journal import Journal, Journaled
from unsoftmax.oracles.meter import Metered
from unsoftmax.precision.calibration import Calibration, examine
from unsoftmax.precision.first_look import FirstLook, first_look
from unsoftmax.proof.ahead import Ahead
from unsoftmax.proof.compare import Predict
from unsoftmax.proof.length import longest_taken
from unsoftmax.proof.settings import PROOF
from unsoftmax.results import Fact, Floor, Outcome
from unsoftmax.version import __version__
from unsoftmax.wishes import Wishes

if TYPE_CHECKING:
    from unsoftmax.recognition.case import Case
    from unsoftmax.recognition.diagnosis import Diagnosis

LAST_BITS = 2.0**-20  # of float32 answers: what they may differ by from batch to batch
SENTINELS = 4  # questions asked again in an exact run, whatever its length
BRIEFLY = (2, 12)  # times that one question, and questions that are asked again where a refusal has a reason of its own
Progress = Callable[[str, int], None]


class Desk(Wrapper):
    """An oracle for learners, and everything that is known about the target behind it.

    Attributes:
        wishes: what the caller asked for.
        meter: what learning spent, by phase.
        checked: asks the fresh questions of the held-out check, and counts them apart.
        precision: how coarse the answers are, as far as known.
        look: the first few answers, once asked.
        calibration: a closer look at the answers' precision, where one was needed.
        clip: a limit on tokens that the target itself imposes.
        longest: tokens of the longest sequences that the target takes, as far as looked.
        facts: every tested statement, in the order asked.
        outcomes: what learners came back with, in order.
        notes: sentences for the report.
        predict: the model learned, where it had to predict already.
        foretold: who wants to ask ahead when a learner foretells a head, while a device still answers.
        ahead: what was asked then.
        case: the diagnosis in progress, where one was opened.
        told: what the last diagnosis told.
        rng: randomness of the learning questions, from the seed.
        fresh: randomness of the fresh questions, which the target must not foresee.
    """

    def __init__(
        self,
        target: Oracle,
        wishes: Wishes,
        *,
        journal: str | Path | None = None,
        on_progress: Progress | None = None,
        entropy: int | None = None,
        sentinels: int = SENTINELS,
    ) -> None:
        self.guarded = guarded = NormGuard(target, wishes.max_norm)
        source = secrets.randbits(256) if entropy is None else entropy
        learning: Oracle = guarded
        checking: Oracle = guarded
        self.journal: Journal | None = None
        if journal is not None:
            plan = {name: value for name, value in wishes.noted().items() if name not in ("budget", "check")}
            self.journal = Journal(journal, {"target": identity_of(target), "width": target.width, "version": __version__, **plan})
            source = self.journal.entropy if entropy is None else entropy
            learning, checking = Journaled(guarded, self.journal, "learn"), Journaled(guarded, self.journal, "check")
        # what the target must not foresee comes from the operating system; what must be repeatable from the seed
        watch, fresh = (np.random.default_rng(s) for s in np.random.SeedSequence(source).spawn(2))
        self.seed = wishes.seed if wishes.seed is not None else drawn_seed(source)
        self.rng, self.fresh = np.random.default_rng(self.seed), fresh
        self.meter = Metered(learning, budget=wishes.budget, on_count=on_progress)
        self.watched = Watched(self.meter, watch, cap=sentinels, expected=target.width**2)
        self.checked = Metered(checking, on_count=on_progress)
        super().__init__(self.watched)
        self.wishes = wishes
        self.precision = Floor()
        self.look: FirstLook | None = None
        self.calibration: Calibration | None = None
        self.clip: float | None = None
        furthest = max(PROOF.longest, min(PROOF.furthest, PROOF.furthest_numbers // target.width))
        self.longest = PROOF.longest if wishes.max_length is None else min(wishes.max_length, furthest)
        self.facts: list[Fact] = []
        self.outcomes: list[Outcome] = []
        self.notes: list[str] = []
        self.predict: Predict | None = None
        self.foretold: Callable[[Floats], None] | None = None
        self.ahead: Ahead | None = None
        self.case: Case | None = None
        self.told: Diagnosis | None = None

    def close(self) -> None:
        """Let go of the journal."""
        if self.journal is not None:
            self.journal.close()

    @property
    def max_norm(self) -> float | None:
        """No token longer than this: as wished, or as the target itself has it."""
        return self.wishes.max_norm if self.wishes.max_norm is not None else self.clip

    @property
    def last(self) -> Oracle:
        """The target's answers at the last position alone."""
        return LastPosition(self)

    @property
    def embeddings(self) -> Floats | None:
        """The only tokens that the target takes, or None where it takes any."""
        table: Floats | None = getattr(self.inner, "embeddings", None)
        return table

    @property
    def like(self) -> Floats | None:
        """An array of the kind that the target takes on its device, where it has one."""
        kind: Floats | None = getattr(self.inner, "like", None)
        return kind

    def known(self, precision: Floor) -> None:
        """From now on answers are this coarse."""
        self.precision = precision
        watched = precision
        if precision.single:  # one more batch may add up the same numbers in another order, whatever one-token answers have shown
            watched = replace(precision, relative=max(precision.relative, LAST_BITS))
        self.watched.floor = None if precision.unclear else watched

    def first_look(self) -> FirstLook:
        """The first six answers, and how long sequences may be; asked once."""
        if self.look is None:
            three = self.wishes.max_length is None or self.wishes.max_length >= 3
            self.look = first_look(self, rng=self.rng, max_norm=self.wishes.max_norm, three=three)
            self.known(self.look.floor)
            self._agreed(self.look)
            if self.wishes.max_length is None and (self.wishes.budget is None or self.wishes.budget >= PROOF.longest):
                self.longest = longest_taken(self.checked, self.fresh, max_norm=self.max_norm, vocabulary=self.embeddings)
                if self.wishes.budget is not None:
                    self.meter.budget = self.wishes.budget - self.checked.spent
        return self.look

    def _agreed(self, look: FirstLook) -> None:
        """Where several endpoints share the questions: each gets the same two sequences, twice; 4 queries an endpoint.

        Raises:
            DriftingError: one of them answers otherwise than the others, by more than its answers vary.
        """
        count = len(getattr(self.inner, "members", ()))
        if count < 2:
            return
        phase(self, "endpoints alike?")
        tokens = self.rng.normal(size=(3, self.width))
        tokens *= np.linalg.norm(look.pair, axis=1).min() / np.linalg.norm(tokens, axis=1, keepdims=True)
        for length in (1, 3):
            told = self.last(np.repeat(tokens[None, :length], 2 * count, axis=0)).reshape(count, 2, -1)
            off = np.abs(told[:, 0] - np.median(told[:, 0], axis=0)).max(axis=1)
            varies = 4 * float(np.abs(told[:, 0] - told[:, 1]).max())
            if off.max() > varies + tolerance(look.grid, float(np.abs(told).max())):
                served = self.served or tuple(range(count))  # nobody was asked where a journal answers
                who = (
                    "the two targets answer" if count == 2 else f"target number {1 + served[int(off.argmax())]} of {count} answers"
                )
                raise DriftingError(
                    f"Of several endpoints, {who} the same question otherwise, by {off.max():.2g}: they do not run the same model.",
                    evidence={"endpoints_apart": float(off.max())},
                )

    def look_closer(self) -> Calibration:
        """Noise, rounding, a short format, tokens that are clipped: 30 queries; asked once."""
        if self.calibration is None:
            self.calibration = examine(self.last, rng=self.rng, max_norm=self.wishes.max_norm)
            if self.calibration.summary:
                self.notes.append(f"Answers: {self.calibration.summary}.")
        return self.calibration

    def confirm_replayed(self) -> None:
        """No verdict, good or bad, rests on old answers alone: some of those that a journal replayed are asked again.

        Raises:
            DriftingError: the target answers otherwise now.
            TargetError: it does not answer.
        """
        if self.journal is not None:
            self.journal.confirm_replayed(self.guarded, self.watched.floor)

    def record(self, fact: Fact) -> bool | None:
        """Keep a fact; returns whether it holds."""
        self.facts.append(fact)
        return fact.passed

    def left(self) -> int | None:
        """Queries that the budget leaves, learning and check taken off; None without a budget."""
        return None if self.wishes.budget is None else self.wishes.budget - self.meter.spent - self.checked.spent

    def contradiction(self, *, replicas: bool = True, briefly: bool = False) -> DriftingError | None:
        """The proof that the target contradicts its earlier answers, if it does; asked after a failure, if the budget allows.

        Price: 32 queries, ``briefly`` 14, where the family tests gave a reason of their own; before, 4 for each of several
        endpoints, and with a journal of answers that came over a network, one of each reply.

        Args:
            replicas: whether to look for several versions, and answers that changed; else only for replies of others in a journal.
            briefly: fewer questions.
        """
        if not self.watched.asked:
            return None
        if self.wishes.budget is not None:  # the check has had its share
            self.meter.budget = self.wishes.budget - self.checked.spent

        def look() -> DriftingError | None:
            reason = None
            if self.journal is not None:
                reason = self.journal.find_misdelivered(self.guarded, self.watched.floor, self.left())
            if self.look is not None:
                self._agreed(self.look)
            if reason is None and replicas:
                self.watched.look_for_replicas(*(BRIEFLY if briefly else ()))
            return reason

        reason = tried(look, RefusalError)
        return reason if isinstance(reason, DriftingError) else None  # no budget left for a look, or no target: no proof


def drawn_seed(source: int) -> int:
    """A seed for questions that nobody asked to repeat: from the operating system, or from a journal that goes on."""
    return int(np.random.SeedSequence([source % 2**64, 1]).generate_state(1)[0])
