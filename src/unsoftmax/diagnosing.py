"""``diagnose``: which family does a target belong to?"""

from __future__ import annotations

from typing import Any

import numpy as np

from unsoftmax.checks.diagnosis import Diagnosis, diagnose_oracle
from unsoftmax.oracles.adapt import as_oracle


def diagnose(target: Any, *, width: int | None = None, max_norm: float | None = None, seed: int = 0) -> Diagnosis:
    """Tell the family of a target, with the evidence, from at most ``200 + 4 * width`` queries.

    Args:
        target: as for ``recover``.
        width: token length, where the target does not tell it.
        max_norm: send no token longer than this.
        seed: same seed, same questions.

    >>> import numpy as np, unsoftmax as us
    >>> head = us.Attention.single(W=np.diag([1.0, 2.0, -1.0, 0.5]), v=[1.0, -2.0, 3.0, 0.7])
    >>> us.diagnose(head).family
    'attention'
    """
    return diagnose_oracle(as_oracle(target, width), rng=np.random.default_rng(seed), max_norm=max_norm)
