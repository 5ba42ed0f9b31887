"""A recovery as plain data: what ``recovery.json`` holds and every other view is drawn from."""

from __future__ import annotations

from typing import Any

from unsoftmax.report.common import catalogues, plain, shared, to_json
from unsoftmax.report.model_figures import model_numbers
from unsoftmax.report.next_steps import next_steps
from unsoftmax.report.provenance import now
from unsoftmax.results import Check, Recovery
from unsoftmax.version import __version__


def recovery_record(recovery: Recovery) -> dict[str, Any]:
    """Everything about a recovery but its parameters, ready for JSON."""
    facts = recovery.facts
    queries = facts.get("queries", {"learn": recovery.queries, "check": 0, "total": recovery.queries})
    record: dict[str, Any] = {
        "status": recovery.status.name,
        "advice": recovery.status.value,
        "message": recovery.message,
        "family": facts.get("family"),
        "width": facts.get("width"),
        "heads": facts.get("heads"),
        "rank": facts.get("rank"),
        "outputs": facts.get("outputs"),
        "queries": queries,
        "theory": counting_bound(recovery, queries["learn"]),
        "check": check_record(recovery.check),
        "tolerance": facts.get("tolerance"),
        "bounds": None if recovery.bounds is None else recovery.bounds.kind,
        "ambiguity": recovery.ambiguity,
        "model": model_numbers(recovery.model) if recovery.status.success else None,
        "seed": facts.get("seed"),
        **shared("recovery", authorised_by=facts.get("authorised_by"), date=facts.get("date") or now()),
        "version": facts.get("version") or __version__,
    }
    record |= {k: v for k, v in facts.items() if k not in record}
    record["next"] = next_steps(record)
    record["catalogues"] = catalogues() if recovery.status.success and facts.get("examples") is None else None
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


def counting_bound(recovery: Recovery, learn: int) -> dict[str, Any] | None:
    """What was asked against what no exact scheme can go below: one real number in the answers for each free parameter.

    An answer at the last position holds as many numbers as the model has outputs, one at every position that many for each token.
    The proof stands in docs/theory/counting-bound.md.
    """
    facts = recovery.facts
    parameters = facts.get("parameters")
    if not parameters or not learn or not recovery.status.success or facts.get("labels"):
        return None
    answers = learn
    if facts.get("layout") == "all positions":
        answers = sum(phase["tokens"] for phase in facts.get("phases", {}).values()) or learn
    numbers = answers * (facts.get("outputs") or 1)
    least = -(-parameters * learn // numbers)
    return {"parameters": parameters, "numbers": numbers, "queries": least, "ratio": learn / least}
