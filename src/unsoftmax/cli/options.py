"""Options that several commands share, and their numbers; click's own float takes nan and inf for numbers, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


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


class FamilyName(click.ParamType[str]):
    """The name of a family, native or of another package; looked up on use, as that takes a moment."""

    name = "FAMILY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, if there is such a family."""
        from unsoftmax.families import family_names

        if value not in family_names():
            self.fail(f"{value!r} is not one of {', '.join(family_names())}.", param, ctx)
        return str(value)


class Folder(click.Path):
    """A folder that is named; an empty name would be the present one."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The folder as a path."""
        if not str(value).strip():
            self.fail("the name of the folder is empty; '.' is the present folder.", param, ctx)
        return super().convert(value, param, ctx)


width_option = click.option(
    "--width", type=click.IntRange(min=1), help="Length of a token vector, where the target does not tell it."
)
length_option = click.option(
    "--max-length", type=click.IntRange(min=1), help="Send no longer sequences than this; found out if left out."
)
check_option = click.option(
    "--check",
    type=click.IntRange(min=11),
    help="Fresh sequences to compare; about 235 if left out. More exclude rarer differences.",
)
norm_option = click.option("--max-norm", type=Positive(), help="Send no token longer than this.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")


def out_option(content: str) -> Callable[[Command], Command]:
    """A folder for files that ``content`` names."""
    return click.option("--out", type=Folder(), help=f"Folder for {content}.")


def seed_option(meaning: str) -> Callable[[Command], Command]:
    """A seed; ``meaning`` says what it decides."""
    return click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help=f"{meaning}.")


def fresh_seed_option(meaning: str) -> Callable[[Command], Command]:
    """A seed that the operating system draws, so that no target can foresee it; ``meaning`` says what it decides."""
    return click.option(
        "--seed", type=click.IntRange(min=0), help=f"{meaning}. Drawn by the operating system and recorded, if left out."
    )


public_option = click.option("--public", is_flag=True, help="Files that other users may read (mode 0644 in place of 0600).")
repair_option = click.option(
    "--repair",
    is_flag=True,
    help="Ask the damaged answers of the journal in --out again; all of them, where none is damaged.",
)
