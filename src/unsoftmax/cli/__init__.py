"""The command line: one file per subcommand; each is loaded only when it is called."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from unsoftmax.version import __version__

COMMANDS = {
    "recover": "Recover a target's parameters from its answers.",
    "plan": "Tell the bill before it is paid.",
    "diagnose": "Tell which family a target belongs to, with the evidence.",
    "verify": "Tell whether a target answers as these weights do, and if not, what changed.",
    "watch": "Verify a deployment again and again, with its history.",
    "convert": "Turn weights from one layout into another.",
    "audit": "Try extraction against a table of defences; report and gate.",
    "identify": "Tell what can and cannot be known about a model.",
    "learn": "Learn an attention layer from recorded examples.",
    "serve": "Host a target on loopback over the Open Inference Protocol.",
    "compare": "Tell what changed from one audit to another.",
    "figure": "Write the pictures of a finished run as SVG or PDF.",
}


class _Lazy(click.Group):
    """A group whose commands are imported on use, so that --help answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"unsoftmax.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="unsoftmax")
@click.option("--debug", is_flag=True, help="Show the traceback of a fault on screen.")
def cli(debug: bool) -> None:
    """Recover attention models exactly from their answers.

    Use it on targets that are yours, or with their owner's permission.
    """
    click.get_current_context().obj = {"debug": debug}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; every outcome has its exit code, and none a traceback on screen."""
    if sys.stdout is not None:
        sys.stdout = _Unbreakable(sys.stdout)
    code = run(argv)
    if sys.stdout is not None:
        sys.stdout.flush()
    sys.exit(code)


class _Unbreakable:
    """Standard output that may be closed by whoever reads it: they have seen enough, and the outcome stands."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._kept(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._kept(self._stream.flush)

    def _kept(self, act: Any, *values: Any) -> None:
        try:
            act(*values)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def run(argv: Sequence[str] | None = None) -> int:
    """As ``main``, but return the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]  # wherever it stands
    try:
        outcome: Any = cli.main(args=words, prog_name="unsoftmax", standalone_mode=False)
        return outcome if isinstance(outcome, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt) as stop:
        if isinstance(stop.__cause__, EOFError):  # click takes the end of any file for the end of the terminal's input
            click.echo(f"Error: a file ends too early ({stop.__cause__}).", err=True)
            return 2
        click.echo(
            "Interrupted. With --out, what was answered is kept in its journal: the same command goes on from there.", err=True
        )
        return 130
    except click.ClickException as error:
        error.show(sys.stderr)
        return 2
    except Exception as error:
        from unsoftmax.cli.outcome import FAULT, code_of, keep_traceback, words_of

        code = code_of(error)
        if debug:
            click.echo("".join(traceback.format_exception(error)), err=True)
        if code is None:
            place = "above" if debug else keep_traceback(error, words)
            click.echo(f"A fault of unsoftmax itself: {words_of(error)} Its traceback is {place}; please report it.", err=True)
            return FAULT
        click.echo(f"Error: {words_of(error)}", err=True)
        return code


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
