"""What TARGET may be, and what it may not."""

import click
import numpy as np
import pytest
from safetensors.numpy import save_file

from servers import MODEL, OpenInference, scripted
from unsoftmax.cli import run
from unsoftmax.cli.progress import progress_bar
from unsoftmax.cli.targets import open_target, open_token_target
from unsoftmax.demo import demo_oracle
from unsoftmax.errors import FileFormatError
from unsoftmax.models import Attention

CODE = """
import numpy as np
from neighbour import WEIGHTS

def by_id(ids):
    return WEIGHTS[ids[:, -1], 0]

def head(X):
    return X[:, -1].sum(axis=1)
head.width = 3
"""


@pytest.fixture
def code(tmp_path):
    (tmp_path / "neighbour.py").write_text("import numpy as np\nWEIGHTS = np.arange(8.0).reshape(4, 2)\n")
    path = tmp_path / "target.py"
    path.write_text(CODE)
    return path


def test_a_python_file_may_use_its_neighbours(code):
    target = open_target(f"{code}:head")
    assert target.width == 3
    assert np.array_equal(target(np.ones((2, 1, 3))), [3.0, 3.0])
    assert target.identity.endswith(":head")
    assert "sha256" in target.identity
    before = target.identity
    code.write_text(CODE + "\n")
    assert open_target(f"{code}:head").identity != before  # a journal must not go on with another file


def test_token_ids_with_a_table_from_either_kind_of_file(code, tmp_path):
    table = np.arange(8.0).reshape(4, 2)
    np.save(tmp_path / "table.npy", table)
    save_file({"embedding": table, "scale": np.ones(3)}, tmp_path / "table.safetensors")
    for name in ("table.npy", "table.safetensors"):
        target = open_token_target(f"{code}:by_id", tmp_path / name)
        assert (target.width, target.vocabulary) == (2, 4)
        assert np.array_equal(target(table[None, [3]]), [6.0])


def test_tables_that_cannot_be_used(code, tmp_path):
    text = f"{code}:by_id"
    (tmp_path / "words.npy").write_text("no array")
    (tmp_path / "words.safetensors").write_text("no tensors")
    save_file({"a": np.ones((2, 2)), "b": np.ones((2, 2))}, tmp_path / "two.safetensors")
    for name, reason in (
        ("none.npy", "no file"),
        ("words.npy", "not a NumPy array"),
        ("words.safetensors", "not a safetensors file"),
        ("two.safetensors", "2 two-dimensional"),
    ):
        with pytest.raises(click.UsageError, match=reason):
            open_token_target(text, tmp_path / name)
    with pytest.raises(click.UsageError, match=r"FILE\.py:NAME"):
        open_token_target("demo", tmp_path / "two.safetensors")


def test_servers_are_known_by_their_scheme():
    with scripted(OpenInference(lambda X: X[:, -1].sum(axis=1), 2)) as root:
        target = open_target(f"{root}/v2/models/{MODEL}")
        assert target.width == 2
        assert np.array_equal(target(np.ones((1, 1, 2))), [2.0])
        target.inner.close()
    pytest.importorskip("grpc")
    with pytest.raises(ValueError, match="gRPC"):
        open_target("grpc://nowhere")


def test_what_cannot_be_opened(tmp_path):
    for text in ("model.bin", "nothing", "demo:attention,width=many"):
        with pytest.raises(click.UsageError):
            open_target(text)
    for name in ("model.pt", "model.ckpt", "model.joblib"):
        with pytest.raises(FileFormatError, match="pickled"):
            open_target(str(tmp_path / name))


def test_demos_take_a_width_unless_they_have_one():
    assert open_target("demo", 5).width == 5
    assert open_target("demo:attention,width=7", 7).width == 7
    with pytest.raises(click.UsageError, match="its width is 7"):
        open_target("demo:attention,width=7", 5)
    for settings in ({"width": 0}, {"heads": 0}, {"rank": 9, "width": 8}, {"colour": 3}):
        with pytest.raises(ValueError, match=r"demo:attention"):
            demo_oracle("attention", **settings)
    with pytest.raises(ValueError, match="no demo family"):
        demo_oracle("tree")


def test_a_saved_model_is_a_target(tmp_path):
    model = Attention.single(np.eye(3), np.ones(3))
    model.save(tmp_path / "head.safetensors")
    assert np.array_equal(open_target(str(tmp_path / "head.safetensors"))(np.ones((1, 2, 3))), model(np.ones((1, 2, 3))))


def test_progress_shows_on_a_terminal_and_nowhere_else(monkeypatch, capsys):
    for enabled in (True, False):
        with progress_bar(enabled) as tell:
            assert tell is None  # captured output is no terminal
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress_bar(False) as tell:
        assert tell is None
    with progress_bar() as tell:
        tell("columns", 1234)
        tell("columns", 1)
    written = capsys.readouterr()
    assert written.out == ""


def test_a_python_target_is_known_by_the_weights_that_it_loads(tmp_path):
    np.save(tmp_path / "weights.npy", np.eye(3))
    code = "import numpy as np\nfrom pathlib import Path\nW = np.load(Path(__file__).parent / 'weights.npy')\nwidth = 3\n"
    (tmp_path / "target.py").write_text(code + "def head(X):\n    return (X @ W).sum(axis=(1, 2))\n")
    before = open_target(f"{tmp_path}/target.py:head", 3).identity
    assert open_target(f"{tmp_path}/target.py:head", 3).identity == before
    np.save(tmp_path / "weights.npy", 2 * np.eye(3))
    assert open_target(f"{tmp_path}/target.py:head", 3).identity != before


def test_a_time_that_is_over_while_a_file_is_loaded_is_no_fault_of_the_file(tmp_path, capsys):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(30)\n")
    assert run(["recover", f"{tmp_path / 'slow.py'}:target", "--max-time", "0.05"]) == 4
    assert "--max-time" in capsys.readouterr().err
