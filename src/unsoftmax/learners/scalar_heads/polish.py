"""All heads refined together: Newton steps on every parameter at once, for random sequences that show them all."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.scalar_heads.settings import SCALAR
from unsoftmax.linalg import INSIDE
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.symmetry import attention_jacobian


def count_parameters(model: Attention) -> int:
    """Free numbers in W, V, c and b."""
    assert model.V is not None
    return model.W.size + model.V.size + model.c.size * model.has_c + model.b.size * model.has_b


def sequences_for(model: Attention, count: int, rng: np.random.Generator, max_norm: float | None = None) -> Floats:
    """Random sequences of four tokens ``(count, 4, width)`` whose scores are at most about 2."""
    rows = rng.normal(size=(count * 4, model.width))
    directions = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).reshape(-1, 4, model.width)
    largest = np.abs(np.einsum("nid,hde,ne->nhi", directions, model.W, directions[:, -1], optimize=True)).max()
    biases = np.abs(directions @ model.c.T).max()
    length = min(2 / np.sqrt(largest + 1e-300), 2 / (biases + 1e-300), 1e3)
    return np.asarray(directions * (length if max_norm is None else min(length, INSIDE * max_norm)))


@dataclass
class Together:
    """Random sequences and their answers, asked once and kept: every model that is refined with them adds only what it lacks."""

    oracle: Oracle
    max_norm: float | None = None
    X: list[Floats] = field(default_factory=list)
    told: list[Floats] = field(default_factory=list)

    def sample(self, model: Attention, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Sequences and answers, 1.5 for each parameter of the model and a few."""
        lacking = int(SCALAR.spare * count_parameters(model)) + 20 - sum(map(len, self.X))
        if lacking > 0:
            self.X.append(sequences_for(model, lacking, rng, self.max_norm))
            self.told.append(np.asarray(self.oracle(self.X[-1])))
        return np.concatenate(self.X), np.concatenate(self.told)


def polished(model: Attention, X: Floats, told: Floats, *, steps: int, smallest: float = SCALAR.smallest) -> Attention:
    """The model after Newton steps on all heads at once, taken while they explain the answers ``told`` to ``X`` better.

    Directions that show in the answers by less than ``smallest``, relative to the others, stay as they are.
    Least squares for V alone turns an error e of W into one of e / gap where two heads are that close; all blocks together do not.
    """
    best = float(np.linalg.norm(told - model(X)))
    for _ in range(steps):
        said, slopes = attention_jacobian(model, X)
        move = _solve(slopes.reshape(told.size, -1), told.reshape(-1) - said.reshape(-1), smallest)
        for _ in range(6):
            better = _moved(model, move)
            misfit = float(np.linalg.norm(told - better(X)))
            if misfit < best:
                break
            move = move / 4.0
        else:
            return model
        model, best = better, misfit
    return model


def rounding_error(model: Attention, X: Floats, told: Floats, rounding: float) -> float:
    """Largest relative error of a head's W, V or c to expect from answers with relative ``rounding``, by one simulated draw.

    Directions that the answers hardly show count in full here, unlike in the steps, which leave them alone.
    """
    _, slopes = attention_jacobian(model, X)
    draw = rounding * float(np.abs(told).max()) * np.random.default_rng(0).normal(size=told.size)  # fixed: no part of the questions
    moved = _moved(model, _solve(slopes.reshape(told.size, -1), draw, 0.0))
    errors = []
    for name in ("W", "V", "c"):
        errors.append(relative_errors(*(np.asarray(getattr(layer, name)).reshape(model.heads, -1) for layer in (model, moved))))
    return float(np.max(errors))


def relative_errors(blocks: Floats, moved: Floats) -> Floats:
    """Relative errors ``(heads,)`` of blocks ``(heads, n)`` that rounding moves so far; none where a block is nothing else."""
    sizes, errors = np.linalg.norm(blocks, axis=1), np.linalg.norm(moved - blocks, axis=1)
    return np.where(sizes > SCALAR.visible * errors, errors / np.maximum(sizes, np.finfo(float).tiny), 0.0)


def _solve(slopes: Floats, goal: Floats, smallest: float) -> Floats:
    sizes = np.maximum(np.linalg.norm(slopes, axis=0), np.finfo(float).tiny)
    return np.asarray(np.linalg.lstsq(slopes / sizes, goal, rcond=smallest)[0] / sizes)


def _moved(model: Attention, move: Floats) -> Attention:
    names = [name for name in ("W", "V", "c", "b") if name in "WV" or getattr(model, f"has_{name}")]
    blocks = {name: np.asarray(getattr(model, name)) for name in names}
    ends = np.cumsum([block.size for block in blocks.values()])
    parts = zip(blocks.items(), np.split(move, ends[:-1]), strict=True)
    return Attention(**{name: block + part.reshape(block.shape) for (name, block), part in parts})
