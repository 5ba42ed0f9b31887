"""The story of a run, told once for the screen and the page: a list of chapters, each a title and its facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FLOORS = {
    "exact": "float64, nothing beyond rounding",
    "float32": "float32 precision",
    "float16": "float16 precision",
    "bfloat16": "bfloat16 precision",
    "rounded": "rounded to fixed decimals",
    "digits": "rounded to significant digits",
    "noisy": "noise on every answer",
    "coarse": "coarse: noise, rounding, or not affine in one token",
}


@dataclass(frozen=True, slots=True)
class Chapter:
    """One part of the story: facts as (name, value) pairs, then sentences."""

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    sentences: tuple[str, ...] = ()


def verdict(record: dict[str, Any]) -> str:
    """The one line that everything ends with."""
    words = {"EXACT": "RECOVERED EXACTLY", "WITHIN_TOLERANCE": "RECOVERED WITHIN TOLERANCE"}
    return words.get(record["status"], f"NOT RECOVERED: {record['status'].replace('_', ' ').lower()}")


def chapters(record: dict[str, Any]) -> list[Chapter]:
    """What the target is, how it answers, what was found, how it was checked, what it cost, what cannot be known."""
    told = [_target(record), _found(record), _checked(record), _cost(record)]
    if record["ambiguity"]:
        told.append(Chapter("What cannot be known", sentences=(record["ambiguity"],)))
    return told


def _target(record: dict[str, Any]) -> Chapter:
    floor = record.get("floor") or {}
    facts = [
        ("target", str(record.get("target", "a Python callable"))),
        ("token width", f"{record['width']}"),
        (
            "answers",
            f"{record.get('layout') or 'unknown'}" + (f", {record['outputs']} numbers" if (record.get("outputs") or 1) > 1 else ""),
        ),
        ("precision", FLOORS.get(str(floor.get("kind")), "unknown")),
    ]
    if record.get("tolerance") is not None:
        facts.append(("tolerance", f"relative error {record['tolerance']:.1e} on fresh sequences"))
    return Chapter("The target", tuple(facts))


def _found(record: dict[str, Any]) -> Chapter:
    if record["status"] not in ("EXACT", "WITHIN_TOLERANCE"):
        return Chapter("What was found", sentences=(record["message"],))
    facts = [("family", str(record["family"]))]
    if record.get("heads"):
        facts.append(("heads", f"{record['heads']}"))
    if record.get("rank") is not None:
        facts.append(("rank of W", f"{record['rank']} of {record['width']}"))
    return Chapter("What was found", tuple(facts), tuple(record.get("notes", ())))


def _checked(record: dict[str, Any]) -> Chapter:
    check = record["check"]
    if check is None:
        return Chapter("How it was checked", sentences=("The run ended before the held-out check; nothing is announced.",))
    facts = (
        (
            "fresh sequences",
            f"{check['sequences']}, of {min(map(int, check['by_length']))} to {max(map(int, check['by_length']))} tokens",
        ),
        ("largest error", f"{check['max_abs_error']:.1e} (relative {check['relative_error']:.1e})")
        if check["relative_error"] is not None
        else ("largest error", "not finite"),
    )
    return Chapter("How it was checked", facts)


def _cost(record: dict[str, Any]) -> Chapter:
    queries = record["queries"]
    facts = [("queries to learn", f"{queries['learn']:,}")]
    parameters, outputs = record.get("parameters"), record.get("outputs") or 1
    if parameters and record["status"] in ("EXACT", "WITHIN_TOLERANCE"):
        bound = -(-parameters // outputs)
        facts.append(("free parameters", f"{parameters:,}" + (f", so at least {bound:,} queries" if outputs > 1 else "")))
        facts.append(("against that count", f"{queries['learn'] / bound:.3f} times"))
    facts.append(("queries to check", f"{queries['check']:,}"))
    if record.get("seconds") is not None:
        facts.append(("time", f"{record['seconds']:.2f} s"))
    return Chapter("What it cost", tuple(facts))
