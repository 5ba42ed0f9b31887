"""Every way a command can end, and its exit code."""

import pytest

from unsoftmax import errors
from unsoftmax.cli import COMMANDS, cli, run
from unsoftmax.cli.outcome import CODES, code_of
from unsoftmax.results import Status

REFUSALS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RefusalError)]


@pytest.mark.parametrize("kind", [kind for kind in REFUSALS if kind is not errors.RefusalError], ids=lambda kind: kind.__name__)
def test_every_refusal_has_the_exit_code_of_its_status(kind):
    assert code_of(kind("reason")) == CODES[Status[kind("reason").status_name]]


def test_bad_input_is_2_and_our_own_faults_keep_their_traceback(monkeypatch, capsys):
    assert code_of(ValueError("odd")) == code_of(OSError("gone")) == 2
    assert code_of(RuntimeError("ours")) is None

    def fail(**_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(cli, "main", fail)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        run(["plan"])

    def stop(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", stop)
    assert run(["plan"]) == 130
    assert "goes on from there" in capsys.readouterr().err


def test_the_commands_are_listed_without_being_imported(capsys):
    assert run(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in COMMANDS)
    assert run(["conjure"]) == 2
    assert "conjure" in capsys.readouterr().err
