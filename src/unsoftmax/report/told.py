"""Sentences with numbers in them: rounded for people, and each number tied to its place in the JSON record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from markupsafe import escape as escaped


@dataclass(frozen=True, slots=True)
class Number:
    """One number of the record: ``pointer`` (RFC 6901) says where it stands there, ``text`` is how people read it."""

    pointer: str
    value: float
    text: str

    def __str__(self) -> str:
        return self.text

    def __html__(self) -> Markup:
        return Markup('<data value="{}" data-json="{}">{}</data>').format(repr(self.value), self.pointer, self.text)


@dataclass(frozen=True, slots=True)
class Told:
    """Words and numbers in a row; ``str()`` is for the screen, ``__html__`` for the page."""

    parts: tuple[str | Number, ...]

    def __str__(self) -> str:
        return "".join(map(str, self.parts))

    def __html__(self) -> Markup:
        return Markup("").join(map(escaped, self.parts))


@dataclass(frozen=True, slots=True)
class Teller:
    """Fills ``{/pointer:format}`` in sentences from a record.

    Attributes:
        record: the part of the JSON document that pointers start from.
        root: where that part stands in the whole document.

    >>> tell = Teller({"check": {"error": 1.26e-9}})
    >>> str(tell("largest error {/check/error:.1e}"))
    'largest error 1.3e-09'
    >>> str(tell("{/check/error:.1e}").__html__())
    '<data value="1.26e-09" data-json="/check/error">1.3e-09</data>'
    """

    record: dict[str, Any]
    root: str = ""

    def __call__(self, sentence: str) -> Told:
        """The sentence, with every field replaced."""
        parts: list[str | Number] = []
        reached = 0
        for field in re.finditer(r"\{(/[^{}:]*)(?::([^{}]*))?\}", sentence):
            parts += [sentence[reached : field.start()], self.number(field[1], field[2] or "")]
            reached = field.end()
        return Told(tuple(part for part in (*parts, sentence[reached:]) if part != ""))

    def number(self, pointer: str, form: str = "") -> str | Number:
        """One value; words, truths and what is not known are not numbers."""
        value = self.value(pointer)
        if value is None:
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return value
        text = "0" if value == 0 else format(value, form)
        return Number(self.root + pointer, value, text)

    def value(self, pointer: str) -> Any:
        """What stands at ``pointer``."""
        found: Any = self.record
        for key in pointer.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            found = found[int(key)] if isinstance(found, list) else found[key]
        return found


def step(key: str) -> str:
    """A key as a step of a pointer, for keys that hold a slash or a brace."""
    return key.replace("~", "~0").replace("/", "~1")
