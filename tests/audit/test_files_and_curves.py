"""Audits by file, defences in words, the search for the weakest noise, curves, and two audits compared."""

import json

import pytest

from unsoftmax.audits import Cell, Defence, Verdict, outcome, read_audit, read_defence
from unsoftmax.audits.curves import curves
from unsoftmax.audits.search import stops, weakest_noise
from unsoftmax.cli import run
from unsoftmax.errors import FileFormatError

FILE = """
target = "demo:attention,width=3,seed=4"
budget = 900
price = 2
currency = "EUR"
fail-if = "queries<900 and error<1e-3"
seed = 5
authorised-by = "the owner"
defences = ["norm 6, 3 decimals", "quota 9", "labels only"]

[[defence]]
name = "coarse"
decimals = 1

[curve]
budgets = [40, 300]
seeds = 2
"""


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("3 decimals", {"decimals": 3}),
        ("4 significant digits", {"digits": 4}),
        ("Norm limit 6.5 , noise 1e-2", {"max_norm": 6.5, "noise": 0.01}),
        ("quota 500, float16", {"quota": 500, "dtype": "float16"}),
        ("rate limit 2/s", {"rate": 2.0}),
        ("labels only", {"threshold": 0.0}),
        ("none", {}),
    ],
)
def test_defences_are_read_from_words(words, settings):
    row = read_defence(words)
    assert {key: getattr(row, key) for key in Defence.__slots__ if key != "name" and getattr(row, key) is not None} == settings


@pytest.mark.parametrize("words", ["3 apples", "quota 1.5", "noise 0", "noise 1, noise 2", "norm -3", ""])
def test_what_is_no_defence_is_named(words):
    with pytest.raises(ValueError, match="In the defence"):
        read_defence(words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("budget = 'many'", "budget"),
        ("colour = 'red'", "no setting 'colour'"),
        ("defences = ['3 apples']", "3 apples"),
        ("[[defence]]\ndecimals = 2", "needs a name"),
        ("[[defence]]\nname = 'a'\nwall = 2", "wall"),
        ("[curve]\nbudgets = [0]", "above 0"),
        ("not toml", "TOML"),
    ],
)
def test_a_file_that_asks_for_something_unknown_is_refused(text, said, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(FileFormatError, match=said):
        read_audit(tmp_path / "a.toml")


def test_an_audit_by_file_runs_as_it_says(tmp_path, capsys, monkeypatch):
    from unsoftmax.audits import sweep

    monkeypatch.setattr(sweep.os, "cpu_count", lambda: 1)
    (tmp_path / "a.toml").write_text(FILE)
    files = {name: tmp_path / f"x.{name}" for name in ("csv", "markdown", "junit", "sarif")}
    words = ["audit", tmp_path / "a.toml", "--out", tmp_path / "out", *(x for k, v in files.items() for x in (f"--{k}", v))]
    assert run([str(word) for word in words]) == 1  # the gate of the file fails
    record = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert [cell["name"] for cell in record["cells"]] == ["none", "norm 6, 3 decimals", "quota 9", "labels only", "coarse"]
    assert (record["budget"], record["currency"], record["seed"], record["authorised_by"]) == (900, "EUR", 5, "the owner")
    assert "quota 9" in record["stopped_by"]
    assert [[point["budget"] for point in curve["points"]] for curve in record["curves"]] == [[40, 300]] * 5
    plain = record["curves"][0]["points"]
    assert all(point["runs"] == 2 for point in plain)
    assert plain[1]["error"] < 1e-9
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Error against queries" in page
    assert "<polyline" in page
    assert "labels only" in files["csv"].read_text()
    assert "| quota 9 |" in files["markdown"].read_text()
    assert 'failures="1"' in files["junit"].read_text()
    assert json.loads(files["sarif"].read_text())["runs"][0]["results"][0]["level"] == "error"
    assert run(["figure", str(tmp_path / "out")]) == 0
    drawn = sorted((tmp_path / "out" / "figures").glob("*.svg"))
    assert len(drawn) == 2
    assert all("var(--" not in path.read_text() for path in drawn)
    after = tmp_path / "after.json"
    record["cells"][0] |= {"outcome": "NOT WITHIN BUDGET", "error": None}
    after.write_text(json.dumps({**record, "verdict": "NOT WITHIN BUDGET"}))
    assert run(["compare", str(tmp_path / "out"), str(after), "--out", str(tmp_path / "c")]) == 0
    assert run(["compare", str(after), str(tmp_path / "out"), "--json"]) == 1
    told = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert told["verdict"] == "BETTER PROTECTED"
    assert told["changes"] == {"better": 1, "worse": 0, "same": 4, "new": 0, "gone": 0}
    assert "better protected" in (tmp_path / "c" / "report.html").read_text()
    assert run(["compare", str(tmp_path / "a.toml"), str(after)]) == 2
    capsys.readouterr()


def fake(limit):
    """An extraction that noise above ``limit`` stops."""

    def run(row):
        stopped = row.noise > limit
        return Cell(defence=row, status="TOO_NOISY" if stopped else "EXACT", message="", error=None if stopped else 1e-9)

    return run


@pytest.mark.parametrize("limit", [3e-4, 0.02, 1.7])
def test_the_weakest_noise_is_bracketed_within_a_tenth(limit):
    weak, strong = weakest_noise(fake(limit), Defence(name="norm 6", max_norm=6.0), 1.0)
    assert weak.defence.noise <= limit < strong.defence.noise
    assert strong.defence.noise / weak.defence.noise < 1.1
    assert strong.defence.max_norm == 6.0
    assert not stops(weak)
    assert outcome(strong) is Verdict.NOT_WITHIN_BUDGET


def test_a_search_says_when_there_is_nothing_to_find():
    assert [cell.defence.noise for cell in weakest_noise(fake(0.0), Defence(name="none"), 1.0)] == [1e-4]
    assert [cell.defence.noise for cell in weakest_noise(fake(99.0), Defence(name="none"), 1.0)] == [10.0]


def test_a_point_of_a_curve_is_a_median_and_hides_no_failure():
    errors = iter([0.5, None, 0.1, 0.3, 0.2, 0.4])
    rows = [Defence(name="none"), Defence(name="rate", rate=1.0)]
    (found,) = curves(
        lambda row, budget, seed: Cell(defence=row, status="X", message="", queries=budget, error=next(errors)),
        rows,
        [9, 4],
        [1, 2, 3],
    )
    first, second = found.points
    assert (first.budget, first.error, first.low, first.high) == (4, 0.5, 0.1, None)
    assert (second.error, second.low, second.high) == (0.3, 0.2, 0.4)
