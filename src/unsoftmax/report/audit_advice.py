"""What the owner can do: read off the rows that were measured, and nothing else."""

from __future__ import annotations

from typing import Any

from unsoftmax.audits.verdict import CLOSE


def ending(cell: dict[str, Any]) -> str:
    """Whether a row "stops" the extraction, "spoils" the copy, or "fails" to do either; "open" where the row decides nothing."""
    if leaked(cell):
        return "fails"
    return {"NOT WITHIN BUDGET": "stops", "PARTIAL": "spoils"}.get(cell["outcome"], "open")


def leaked(cell: dict[str, Any]) -> bool:
    """Whether a close copy came out, or of a deep model all that can be read of it."""
    part = cell["outcome"] == "PARTIAL" and bool(cell.get("part")) and cell["error"] is not None and cell["error"] <= CLOSE
    return bool(part or cell["outcome"] == "EXTRACTABLE")


def advice(record: dict[str, Any]) -> list[list[str]]:
    """Pairs of words for the owner: the choice first, then each kind of defence with what was measured of it."""
    if not leaked(record["cells"][0]):
        return [
            ["Nothing", "The target as it stands was not extracted: against these methods and this budget no defence is needed."]
        ]
    rows = record["cells"][1:]
    kinds = dict.fromkeys(map(_kind, rows))
    return [
        ["The choice", _choice(rows, record["budget"])],
        *([k, _measured(k, [r for r in rows if _kind(r) == k])] for k in kinds),
    ]


def _choice(rows: list[dict[str, Any]], budget: int) -> str:
    stopping = [row for row in rows if ending(row) == "stops"]
    if not stopping:
        return (
            f"None of these defences stops an extraction of {budget:,} queries. A file of your own (`unsoftmax audit FILE.toml`) "
            "tries stronger ones and other combinations, and searches the weakest noise that stops it."
        )
    best = min(stopping, key=lambda row: row["honest_cost"])
    cost = (
        "at no cost to honest answers"
        if best["honest_cost"] == 0
        else f"at an error of {_share(best)} of the spread in honest answers"
    )
    told = f"{best['name']} stops the extraction within {budget:,} queries, {cost}."
    return told + (" It holds for one client: several accounts multiply it." if "quota" in best["settings"] else "")


def _measured(kind: str, rows: list[dict[str, Any]]) -> str:
    parts = []
    endings = ("stops it", "leaves a rough or partial copy", "does not stop it", "decides nothing here")
    for how, words in zip(("stops", "spoils", "fails", "open"), endings, strict=True):
        names = [_named(row, how) for row in rows if ending(row) == how]
        if names:
            parts.append(f"{words}: {', '.join(names)}")
    told = "; ".join(parts) + "."
    return told[0].upper() + told[1:] + (" It only delays." if kind == "A rate limit" else "")


def _named(row: dict[str, Any], how: str) -> str:
    if how == "fails" and row["error"] is not None and row["measured"]:
        return f"{row['name']} (copy with error {row['error']:.1e} from {row['queries']:,} queries)"
    if how == "spoils" and row["error"] is not None:
        return f"{row['name']} (error {row['error']:.1e}, at {_share(row)} for honest users)"
    return str(row["name"])


def _share(row: dict[str, Any]) -> str:
    relative = row["honest_cost_relative"]
    return "none" if relative is None else f"{relative:.1e}"


def _kind(row: dict[str, Any]) -> str:
    kinds = (  # settings of a defence and what they are called together; the first that fits names the kind
        (("max_norm", "noise"), "A norm limit with noise"),
        (("max_norm", "decimals"), "A norm limit with rounding"),
        (("max_norm", "digits"), "A norm limit with rounding"),
        (("max_norm", "dtype"), "A norm limit with a short number format"),
        (("labels",), "Labels in place of numbers"),
        (("top",), "The largest numbers alone"),
        (("min_norm",), "A shortest token"),
        (("quota",), "A quota"),
        (("rate",), "A rate limit"),
        (("max_norm",), "A norm limit alone"),
        (("noise",), "Noise alone"),
        (("decimals",), "Rounding alone"),
        (("digits",), "Rounding alone"),
        (("dtype",), "A short number format alone"),
    )
    for keys, name in kinds:
        if all(key in row["settings"] for key in keys):
            return name
    return "Another defence"
