"""The same in Python as on the command line: open, plan, audit; and results that say themselves in a line."""

import json

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.cli import run
from unsoftmax.report.brief import brief, notebook, summary

HEAD = us.Attention.single(np.diag([1.0, 2.0, 3.0]), [1.0, 1.0, 2.0])


def test_open_takes_what_the_command_line_takes(tmp_path, monkeypatch):
    HEAD.save(tmp_path / "head.safetensors")
    (tmp_path / "mine.py").write_text("def f(X):\n    return X[:, -1].sum(axis=1)\n")
    monkeypatch.chdir(tmp_path)
    assert us.open("demo:attention,width=5").width == 5
    assert us.open(tmp_path / "head.safetensors").width == 3
    assert us.open("mine.py:f", width=4)(np.ones((2, 1, 4))).tolist() == [4.0, 4.0]
    for wrong in ("nothing.xyz", "demo:attention,width=x", "mine.py"):
        with pytest.raises(ValueError, match=wrong.split(":")[0]):
            us.open(wrong)
    assert us.recover(us.open("head.safetensors")).status is us.Status.EXACT


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["--rank", "2", "--heads", "1"], {"rank": 2, "heads": 1}),
        ([], {}),
        (["--non-adaptive", "--rank", "1"], {"adaptive": False, "rank": 1}),
        (["--accuracy", "0.01", "--noise", "0.1", "--max-norm", "4"], {"accuracy": 0.01, "noise": 0.1, "max_norm": 4.0}),
    ],
)
def test_plan_tells_the_same_in_both(words, settings, capsys):
    target = "demo:attention,width=8"
    assert run(["plan", target, "--json", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "unsoftmax-plan/1"
    assert told.items() >= us.plan(target, **settings).record().items()


def test_plan_takes_models_and_names_what_does_not_fit():
    assert us.plan(HEAD, heads=1, rank=3).queries == us.plan("demo:attention,width=3", heads=1, rank=3).queries
    with pytest.raises(ValueError, match="rank is 9"):
        us.plan(HEAD, rank=9)
    with pytest.raises(ValueError, match="no bill for the family 'x'"):
        us.plan(HEAD, family="x")
    with pytest.raises(ValueError, match="go together"):
        us.plan(HEAD, accuracy=0.1)


def test_audit_from_python_saves_what_the_command_line_does(tmp_path):
    found = us.audit(HEAD, defences=["quota 4", "2 decimals"], budget=2000, seed=2, price=2.0, currency="EUR", authorised_by="me")
    assert callable(us.audit)  # and not the room of that name
    assert [cell.defence.name for cell in found.cells] == ["none", "quota 4", "2 decimals"]
    assert found.conclusion.stopped_by == ("quota 4",)
    assert repr(found).startswith("<Audit: EXTRACTABLE; stopped by quota 4; rows 3; queries as it stands")
    assert "2 decimals" in found.summary()
    found.save(tmp_path)
    record = json.loads((tmp_path / "audit.json").read_text())
    assert (record["currency"], record["authorised_by"], record["target"]) == ("EUR", "me", "Attention")
    assert "EUR" in (tmp_path / "report.html").read_text()
    with pytest.raises(ValueError, match="name it"):
        us.audit(HEAD, workers=2)


def test_results_say_themselves_in_one_line():
    rng = np.random.default_rng(0)
    wide = us.Attention.single(rng.normal(size=(64, 64)) / 8, rng.normal(size=64))
    recovery = us.recover(wide)
    results = {
        "Recovery": (recovery, "EXACT"),
        "Verification": (us.verify(HEAD, HEAD), "MATCHES"),
        "Diagnosis": (us.diagnose(HEAD), "inside: attention"),
        "Identifiability": (us.identifiability(HEAD), "12 of 12 numbers"),
    }
    for name, (result, verdict) in results.items():
        line = brief(result)
        assert line.startswith(f"<{name}: {verdict}")
        assert "\n" not in line
        assert len(line) < 300
        assert verdict in summary(result)
        assert verdict in notebook(result)
    assert f"queries {recovery.queries:,}" in brief(recovery)


def test_a_notebook_shows_text_as_text():
    refused = us.recover(lambda X: np.full(len(X), np.nan), width=3, on_failure="return")
    odd = us.Recovery(model=None, status=refused.status, queries=3, check=None, bounds=None, ambiguity="<script>", message="<b>")
    assert "<script>" not in notebook(odd)
    assert "&lt;b&gt;" in notebook(odd)
    assert brief(refused).startswith("<Recovery: TARGET_FAILED")


def test_fixed_probes_are_solved_as_the_paper_does_on_request():
    rng = np.random.default_rng(0)
    head = us.Attention.single(np.outer(rng.normal(size=6), rng.normal(size=6)), rng.normal(size=6))
    found = us.recover(head, seed=0, adaptive=False, method="nuclear", rank=1)
    assert us.distance(found.model, head) < 1e-10
    with pytest.raises(ValueError, match="adaptive=False"):
        us.recover(head, method="nuclear")
    with pytest.raises(ValueError, match="'fast'"):
        us.recover(head, adaptive=False, method="fast")


@pytest.mark.parametrize("kind", ["verification", "diagnosis", "identifiability"])
def test_every_result_is_saved_with_a_page(kind, tmp_path):
    rng = np.random.default_rng(1)
    head = us.Attention.single(rng.normal(size=(4, 4)), rng.normal(size=4))
    result = {"verification": lambda: us.verify(head, head), "diagnosis": lambda: us.diagnose(head, width=4)}.get(
        kind, lambda: us.identifiability(head)
    )()
    result.save(tmp_path / "new")
    record = json.loads((tmp_path / "new" / f"{kind}.json").read_text())
    assert record["schema"].startswith(f"unsoftmax-{kind}/")
    assert record["verdict"] in (tmp_path / "new" / "report.html").read_text()
