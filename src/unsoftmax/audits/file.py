"""An audit as a TOML file: target, budget, price, gates and defences of one's own, to be kept under version control."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unsoftmax.audits.defences import Defence
from unsoftmax.audits.wording import read_defence
from unsoftmax.errors import FileFormatError

KNOWN = {
    "target": str,
    "width": int,
    "budget": int,
    "price": float,
    "currency": str,
    "rate": float,
    "max_norm": float,
    "max_length": int,
    "check": int,
    "seed": int,
    "fail_if": str,
    "authorised_by": str,
    "standard": bool,
    "defences": list,
    "defence": list,
    "search": dict,
    "curve": dict,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFile:
    """What a file asks for.

    Attributes:
        settings: arguments of ``audit``, by name; what the file leaves out is not in it.
        defences: rows of one's own.
        standard: whether the standard table is tried, too.
        search: defences for which the weakest noise that stops the extraction is searched, "none" for noise alone.
        points: budgets of the curves of error against queries.
        seeds: how many times each point of a curve is measured.
    """

    settings: dict[str, Any]
    defences: tuple[Defence, ...] = ()
    standard: bool = True
    search: tuple[str, ...] = ()
    points: tuple[int, ...] = ()
    seeds: int = 1
    target: str | None = field(default=None)


def read_audit(path: str | Path) -> AuditFile:
    """Read an audit file.

    Raises:
        FileFormatError: it is no TOML, or asks for something that is not known; the message names the key.
    """
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read as TOML ({error}).") from error
    given = {key.replace("-", "_"): value for key, value in table.items()}
    for key, value in given.items():
        _check(path, key, value)
    try:
        rows = [read_defence(str(words)) for words in given.pop("defences", ())]
        rows += [_row(entry) for entry in given.pop("defence", ())]
        search = given.pop("search", {})
        base = search.get("with", ["none"])
        searched = tuple([base] if isinstance(base, str) else map(str, base)) if search.get("noise", False) else ()
        for words in searched:
            read_defence(words)
    except (ValueError, TypeError) as error:
        raise FileFormatError(f"{path}: {error}") from error
    curve = given.pop("curve", {})
    points = tuple(int(point) for point in curve.get("budgets", ()))
    if any(point < 1 for point in points) or int(curve.get("seeds", 1)) < 1:
        raise FileFormatError(f"{path}: the budgets and seeds of [curve] must be above 0.")
    return AuditFile(
        defences=tuple(rows),
        standard=bool(given.pop("standard", not rows)),
        search=searched,
        points=points,
        seeds=int(curve.get("seeds", 1)),
        target=given.pop("target", None),
        settings=given,
    )


def _check(path: Path, key: str, value: Any) -> None:
    kind = KNOWN.get(key)
    if kind is None:
        names = ", ".join(name.replace("_", "-") for name in KNOWN)
        raise FileFormatError(f"{path}: there is no setting {key!r}; there are {names}.")
    fits = isinstance(value, int | float) and not isinstance(value, bool) if kind is float else isinstance(value, kind)
    if not fits or (kind is int and isinstance(value, bool)):
        raise FileFormatError(f"{path}: {key} is {value!r}; it must be of the kind {kind.__name__}.")


def _row(entry: Any) -> Defence:
    """A row that is written out, setting by setting."""
    if not isinstance(entry, dict) or "name" not in entry:
        raise ValueError("every [[defence]] needs a name.")
    known = set(Defence.__slots__)
    settings = {key.replace("-", "_"): value for key, value in entry.items()}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ValueError(f"a defence has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}.")
    return Defence(**settings)
