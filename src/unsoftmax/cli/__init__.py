"""The command line: one file per subcommand; each is loaded only when it is called."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from unsoftmax import __version__

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
def cli() -> None:
    """Recover attention models exactly from their answers.

    Use it on targets that are yours, or with their owner's permission.
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; every outcome has its exit code, and none a traceback."""
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """As ``main``, but return the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        outcome: Any = cli.main(args=None if argv is None else list(argv), prog_name="unsoftmax", standalone_mode=False)
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
        from unsoftmax.cli.outcome import code_of, words_of

        code = code_of(error)
        if code is None:
            raise
        click.echo(f"Error: {words_of(error)}", err=True)
        return code


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
