"""The pictures of a finished run as files of their own: SVG, and PDF by a Chromium where there is one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from unsoftmax.report.chapter import Report
from unsoftmax.report.page import stylesheet
from unsoftmax.safe_files import write_text


def svg_files(report: Report, folder: Path) -> list[Path]:
    """Write every drawing of a report as ``figure-N-chapter.svg``, its style inside."""
    written = []
    drawings = [(chapter, figure) for chapter in report.chapters for figure in chapter.drawn]
    for number, (chapter, figure) in enumerate(drawings, start=1):
        text = str(figure.drawing)
        size = re.match(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
        if size is None:
            continue  # bars are text
        style = f"<style>{_variables(stylesheet())}</style>"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[1]}" height="{size[2]}"'
        path = folder / f"figure-{number}-{chapter.anchor}.svg"
        body = text.replace("<svg", head, 1)
        write_text(path, body.replace(">", f">{style}", 1), public=True)  # made to be shown
        written.append(path)
    return written


def pdf_files(drawings: list[Path]) -> list[Path]:
    """Print each drawing to a PDF of its own size.

    Raises:
        OSError: there is no Chromium.
    """
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    browser = os.environ.get("UNSOFTMAX_BROWSER") or next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        raise OSError(
            "PDF is printed by Chromium, and there is none here; install one, name it in UNSOFTMAX_BROWSER, or use the SVG."
        )
    written = []
    for drawing in drawings:
        text = drawing.read_text(encoding="utf-8")
        width, height = re.findall(r'(?:width|height)="([\d.]+)"', text)[:2]
        page = (
            f"<!doctype html><style>@page{{size:{width}px {height}px;margin:0}}body{{margin:0}}svg{{display:block}}</style>{text}"
        )
        goal = drawing.with_suffix(".pdf")
        with tempfile.TemporaryDirectory() as room:
            source = Path(room) / "page.html"
            source.write_text(page, encoding="utf-8")
            command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
            command += [f"--user-data-dir={room}/profile", f"--print-to-pdf={goal.absolute()}", source.as_uri()]
            subprocess.run(command, check=True, capture_output=True, timeout=120.0)
        written.append(goal)
    return written


def _variables(style: str) -> str:
    """The rules for drawings, with their variables filled in: many programs that read SVG know none."""
    known = dict(re.findall(r"(--[\w-]+): (#[0-9a-f]+)", style))
    rules = re.findall(r"^svg[^{]*\{[^}]*\}", style, re.M)
    kept = "\n".join(rule for rule in rules if "max-width" not in rule)
    return re.sub(r"var\((--[\w-]+)\)", lambda name: known.get(name[1], "#000"), kept)
