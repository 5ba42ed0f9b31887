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
class Grid:
    """Small drawings of one kind in a row under a heading, at most ``columns`` side by side."""

    title: str
    figures: Sequence[Figure]
    columns: int = 8


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a table, with a note below; the first ``words`` columns are text, the others numbers.

    ``marks`` holds a word for each row that the page sets apart ("stops", "spoils"), or "".
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Text]]
    words: int = 1
    note: str = ""
    marks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Chapter:
    """One part of the story: facts as (name, value) pairs, sentences, pictures row by row, small ones in grids, a table.

    A ``folded`` chapter shows its title alone until it is opened: long lists, and what few readers look for.
    """

    title: str
    facts: Sequence[tuple[str, Text]] = ()
    sentences: Sequence[Text] = ()
    figures: Sequence[Sequence[Figure]] = ()
    table: Table | None = None
    folded: bool = False
    grids: Sequence[Grid] = ()

    @property
    def anchor(self) -> str:
        """What a link inside the page calls it."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())

    @property
    def wide(self) -> bool:
        """Whether it needs the whole width of a page."""
        long = len(self.facts) > 9 or len(self.sentences) > 4 or any(len(str(value)) > 110 for _, value in self.facts)
        return long or self.folded or any(self.figures) or bool(self.grids) or self.table is not None

    @property
    def drawn(self) -> list[Figure]:
        """Every picture, in the order of the page."""
        return [figure for row in (*self.figures, *(grid.figures for grid in self.grids)) for figure in row]

    @property
    def beside(self) -> bool:
        """Whether its pictures are few enough to stand beside its facts."""
        return bool(self.facts) and self.table is None and not self.grids and len(self.figures) == 1 and len(self.figures[0]) <= 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole report: the verdict first, a few numbers that matter most, then the chapters.

    ``subject`` names what it is about: the target, the file.
    ``mood`` is "good", "bad" or "open": what the verdict means to the reader; the words say it too.
    """

    title: str
    subject: str
    verdict: str
    sentence: str
    mood: str
    headlines: Sequence[tuple[Text, str]]
    chapters: Sequence[Chapter]
