"""Recorded answers: keep what a target said, and answer from it later without the target."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from unsoftmax.errors import FileFormatError, TargetError
from unsoftmax.memory import read_archive
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, Wrapper
from unsoftmax.oracles.local import checked_answers
from unsoftmax.safe_files import replacing

Exchange = tuple[Floats, Floats]  # a call: questions (batch, length, width), answers


class Recorded(Wrapper):
    """Passes questions on and keeps each call with its answers.

    Attributes:
        transcript: the calls so far, ``(questions, answers)`` each.
    """

    def __init__(self, inner: Oracle) -> None:
        super().__init__(inner)
        self.transcript: list[Exchange] = []

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask, and remember."""
        answers = self.inner(sequences)
        self.transcript.append((np.array(sequences), np.array(answers)))
        return answers

    def save(self, path: str | Path) -> None:
        """Write the transcript as ``X0, Y0, X1, Y1, …`` to an ``.npz`` file that only its owner can read."""
        arrays = {f"{letter}{i}": array for i, pair in enumerate(self.transcript) for letter, array in zip("XY", pair, strict=True)}
        with replacing(path) as half, half.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub knows no arrays by keyword


class ReplayOracle:
    """Answers from a transcript; a question that is not in it is a ``TargetError``.

    A question that was recorded several times gets its answers in the order of recording, and then the last one again.

    Args:
        transcript: calls, ``(questions, answers)`` each; ``ReplayOracle.load`` reads them from a file.

    >>> oracle = ReplayOracle([(np.ones((1, 1, 2)), np.array([3.0]))])
    >>> oracle(np.ones((1, 1, 2)))
    array([3.])
    """

    def __init__(self, transcript: Iterable[Exchange]) -> None:
        self._answers: dict[bytes, list[Floats]] = {}
        self._asked: dict[bytes, int] = {}
        self._width = 0
        for questions, answers in transcript:
            X = np.ascontiguousarray(questions, dtype=np.float64)
            if X.ndim != 3 or (self._width and X.shape[2] != self._width):
                raise ValueError(
                    f"A transcript holds questions of shape {X.shape}; they must be (batch, length, width), one width throughout."
                )
            self._width = X.shape[2]
            for question, answer in zip(X, checked_answers(answers, X.shape), strict=True):
                self._answers.setdefault(_key(question), []).append(answer)
        if not self._answers:
            raise ValueError("The transcript is empty; there is nothing to replay.")

    @classmethod
    def load(cls, path: str | Path) -> ReplayOracle:
        """Read a transcript that ``Recorded.save`` wrote, or any ``.npz`` with arrays ``X0, Y0, X1, Y1, …``."""
        held = read_archive(path)
        count = sum(name.startswith("X") for name in held)
        try:
            return cls((held[f"X{i}"], held[f"Y{i}"]) for i in range(count))
        except (KeyError, ValueError, TypeError, TargetError) as error:
            raise FileFormatError(
                f"{path} is no transcript ({error}). It must be an .npz file with arrays X0, Y0, X1, Y1, …"
            ) from error

    @property
    def width(self) -> int:
        """Length of a token vector."""
        return self._width

    def __call__(self, sequences: Floats, /) -> Floats:
        """Look the questions up."""
        return np.stack(
            [self._look_up(question, i) for i, question in enumerate(np.ascontiguousarray(sequences, dtype=np.float64))]
        )

    def _look_up(self, question: Floats, place: int) -> Floats:
        key = _key(question)
        recorded = self._answers.get(key)
        if recorded is None:
            raise TargetError(
                f"Sequence {place} of this batch ({len(question)} tokens) is not in the transcript. "
                "Replay works with the settings, the seed and the version of the recording."
            )
        turn = self._asked.get(key, 0)
        self._asked[key] = turn + 1
        return recorded[min(turn, len(recorded) - 1)]


def _key(question: Floats) -> bytes:
    """A digest of one question; 0.0 and -0.0 are the same question."""
    return hashlib.sha256(f"{len(question)}:".encode() + (question + 0.0).tobytes()).digest()
