"""Whether the bends of a network run along whole hyperplanes, as those of one hidden layer do."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.ffn.hinges import Hinges
from unsoftmax.learners.ffn.places import Places
from unsoftmax.learners.ffn.questions import Questions
from unsoftmax.learners.ffn.settings import RELU
from unsoftmax.oracles.base import phase


def bends_found_again(
    questions: Questions, places: Places, model: Hinges, length: float, rng: np.random.Generator
) -> tuple[int, int]:
    """How many bends of ``model`` are met again elsewhere on their hyperplanes, and how many were looked for; 24 questions.

    With one hidden layer a neuron bends the answer by the same amount all along its hyperplane, so that nearly all are met again
    even where a few were read wrongly. Behind further layers a bend turns wherever it crosses another one, or changes its strength.
    """
    if not model.neurons:
        return 0, 0
    phase(questions.oracle, "depth")
    strengths = np.linalg.norm(model.normal, axis=1)
    units = model.normal / strengths[:, None]
    points, wanted = [], []
    for j in np.resize(rng.permutation(model.neurons), RELU.looks):
        pool = places.at(np.full(RELU.pool, length), questions.width, rng)
        pool -= (pool @ units[j] + model.shift[j] / strengths[j])[:, None] * units[j]
        room = np.abs(model.before(pool)) / strengths
        room[:, j] = np.inf
        best = int(np.argmax(room.min(axis=1)))
        step = min(RELU.step * length, 0.5 * float(room[best].min()))
        bend = step * strengths[j] * model.out[j]
        if step > 0 and np.linalg.norm(bend) > RELU.loud * float(questions.noise(pool[best][None])[0]):
            points.append(pool[best] + step * np.array([[-1.0], [0.0], [1.0]]) * units[j])
            wanted.append(bend)
    if not points:
        return 0, 0
    left, middle, right = questions.ask(np.concatenate(points)).reshape(len(points), 3, -1).transpose(1, 0, 2)
    target = np.array(wanted)
    misses = np.linalg.norm(left + right - 2 * middle - target, axis=1)
    return int((misses <= RELU.agree * np.linalg.norm(target, axis=1)).sum()), len(points)
