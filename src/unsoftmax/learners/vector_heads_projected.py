"""Heads that cannot be switched one by one: scores from one random mixture of the outputs, then all values by least squares."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import NotInFamilyError
from unsoftmax.learners.scalar_heads import ScalarHeadsLearner
from unsoftmax.learners.vector_heads_answers import Answers, unit
from unsoftmax.models import Attention, Floats, softmax
from unsoftmax.oracles.base import Oracle, Wrapper, phase

WIDEST = 24  # beyond this the scalar learner's heads * width**2 questions are no fallback any more


class Mixed(Wrapper):
    """Of vector answers at the last position, one mixture of the outputs."""

    def __init__(self, inner: Oracle, mixture: Floats) -> None:
        super().__init__(inner)
        self.mixture = mixture

    def __call__(self, sequences: Floats, /) -> Floats:
        """Answer with ``(batch,)``."""
        told = self.inner(sequences)
        told = told[:, -1] if told.ndim == 3 else told
        return np.asarray(told @ self.mixture)


def learn_projected(answers: Answers, b: Floats, rng: np.random.Generator, *, heads: int | None) -> Attention:
    """Recover heads that share values or scores, or outnumber the outputs or the width.

    Price: that of ``ScalarHeadsLearner``, and ``heads * width`` queries and a few for the values.
    """
    scalar = ScalarHeadsLearner(heads=heads, floor=answers.floor)
    found = scalar.run(Mixed(answers.oracle, unit(rng, 1, len(b))[0]), rng=rng).model
    assert isinstance(found, Attention)
    phase(answers.oracle, "slices")
    size, width = found.heads * found.width, found.width
    directions = unit(rng, 4 * (size + 8), width).reshape(-1, 4, width)
    largest = np.abs(np.einsum("nid,hde,ne->nhi", directions, found.W, directions[:, -1], optimize=True)).max()
    biases = np.abs(directions @ found.c.T).max()
    X = directions * min(2 / np.sqrt(largest + 1e-300), 2 / (biases + 1e-300), 1e3)
    scores = np.einsum("nid,hde,ne->nhi", X, found.W, X[:, -1], optimize=True) + np.einsum("nid,hd->nhi", X, found.c)
    looked = np.einsum("nhi,nid->nhd", softmax(scores), X).reshape(len(X), size)
    V, _, rank, _ = np.linalg.lstsq(looked, answers.last(X) - b, rcond=1e-11)
    if rank < size:
        raise NotInFamilyError(
            f"The values of the {found.heads} heads found cannot be told apart: {rank} of {size} directions show."
        )
    optional: dict[str, Floats] = {name: getattr(found, name) for name in ("c",) if found.has_c}
    if np.abs(b).max() > answers.floor.absolute:
        optional["b"] = b
    return Attention(W=found.W, V=V.reshape(found.heads, width, len(b)), **optional)
