"""Numbers on the command line; click's own float takes nan and inf for numbers, too."""

from __future__ import annotations

from typing import Any

import click


class Positive(click.ParamType[float]):
    """A positive finite number; zero too, where ``zero`` says so."""

    name = "NUMBER"

    def __init__(self, *, zero: bool = False) -> None:
        self.zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not (0 < number < float("inf") or (self.zero and number == 0)):
            self.fail(f"{value!r} is no positive number{' and not 0' if self.zero else ''}.", param, ctx)
        return number


class Grid(Positive):
    """A positive step, or the word auto."""

    name = "STEP"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The step as a number, or "auto"."""
        return "auto" if value == "auto" else super().convert(value, param, ctx)
