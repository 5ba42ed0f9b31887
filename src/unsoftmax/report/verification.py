"""A verification as data and as a report."""

from __future__ import annotations

import dataclasses
from typing import Any

from unsoftmax.models import Model
from unsoftmax.report.chapter import Chapter, Report, Text
from unsoftmax.report.common import closing, floor_facts, plain, shared
from unsoftmax.report.deep_figures import model_picture
from unsoftmax.report.model_figures import model_figures, model_numbers
from unsoftmax.report.next_steps import after_verification
from unsoftmax.report.story import by_length, subject
from unsoftmax.report.told import Teller
from unsoftmax.verification import Verification


def verification_record(
    result: Verification, model: Model, *, target: str, weights: str, command: str, authorised_by: str | None = None
) -> dict[str, Any]:
    """Everything about a verification, ready for JSON."""
    record = {
        "verdict": "MATCHES" if result.matches else "DIFFERS",
        **dataclasses.asdict(result),
        "target": target,
        "weights": weights,
        "width": model.width,
        "model": model_numbers(model),
        "seed": None,
        **shared("verification", authorised_by=authorised_by),
        "command": command,
    }
    record["next"] = after_verification(record)
    return plain(record)  # type: ignore[no-any-return]  # a dict stays one


def sentence(record: dict[str, Any]) -> str:
    """The verdict in words."""
    if record["matches"]:
        return "The target answers as these weights do." + seen(record["would_show"])
    # up to here other weights are called a close copy, as a recovery from float64 answers is
    if record["relative_deviation"] is not None and record["relative_deviation"] <= 1e-8:
        return (
            "The target does not answer exactly as these weights do, but up to "
            f"{record['relative_deviation']:.1e} of the spread: they are a close copy, such as a recovery gives."
        )
    return "The target does not answer as these weights do."


def seen(would_show: dict[str, float | None]) -> str:
    """What a match behind half precision says, as a sentence of its own; nothing elsewhere."""
    if not would_show:
        return ""
    sizes = [f"{name} {'by its own size' if size is None else f'by {size:.1g}'}" for name, size in would_show.items()]
    return f" Its rounding hides smaller changes than these, relative to a block's own size: {', '.join(sizes)}."


def verification_report(record: dict[str, Any], model: Model | None) -> Report:
    """The whole report of a verification."""
    tell = Teller(record)
    unknown = (
        "A match says that the target answers as these weights do, on fresh sequences that it could not foresee and as far as its "
        "precision shows. It does not say that the parameters are stored in this form: other parameters with the same function "
        "would match as well, and `unsoftmax identify` tells which those are."
    )
    facts: list[tuple[str, Text]] = [
        ("target", record["target"]),
        ("weights", record["weights"]),
        ("token width", tell("{/width}")),
        *floor_facts(tell),
    ]
    compared: list[tuple[str, Text]] = [
        ("fresh sequences", tell("{/sequences:,}, drawn from the operating system's randomness")),
        ("largest deviation", tell("{/max_abs_deviation:.2g}")),
        ("relative deviation", tell("{/relative_deviation:.2g}")),
        ("explained by precision", tell("{/threshold:.2g}, relative")),
        ("queries in all", tell("{/queries:,}")),
    ]
    return Report(
        title="Verification report",
        subject=subject(record),
        verdict=record["verdict"],
        sentence=sentence(record),
        mood="good" if record["matches"] else "bad",
        headlines=[
            (tell("{/relative_deviation:.2g}"), "largest relative deviation"),
            (tell("{/threshold:.2g}"), "explained by the target's precision"),
            (tell("{/sequences:,}"), "fresh sequences"),
        ],
        chapters=[
            Chapter("The target", facts),
            Chapter("What now", sentences=record["next"]),
            Chapter("How it was compared", compared, figures=by_length(tell, "")),
            Chapter("The weights", figures=[*model_picture(tell), *model_figures(tell, model)], folded=True),
            Chapter("What cannot be known", sentences=[unknown]),
            *closing(tell),
        ],
    )
