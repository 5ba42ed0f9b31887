import json

import pytest

from unsoftmax.cli import run


def call(capsys, *words):
    code = run([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def quick(monkeypatch):
    """A short table on one process, so that the suite stays fast."""
    from unsoftmax.audits import Defence, sweep

    table = (Defence(name="none"), Defence(name="3 decimals", decimals=3), Defence(name="quota 8", quota=8))
    monkeypatch.setattr(sweep, "standard_defences", lambda *_: table)
    monkeypatch.setattr(sweep.os, "cpu_count", lambda: 1)


def test_a_gate_that_fails_exits_1_and_names_the_clauses(quick, tmp_path, capsys):
    words = ("audit", "demo:attention,width=4", "--out", tmp_path / "a", "--fail-if", "queries<100000 and error<1e-3")
    code, out, _ = call(capsys, *words)
    assert code == 1
    assert "EXTRACTABLE" in out
    assert "queries<100000 (queries is" in " ".join(out.split())
    record = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert record["verdict"] == "EXTRACTABLE"
    assert record["exit_code"] == 1
    assert [cell["name"] for cell in record["cells"]] == ["none", "3 decimals", "quota 8"]
    page = (tmp_path / "a" / "report.html").read_text()
    for text in (
        "AML.T0024.002",
        "AML.M0002",
        "AML.M0004",
        "ML05:2023",
        "NISTAML.031",
        "permission",
        record["cells"][0]["journal"],
    ):
        assert text in page
    assert (tmp_path / "a" / "report.html").stat().st_mode & 0o077 == 0
    code, out, _ = call(capsys, *words, "--json", "--price", "2", "--rate", "10")
    again = json.loads(out)
    assert code == again["exit_code"] == 1
    assert [c["journal"] for c in again["cells"]] == [c["journal"] for c in record["cells"]]
    assert again["cells"][0]["price"] == pytest.approx(again["cells"][0]["total_queries"] * 0.002)
    assert again["cells"][0]["time"] == pytest.approx(again["cells"][0]["total_queries"] / 10)


def test_a_gate_that_passes_exits_0(quick, capsys):
    code, out, _ = call(capsys, "audit", "demo:attention,width=4", "--fail-if", "queries>100000", "--json")
    assert code == 0
    assert json.loads(out)["gate"] == {"condition": "queries>100000", "failed": False}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["audit"], "Missing argument"),
        (["audit", "demo", "--fail-if", "import os"], "not a comparison"),
        (["audit", "demo", "--fail-if", "price<1"], "price"),
        (["audit", "demo", "--budget", "0"], "budget"),
        (["audit", "demo", "--rate", "0"], "rate"),
        (["audit", "nothing.xyz"], "nothing that can be opened"),
    ],
)
def test_bad_usage_is_exit_2(words, said, capsys):
    code, out, err = call(capsys, *words)
    assert code == 2
    assert said in err
    assert out == ""


def test_a_target_that_fails_is_exit_3(tmp_path, capsys):
    (tmp_path / "bad.py").write_text("def f(X):\n    raise RuntimeError('no')\n")
    code, _, err = call(capsys, "audit", f"{tmp_path / 'bad.py'}:f", "--width", "3")
    assert code == 3
    assert "RuntimeError" in err
