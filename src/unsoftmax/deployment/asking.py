"""The desk between a verification and its endpoint: shapes agreed on before the first question, questions counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.deployment.checkpoint import Checkpoint, View
from unsoftmax.models import Floats
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.oracles.base import Oracle


@dataclass(slots=True)
class Desk:
    """An endpoint with what it lets see of the answers, and how many numbers one has (at each position, where all are answered)."""

    oracle: Oracle
    name: str
    view: View | None
    outputs: int
    queries: int = 0
    calls: int = 0

    def ask(self, sequences: Floats) -> Floats:
        """Answers as rows ``(batch, outputs)``, every position side by side."""
        self.queries += len(sequences)
        self.calls += 1
        answers = self.oracle(sequences)
        return answers.reshape(len(answers), -1)


def opened(endpoint: Any, checkpoint: Checkpoint) -> Desk:
    """Agree on width and answers, for the price of one sequence.

    Raises:
        ValueError: they do not fit together.
    """
    given = None if hasattr(endpoint, "width") else checkpoint.width
    oracle = as_oracle(endpoint, given)
    name = str(getattr(endpoint, "name", type(endpoint).__name__))
    if oracle.width != checkpoint.width:
        raise ValueError(
            f"The endpoint takes tokens of width {oracle.width} ({name}), the checkpoint is for width {checkpoint.width} "
            f"({checkpoint.name}). They are different models."
        )
    question = np.zeros((1, 2, checkpoint.width))
    question[0, :, 0] = 1.0, 0.5
    answer = oracle(question)
    own = getattr(oracle, "view", None)
    whole = checkpoint.tensor(_tensor(question))
    view = own if own is not None else None if answer.ndim == 3 or whole.ndim < 3 else last_position
    expected = (whole if view is None else view(whole)).shape
    told = answer.shape if answer.ndim > 1 else (*answer.shape, 1)
    if tuple(expected)[-1] != told[-1] or (answer.ndim == 3) != (len(expected) == 3):
        raise ValueError(
            f"The endpoint {name} answers with {told[-1]} numbers {'at every position' if answer.ndim == 3 else 'a sequence'}, the "
            f"checkpoint {checkpoint.name} with {tuple(expected)[-1]}. Choose the part that is served (./folder#part), or the "
            "architecture with the right head in config.json."
        )
    return Desk(oracle, name, view, outputs=told[-1], queries=1, calls=1)


def last_position(answers: Any) -> Any:
    """The answer at the last token."""
    return answers[:, -1]


def _tensor(values: Floats) -> Any:
    import torch

    return torch.as_tensor(values)
