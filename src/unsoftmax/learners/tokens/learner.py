"""One head that can only be asked with tokens of a known vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.learners.tokens.hull import Hull
from unsoftmax.learners.tokens.reader import TokenReader
from unsoftmax.learners.tokens.settings import KNOWN_TOKENS
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned


@dataclass(frozen=True, slots=True)
class TokensLearner:
    """Recover what token sequences can show of one head (W, v, c, b), given the embedding table.

    With ``a`` the dimension of the affine hull of the embeddings and r the rank of the scores, ``a + 1 + r (2 a + 1 - r)`` queries
    and about ten more; saturated answers are replaced. All of W is known if the tokens span the space, else the part that acts on
    them: the model then predicts every token sequence and is the one of least norm. The oracle must carry ``embeddings``.

    Attributes:
        floor: how coarse the answers are.
    """

    floor: Floor = field(default_factory=Floor)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Ask and learn; the ambiguity says how many numbers of W the tokens determine."""
        hull = Hull.of(np.asarray(oracle.embeddings))  # type: ignore[attr-defined]  # a Tokens oracle, maybe wrapped
        reader = TokenReader(oracle, hull, self.floor)
        phase(oracle, "values")
        reader.read_values()
        phase(oracle, "scores")
        scores, rank, error = reader.read_scores()
        model = hull.head(scores, reader.values, reader.scalar, error, reader.noise)
        phase(oracle, "checks")
        worst = reader.check(model, rng)
        width, dimension = oracle.width, hull.dimension
        spanned = dimension + hull.offset
        known = dimension * spanned
        ambiguity = (
            "W, v, c and b are unique: the tokens span the space."
            if dimension == width
            else f"W is not identifiable: token sequences determine {known} of its {width**2} numbers and {spanned} of the {width} "
            f"of v (the {len(hull.embeddings)} embeddings span {spanned} dimensions, their differences {dimension}). The model "
            "given has the least norm of all that agree; it predicts every sequence of these tokens."
        )
        return Learned(
            model=model,
            ambiguity=ambiguity,
            notes=(f"The scores between tokens have rank {rank}.", f"Estimated error of a score: {error:.1e}."),
            evidence={
                "rank": rank,
                "identifiable": known,
                "parameters": width**2,
                "unidentifiable": width**2 - known,
                "score_error": error,
                "check_error": worst,
            },
            ranks=(rank,),
        )


def price(width: int, rank: int, vocabulary: int) -> list[tuple[str, int, int]]:
    """Phases with queries and tokens when no answer saturates and the embeddings are in general position."""
    dimension = min(width, vocabulary - 1)
    rank = min(rank, dimension)
    tokens = dimension + 1
    full = rank * dimension
    within = (tokens - rank) * rank
    checks = min(KNOWN_TOKENS.confident, tokens - rank) if rank < dimension else 0
    return [
        ("values", tokens, tokens),
        ("scores", full + within + checks, 2 * (full + within + checks)),
        ("checks", KNOWN_TOKENS.checks, 3 * KNOWN_TOKENS.checks),
    ]
