"""The story of a recovery, told once for the screen and the page."""

from __future__ import annotations

from typing import Any

from unsoftmax.models import Model
from unsoftmax.report import figures
from unsoftmax.report.chapter import Chapter, Figure, Report, Table, Text
from unsoftmax.report.common import closing, floor_facts, succeeded
from unsoftmax.report.deep_figures import layer_chapters, model_picture
from unsoftmax.report.model_figures import model_figures
from unsoftmax.report.told import Teller, step

NEXT = "What now"
SHOWN = 2  # heads drawn at once; the others are folded


def verdict(record: dict[str, Any]) -> str:
    """The one line that everything ends with."""
    words = {"EXACT": "RECOVERED EXACTLY", "WITHIN_TOLERANCE": "RECOVERED WITHIN TOLERANCE"}
    return words.get(record["status"], f"NOT RECOVERED: {record['status'].replace('_', ' ').lower()}")


def recovery_report(record: dict[str, Any], model: Model | None) -> Report:
    """The whole report of a recovery, pictures of ``model`` included."""
    tell = Teller(record)
    success = succeeded(record["status"])
    told = chapters(tell, model)
    return Report(
        title="Recovery report" if record.get("examples") is None else "Report of learning from examples",
        subject=subject(record),
        verdict=verdict(record),
        sentence=record["advice"] if success else record["message"],
        mood="good" if success else "bad",
        headlines=headlines(tell),
        # the reason of a refusal stands above already
        chapters=[*(told if success else told[1:]), *tested(tell), *closing(tell)],
    )


def tested(tell: Teller) -> list[Chapter]:
    """What was tested on the way, with numbers; folded."""
    facts = tell.record.get("tests") or []
    rows: list[list[Text]] = [
        [
            fact["test"],
            "cannot tell" if fact["passed"] is None else "pass" if fact["passed"] else "FAIL",
            fact["sentence"],
            tell(f"{{/tests/{i}/number:.2g}}"),
            tell(f"{{/tests/{i}/threshold:.2g}}"),
        ]
        for i, fact in enumerate(facts)
    ]
    table = Table(["Test", "Result", "What it says", "Measured", "Threshold"], rows, words=3)
    return [Chapter("What was tested on the way", table=table, folded=True)] if rows else []


def subject(record: dict[str, Any]) -> str:
    """What a report is about, and when it was made."""
    return f"{record.get('target') or 'a Python callable'} · {record['date'][:10]}"


def headlines(tell: Teller) -> list[tuple[Text, str]]:
    """The few numbers that matter most."""
    record = tell.record
    told: list[tuple[Text, str]] = []
    if record.get("examples") is not None:
        told.append((tell("{/examples:,}"), "examples, no query"))
    else:
        told.append((tell("{/queries/learn:,}"), "queries to learn"))
    if record["theory"] is not None:
        told.append((tell("{/theory/ratio:.3f} ×"), "the counting bound"))
    if record["check"] is not None and record["check"]["relative_error"] is not None:
        told.append((tell("{/check/relative_error:.1e}"), "largest error on fresh sequences"))
    if record.get("heads"):
        told.append((tell("{/heads}"), "head" if record["heads"] == 1 else "heads"))
    return told


def chapters(tell: Teller, model: Model | None = None) -> list[Chapter]:
    """What the target is, how it answers, what was found, how it was checked, what it cost, what cannot be known, what now."""
    following = Chapter(NEXT, sentences=tell.record["next"])
    told = [_target(tell), following, _found(tell, model), *_others(tell, model), _checked(tell), _cost(tell)]
    if not succeeded(tell.record["status"]):
        told = [_found(tell, model), following, _target(tell), _checked(tell), _cost(tell)]
    if tell.record["ambiguity"]:
        told.append(Chapter("What cannot be known", sentences=(_sentence(tell.record["ambiguity"]),)))
    return told


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else text + "."


def _target(tell: Teller) -> Chapter:
    record = tell.record
    several = (record.get("outputs") or 1) > 1
    facts: list[tuple[str, Text]] = [
        ("target", str(record.get("target", "a Python callable"))),
        ("token width", tell("{/width}")),
        ("answers", tell((record.get("layout") or "unknown") + (", {/outputs} numbers" if several else ""))),
        *floor_facts(tell),
    ]
    if record.get("tolerance") is not None:
        facts.append(("tolerance", tell("relative error {/tolerance:.1e} on fresh sequences")))
    return Chapter("The target", facts)


def _found(tell: Teller, model: Model | None) -> Chapter:
    record = tell.record
    if not succeeded(record["status"]):
        return Chapter("What was found", sentences=(record["message"],))
    facts: list[tuple[str, Text]] = [("family", str(record["family"]))]
    if record.get("heads"):
        of = " in {/layers} layers" if (record.get("layers") or 0) > 1 else ""
        facts.append(("heads", tell(f"{{/heads}}{of}")))
    if record.get("rank") is not None:
        facts.append(("rank of W", tell("{/rank} of {/width}")))
    if record.get("neurons"):
        facts.append(("hidden neurons", tell("{/neurons}")))
    if record.get("bounds"):
        facts.append(("error bars", f"{record['bounds']}, for every parameter"))
    notes = [_sentence(note) for note in record.get("notes", ())]
    whole = model_picture(tell)
    drawn = whole or model_figures(tell, model)
    if len(drawn) > 1 and (record.get("heads") or 0) > 1:
        notes.append("Colours and axes mean the same for every head.")
    return Chapter("What was found", facts, notes, figures=drawn[:SHOWN])


