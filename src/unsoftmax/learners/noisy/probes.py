"""The question that carries most under noise: copies of ``p``, copies of ``-p``, and one token ``x`` in the last place.

With ``plus`` copies of ``p`` and ``minus`` copies of ``-p`` the answer is

    y = b + (pv (A - B) + xv T) / (A + B + T),   A = plus e^s, B = minus e^-s, T = e^t,
    s = p·(W x + c),  t = x·(W x + c),  pv = p·v,  xv = x·v

so that the counts cancel a known score: with ``plus / minus = e^(-2 s)`` both halves weigh one half, where the answer is most
sensitive to ``s``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle


@dataclass(frozen=True, slots=True, eq=False)
class Probes:
    """A set of questions and what was answered.

    Attributes:
        keys: ``(count, width)``, the repeated token; zero rows for one-token questions.
        plus: ``(count,)``, copies of the key; 0 for one-token questions.
        minus: ``(count,)``, copies of its negative; 0 for one-token questions.
        last: ``(count, width)``, the token in the last place.
        answers: ``(count,)``.
    """

    keys: Floats
    plus: Floats
    minus: Floats
    last: Floats
    answers: Floats

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def single(self) -> NDArray[np.bool_]:
        """Which questions are one token long."""
        return np.equal(self.plus + self.minus, 0)

    @property
    def lengths(self) -> Floats:
        """Geometric mean of the lengths of key and last token, with whose square scores go."""
        return np.asarray(np.sqrt(np.linalg.norm(self.keys, axis=1) * np.linalg.norm(self.last, axis=1)))

    def __getitem__(self, rows: slice | np.ndarray) -> Probes:
        return Probes(self.keys[rows], self.plus[rows], self.minus[rows], self.last[rows], self.answers[rows])


def joined(parts: list[Probes]) -> Probes:
    """All questions of several sets, in order."""
    return Probes(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "plus", "minus", "last", "answers"))
    )


def one_number(answers: Floats) -> Floats:
    """Answers ``(batch,)`` of a target that says one number per sequence, whatever axes of length one it adds."""
    if answers.ndim == 3:
        answers = answers[:, -1]
    if answers.ndim == 2 and answers.shape[1] != 1:
        raise ValueError(
            f"The target answers {answers.shape[1]} numbers per sequence; this learner reads one. "
            "Wrap the target so that it returns one output, and learn the outputs one by one."
        )
    return answers.reshape(len(answers))


def ask_tokens(oracle: Oracle, tokens: Floats) -> Probes:
    """Ask sequences of one token, ``tokens (count, width)``."""
    none = np.zeros(len(tokens))
    answers = np.concatenate([one_number(oracle(part[:, None, :])) for part in in_chunks(tokens, 1)] or [none])
    return Probes(np.zeros_like(tokens), none, none, tokens, answers)


def ask_pairs(oracle: Oracle, keys: Floats, plus: Floats, minus: Floats, last: Floats) -> Probes:
    """Ask sequences of ``plus`` copies of a key, ``minus`` of its negative, and a last token; all counts must add up alike."""
    count, width = keys.shape
    copies = int(plus[0] + minus[0]) if count else 0
    answers = np.empty(count)
    size = chunk_size(copies + 1, width)
    for start in range(0, count, size):
        rows = slice(start, start + size)
        signs = np.where(np.arange(copies) < plus[rows, None], 1.0, -1.0)
        sequences = np.concatenate([signs[:, :, None] * keys[rows, None, :], last[rows, None, :]], axis=1)
        answers[rows] = one_number(oracle(sequences))
    return Probes(keys, plus, minus, last, answers)


def chunk_size(length: int, width: int) -> int:
    """How many sequences of this shape to hold at once."""
    return max(1, NOISY.probes_chunk_bytes // (8 * length * width))


def in_chunks(tokens: Floats, length: int) -> list[Floats]:
    """Split ``tokens`` so that sequences of ``length`` stay within the memory limit."""
    size = chunk_size(length, tokens.shape[1])
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]


def of_norm(directions: Floats, norm: float) -> Floats:
    """Rows rescaled to ``norm``, never longer, to the last bit."""
    lengths = np.linalg.norm(directions, axis=-1, keepdims=True)
    rows: Floats = directions * (norm * NOISY.shrink / np.maximum(lengths, 1e-200))  # a zero row stays zero
    return rows
