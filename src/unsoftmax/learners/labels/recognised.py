"""Is this a target that answers with labels, not with numbers?"""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Fact

NAME = "labels"


def could_be_labels(answers: Floats) -> bool:
    """Whether a few answers are all whole numbers, as labels are; the answers of attention to random tokens are not."""
    return bool(np.array_equal(np.rint(answers), answers)) and bool(np.abs(answers).max(initial=0.0) < 2.0**31)


def recognised(oracle: Oracle, *, rng: np.random.Generator, max_norm: float | None = None) -> Fact:
    """Whether answers are one of a few whole numbers, whatever the length of tokens; ``2 questions`` queries, one call.

    Numbers grow with tokens and hardly ever repeat, even when they are rounded; labels do neither.
    """
    phase(oracle, "labels or numbers")
    tokens = rng.normal(size=(BOUNDARY.questions, oracle.width))
    longest = float(np.linalg.norm(tokens, axis=1).max())
    most = BOUNDARY.longer if max_norm is None else 0.9 * max_norm / longest
    least = 1.0 if max_norm is None else most / BOUNDARY.longer
    asked = np.concatenate([least * tokens, most * tokens])[:, None]
    answers = np.asarray(oracle(asked)).reshape(2 * BOUNDARY.questions, -1)
    values = np.unique(answers)
    whole = answers.shape[1] == 1 and could_be_labels(answers)
    few = whole and len(values) <= BOUNDARY.most_classes and not (len(values) > 2 and values.min() < 0)
    passed = None if whole and len(values) == 1 else few
    some = ", ".join(f"{value:g}" for value in values[: BOUNDARY.most_classes])
    words = {
        True: f"Answers are labels: only {some} came back, however long the tokens.",
        False: f"Answers are numbers, not labels: {len(values)} different ones to {2 * BOUNDARY.questions} questions.",
        None: f"Every answer was {values[0]:g}: a label that never changes, or a constant.",
    }
    return Fact(NAME, float(len(values)), float(BOUNDARY.most_classes), passed, words[passed])
