"""The held-out check: fresh sequences that no learner saw, of many lengths and score sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from unsoftmax.linalg import INSIDE, alike, normal, on_host
from unsoftmax.models import FFN, Floats, Model, Transformer
from unsoftmax.models.attention import attend
from unsoftmax.oracles.base import LastPosition, Oracle
from unsoftmax.oracles.local import checked_answers
from unsoftmax.results import Check

Predict = Callable[[list[Floats]], Floats]  # batches of sequences to the answers of a model to all of them

LENGTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SCORES = (0.5, 1.0, 2.0, 4.0)  # standard deviations of scores among the fresh sequences: even, typical and peaked attention
PER_LENGTH = 16
LARGE = 2**20  # numbers in all from which on drawing them takes longer than asking


def fresh_sequences(
    model: Model,
    rng: np.random.Generator,
    *,
    per_length: int = PER_LENGTH,
    lengths: tuple[int, ...] = LENGTHS,
    max_norm: float | None = None,
    vocabulary: Floats | None = None,
    like: Floats | None = None,
) -> list[Floats]:
    """Random sequences ``(per_length, length, width)`` for each length, sized so that the model's scores matter.

    With a ``vocabulary (tokens, width)`` they are made of its rows; with ``like`` they are arrays of that kind, on its device.
    """
    if vocabulary is not None:
        return [vocabulary[rng.integers(0, len(vocabulary), size=(per_length, length))] for length in lengths]
    if isinstance(model, FFN):
        per_length, lengths = per_length * len(lengths), (1,)
    each = np.resize(_token_sizes(model), per_length)
    pool = _draw(np.concatenate([np.repeat(each, length) for length in lengths]), model.width, rng, max_norm, like)
    ends = per_length * np.cumsum(lengths)
    return [pool[end - per_length * n : end].reshape(per_length, n, -1) for n, end in zip(lengths, ends.tolist(), strict=True)]


def _draw(sizes: Floats, width: int, rng: np.random.Generator, max_norm: float | None, like: Floats | None) -> Floats:
    """Tokens ``(len(sizes), width)`` with entries of these sizes."""
    count = len(sizes) * width
    if count < LARGE or like is not None:
        tokens = normal((len(sizes), width), rng, like)
    else:  # evenly spread numbers of 8 bits are as fresh, and drawn at memory speed
        steps = np.asarray(rng.bit_generator.random_raw(-(-count // 8))).view(np.int8)[:count]
        tokens = steps.reshape(-1, width).astype(np.float64)
        sizes = sizes * float(np.sqrt(3.0) / 2**7)
    tokens *= alike(sizes[:, None], like)
    if max_norm is not None:
        xp = array_namespace(tokens)
        norms = xp.linalg.vector_norm(tokens, axis=1, keepdims=True)
        tokens *= xp.clip(max_norm * INSIDE / norms, max=1.0)
    return tokens


def _token_sizes(model: Model) -> Floats:
    """Token entries' standard deviations that give the score sizes of ``SCORES``, and that reach the bends of a network."""
    if isinstance(model, FFN):
        return np.concatenate([[0.25, 1.0, 4.0], _bends(model)])
    head = model.attention if isinstance(model, Transformer) else model
    bilinear = float(head.score_sizes.max())
    linear = float(np.linalg.norm(head.c, axis=1).max())
    sizes = np.array([_size(score, bilinear, linear) for score in SCORES])
    return np.concatenate([sizes, _bends(model.ffn)]) if isinstance(model, Transformer) else sizes


def _bends(network: FFN) -> Floats:
    """Near, middle and far distances of the neurons' hyperplanes from the origin: tokens of such sizes cross them."""
    lengths = np.linalg.norm(network.weights[0], axis=1)
    live = lengths > 0
    if not live.any():
        return np.ones(1)
    distances = np.abs(network.biases[0][live]) / lengths[live]
    return np.asarray(np.maximum(np.quantile(distances, [0.25, 0.5, 0.9]), 1e-3 * distances.max() + 1e-12))


def _size(score: float, bilinear: float, linear: float) -> float:
    """The t with ``bilinear t^2 + linear t = score``."""
    if bilinear == 0:
        return score / linear if linear > 0 else 1.0
    return 2 * score / (linear + float(np.sqrt(linear**2 + 4 * bilinear * score)))


def compared(oracle: Oracle, predict: Predict, batches: list[Floats]) -> tuple[Floats, Floats]:
    """Answers and predictions ``(all sequences, outputs)``."""
    last = LastPosition(oracle)
    raw = [last(batch) for batch in batches]  # all of them before the first is looked at: a device answers meanwhile
    told = on_host(predict(batches))
    answers = on_host(array_namespace(raw[0]).concat(raw))
    asked = checked_answers(answers, (sum(map(len, batches)), 1, oracle.width))
    return asked.reshape(len(asked), -1), told.reshape(len(told), -1)


def summed_up(asked: Floats, told: Floats, batches: list[Floats]) -> Check:
    """How far answers and predictions lie apart.

    The relative error is the largest deviation over the standard deviation of the answers themselves (root mean square over
    outputs), so that a constant in the answers cannot hide an error.
    """
    spread = float(np.sqrt(np.mean(np.var(asked, axis=0))))
    largest = np.abs(asked - told).max(axis=1)
    worst = float(largest.max())
    relative = worst / spread if spread > 0 else (0.0 if worst == 0 else float("inf"))
    by_length = np.split(largest, np.cumsum([len(batch) for batch in batches])[:-1])
    return Check(
        sequences=len(asked),
        max_abs_error=worst,
        relative_error=relative,
        by_length={int(batch.shape[1]): float(errors.max()) for batch, errors in zip(batches, by_length, strict=True)},
    )


def join_checks(checks: list[Check]) -> Check:
    """Checks of several batches as one; the worst error counts."""
    return Check(
        sequences=sum(check.sequences for check in checks),
        max_abs_error=max(check.max_abs_error for check in checks),
        relative_error=max(check.relative_error for check in checks),
        by_length={length: error for check in checks for length, error in check.by_length.items()},
    )


def predictor(model: Model, like: Floats | None = None) -> Predict:
    """The model as a function of batches of sequences, of any lengths, that tells all answers; a network sees the last token.

    With ``like``, attention is computed on its device, all lengths in one go, and the answers stay there.
    """
    if isinstance(model, FFN):
        return lambda batches: np.concatenate([model(on_host(batch)[:, -1]) for batch in batches])
    if like is None or isinstance(model, Transformer):
        return lambda batches: np.concatenate([model(on_host(batch)) for batch in batches])
    assert model.V is not None
    W, V, c, b = (alike(parameter, like) for parameter in (model.W, model.V, model.c, model.b))

    def predict(batches: list[Floats]) -> Floats:
        sequences, absent = _padded(batches, like)
        return attend(sequences, W, V, c, b, absent=absent)

    return predict


def _padded(batches: list[Floats], like: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Sequences of several lengths ``(all, longest, width)`` on the device of ``like``, and which of the tokens are none."""
    xp = array_namespace(like)
    total, longest = sum(map(len, batches)), max(batch.shape[1] for batch in batches)
    sequences = xp.zeros((total, longest, batches[0].shape[2]), dtype=like.dtype, device=device(like))
    absent = xp.ones((total, 1, longest), dtype=xp.bool, device=device(like))
    at = 0
    for batch in batches:
        here = slice(at, at := at + len(batch)), slice(longest - batch.shape[1], None)
        sequences[here] = alike(batch, like) if isinstance(batch, np.ndarray) else batch
        absent[here[0], :, here[1]] = False
    return sequences, absent
