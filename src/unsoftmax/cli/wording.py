"""Text on a terminal: lines that are too long are wrapped, and what is wrapped stands in by as much as it began with."""

from __future__ import annotations

import shutil
import textwrap

import click


def hanging(head: str, text: str = "") -> str:
    """``head`` and then ``text``, whose further lines begin below its first one; as wide as the terminal, else one line.

    >>> import os
    >>> os.environ["COLUMNS"] = "40"
    >>> print(hanging("  pass  order  ", "The order of the earlier tokens does not matter."))
      pass  order  The order of the earlier
                   tokens does not matter.
    >>> del os.environ["COLUMNS"]
    """
    columns = shutil.get_terminal_size((0, 0)).columns
    room = columns - len(head)
    if room < 20:  # no terminal, or too narrow to keep in columns
        return head + text
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    return head + f"\n{' ' * len(head)}".join(lines)


def say(text: str, indent: int = 2) -> None:
    """Print a sentence that stands in."""
    click.echo(hanging(" " * indent, text))
