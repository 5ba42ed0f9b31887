"""Pictures as files of their own: SVG that stands alone, PDF of the same size, bands where several seeds were run."""

import re
import xml.etree.ElementTree as tree

import pytest

from unsoftmax.cli import run
from unsoftmax.report.curve_figure import curve_figure


@pytest.mark.parametrize("name", ["recover", "verify", "learn", "audit", "diagnose", "stack", "decoder"])
def test_a_finished_run_is_drawn_again(folders, name, tmp_path, capsys):
    drawn = name not in ("diagnose", "verify")  # their pictures are bars, which are text
    assert run(["figure", str(folders[name]), "--to", str(tmp_path)]) == (0 if drawn else 1)
    assert bool(list(tmp_path.glob("*.svg"))) == drawn
    for path in tmp_path.glob("*.svg"):
        text = path.read_text()
        assert tree.fromstring(text).get("width")
        assert "var(--" not in text
    capsys.readouterr()


def test_a_figure_is_printed_as_a_page_of_its_size(folders, browser, tmp_path, capsys):
    assert run(["figure", str(folders["audit"]), "--to", str(tmp_path), "--pdf"]) == 0
    capsys.readouterr()
    drawings = sorted(tmp_path.glob("*.svg"))
    assert drawings
    for drawing in drawings:
        width, height = (float(number) for number in re.findall(r'(?:width|height)="([\d.]+)"', drawing.read_text())[:2])
        pdf = drawing.with_suffix(".pdf").read_bytes()
        assert pdf.startswith(b"%PDF-")
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 1
        box = re.search(rb"/MediaBox\s*\[\s*0 0 ([\d.]+) ([\d.]+)", pdf)
        assert [float(side) for side in box.groups()] == pytest.approx([0.75 * width, 0.75 * height], abs=1.5)


def test_without_a_browser_pdf_is_refused_with_the_way_out(folders, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("UNSOFTMAX_BROWSER", raising=False)
    assert run(["figure", str(folders["audit"]), "--to", str(tmp_path), "--pdf"]) == 2
    assert "UNSOFTMAX_BROWSER" in capsys.readouterr().err


def point(queries, error, low, high, runs):
    return {"queries": queries, "error": error, "low": low, "high": high, "runs": runs}


def test_several_seeds_are_drawn_as_a_band():
    several = [point(10, 1e-2, 1e-3, 1e-1, 3), point(100, 1e-4, 1e-5, 1e-3, 3)]
    single = [point(10, 1e-2, 1e-2, 1e-2, 1), point(100, 1e-4, 1e-4, 1e-4, 1)]
    drawn = str(curve_figure([("1", several), ("2", single)], "told", 1e-2))
    (corners,) = re.findall(r'class="band" points="([^"]*)"', drawn)
    heights = [float(corner.split(",")[1]) for corner in corners.split()]
    assert len(heights) == 4
    assert heights[0] < heights[3]  # the worst run stands above the best
    assert drawn.count("<polyline") == 2
    assert "no copy" in curve_figure([("1", [point(9, None, None, None, 2)])], "told", 1e-2)
