import json
import subprocess
import sys

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.cli import run


def call(capsys, *words):
    code = run([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_recover_writes_its_files_and_resumes(tmp_path, capsys):
    code, out, _ = call(capsys, "recover", "demo:attention,width=12,seed=2", "--out", tmp_path / "run")
    assert code == 0
    assert "RECOVERED EXACTLY" in out
    for name in ("weights.safetensors", "recovery.json", "report.html", "journal.sqlite"):
        assert (tmp_path / "run" / name).stat().st_mode & 0o077 == 0
    record = json.loads((tmp_path / "run" / "recovery.json").read_text())
    for key in (
        "status",
        "family",
        "width",
        "heads",
        "rank",
        "outputs",
        "queries",
        "check",
        "tolerance",
        "ambiguity",
        "seed",
        "version",
    ):
        assert key in record
    assert record["queries"]["total"] == record["queries"]["learn"] + record["queries"]["check"]
    code, out, _ = call(capsys, "recover", "demo:attention,width=12,seed=2", "--out", tmp_path / "run", "--json")
    assert code == 0
    again = json.loads(out)
    assert {name: again["queries"][name] for name in ("learn", "check")} == {
        name: record["queries"][name] for name in ("learn", "check")
    }
    assert again["queries"]["total"] == record["queries"]["total"] + again["queries"]["confirm"]
    assert again["journal"]["asked_now"] == again["queries"]["confirm"] >= 32


def test_no_target_means_the_demo(capsys):
    code, out, _ = call(capsys, "recover", "--json")
    assert code == 0
    assert json.loads(out)["width"] == 64


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["recover", "nothing.xyz"], "nothing that can be opened"),
        (["recover", "demo:rnn"], "no demo family"),
        (["recover", "demo:attention,depth=3"], "no setting 'depth'"),
        (["recover", "demo:attention,width=x"], "key=whole number"),
        (["recover", "demo:attention,width=4,rank=9"], "rank=9"),
        (["recover", "absent.py:f"], "no file absent.py"),
        (["recover", "absent.safetensors"], "no file"),
        (["recover", "model.pt"], "safetensors"),
        (["recover", "demo", "--budget", "0"], "budget"),
        (["recover", "demo", "--width", "0"], "width"),
        (["recover", "demo", "--rank", "99"], "width is only 64"),
        (["recover", "demo", "--tolerance", "-1"], "no positive number"),
        (["recover", "demo", "--grid", "-1"], "positive number"),
        (["recover", "demo", "--embeddings", "x.npy"], "FILE.py:NAME"),
        (["recover", "--answers", "absent.npz"], "absent.npz"),
        (["plan", "demo", "--rank", "99"], "width is only 64"),
        (["plan", "demo", "--export", "x.npz"], "add --non-adaptive"),
        (["plan", "demo", "--family", "ffn"], "--neurons"),
        (["plan", "demo", "--neurons", "9"], "family is attention"),
        (["plan", "demo:ffn", "--heads", "2"], "for attention alone"),
        (["plan", "demo:transformer", "--non-adaptive"], "for attention alone"),
        (["recover", "demo", "--out", ""], "name of the folder is empty"),
        (["diagnose", "demo", "--out", " "], "name of the folder is empty"),
        (["verify", "demo", "absent.safetensors"], "no file"),
        (["identify", "absent.safetensors"], "absent"),
        (["unknown"], "No such command"),
        (["recover", "--unknown"], "No such option"),
    ],
)
def test_bad_usage_is_exit_2_with_the_value_and_the_next_step(words, said, capsys):
    code, out, err = call(capsys, *words)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert out == ""


TARGETS = """
import numpy as np
import unsoftmax as us
rng = np.random.default_rng(0)
good = us.Attention.single(rng.normal(size=(5, 5)), rng.normal(size=5))
width = 5
calls = 0
def nan(X): return np.full(len(X), np.nan)
def raises(X): raise RuntimeError("no such row")
def shape(X): return np.zeros((len(X), X.shape[1] + 1, 2))
def cap(X):
    s = 9 * np.tanh(np.einsum("bnd,bd->bn", X, X[:, -1] @ good.W[0].T) / 9)
    a = np.exp(s - s.max(1, keepdims=True))
    return np.einsum("bn,bnd->bd", a / a.sum(1, keepdims=True), X) @ good.V[0]
def drifts(X):
    global calls
    calls += len(X)
    return good(X) if calls < 30 else good(X) * (1 + 1e-4)
zero = us.Attention.single(good.W[0], np.zeros(5))
not_callable = 3
"""


@pytest.mark.parametrize(
    ("name", "settings", "code", "status"),
    [
        ("good", [], 0, "EXACT"),
        ("nan", [], 3, "TARGET_FAILED"),
        ("raises", [], 3, "TARGET_FAILED"),
        ("shape", [], 3, "TARGET_FAILED"),
        ("cap", [], 1, "NOT_IN_FAMILY"),
        ("zero", [], 1, "NOT_IDENTIFIABLE"),
        ("drifts", [], 5, "DRIFTING"),
        ("good", ["--budget", "20"], 4, "BUDGET_SPENT"),
    ],
)
def test_every_outcome_has_its_exit_code_and_one_verdict(name, settings, code, status, tmp_path, capsys):
    (tmp_path / "t.py").write_text(TARGETS)
    told, out, err = call(capsys, "recover", f"{tmp_path}/t.py:{name}", "--width", 5, "--json", "--out", tmp_path / "o", *settings)
    assert told == code
    assert json.loads(out)["status"] == status
    assert json.loads((tmp_path / "o" / "recovery.json").read_text())["status"] == status
    assert (tmp_path / "o" / "weights.safetensors").exists() == (code == 0)
    assert "Traceback" not in err


