"""``recover``: look, choose a learner, run it, check it on fresh questions, pack the result."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax import __version__
from unsoftmax.errors import (
    BudgetExceededError,
    DriftingError,
    JournalError,
    NotInFamilyError,
    RefusalError,
    TargetError,
)
from unsoftmax.families import Found, Options, learn
from unsoftmax.models import FFN, Model, Transformer
from unsoftmax.oracles.adapt import as_oracle, identity_of
from unsoftmax.oracles.base import Oracle
from unsoftmax.oracles.drift import Watched
from unsoftmax.oracles.guard import NormGuard
from unsoftmax.oracles.journal import Journal, Journaled
from unsoftmax.oracles.meter import Metered
from unsoftmax.proof import EXACT_TOLERANCE, Proof
from unsoftmax.results import Floor, Learned, Recovery, Status

SENTINELS = 4  # questions asked again in an exact run, whatever its length
Progress = Callable[[str, int], None]


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
    accuracy: float | None = None,
    entropy: int | None = None,
    on_progress: Progress | None = None,
) -> Recovery:
    """Recover a target's parameters from its answers, and prove the match on fresh questions.

    Args:
        target: a callable on ``(batch, length, width)`` arrays, a ``torch.nn.Module``, a model of ours, or an oracle.
        width: token length, where the target does not tell it.
        family: "auto", "attention", "transformer", "ffn" or "attention-behind-network".
        rank: rank of the score matrices; None finds it.
        heads: how many heads there are at most; None finds their number.
        tolerance: every answer is within this of the truth; None measures the precision of the answers.
        max_norm: no token longer than this is sent.
        budget: never ask more sequences than this, the held-out check included.
        accuracy: wanted rms error of W where answers are noisy or rounded; asks as many queries as that takes.
        adaptive: False draws all probes before the first answer.
        grid: known spacing of the weights, or "auto".
        journal: file that keeps every answer; the same call resumes from it.
        seed: same seed, same questions, same result.
        on_failure: "raise" an exception that carries ``.recovery``, or "return" it.
        entropy: source of the sentinels and of the held-out check, for tables that must be repeatable; None, the default, asks the
            operating system, so that no target can foresee them.
        on_progress: called with a phase name and a number of sequences after every call.

    Returns:
        The ``Recovery``. Its status is EXACT or WITHIN_TOLERANCE only after a held-out check on sequences whose randomness
        comes from the operating system.

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
        family=family,
        rank=rank,
        heads=heads,
        tolerance=tolerance,
        max_norm=max_norm,
        budget=budget,
        accuracy=accuracy,
        adaptive=adaptive,
        grid=grid,
        seed=seed,
    )
    oracle = as_oracle(target, width)
    if rank is not None and rank > oracle.width:
        raise ValueError(f"rank is {rank}, but the width is only {oracle.width}.")
    if grid is not None and not isinstance(grid, str) and np.size(grid) not in (1, oracle.width):
        raise ValueError(f"grid holds {np.size(grid)} steps; it must be one, or one for each of the {oracle.width} rows of W.")
    run = _Run(oracle, options, journal, on_progress, entropy)
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

    def __init__(
        self,
        oracle: Oracle,
        options: Options,
        journal: str | Path | None,
        on_progress: Progress | None,
        entropy: int | None = None,
    ) -> None:
        self.options = options
        self.started = time.perf_counter()
        self.journal: Journal | None = None
        self.guarded = guarded = NormGuard(oracle, options.max_norm)
        source = secrets.randbits(256) if entropy is None else entropy
        learning: Oracle = guarded
        checking: Oracle = guarded
        if journal is not None:
            plan = {k: _noted(v) for k in Options.__slots__ if (v := getattr(options, k)) is not None and k != "budget"}
            self.journal = Journal(journal, {"target": identity_of(oracle), "width": oracle.width, "version": __version__, **plan})
            source = self.journal.entropy if entropy is None else entropy
            learning, checking = Journaled(guarded, self.journal, "learn"), Journaled(guarded, self.journal, "check")
        # what the target must not foresee comes from the operating system; what must be repeatable from the seed
        watch, fresh = (np.random.default_rng(s) for s in np.random.SeedSequence(source).spawn(2))
        self.rng = np.random.default_rng(options.seed)
        self.meter = Metered(learning, budget=options.budget, on_count=on_progress)
        self.oracle = Watched(self.meter, watch, cap=SENTINELS, expected=oracle.width**2)
        self.checked = Metered(checking, on_count=on_progress)
        self.found = Found()
        self.proof = Proof(self.checked, self.oracle, self.meter, options, self.found, fresh)
        self.learned: Learned | None = None
        self.refusal: RefusalError | None = None

    def close(self) -> None:
        """Let go of the journal."""
        if self.journal is not None:
            self.journal.close()

    def recover(self) -> Recovery:
        """Run to the end; a refusal becomes a status."""
        try:
            self.learned = learn(self.oracle, self.options, self.found, self.rng, self._floor_known)
            check = self.proof.verify(self.learned)
            exact = self.found.floor.kind == "exact" and check.relative_error <= EXACT_TOLERANCE
            status = Status.EXACT if exact else Status.WITHIN_TOLERANCE
            message = status.value
        except Exception as error:  # contradictory answers may also end in an error of the arithmetic
            self.refusal = self._look_back(error)
            status, message = Status[self.refusal.status_name], str(self.refusal)
        if self.journal is not None and status not in (Status.DRIFTING, Status.TARGET_FAILED):
            try:  # no verdict, good or bad, rests on old answers alone
                self.journal.confirm_replayed(self.guarded, self.oracle.floor)
            except (DriftingError, TargetError) as reason:
                self.refusal, status, message = reason, Status[reason.status_name], str(reason)
        return self._pack(status, message)

    def _look_back(self, error: Exception) -> RefusalError:
        """The reason to report for a failed run: if the target contradicts its earlier answers, that; else ``error``."""
        told = isinstance(error, DriftingError | BudgetExceededError | TargetError | JournalError)
        if self.oracle.asked and not told:
            if self.options.budget is not None:  # the check has had its share
                self.meter.budget = self.options.budget - self.checked.spent
            try:
                self.oracle.look_for_replicas()
            except DriftingError as reason:
                reason.model = getattr(error, "model", None)
                return reason
            except RefusalError:
                pass  # no budget left for a look, or no target: the first reason stands
        if isinstance(error, RefusalError):
            return error
        if isinstance(error, ArithmeticError | ValueError | np.linalg.LinAlgError):
            return NotInFamilyError(
                f"The answers lead to numbers that no model of this family gives ({type(error).__name__}: {error}). "
                "`unsoftmax diagnose` tells what the target may be."
            )
        raise error

    def _floor_known(self, floor: Floor) -> None:
        self.oracle.floor = None if floor.kind == "coarse" else floor

    def _pack(self, status: Status, message: str) -> Recovery:
        learned, found = self.learned, self.found
        model = learned.model if learned is not None else getattr(self.refusal, "model", None)
        evidence = {**({} if learned is None else learned.evidence), **({} if self.refusal is None else self.refusal.evidence)}
        facts: dict[str, Any] = {
            "family": found.family,
            "width": self.oracle.width,
            "layout": None if found.look is None else found.look.layout,
            "outputs": None if found.look is None else found.look.outputs,
            "floor": {name: getattr(found.floor, name) for name in Floor.__slots__},
            "tolerance": self.proof.stated_tolerance,
            "queries": {
                "learn": self.meter.spent,
                "check": self.checked.spent,
                "total": self.meter.spent + self.checked.spent,
            },
            "phases": {name: {"queries": c.queries, "tokens": c.tokens, "calls": c.calls} for name, c in self.meter.phases.items()},
            "notes": [*found.notes, *(() if learned is None else learned.notes)],
            "evidence": evidence,
            "seed": self.options.seed,
            "seconds": time.perf_counter() - self.started,
            "version": __version__,
            "options": {k: _noted(v) for k in Options.__slots__ if (v := getattr(self.options, k)) is not None},
        }
        if self.journal is not None:
            facts["journal"] = self.journal.describe()
            facts["queries"] |= {"confirm": self.journal.confirmed} if self.journal.confirmed else {}
            facts["queries"]["total"] += self.journal.confirmed
        if model is not None:
            facts |= model_sizes(model, evidence)
        return Recovery(
            model=model,
            status=status,
            queries=self.meter.spent,
            check=self.proof.check,
            bounds=None if learned is None else learned.bounds,
            ambiguity="" if learned is None else learned.ambiguity,
            message=message,
            facts=facts,
        )


