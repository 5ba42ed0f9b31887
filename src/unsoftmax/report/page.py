"""One self-contained HTML page: escaped, without script, readable on a phone and on paper."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup, escape

from unsoftmax.report.chapter import Report


def page(report: Report) -> str:
    """The report as HTML; text is escaped, drawings escape their own."""
    return _template().render(report=report)


def stylesheet() -> str:
    """The style of the pages, for drawings that stand alone."""
    text = resources.files("unsoftmax.report").joinpath("templates/page.html.j2").read_text(encoding="utf-8")
    return text.partition("<style>")[2].partition("</style>")[0]


@cache
def _template() -> Template:
    loader = PackageLoader("unsoftmax.report")
    room = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    room.filters["coded"] = coded
    return room.get_template("page.html.j2")


def coded(text: object) -> Markup:
    """Text escaped as everywhere, with what stands between backquotes set as code.

    >>> str(coded("run `a < b` now"))
    'run <code>a &lt; b</code> now'
    """
    return Markup(re.sub("`([^`<>]*)`", r"<code>\1</code>", str(escape(text))))  # never across a tag
