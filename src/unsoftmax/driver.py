"""``recover``: look, choose a learner, run it, check it on fresh questions, pack the result."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax import __version__
from unsoftmax.checks.first_look import FirstLook, first_look
from unsoftmax.checks.held_out import PER_LENGTH, fresh_sequences, held_out, predictor
from unsoftmax.errors import BudgetExceededError, DriftingError, NotInFamilyError, RefusalError
from unsoftmax.learners.one_head import OneHeadLearner
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.adapt import as_oracle, identity_of
from unsoftmax.oracles.base import Oracle
from unsoftmax.oracles.drift import Watched, post_mortem
from unsoftmax.oracles.guard import NormGuard
from unsoftmax.oracles.journal import Journal, Journaled
from unsoftmax.oracles.meter import Metered
from unsoftmax.results import Check, Floor, Learned, Recovery, Status

FAMILIES = ("auto", "attention", "transformer", "ffn", "attention-behind-network")
EXACT_TOLERANCE = 1e-8  # held-out relative error up to which float64 answers count as matched
COARSE_FACTOR = 2048.0  # the same in units of the answers' own relative precision, for coarser answers
LOOSEST = 1e-2  # beyond this a match proves nothing
SENTINELS = 4  # questions asked again in an exact run, whatever its length
Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the caller asked for, checked."""

    family: str = "auto"
    rank: int | None = None
    heads: int | None = None
    tolerance: float | None = None
    max_norm: float | None = None
    budget: int | None = None
    adaptive: bool = True
    grid: Any = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family is {self.family!r}; it must be one of {', '.join(FAMILIES)}.")
        for name, lowest in (("rank", 0), ("heads", 1), ("budget", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or int(value) != value or value < lowest):
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {lowest}.")
        for name in ("tolerance", "max_norm"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value!r}; it must be a positive number.")


def recover(
    target: Any,
    *,
    width: int | None = None,
    family: str = "auto",
    rank: int | None = None,
    heads: int | None = None,
    tolerance: float | None = None,
    max_norm: float | None = None,
    budget: int | None = None,
    adaptive: bool = True,
    grid: Any = None,
    journal: str | Path | None = None,
    seed: int = 0,
    on_failure: str = "raise",
    on_progress: Progress | None = None,
) -> Recovery:
    """Recover a target's parameters from its answers, and prove the match on fresh questions.

    Args:
        target: a callable on ``(batch, length, width)`` arrays, a ``torch.nn.Module``, a model of ours, or an oracle.
        width: token length, where the target does not tell it.
        family: "auto", "attention", "transformer", "ffn" or "attention-behind-network".
        rank: rank of the score matrices; None finds it.
        heads: number of heads; None finds it.
        tolerance: every answer is within this of the truth; None measures the precision of the answers.
        max_norm: no token longer than this is sent.
        budget: never ask more sequences than this, the held-out check included.
        adaptive: False draws all probes before the first answer.
        grid: known spacing of the weights, or "auto".
        journal: file that keeps every answer; the same call resumes from it.
        seed: same seed, same questions, same result.
        on_failure: "raise" an exception that carries ``.recovery``, or "return" it.
        on_progress: called with a phase name and a number of sequences after every call.

    Returns:
        The ``Recovery``. Its status is EXACT or WITHIN_TOLERANCE only after a held-out check on sequences whose randomness comes from
        the operating system.

    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(7)
    >>> head = us.Attention.single(W=rng.normal(size=(4, 4)), v=rng.normal(size=4))
    >>> found = us.recover(head)
    >>> found.status.name, found.queries <= 4 * 4 + 4 + 32, us.distance(found.model, head) < 1e-13
    ('EXACT', True, True)
    """
    if on_failure not in ("raise", "return"):
        raise ValueError(f"on_failure is {on_failure!r}; it must be 'raise' or 'return'.")
    options = Options(
        family=family, rank=rank, heads=heads, tolerance=tolerance, max_norm=max_norm, budget=budget, adaptive=adaptive, grid=grid, seed=seed
    )  # fmt: skip
    oracle = as_oracle(target, width)
    if rank is not None and rank > oracle.width:
        raise ValueError(f"rank is {rank}, but the width is only {oracle.width}.")
    run = _Run(oracle, options, journal, on_progress)
    try:
        recovery = run.recover()
    finally:
        run.close()
    if not recovery.status.success and on_failure == "raise":
        error = run.refusal if run.refusal is not None else NotInFamilyError(recovery.message)
        error.recovery = recovery
        raise error
    return recovery


class _Run:
    """One recovery: the stack of oracles, the random numbers, and what was found so far."""

    def __init__(self, oracle: Oracle, options: Options, journal: str | Path | None, on_progress: Progress | None) -> None:
        self.options = options
        self.started = time.perf_counter()
        self.journal: Journal | None = None
        guarded: Oracle = NormGuard(oracle, options.max_norm)
        entropy = secrets.randbits(256)
        learning, checking = guarded, guarded
        if journal is not None:
            plan = {k: v for k in Options.__slots__ if (v := getattr(options, k)) is not None and k != "budget"}
            self.journal = Journal(journal, {"target": identity_of(oracle), "width": oracle.width, "version": __version__, **plan})
            entropy = self.journal.entropy
            learning, checking = Journaled(guarded, self.journal, "learn"), Journaled(guarded, self.journal, "check")
        # what the target must not foresee comes from the operating system; what must be repeatable from the seed
        watch, self.fresh = (np.random.default_rng(s) for s in np.random.SeedSequence(entropy).spawn(2))
        self.rng = np.random.default_rng(options.seed)
        self.meter = Metered(learning, budget=options.budget, on_count=on_progress)
        self.oracle = Watched(self.meter, watch, cap=SENTINELS, expected=oracle.width**2)
        self.checking = checking
        self.checked: Metered | None = None
        self.on_progress = on_progress
        self.look: FirstLook | None = None
        self.learned: Learned | None = None
        self.check: Check | None = None
        self.refusal: RefusalError | None = None
        self.floor = Floor()

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()

    def recover(self) -> Recovery:
        """Run to the end; a refusal becomes a status."""
        try:
            self.look = first_look(self.oracle, rng=self.rng, max_norm=self.options.max_norm)
            self.floor = self.oracle.floor = self.look.floor
            self.learned = self._learn(self.look)
            self._verify(self.learned)
            status = Status.EXACT if self.floor.kind == "exact" else Status.WITHIN_TOLERANCE
            message = status.value
        except RefusalError as error:
            self.refusal = error
            status, message = Status[error.status_name], str(error)
        return self._pack(status, message)

    def _learn(self, look: FirstLook) -> Learned:
        learner = OneHeadLearner(rank=self.options.rank, max_norm=self.options.max_norm, floor=self.floor, zero_answer=look.zero_answer)
        return learner.run(self.oracle, rng=self.rng)

    @property
    def tolerance(self) -> float:
        """The held-out relative error that this run holds itself to."""
        return EXACT_TOLERANCE if self.floor.kind == "exact" else min(LOOSEST, COARSE_FACTOR * self.floor.relative)

    def _verify(self, learned: Learned) -> None:
        """Compare with fresh answers; a mismatch is a drifting target or one outside the family."""
        left = None if self.options.budget is None else self.options.budget - self.meter.spent
        per_length = PER_LENGTH
        batches = fresh_sequences(learned.model, self.fresh, per_length=per_length, max_norm=self.options.max_norm)
        wanted = sum(map(len, batches))
        if left is not None and left < wanted:
            if left < len(batches):
                raise BudgetExceededError(
                    f"Learning took {self.meter.spent} queries and the held-out check needs at least {len(batches)} more, but the budget is "
                    f"{self.options.budget}. Raise `budget` by {len(batches) - left} or more; nothing is announced unchecked.",
                    model=learned.model,
                )
            batches = [batch[: left // len(batches)] for batch in batches]
        counted = self.checked = Metered(self.checking, on_count=self.on_progress)
        counted.begin_phase("held-out check")
        self.check = held_out(counted, predictor(learned.model), batches)
        if self.check.relative_error <= self.tolerance:
            return
        post_mortem(counted, self.oracle.sample(64, self.fresh), self.floor)
        raise NotInFamilyError(
            f"The model that fits all {self.meter.spent} answers fails on fresh sequences: relative error {self.check.relative_error:.2g}, "
            f"where {self.tolerance:.1g} is allowed. The target is not a model of this family. `unsoftmax diagnose` tells what it may be.",
            model=learned.model,
            evidence={"relative_error": self.check.relative_error, "by_length": self.check.by_length},
        )

    def _pack(self, status: Status, message: str) -> Recovery:
        learned = self.learned
        model = learned.model if learned is not None else getattr(self.refusal, "model", None)
        checked = 0 if self.checked is None else self.checked.spent
        facts: dict[str, Any] = {
            "family": "attention",
            "width": self.oracle.width,
            "layout": None if self.look is None else self.look.layout,
            "outputs": None if self.look is None else self.look.outputs,
            "floor": {name: getattr(self.floor, name) for name in Floor.__slots__},
            "tolerance": self.tolerance,
            "queries": {"learn": self.meter.spent, "check": checked, "total": self.meter.spent + checked},
            "phases": {name: {"queries": c.queries, "tokens": c.tokens, "calls": c.calls} for name, c in self.meter.phases.items()},
            "notes": [] if learned is None else list(learned.notes),
            "evidence": {**({} if learned is None else learned.evidence), **({} if self.refusal is None else self.refusal.evidence)},
            "seed": self.options.seed,
            "seconds": time.perf_counter() - self.started,
            "version": __version__,
            "options": {k: v for k in Options.__slots__ if (v := getattr(self.options, k)) is not None},
        }
        if self.journal is not None:
            facts["journal"] = {"sha256": self.journal.digest, "possibly_asked_twice": self.journal.repeated}
        if isinstance(model, Attention):
            facts |= {"heads": model.heads, "rank": facts["evidence"].get("rank"), "parameters": _parameters(model, facts["evidence"].get("rank"))}
        return Recovery(
            model=model,
            status=status,
            queries=self.meter.spent,
            check=self.check,
            bounds=None if learned is None else learned.bounds,
            ambiguity="" if learned is None else learned.ambiguity,
            message=message,
            facts=facts,
        )


def _parameters(model: Attention, rank: int | None) -> int:
    """Free numbers of a model: what no exact scheme can ask less of, counted in real answers."""
    d, r = model.width, model.width if rank is None else rank
    outputs = model.outputs or 1
    return model.heads * (r * (2 * d - r) + d * outputs + d * model.has_c) + outputs * model.has_b
