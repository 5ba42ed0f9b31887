"""Words that come from outside: shown to people, never trusted."""

from __future__ import annotations

import os
import stat
import zlib
from pathlib import Path

TOKEN_VARIABLE = "UNSOFTMAX_TOKEN"
TOKEN_FILE_VARIABLE = "UNSOFTMAX_TOKEN_FILE"


def plain(text: object, limit: int = 300) -> str:
    """Text from a server as one printable line: no control characters or terminal escapes, at most ``limit`` characters.

    >>> plain("fine\\x1b[31m red\\x07\\nnext")
    'fine [31m red  next'
    """
    raw = str(text)[: 4 * limit]
    line = "".join(letter if letter.isprintable() else " " for letter in raw).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


class Secret:
    """A bearer token that shows itself only to the transport."""

    def __init__(self, value: str, origin: str) -> None:
        value = value.strip()
        if not value or not value.isascii() or not value.isprintable() or " " in value:
            raise ValueError(f"The token in {origin} is empty or holds blanks or unprintable characters; a bearer token has none.")
        self._value = value
        self.origin = origin

    def __repr__(self) -> str:
        return f"Secret(from {self.origin})"

    def reveal(self) -> str:
        """The token itself, for the Authorization header alone."""
        return self._value

    def redact(self, text: str) -> str:
        """``text`` without the token, whoever put it there."""
        return text.replace(self._value, "[token]")


def find_token(variable: str = TOKEN_VARIABLE, file: str | Path | None = None) -> Secret | None:
    """The bearer token from a file or an environment variable; None if neither is set. Never from the command line.

    Args:
        variable: environment variable that holds the token.
        file: file that holds the token; else the one named by ``UNSOFTMAX_TOKEN_FILE``.
    """
    named = file or os.environ.get(TOKEN_FILE_VARIABLE)
    if named:
        path = Path(named)
        try:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ValueError(f"The token file {path} is open to other users. Run: chmod 600 {path}")
            return Secret(path.read_text(encoding="ascii"), f"file {path}")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"The token file {path} cannot be read ({type(error).__name__}).") from error
    value = os.environ.get(variable)
    return Secret(value, f"variable {variable}") if value else None


def class_number(name: str) -> float:
    """The name of a class as a number: itself where it is a whole number, else the lower 31 bits of its CRC-32.

    Names keep their numbers from run to run, whichever comes first.

    >>> class_number("1"), class_number("yes")
    (1.0, 1978086825.0)
    """
    whole = name.strip()
    if whole.removeprefix("-").isdecimal() and len(whole) < 10:
        return float(whole)
    return float(zlib.crc32(name.encode()) & 0x7FFFFFFF)
