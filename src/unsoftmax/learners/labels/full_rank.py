"""Scores of full rank: every key beside every last token."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.labels.equations import Scores, images, solved
from unsoftmax.learners.labels.foresight import foretold
from unsoftmax.learners.labels.scores import COARSE, Reading, wanted_width


def full_scores(reading: Reading, before: int) -> Scores:
    """Every product that is left, and the solution."""
    width = reading.width
    everybody = np.arange(width + 1)
    pairs = [(token, key) for token in range(width + 1) for key in range(width) if token >= before or key >= before]
    tokens, keys = np.array(pairs).T
    reading.add(tokens, reading.design.directions[keys])

    def solution(unit: bool = False) -> Scores:
        image, variance = images(reading.equations(everybody, unit), width + 1)
        return solved(reading.design.last, image, variance, width)

    reading.go_on(COARSE)
    reading.settle()
    foretold(reading, everybody, *images(reading.equations(everybody), width + 1), reading.rng)
    reading.go_on(wanted_width(reading, solution(), solution(unit=True)), final=True)
    reading.fine.finish()
    return solution()
