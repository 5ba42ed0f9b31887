"""``audit``: extraction against a table of defences, from Python as on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unsoftmax.audits import Audit, Cell, Defence
    from unsoftmax.oracles.base import Oracle


def audit(
    target: Any,
    *,
    width: int | None = None,
    defences: Sequence[str | Defence] | None = None,
    standard: bool | None = None,
    search: Sequence[str] = (),
    budgets: Sequence[int] = (),
    runs: int = 1,
    budget: int = 100_000,
    fail_if: str | None = None,
    rate: float | None = None,
    price: float | None = None,
    currency: str | None = None,
    max_norm: float | None = None,
    max_length: int | None = None,
    check: int | None = None,
    seed: int | None = None,
    folder: str | Path | None = None,
    workers: int = 1,
    authorised_by: str | None = None,
    on_cell: Callable[[Cell, int], None] | None = None,
) -> Audit:
    """Try extraction of a target against defences; tell what would stop it and what that costs honest users.

    Args:
        target: as for ``recover``, or a name as for ``us.open``.
        width: token length, where the target does not tell it.
        defences: rows of one's own, in words (``"norm 6, 3 decimals, quota 500"``) or as ``Defence``.
        standard: whether the standard table is tried; by default only where no defences are given.
        search: defences in words ("none" for noise alone) to which the weakest noise that stops the extraction is searched.
        budgets: where given, each row is run with each of these too, for a curve of error against queries.
        runs: seeds of each point of such a curve.
        budget: sequences that each extraction may ask.
        fail_if: gate, such as ``"queries<100000 and error<1e-3"``; ``result.conclusion.gate_failed`` tells.
        rate: sequences a second that an attacker may ask, for times.
        price: price of 1000 sequences, for bills, in ``currency``.
        currency: its name, such as "EUR".
        max_norm: the target takes no longer tokens; none is sent.
        max_length: the target takes no longer sequences; none is sent.
        check: fresh sequences of the held-out check of each row.
        seed: same seed, same table.
        folder: keeps a journal for each row; the same call goes on from there.
        workers: processes; more than one only for a target that is named, since each opens it anew.
        authorised_by: who allowed this, for the record.
        on_cell: called with every finished row and the number of all.

    >>> import unsoftmax as us
    >>> found = us.audit("demo:attention,width=3", defences=["quota 5"], budget=2000, seed=1)
    >>> found.conclusion.verdict.words, found.conclusion.stopped_by
    ('EXTRACTABLE', ('quota 5',))
    """
    from unsoftmax.audits import Defence, Origin, parse_gate, read_defence, run_audit

    if workers > 1 and not isinstance(target, str):
        raise ValueError("Several workers each open the target anew: name it as for us.open, or leave `workers` at 1.")
    rows = [read_defence(row) if isinstance(row, str) else row for row in defences or ()]
    everything = standard if standard is not None else not rows
    base = None if everything else (Defence(name="none"),)
    result = run_audit(
        opener(target, width),
        defences=base,
        extra=tuple(row for row in rows if not row.base),
        search=tuple(read_defence(words) for words in search),
        budgets=tuple(budgets),
        runs=runs,
        gate=None if fail_if is None else parse_gate(fail_if),
        budget=budget,
        rate=rate,
        price=price,
        max_norm=max_norm,
        max_length=max_length,
        check=check,
        seed=seed,
        folder=None if folder is None else Path(folder),
        workers=workers,
        on_cell=on_cell,
    )
    named = isinstance(target, str)
    origin = Origin(
        target=target if named else type(target).__name__,
        remote=named and is_remote(target),
        currency=currency,
        authorised_by=authorised_by,
    )
    return replace(result, origin=origin)


def is_remote(target: str) -> bool:
    """Whether a named target is a server."""
    return target.startswith(("http://", "https://", "grpc://", "grpcs://", "vllm+", "sglang+", "rest+"))


def opener(target: Any, width: int | None) -> Callable[[], Oracle]:
    """What opens a target: by name in any process, or the one object that was handed over."""
    if isinstance(target, str):
        from unsoftmax.opening import open

        return partial(open, target, width=width)
    from unsoftmax.oracles.adapt import as_oracle

    oracle = as_oracle(target, width)
    return lambda: oracle
