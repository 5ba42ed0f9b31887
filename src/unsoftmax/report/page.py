"""One self-contained HTML page: escaped, without script, readable on a phone and on paper."""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup, escape

from unsoftmax.report.chapter import Report

CODE = re.compile("`([^`<>]*)`")  # within one piece of escaped text: never across a tag


def page(report: Report) -> str:
    """The report as HTML; text is escaped, drawings escape their own."""
    return _template().render(report=report)


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
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(text))))
