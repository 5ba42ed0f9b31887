"""Fresh sequences of very long tokens: what the heads found say about them, and what the target does."""

from __future__ import annotations

from typing import Any

import numpy as np

from unsoftmax.learners.decoder.biased import compared
from unsoftmax.learners.decoder.limit import Limit, Readout, limit_of
from unsoftmax.learners.decoder.settings import Settings
from unsoftmax.learners.decoder.start import on_sphere
from unsoftmax.models import Floats
from unsoftmax.models.decoder import Decoder
from unsoftmax.oracles.base import Oracle


def changes(limit: Limit, model: Decoder, tokens: Floats, zeros: int) -> tuple[Floats, Floats]:
    """What the context changes in the answer to the last of ``tokens (n, length, width)``, and what the model says; ``(n, width)``.

    Two limit answers each; MLPs cancel, and so does the part along the last token, which no answer shows.
    """
    x = tokens[:, -1:]
    told = limit.ask(tokens, zeros) - limit.ask(x, 0)
    said = model.limit(tokens, zeros) - model.limit(x)
    said -= np.einsum("no,np,np->no", x[:, 0], x[:, 0], said) / limit.width
    return told, said


def misfit(limit: Limit, model: Decoder, count: int, longest: int, rng: np.random.Generator) -> float:
    """Largest error on ``count`` fresh sequences of drawn lengths, over the root mean square of what contexts change."""
    told, said = [], []
    for _ in range(count):
        length = int(np.exp(rng.uniform(np.log(2.0), np.log(max(3, min(64, longest))))))
        zeros = int(rng.integers(0, 4))
        tokens = on_sphere(rng.normal(size=(1, length, limit.width)), limit.radius)
        one, other = changes(limit, model, tokens, zeros)
        told.append(one)
        said.append(other)
    answers = np.concatenate(told)
    return float(np.abs(answers - np.concatenate(said)).max() / np.sqrt(np.mean(answers**2)))


def compared_limit(
    oracle: Oracle, model: Any, batches: list[Floats], rng: np.random.Generator, settings: Settings
) -> tuple[Floats, Floats, int]:
    """For every sequence of the batches what its context changes, ``(n, width)``, what the heads say, and the queries for each."""
    if model.base is None:
        return compared(oracle, model, batches, rng)
    readout = Readout(model.unembedding, np.zeros(model.outputs), model.norm, model.log, settings.single)
    limit = limit_of(oracle, readout, settings, rng, settings.most_zeros)
    answers, predicted = [], []
    for sequences in batches:
        told, said = changes(limit, model, on_sphere(sequences, limit.radius), int(rng.integers(1, 4)))
        answers.append(told)
        predicted.append(said)
    return np.concatenate(answers), np.concatenate(predicted), 2 * limit.fine.count
