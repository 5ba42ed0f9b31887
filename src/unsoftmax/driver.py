"""``recover``: look, choose a family, learn, check on fresh questions, pack the result."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from unsoftmax.accounts import Account, Phase, Queries
from unsoftmax.candidates import candidates, refusal_of, weighed
from unsoftmax.desk import Desk, Progress
from unsoftmax.errors import (
    BudgetExceededError,
    DriftingError,
    RefusalError,
    Sign,
    TargetError,
    is_whole,
    tried,
)
from unsoftmax.evidence import Evidence
from unsoftmax.families import named
from unsoftmax.families.base import Family, Size
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.proof import prove
from unsoftmax.proof.fresh import natural_tokens
from unsoftmax.results import Learned, Proof, Recovery, Status
from unsoftmax.rounding import unless_rounded
from unsoftmax.watching import watchers
from unsoftmax.wishes import Wishes


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
    seed: int | None = None,
    on_failure: str = "raise",
    natural: Any = None,
    max_length: int | None = None,
    labels: bool | None = None,
    check: int | None = None,
    accuracy: float | None = None,
    entropy: int | None = None,
    on_progress: Progress | None = None,
    method: Literal["factored", "nuclear"] | None = None,
) -> Recovery:
    """Recover a target's parameters from its answers, and prove the match on fresh questions.

    Args:
        target: a callable on ``(batch, length, width)`` arrays, a ``torch.nn.Module``, a model of ours, or an oracle.
        width: token length, where the target does not tell it.
        family: "auto", or one of ``unsoftmax.families.family_names()``: "attention", "transformer", "ffn", …
        rank: rank of the score matrices; None finds it.
        heads: how many heads there are at most; None finds their number.
        tolerance: every answer is within this of the truth; None measures the precision of the answers.
        max_norm: no token longer than this is sent.
        budget: never ask more sequences than this, the held-out check included.
        adaptive: False draws all probes before the first answer.
        grid: known spacing of the weights, or "auto".
        journal: file that keeps every answer; the same call resumes from it.
        seed: same seed, same questions, same result; None draws one from the operating system and records it.
        on_failure: "raise" an exception that carries ``.recovery``, or "return" it.
        natural: samples of the tokens that the target meets in use, ``(tokens, width)`` or sequences of them; the held-out check
            draws from them. None: entries of standard deviation one.
        max_length: no sequence of more tokens than this is sent by the check, nor of more than 16,384; None finds out what the
            target takes.
        labels: True for a target that answers with one of two values.
        check: fresh sequences that the held-out check compares; None for about 235.
        accuracy: wanted rms error of W where answers are noisy or rounded; asks as many queries as that takes.
        entropy: source of the sentinels and of the held-out check, for tables that must be repeatable; None, the default, asks the
            operating system, so that no target can foresee them.
        on_progress: called with a phase name and a number of sequences after every call.
        method: how fixed probes (``adaptive=False``) are solved: "factored" (the default), or "nuclear" as in the paper.

    Returns:
        The ``Recovery``. Its status is EXACT or WITHIN_TOLERANCE only after a held-out check on sequences whose randomness
        comes from the operating system.

    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(7)
    >>> head = us.Attention.single(W=rng.normal(size=(4, 4)), v=rng.normal(size=4))
    >>> found = us.recover(head, seed=7)
    >>> found.status.name, found.queries <= 4 * 4 + 4 + 32, us.distance(found.model, head) < 1e-13
    ('EXACT', True, True)
    """
    if on_failure not in ("raise", "return"):
        raise ValueError(f"on_failure is {on_failure!r}; it must be 'raise' or 'return'.")
    if family != "auto":
        named(family)
    if entropy is not None and not is_whole(entropy, 0):
        raise ValueError(f"entropy is {entropy!r}; it must be a whole number of at least 0.")
    oracle = as_oracle(target, width)
    wishes = Wishes(
        family=family,
        rank=rank,
        heads=heads,
        tolerance=tolerance,
        max_norm=max_norm,
        budget=budget,
        accuracy=accuracy,
        adaptive=adaptive,
        method=method,
        grid=grid,
        seed=seed,
        natural=None if natural is None else natural_tokens(natural, oracle.width),
        max_length=max_length,
        labels=labels,
        check=check,
    )
    wishes.checked_for(oracle.width)
    started = time.perf_counter()
    desk = Desk(oracle, wishes, journal=journal, on_progress=on_progress, entropy=entropy)
    try:
        recovery, refusal = _recover(desk, started)
    finally:
        desk.close()
    if refusal is not None and on_failure == "raise":
        refusal.recovery = recovery
        raise refusal
    return recovery


def _recover(desk: Desk, started: float) -> tuple[Recovery, RefusalError | None]:
    """Run to the end; a refusal becomes a status."""
    family: Family | None = None
    learned: Learned | None = None
    proof: Proof | None = None
    try:
        for family in candidates(desk):
            _tell_bill(desk, family)
            outcome = family.learn(desk)
            desk.outcomes.append(outcome)
            if outcome.explains:
                learned = outcome.learned
                break
        if family is None or learned is None:
            raise refusal_of(desk)
        for watcher in watchers():
            watcher.sees(lambda: learned.model)
        proof = prove(desk, family, learned)
        if proof.refusal is not None:
            raise proof.refusal
        desk.confirm_replayed()
        return _packed(desk, started, family, learned, proof, None), None
    except RefusalError as error:
        refusal = error
        if not isinstance(error, BudgetExceededError | TargetError):  # contradictory answers may also end in another reason
            shown = isinstance(error, DriftingError) and not {Sign.DIAGNOSED, Sign.CHANGED} <= set(error.signs)
            drift = desk.contradiction(replicas=not shown, briefly=Sign.DIAGNOSED in error.signs)
            if drift is not None:
                drift.model = error.model
            refusal = weighed(desk, drift or error, proven=proof is not None)
            if desk.wishes.tolerance is None:  # errors that a caller allows may look like steps
                refusal = unless_rounded(desk, refusal)
        if not isinstance(refusal, DriftingError | TargetError):
            refusal = _confirmed(desk, refusal)
        return _packed(desk, started, family, learned, proof, refusal), refusal


def _tell_bill(desk: Desk, family: Family) -> None:
    """Tell whoever watches what learning this family may cost: the budget is a promise, a bill for what is known an estimate."""
    wishes, look = desk.wishes, desk.look
    for watcher in watchers():
        if wishes.budget is not None:
            watcher.expects(wishes.budget, True)
        elif look is not None and look.floor.exact:
            size = Size(width=desk.width, outputs=look.outputs, rank=wishes.rank, heads=wishes.heads)
            with suppress(ValueError):  # no bill without the number of neurons or layers
                watcher.expects(family.bill(size).queries_max, False)


def _confirmed(desk: Desk, refusal: RefusalError) -> RefusalError:
    """The refusal, or a better reason: the target contradicts the answers that a journal replayed."""
    return tried(desk.confirm_replayed, DriftingError, TargetError) or refusal


def _packed(
    desk: Desk, started: float, family: Family | None, learned: Learned | None, proof: Proof | None, refusal: RefusalError | None
) -> Recovery:
    """Everything that the report and the JSON tell, from one place."""
    model = learned.model if learned is not None else None if refusal is None else refusal.model
    for layer in () if model is None else model.attentions:
        layer.left_device()
    status = Status[refusal.status_name] if refusal is not None else proof.status if proof is not None else Status.NOT_IN_FAMILY
    look, phases = desk.look, desk.meter.phases
    account = Account(
        family="attention" if family is None else family.name,
        width=desk.width,
        layout=None if look is None else look.layout,
        outputs=None if look is None else look.outputs,
        floor=desk.precision,
        tolerance=None if proof is None else proof.tolerance,
        queries=Queries(desk.meter.spent, desk.checked.spent, 0 if desk.journal is None else desk.journal.confirmed),
        phases={name: Phase(count.queries, count.tokens, count.calls) for name, count in phases.items()},
        notes=(*desk.notes, *(() if learned is None else learned.notes)),
        evidence=Evidence({**(learned.evidence if learned else {}), **(refusal.evidence if refusal else {})}),
        tests=tuple(desk.facts),
        seed=desk.seed,
        seconds=time.perf_counter() - started,
        options=Evidence(desk.wishes.noted()),
        journal=None if desk.journal is None else desk.journal.describe(),
        sizes=None if model is None else model.sizes(None if learned is None else learned.ranks),
        labels=learned is not None and bool(learned.labels),
    )
    return Recovery(
        model=model,
        status=status,
        queries=desk.meter.spent,
        check=None if proof is None else proof.check,
        bounds=None if learned is None else proof.bounds if proof is not None and proof.bounds is not None else learned.bounds,
        ambiguity="" if learned is None else learned.ambiguity,
        message=status.value if refusal is None else str(refusal),
        account=account,
    )
