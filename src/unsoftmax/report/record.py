"""A recovery as plain data: what ``recovery.json`` holds and every other view is drawn from."""

from __future__ import annotations

from typing import Any

from unsoftmax.report.common import catalogues, plain, shared, to_json
from unsoftmax.report.model_figures import model_numbers
from unsoftmax.report.next_steps import next_steps
from unsoftmax.report.provenance import now
from unsoftmax.results import Check, Recovery


def recovery_record(recovery: Recovery) -> dict[str, Any]:
    """Everything about a recovery but its parameters, ready for JSON."""
    known = recovery.account
    sizes = known.sizes
    record: dict[str, Any] = {
        "status": recovery.status.name,
        "advice": recovery.status.value,
        "message": recovery.message,
        "family": known.family,
        "width": known.width,
        "heads": None if sizes is None else sizes.heads,
        "rank": None if sizes is None else sizes.rank,
        "outputs": known.outputs,
        "queries": recovery.spent.record(),
        "theory": counting_bound(recovery),
        "check": check_record(recovery.check),
        "tolerance": known.tolerance,
        "bounds": None if recovery.bounds is None else recovery.bounds.kind,
        "ambiguity": recovery.ambiguity,
        "model": model_numbers(recovery.model) if recovery.status.success else None,
        "seed": known.seed,
        **shared("recovery", authorised_by=known.authorised_by, date=known.date or now()),
        "version": known.version,
    }
    record |= {name: value for name, value in known.record().items() if name not in record}
    record["next"] = next_steps(record)
    record["catalogues"] = catalogues() if recovery.status.success and known.examples is None else None
    return plain(record)  # type: ignore[no-any-return]  # a dict stays one


def recovery_json(recovery: Recovery) -> str:
    """The record as one JSON document."""
    return to_json(recovery_record(recovery))


def check_record(check: Check | None) -> dict[str, Any] | None:
    """The held-out check as plain data."""
    if check is None:
        return None
    return {
        "sequences": check.sequences,
        "max_abs_error": check.max_abs_error,
        "relative_error": check.relative_error,
        "covers": check.covers,
        "by_length": {str(length): error for length, error in check.by_length.items()},
    }


def counting_bound(recovery: Recovery) -> dict[str, Any] | None:
    """What was asked against what no exact scheme can go below: one real number in the answers for each free parameter.

    An answer at the last position holds as many numbers as the model has outputs, one at every position that many for each token.
    The proof stands in docs/theory/counting-bound.md.
    """
    known, learn = recovery.account, recovery.spent.learn
    if known.sizes is None or not known.sizes.parameters or not learn or not recovery.status.success or known.labels:
        return None
    answers = learn
    if known.layout == "all positions":
        answers = sum(phase.tokens for phase in (known.phases or {}).values()) or learn
    numbers = answers * (known.outputs or 1)
    least = -(-known.sizes.parameters * learn // numbers)
    return {"parameters": known.sizes.parameters, "numbers": numbers, "queries": least, "ratio": learn / least}
