"""Results in a few words: a short ``repr``, a ``summary()`` of some lines, a page for notebooks, and files.

A result class takes all of them from ``Brief``: ``@dataclass(…, repr=False)`` and ``class Recovery(Brief)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

Facts = list[tuple[str, str]]


def brief(result: Any) -> str:
    """One line: the kind of result, its verdict, and the two or three numbers that matter most.

    >>> from unsoftmax.symmetry import Identifiability
    >>> brief(Identifiability(parameters=12, nullity=2, dimension=10, symmetries=("a", "b")))
    '<Identifiability: 10 of 12 numbers can be known; 2 symmetries; symmetry 1 a; symmetry 2 b>'
    """
    verdict, facts = _told(result)
    numbers = "; ".join(value if name == "" else f"{name} {value}" for name, value in facts[:3] if len(value) <= 120)
    return f"<{type(result).__name__}: {verdict}{'; ' if verdict and numbers else ''}{numbers}>"


def summary(result: Any) -> str:
    """Some lines for a terminal: the verdict, then a fact a line."""
    verdict, facts = _told(result)
    width = max((len(name) for name, _ in facts), default=0)
    return "\n".join([verdict, *(f"  {name:<{width}}  {value}" for name, value in facts)])


def notebook(result: Any) -> str:
    """A small table for notebooks; everything escaped, no script, no style of its own beyond alignment."""
    verdict, facts = _told(result)
    rows = Markup("").join(
        Markup('<tr><th style="text-align:left">{}</th><td style="text-align:left">{}</td></tr>').format(name, value)
        for name, value in facts
    )
    return str(Markup("<div><strong>{}: {}</strong><table>{}</table></div>").format(type(result).__name__, escape(verdict), rows))


def save_brief(result: Any, folder: Path) -> None:
    """Write everything about a result as JSON, and what ``summary()`` tells as a page.

    The commands write more: they also know target, weights and command line.
    """
    from unsoftmax.report.chapter import Chapter, Report
    from unsoftmax.report.common import plain, shared
    from unsoftmax.report.files import save

    kind = type(result).__name__.lower()
    verdict, facts = _told(result)
    record = plain({"verdict": verdict, **dataclasses.asdict(result), **shared(kind)})
    told = Chapter("What was found", facts=[(name or "in short", value) for name, value in facts])
    scope = Chapter("Scope and permission", sentences=record["scope"])
    report = Report(
        title=type(result).__name__, subject="", verdict=verdict, sentence="", mood="open", headlines=(), chapters=(told, scope)
    )
    folder.mkdir(parents=True, exist_ok=True)
    save(folder, f"{kind}.json", record, report)


def _told(result: Any) -> tuple[str, Facts]:
    readers: dict[str, Callable[[Any], tuple[str, Facts]]] = {
        "Recovery": _recovery,
        "Verification": _verification,
        "Diagnosis": _diagnosis,
        "Identifiability": _identifiability,
        "Audit": _audit,
    }
    return readers[type(result).__name__](result)


def _recovery(result: Any) -> tuple[str, Facts]:
    known, sizes = result.account, result.account.sizes
    facts: Facts = []
    if known.examples is not None:
        facts.append(("examples", f"{known.examples:,}"))
    else:
        facts.append(("queries", f"{result.queries:,}"))
    if result.check is not None:
        facts.append(
            ("error on fresh sequences", f"{result.check.relative_error:.1e} (relative, {result.check.sequences} sequences)")
        )
    shape = [known.family or "unknown family", f"width {known.width}"]
    shape += [f"{sizes.heads} head{'s' * (sizes.heads != 1)}"] if sizes is not None and sizes.heads else []
    shape += [f"rank {sizes.rank}"] if sizes is not None and sizes.rank is not None else []
    facts.append(("model", ", ".join(shape)))
    if result.bounds is not None:
        facts.append(("error bars", result.bounds.kind))
    if not result.status.success:
        facts.append(("reason", result.message))
    if result.ambiguity:
        facts.append(("cannot be known", result.ambiguity))
    return result.status.name, facts


def _verification(result: Any) -> tuple[str, Facts]:
    facts = [
        ("largest relative deviation", f"{result.relative_deviation:.2g}"),
        ("explained by precision", f"{result.threshold:.2g}"),
        ("fresh sequences", f"{result.sequences}"),
        ("queries", f"{result.queries:,}"),
    ]
    return "MATCHES" if result.matches else "DIFFERS", facts


def _diagnosis(result: Any) -> tuple[str, Facts]:
    facts: Facts = [("queries", f"{result.queries:,}")]
    if result.heads:
        facts.append(("heads", str(result.heads)))
    failed = [item for item in result.evidence if not item.passed]
    facts.append(("tests", f"{len(result.evidence)}, failed: {', '.join(dict.fromkeys(i.test for i in failed)) or 'none'}"))
    facts.append(("reason", result.reason))
    return f"{'inside' if result.inside else 'outside'}: {result.family.removeprefix('outside: ')}", facts


def _identifiability(result: Any) -> tuple[str, Facts]:
    count = len(result.symmetries)
    facts: Facts = [("", f"{count} symmetr{'y' if count == 1 else 'ies'}")]
    facts += [(f"symmetry {i + 1}", sentence) for i, sentence in enumerate(result.symmetries)]
    return f"{result.dimension} of {result.parameters} numbers can be known", facts


def _audit(result: Any) -> tuple[str, Facts]:
    conclusion = result.conclusion
    facts: Facts = [
        ("stopped by", ", ".join(conclusion.stopped_by) or "no defence"),
        ("rows", str(len(result.cells))),
        ("queries as it stands", f"{result.cells[0].queries:,}"),
    ]
    facts += [(cell.defence.name, f"{cell.status}, error {_number(cell.error)}, {cell.queries:,} queries") for cell in result.cells]
    return str(conclusion.verdict.words), facts


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"
