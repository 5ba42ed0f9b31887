"""One self-contained HTML page: escaped, without script, readable on a phone and on paper."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, Template

from unsoftmax.report.chapter import Report


def page(report: Report) -> str:
    """The report as HTML; text is escaped, drawings escape their own."""
    return _template().render(report=report)


@cache
def _template() -> Template:
    loader = PackageLoader("unsoftmax.report")
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True).get_template("page.html.j2")
