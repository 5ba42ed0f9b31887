"""What a report is made of, told once for the screen and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from unsoftmax.report.told import Told

Text = str | Told


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with its caption."""

    caption: Text
    drawing: Markup


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a table, with a note below; the first ``words`` columns are text, the others numbers."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Text]]
    words: int = 1
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One part of the story: facts as (name, value) pairs, sentences, pictures row by row, a table."""

    title: str
    facts: Sequence[tuple[str, Text]] = ()
    sentences: Sequence[Text] = ()
    figures: Sequence[Sequence[Figure]] = ()
    table: Table | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole report: the verdict first, a few numbers that matter most, then the chapters.

    ``mood`` is "good", "bad" or "open": what the verdict means to the reader; the words say it too.
    """

    title: str
    verdict: str
    sentence: str
    mood: str
    headlines: Sequence[tuple[Text, str]]
    chapters: Sequence[Chapter]
