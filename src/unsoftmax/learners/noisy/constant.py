"""The constant b of a head that long tokens gave exactly: no length makes it stand out of the noise, only many answers."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from scipy.special import stdtrit

from unsoftmax.learners.noisy.design import frames
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.models import Attention
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.results import Floor, Learned


def with_constant(oracle: Oracle, learned: Learned, floor: Floor, rng: np.random.Generator) -> Learned:
    """The same head with b as the mean of 32 one-token answers shows it, its error bar, and the noise; dropped where none shows.

    Tokens are short and random, so that rounding errs at random too.
    """
    model, bounds = cast(Attention, learned.model), learned.bounds
    assert model.V is not None
    phase(oracle, "constant")
    tokens = frames(rng, NOISY.questions, model.width, 1.0)[:, None]
    left = LastPosition(oracle)(tokens).reshape(NOISY.questions, -1) - Attention(model.W, model.V)(tokens).reshape(
        NOISY.questions, -1
    )
    mean, noise = left.mean(axis=0), left.std(axis=0, ddof=1)
    error = noise / np.sqrt(NOISY.questions)
    shows = bool((np.abs(mean) > NOISY.stands_out * error).any())
    shape = model.V.shape[2:]
    measured = (float(np.sqrt(np.mean(noise**2))), left.size - len(mean)) if floor.noisy else learned.noise
    if bounds is not None:
        bars = (float(stdtrit(NOISY.questions - 1, 0.975)) * error).reshape(shape)
        bounds = replace(bounds, b=bars if shows else None)
    found = Attention(model.W, model.V, model.c if model.has_c else None, mean.reshape(shape) if shows else None)
    return replace(learned, model=found, bounds=bounds, noise=measured)
