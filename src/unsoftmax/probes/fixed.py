"""Fixed probes as a file: questions ``X0, X1, …`` with a plan record; answers ``Y0, Y1, …`` come back beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax.errors import FileFormatError
from unsoftmax.memory import read_archive
from unsoftmax.models import Floats
from unsoftmax.safe_files import replacing


@dataclass(frozen=True, eq=False)
class FixedProbes:
    """Questions drawn before the first answer.

    Attributes:
        arrays: questions ``(batch, length, width)``, one array per length and purpose.
        record: what they are for; plain numbers and words, kept in the file as JSON.
    """

    arrays: tuple[Floats, ...]
    record: dict[str, Any]

    @property
    def queries(self) -> int:
        """Number of sequences."""
        return sum(len(array) for array in self.arrays)

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return int(self.arrays[0].shape[2])

    def save(self, path: str | Path) -> None:
        """Write ``X0, X1, …`` and the record to an ``.npz`` file."""
        arrays: dict[str, Any] = {f"X{index}": array for index, array in enumerate(self.arrays)}
        with replacing(path) as half, half.open("wb") as file:  # an open file: NumPy would add .npz to another name
            np.savez(file, plan=np.array(json.dumps(self.record)), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> FixedProbes:
        """Read what ``save`` wrote; answers in the same file are left alone."""
        held = read_archive(path)
        arrays = _numbered(held, "X", path)
        if "plan" not in held or any(array.ndim != 3 or not np.isfinite(array).all() for array in arrays):
            raise FileFormatError(
                f"{path} holds no fixed probes: it needs `plan` and finite arrays `X0`, `X1`, … of shape (batch, length, width), "
                f"and has {sorted(held)[:8]}. Write one with `unsoftmax plan TARGET --non-adaptive --rank R --export FILE.npz`."
            )
        try:
            record = json.loads(str(held["plan"]))
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"The plan record in {path} is damaged ({error}). Export the probes again.") from error
        if not isinstance(record, dict):
            raise FileFormatError(f"The plan record in {path} is no object but {type(record).__name__}. Export the probes again.")
        return cls(tuple(arrays), record)


def load_answers(path: str | Path, probes: FixedProbes) -> list[Floats]:
    """The answers ``Y0, Y1, …`` to ``probes``, from the same file or another; one row per question, all finite."""
    answers = _numbered(read_archive(path), "Y", path)
    if len(answers) != len(probes.arrays):
        raise FileFormatError(
            f"{path} holds answers Y0 … for {len(answers)} arrays of questions, but there are {len(probes.arrays)}. "
            "Save one array `Yi` of answers for each `Xi`."
        )
    for index, (asked, said) in enumerate(zip(probes.arrays, answers, strict=True)):
        if said.ndim not in (1, 2, 3) or len(said) != len(asked) or not np.isfinite(said).all():
            flaw = "" if np.isfinite(said).all() else " and holds NaN or infinite numbers"
            raise FileFormatError(
                f"Y{index} in {path} has shape {said.shape}{flaw}; "
                f"X{index} asks {len(asked)} questions, so it must be ({len(asked)},) or ({len(asked)}, outputs), all finite."
            )
    return answers


def _numbered(held: dict[str, Any], letter: str, path: str | Path) -> list[Floats]:
    count = sum(name[:1] == letter and name[1:].isdigit() for name in held)
    missing = [f"{letter}{index}" for index in range(max(count, 1)) if f"{letter}{index}" not in held]
    if missing:
        raise FileFormatError(f"{path} lacks the array `{missing[0]}`; it holds {sorted(held)[:8]}.")
    try:
        return [held[f"{letter}{index}"].astype(np.float64) for index in range(count)]
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: the arrays {letter}0 … are not numbers ({error}).") from error