def _others(tell: Teller, model: Model | None) -> list[Chapter]:
    """The pictures of the heads after the first few, folded; of a deep model the heads of each layer, then each one large."""
    deep = layer_chapters(tell, model)
    shown = 0 if deep else SHOWN
    left = model_figures(tell, model)[shown:]
    heads = tell.record.get("heads") or 0
    unseen = [f"{shown + len(left)} of {heads} heads are drawn; the weights file holds all."] if heads > shown + len(left) else []
    title = "Every head in full" if deep else "More heads and layers"
    return [*deep, *([Chapter(title, sentences=unseen, figures=left, folded=True)] if left else [])]


def _checked(tell: Teller) -> Chapter:
    check = tell.record["check"]
    if check is None:
        return Chapter("How it was checked", sentences=("The run ended before the held-out check; nothing is announced.",))
    lengths = sorted(map(int, check["by_length"]))
    ends = list(dict.fromkeys((lengths[0], lengths[-1]))) if lengths else []
    span = f" of {' to '.join(f'{n:,}' for n in ends)} token{'s' * (ends != [1])}" if ends else ""
    facts: list[tuple[str, Text]] = [("fresh sequences", tell("{/check/sequences:,}" + ("," + span if span else "")))]
    if check["relative_error"] is None:
        facts.append(("largest error", "not finite"))
    else:
        facts.append(("largest error", tell("{/check/max_abs_error:.1e} (relative {/check/relative_error:.1e})")))
    covers = [_sentence(check["covers"])] if check.get("covers") else []
    return Chapter("How it was checked", facts, covers, figures=by_length(tell))


def by_length(tell: Teller, at: str = "/check") -> list[list[Figure]]:
    """Largest errors by length of the sequences, as bars: a bar for each doubling of the length."""
    errors = tell.value(f"{at}/by_length")
    if len(errors) < 2:
        return []
    bins: dict[int, list[str]] = {}
    for length in sorted(errors, key=int):
        bins.setdefault((int(length) - 1).bit_length(), []).append(length)
    rows = []
    for lengths in bins.values():
        worst = max(lengths, key=lambda length: errors[length] or 0.0)
        span = " to ".join(f"{int(n):,}" for n in dict.fromkeys((lengths[0], lengths[-1])))
        rows.append((f"{span} token{'s' * (span != '1')}", errors[worst], tell(f"{{{at}/by_length/{worst}:.1e}}")))
    return [[Figure("Largest error on fresh sequences, by length (logarithmic bars)", figures.bars(rows, logarithmic=True))]]


def _cost(tell: Teller) -> Chapter:
    record = tell.record
    facts: list[tuple[str, Text]] = []
    if record.get("examples") is not None:
        facts.append(("examples", tell("{/examples:,}; nothing was asked")))
    else:
        facts += _queries(tell)
    if record.get("seconds") is not None:
        facts.append(("time", tell("{/seconds:.2f} s")))
    drawn = []
    if record["theory"] is not None:
        rows = [
            ("no scheme asks less", record["theory"]["queries"], tell("{/theory/queries:,}")),
            ("asked to learn", record["queries"]["learn"], tell("{/queries/learn:,}")),
            ("asked to check", record["queries"]["check"], tell("{/queries/check:,}")),
        ]
        drawn.append(Figure("Queries against the counting bound", figures.bars(rows)))
    phases = record.get("phases") or {}
    if phases:
        rows = [(name, phase["queries"], tell(f"{{/phases/{step(name)}/queries:,}}")) for name, phase in phases.items()]
        drawn.append(Figure("Queries by phase", figures.bars(rows)))
    return Chapter("What it cost", facts, figures=[drawn] if drawn else [])


def _queries(tell: Teller) -> list[tuple[str, Text]]:
    """What was asked, against what no exact scheme can go below."""
    record = tell.record
    facts: list[tuple[str, Text]] = [("queries to learn", tell("{/queries/learn:,}"))]
    if record["theory"] is not None:
        facts.append(("free parameters", tell("{/theory/parameters:,}")))
        facts.append(("numbers in the answers", tell("{/theory/numbers:,}; no exact scheme needs fewer than the parameters")))
        noun = "query" if record["theory"]["queries"] == 1 else "queries"
        facts.append(
            ("counting bound", tell(f"at least {{/theory/queries:,}} such {noun}; {{/theory/ratio:.3f}} times that were asked"))
        )
    facts.append(("queries to check", tell("{/queries/check:,}")))
    if (record.get("journal") or {}).get("replayed"):
        journal = record["journal"]
        dates = " to ".join(dict.fromkeys((journal["answers_from"], journal["answers_to"])))
        facts.append(("from the journal", tell(f"{{/journal/replayed:,}} answers of {dates}")))
        facts.append(("asked now", tell("{/journal/asked_now:,}, of which {/journal/confirmed:,} to confirm replayed answers")))
    return facts
