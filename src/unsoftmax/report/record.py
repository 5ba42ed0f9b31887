"""A recovery as plain data: what ``recovery.json`` holds and every other view is drawn from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from unsoftmax.results import Recovery


def recovery_record(recovery: Recovery) -> dict[str, Any]:
    """Everything about a recovery but its parameters, ready for JSON."""
    facts = recovery.facts
    check = recovery.check
    record: dict[str, Any] = {
        "status": recovery.status.name,
        "message": recovery.message,
        "family": facts.get("family"),
        "width": facts.get("width"),
        "heads": facts.get("heads"),
        "rank": facts.get("rank"),
        "outputs": facts.get("outputs"),
        "queries": facts.get("queries", {"learn": recovery.queries, "check": 0, "total": recovery.queries}),
        "check": None
        if check is None
        else {
            "sequences": check.sequences,
            "max_abs_error": check.max_abs_error,
            "relative_error": check.relative_error,
            "by_length": {str(length): error for length, error in check.by_length.items()},
        },
        "tolerance": facts.get("tolerance"),
        "bounds": None if recovery.bounds is None else recovery.bounds.kind,
        "ambiguity": recovery.ambiguity,
        "seed": facts.get("seed"),
        "version": facts.get("version"),
    }
    return _plain({**record, **{k: v for k, v in facts.items() if k not in record}})  # type: ignore[no-any-return]  # a dict stays one


def recovery_json(recovery: Recovery) -> str:
    """The record as one JSON document."""
    return json.dumps(recovery_record(recovery), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    """Arrays and NumPy numbers to lists and plain numbers; what JSON cannot hold becomes None."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)
