"""Defences in words: ``"norm 6, 3 decimals, quota 500"`` to a row of the table."""

from __future__ import annotations

import re
from typing import Any

from unsoftmax.audits.defences import Defence


def read_defence(text: str, name: str | None = None) -> Defence:
    """A defence from its parts, joined by commas; the words are its name unless another is given.

    Raises:
        ValueError: a part that no defence is called, or the same kind twice.

    >>> row = read_defence("norm 6, 3 decimals, quota 500")
    >>> row.max_norm, row.decimals, row.quota, row.noise
    (6.0, 3, 500, None)
    """
    words = " ".join(text.split())
    settings: dict[str, Any] = {}
    for part in words.split(","):
        key, value = _setting(part.strip().lower(), text)
        if key in settings:
            raise ValueError(f"In the defence {text!r}, {part.strip()!r} is the second of its kind.")
        if key:
            settings[key] = value
    return Defence(name=name or words, **settings)


def _setting(part: str, text: str) -> tuple[str, Any]:
    if part == "none":
        return "", None
    if part in ("labels", "labels only"):
        return "threshold", 0.0
    if part == "no zero tokens":
        return "min_norm", 1e-30
    number = r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)"
    forms: tuple[tuple[str, str, type], ...] = (
        (rf"{number}\s*decimals?", "decimals", int),
        (rf"{number}\s*(?:significant\s+)?digits?", "digits", int),
        (rf"noise\s*{number}", "noise", float),
        (rf"norm(?:\s+limit)?\s*{number}", "max_norm", float),
        (rf"shortest(?:\s+token)?\s*{number}", "min_norm", float),
        (rf"top\s*{number}(?:\s+alone)?", "top", int),
        (rf"quota\s*{number}", "quota", int),
        (rf"rate(?:\s+limit)?\s*{number}(?:\s*/\s*s)?", "rate", float),
        (r"(float32|float16|bfloat16)", "dtype", str),
    )
    for form, key, kind in forms:
        match = re.fullmatch(form, part)
        if match is None:
            continue
        value: Any = kind(float(match[1])) if kind is not str else match[1]
        if kind is int and float(match[1]) != value:
            raise ValueError(f"In the defence {text!r}, {part!r} must be a whole number.")
        if key not in ("decimals", "dtype") and not value > 0:
            raise ValueError(f"In the defence {text!r}, {part!r} must be above 0.")
        return key, value
    examples = (
        '"3 decimals", "4 digits", "noise 0.01", "norm 6", "shortest token 0.1", "top 20", "quota 500", "rate 2", "float16", '
        '"labels only"'
    )
    raise ValueError(
        f"In the defence {text!r}, {part!r} is nothing that can be tried. Write for example {examples}, joined by commas."
    )