def _noted(value: Any) -> Any:
    """An option as a journal and a report keep it."""
    return value if isinstance(value, bool | int | float | str) else np.asarray(value).tolist()


def model_sizes(model: Model, evidence: dict[str, Any]) -> dict[str, Any]:
    """Heads, rank and the number of free parameters: what no exact scheme can ask less of, counted in real answers."""
    if isinstance(model, FFN):
        return {"neurons": len(model.biases[0]), "parameters": _network_parameters(model)}
    head = model.attention if isinstance(model, Transformer) else model
    d = head.width
    ranks = evidence.get("ranks") or [evidence["rank"] if evidence.get("rank") is not None else d] * head.heads
    scores = sum(r * (2 * d - r) for r in ranks) + head.heads * d * head.has_c
    known = {"heads": head.heads, "rank": max(ranks), "ranks": list(ranks)}
    if isinstance(model, Transformer):
        return {
            **known,
            "neurons": len(model.ffn.biases[0]),
            "parameters": scores + _network_parameters(model.ffn) + d * d * model.residual,
        }
    outputs = head.outputs or 1
    values = 0 if head.V is None else head.heads * d * outputs + outputs * head.has_b
    return {**known, "parameters": scores + values}


def _network_parameters(network: FFN) -> int:
    return sum(w.size for w in network.weights) + sum(b.size for b in network.biases)
