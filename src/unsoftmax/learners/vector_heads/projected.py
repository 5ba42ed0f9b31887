"""Heads that cannot be switched one by one: scores from one random mixture of the outputs, then all values by least squares."""

from __future__ import annotations

from typing import cast

import numpy as np

from unsoftmax.errors import OR_NO_HEADS, NotIdentifiableError, NotInFamilyError, alike_within
from unsoftmax.learners.scalar_heads import ScalarHeadsLearner
from unsoftmax.learners.scalar_heads.polish import polished, rounding_error, sequences_for
from unsoftmax.learners.scalar_heads.settings import SCALAR
from unsoftmax.learners.vector_heads.answers import Answers, unit
from unsoftmax.models import Attention, Floats, softmax
from unsoftmax.oracles.base import Oracle, Wrapper, phase

WIDEST = 24  # beyond this the scalar learner's heads * width**2 questions are no fallback any more
WORST = 1e-7  # parameters that rounding moves further than this are not known


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


def learn_projected(answers: Answers, b: Floats, rng: np.random.Generator, *, heads: int | None) -> tuple[Attention, float]:
    """Recover heads that share values or scores, or outnumber the outputs or the width; with the error that rounding leads to.

    Price: that of ``ScalarHeadsLearner``, and for the values ``heads * width`` queries and a few; small layers, whose blocks are
    all refined together, 1.5 times the parameters divided by the outputs.
    """
    scalar = ScalarHeadsLearner(heads=heads, floor=answers.floor)
    learned = scalar.run(Mixed(answers.oracle, unit(rng, 1, len(b))[0]), rng=rng)
    found = cast(Attention, learned.model)
    phase(answers.oracle, "slices")
    size, width = found.heads * found.width, found.width
    parameters = found.heads * width * (width + len(b) + found.has_c)
    polish = parameters <= SCALAR.largest_polish
    count = max(size + 8, int(1.5 * parameters / len(b)) + 8) if polish else size + 8
    X = sequences_for(found, count, rng)
    scores = np.einsum("nid,hde,ne->nhi", X, found.W, X[:, -1], optimize=True) + np.einsum("nid,hd->nhi", X, found.c)
    looked = np.einsum("nhi,nid->nhd", softmax(scores), X).reshape(len(X), size)
    told = answers.last(X)
    V, _, rank, _ = np.linalg.lstsq(looked, told - b, rcond=1e-11)
    if rank < size:
        raise NotInFamilyError(
            f"The values of the {found.heads} heads found cannot be told apart: {rank} of {size} directions show."
        )
    independent = max(1, int(np.linalg.matrix_rank(V, tol=1e-9 * float(np.linalg.norm(V)))))
    missing = int(1.5 * parameters / independent) + 8 - count
    if polish and missing > 0:  # outputs that repeat each other tell less
        more = sequences_for(found, missing, rng)
        X, told = np.concatenate([X, more]), np.concatenate([told, answers.last(more)])
    optional: dict[str, Floats] = {name: getattr(found, name) for name in ("c",) if found.has_c}
    if np.abs(b).max() > answers.floor.absolute:
        optional["b"] = b
    model = Attention(W=found.W, V=V.reshape(found.heads, width, len(b)), **optional)
    if not polish:
        return model, learned.known_to
    model = polished(model, X, told, steps=3)
    error = rounding_error(model, X, told, 2.0**-51)  # twice the rounding: it is one draw
    if error > WORST:
        raise NotIdentifiableError(
            f"Two heads lie too close together to be told apart by float64 answers: with {model.heads} heads some parameters are "
            f"known only to {error:.1g}. {OR_NO_HEADS}",
            model=model,
            evidence={"merged_within": error},
            signs=alike_within(error),
        )
    return model, error