def test_python_targets_that_cannot_be_used(tmp_path, capsys):
    (tmp_path / "t.py").write_text(TARGETS)
    (tmp_path / "broken.py").write_text("this is not python")
    (tmp_path / "ending.py").write_text("raise SystemExit(3)")
    for text, said in [
        ("t.py:absent", "has no 'absent'"),
        ("t.py", "names a file"),
        ("broken.py:f", "cannot be loaded"),
        ("ending.py:f", "cannot be loaded: SystemExit"),
        ("t.py:not_callable", "cannot be called"),
    ]:
        code, _, err = call(capsys, "recover", f"{tmp_path}/{text}", "--width", 5)
        assert code == 2
        assert said in err


def test_a_weights_file_is_a_target_too(tmp_path, capsys):
    head = us.Attention.single(np.diag([1.0, 2.0, 3.0]), [1.0, 1.0, 2.0])
    head.save(tmp_path / "w.safetensors")
    code, out, _ = call(capsys, "verify", tmp_path / "w.safetensors", tmp_path / "w.safetensors")
    assert (code, "MATCHES" in out) == (0, True)
    us.Attention.single(np.diag([1.0, 2.0, 3.1]), [1.0, 1.0, 2.0]).save(tmp_path / "v.safetensors")
    code, out, _ = call(capsys, "verify", tmp_path / "w.safetensors", tmp_path / "v.safetensors", "--json")
    assert (code, json.loads(out)["matches"]) == (1, False)


def test_plan_tells_phases_and_a_total(capsys):
    code, out, _ = call(capsys, "plan", "demo:attention,width=16,rank=2", "--rank", 2, "--heads", 1, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["queries"] == told["queries_max"] == sum(phase["queries"] for phase in told["phases"])
    code, out, _ = call(capsys, "plan", "demo:attention,width=16")
    assert "Total:" in out
    assert " to " in out


def test_plan_counts_for_the_family_of_the_target(capsys, tmp_path):
    bills = {}
    for target in ("demo:ffn,width=6,hidden=9", "demo:transformer,width=6,hidden=9", "demo:attention,width=6"):
        code, out, _ = call(capsys, "plan", target, "--json")
        assert code == 0
        bills[target] = {phase["name"] for phase in json.loads(out)["phases"]}
    assert [("kinks" in names, "scores" in names, "values" in names) for names in bills.values()] == [
        (True, False, False),
        (True, True, False),
        (False, False, True),
    ]
    us.FFN([np.ones((3, 4)), np.ones((2, 3))], [np.zeros(3), np.zeros(2)]).save(tmp_path / "net.safetensors")
    saved = json.loads(call(capsys, "plan", tmp_path / "net.safetensors", "--json")[1])
    assert "hidden layer of 3 neurons, and answers of 2 numbers" in saved["assumptions"][0]
    (tmp_path / "t.py").write_text("def f(X):\n    return X[:, -1, 0]\n", encoding="utf-8")
    unknown = call(capsys, "plan", f"{tmp_path / 't.py'}:f", "--width", 4)[1]
    assert "Counted for attention" in unknown
    assert "Counted for" not in call(capsys, "plan", f"{tmp_path / 't.py'}:f", "--width", 4, "--family", "attention")[1]


@pytest.mark.parametrize(("told", "fewer"), [(2, True), (1, False)])
def test_fewer_heads_than_named_are_mentioned(told, fewer, capsys):
    code, out, _ = call(capsys, "recover", "demo:attention,width=4", "--heads", told, "--json")
    assert code == 0
    assert any("--heads 2 is the most: 1 explains every answer" in note for note in json.loads(out)["notes"]) == fewer


def test_fixed_probes_go_out_and_come_back(tmp_path, capsys):
    head = us.Attention.single(np.outer([1.0, -1.0, 0.5, 2.0, 0.3, -0.7], np.ones(6)), np.arange(1.0, 7.0))
    head.save(tmp_path / "w.safetensors")
    assert call(capsys, "plan", tmp_path / "w.safetensors", "--non-adaptive", "--rank", 1, "--export", tmp_path / "p.npz")[0] == 0
    held = dict(np.load(tmp_path / "p.npz"))
    answers = {f"Y{k[1:]}": head(x) for k, x in held.items() if k.startswith("X")}
    np.savez(tmp_path / "answers.npz", **answers)
    for path in (tmp_path / "answers.npz", tmp_path / "p.npz"):
        code, out, _ = call(capsys, "recover", "--answers", path, "--json")
        assert code == 0
        assert json.loads(out)["status"] == "EXACT"
        np.savez(tmp_path / "p.npz", **held, **answers)
    answers["Y1"] = answers["Y1"] * (1 + 1e-3 * np.sin(np.arange(len(answers["Y1"]))))
    np.savez(tmp_path / "p.npz", **held, **answers)
    code, out, _ = call(capsys, "recover", "--answers", tmp_path / "p.npz", "--json")
    assert code == 1


def test_an_unwritable_folder_and_a_foreign_journal_are_exit_2(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    code, _, err = call(capsys, "recover", "demo", "--out", tmp_path / "file" / "out")
    assert code == 2
    assert "file" in err
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "journal.sqlite").write_bytes(b"not a database, but not empty either" * 40)
    code, _, err = call(capsys, "recover", "demo", "--out", tmp_path / "o")
    assert code == 2
    assert "not a readable journal" in err


def test_diagnose_speaks_and_exits(capsys):
    code, out, _ = call(capsys, "diagnose", "demo:attention,width=8")
    assert code == 0
    assert "attention" in out


def test_the_module_runs_as_a_program():
    done = subprocess.run([sys.executable, "-m", "unsoftmax", "--version"], capture_output=True, text=True, check=True)
    assert us.__version__ in done.stdout
