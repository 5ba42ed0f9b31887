"""Results that say themselves in a few words; how is written in ``unsoftmax.report.brief``, loaded when asked."""

from __future__ import annotations

from pathlib import Path


class Brief:
    """One line as the ``repr``, some lines as ``summary()``, a table in notebooks, files by ``save()``."""

    __slots__ = ()

    def __repr__(self) -> str:
        from unsoftmax.report.brief import brief

        return brief(self)

    def summary(self) -> str:
        """The verdict, then a fact a line."""
        from unsoftmax.report.brief import summary

        return summary(self)

    def _repr_html_(self) -> str:
        from unsoftmax.report.brief import notebook

        return notebook(self)

    def save(self, folder: str | Path) -> None:
        """Write the result as JSON (``verification.json``, ``diagnosis.json``, …) and ``report.html`` into ``folder``."""
        from unsoftmax.report.brief import save_brief

        save_brief(self, Path(folder))
