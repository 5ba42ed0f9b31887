"""Pages and screens say what was measured, and no more."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

import unsoftmax as us
from unsoftmax.cli import run
from unsoftmax.report import print_recovery, recovery_record
from unsoftmax.report.audit_advice import advice, ending
from unsoftmax.report.figures import bars
from unsoftmax.report.map_figure import heat_map
from unsoftmax.report.provenance import SCHEMA, commit

HEAD = us.Attention.single(np.diag([1.0, 2.0, 3.0]), [1.0, 1.0, 2.0])


def call(capsys, *words):
    code = run([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def told(recovery, width=60):
    screen = io.StringIO()
    print_recovery(recovery, console=Console(file=screen, width=width))
    return screen.getvalue()


def row(name, outcome, **known):
    settings = {k: known.pop(k) for k in ("quota", "noise", "decimals", "max_norm") if k in known}
    return {
        "name": name,
        "outcome": outcome,
        "settings": settings,
        "error": None,
        "queries": 85,
        "honest_cost": 0.0,
        "honest_cost_relative": 0.0,
        "measured": True,
        **known,
    }


def test_the_counting_bound_counts_the_numbers_that_answers_hold():
    rng = np.random.default_rng(0)
    layer = us.Attention(rng.normal(size=(2, 8, 8)) / 3, rng.normal(size=(2, 8, 4)))
    scalar = recovery_record(us.recover(HEAD))["theory"]
    assert scalar["numbers"] >= scalar["parameters"] == 12
    assert scalar["ratio"] >= 1
    every = us.recover(lambda X: layer(X, "all"), width=8)
    theory = recovery_record(every)["theory"]
    tokens = sum(phase["tokens"] for phase in every.facts["phases"].values())
    assert theory["numbers"] == 4 * tokens
    assert theory["queries"] <= every.queries
    assert theory["ratio"] >= 1  # one number an output would give 48 queries and a ratio below 1


def test_advice_follows_the_measured_rows():
    record = {
        "verdict": "EXTRACTABLE",
        "budget": 5000,
        "cells": [
            row("none", "EXTRACTABLE", error=1e-15),
            row("2 decimals", "EXTRACTABLE", decimals=2, error=5e-15, honest_cost=0.1, honest_cost_relative=0.2),
            row("noise 1", "NOT WITHIN BUDGET", noise=1.0, honest_cost=1.0, honest_cost_relative=2.0),
            row("quota 9", "NOT WITHIN BUDGET", quota=9),
            row("norm 7, noise 0.1", "PARTIAL", max_norm=7, noise=0.1, error=0.05),
        ],
    }
    said = dict(advice(record))
    assert said["The choice"].startswith("quota 9 stops the extraction within 5,000 queries, at no cost")
    assert said["Rounding alone"].startswith("Does not stop it: 2 decimals (copy with error 5.0e-15")
    assert said["Noise alone"].startswith("Stops it: noise 1")
    assert [ending(cell) for cell in record["cells"]] == ["fails", "fails", "stops", "stops", "spoils"]
    record["cells"] = record["cells"][:2]
    assert "None of these defences stops" in dict(advice(record))["The choice"]
    spared = {**record, "verdict": "NOT WITHIN BUDGET", "cells": [row("none", "NOT WITHIN BUDGET"), *record["cells"][1:]]}
    assert "no defence is needed" in advice(spared)[0][1]


def test_a_verification_and_a_refusal_give_no_advice_on_defences(tmp_path, capsys):
    HEAD.save(tmp_path / "w.safetensors")
    code, _, _ = call(capsys, "verify", tmp_path / "w.safetensors", tmp_path / "w.safetensors", "--out", tmp_path / "v")
    assert code == 0
    us.recover(lambda X: np.sin(7 * X.sum((1, 2))), width=3, on_failure="return").save(tmp_path / "r")
    for folder in ("v", "r"):
        page = (tmp_path / folder / "report.html").read_text()
        assert "Output Obfuscation" not in page
        assert "What the owner can do" not in page
    assert "What now" in (tmp_path / "r" / "report.html").read_text()


def test_every_record_tells_date_schema_tool_and_permission(folders):
    files = {"recover": "recovery", "audit": "audit", "diagnose": "diagnosis", "verify": "verification", "learn": "recovery"}
    for name, kind in files.items():
        record = json.loads((folders[name] / f"{kind}.json").read_text())
        assert record["schema"] == f"unsoftmax-{kind}/{SCHEMA}"
        assert record["date"][:2] == "20"
        assert record["commit"] == commit()
        assert record["authorised_by"] is None
        page = (folders[name] / "report.html").read_text()
        assert "Nobody stated the owner&#39;s permission" in page
        assert record["date"] in page


def test_permission_is_recorded_as_stated(tmp_path, capsys):
    words = ["recover", "demo:attention,width=3", "--out", tmp_path / "a", "--authorised-by", "A. Owner, ticket 7"]
    assert call(capsys, *words)[0] == 0
    record = json.loads((tmp_path / "a" / "recovery.json").read_text())
    assert record["authorised_by"] == "A. Owner, ticket 7"
    page = (tmp_path / "a" / "report.html").read_text()
    assert "A. Owner, ticket 7" in page
    assert "Nobody stated" not in page


def test_a_resumed_run_says_what_came_from_its_journal(tmp_path, capsys):
    words = ["recover", "demo:attention,width=4", "--out", tmp_path / "a"]
    _, out, _ = call(capsys, *words)
    assert "from the journal" not in out
    first = json.loads((tmp_path / "a" / "recovery.json").read_text())
    _, out, _ = call(capsys, *words)
    again = json.loads((tmp_path / "a" / "recovery.json").read_text())["journal"]
    assert again["replayed"] == first["queries"]["learn"] + first["queries"]["check"]
    assert f"{again['replayed']} answers of 20" in " ".join(out.split())


def test_noisy_examples_are_not_called_exact(tmp_path, capsys):
    rng = np.random.default_rng(0)
    layer = us.Attention(W=rng.normal(size=(1, 4, 4)), V=rng.normal(size=(1, 4, 4)))
    X = rng.normal(size=(300, 4, 4))
    np.savez(tmp_path / "e.npz", X=X, Y=layer(X, "all") + 1e-2 * rng.normal(size=(300, 4, 4)))
    code, out, _ = call(capsys, "learn", tmp_path / "e.npz")
    assert code == 0
    assert "nothing beyond rounding" not in out
    assert "noise of about 1.0e-02 on every answer" in out
    assert "300; nothing was asked" in out
    assert "queries to learn" not in out


def test_thresholds_have_a_direction(capsys):
    _, out, _ = call(capsys, "diagnose", "demo:attention,width=4", "--json")
    for item in json.loads(out)["evidence"]:
        assert item["passed"] == ((item["number"] <= item["threshold"]) == (item["bound"] == "at most"))
    _, out, _ = call(capsys, "diagnose", "demo:attention,width=4")
    assert "passes if" in out
    assert "≤ 1" in out
    assert "≥ 20" in out


def test_wrapped_lines_keep_their_indent():
    lines = told(us.recover(HEAD)).splitlines()
    titles = ("The target", "What was found", "How it was checked", "What it cost", "What cannot be known", "╭", "│", "╰")
    for line in lines:
        assert line == "" or line.startswith(("  ", *titles)), line


def test_one_head_is_one_head(tmp_path, capsys):
    HEAD.save(tmp_path / "w.safetensors")
    assert "1 head," in call(capsys, "identify", tmp_path / "w.safetensors")[1]


def test_logarithmic_bars_stand_on_an_axis():
    drawn = bars([("a", 1e-13, "1e-13"), ("b", 1e-12, "1e-12")], logarithmic=True)
    assert "10<sup>−14</sup>" in drawn
    assert "10<sup>−12</sup>" in drawn
    assert "scale" not in bars([("a", 1, "1")])


def test_one_colour_means_one_number_in_every_head():
    weak, strong = heat_map(np.array([[0.1]]), "W", reach=1.0), heat_map(np.array([[1.0]]), "W", reach=1.0)
    assert weak.split("base64,")[1] != strong.split("base64,")[1]  # alone, each would be drawn in full colour
    assert heat_map(np.array([[0.1]]), "W").split("base64,")[1] == strong.split("base64,")[1]


@pytest.mark.parametrize(("price", "said"), [(["--currency", "EUR"], "Price, EUR"), ([], "no currency was named")])
def test_a_price_has_its_currency(price, said, capsys, monkeypatch):
    from unsoftmax.audits import Defence, sweep

    monkeypatch.setattr(sweep, "standard_defences", lambda *_: (Defence(name="none"), Defence(name="q", quota=4)))
    monkeypatch.setattr(sweep.os, "cpu_count", lambda: 1)
    _, out, _ = call(capsys, "audit", "demo:attention,width=3", "--price", "2", *price)
    assert said in " ".join(out.split())
    assert "stops it" in out
