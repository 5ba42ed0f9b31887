"""``diagnose``: which family does a target belong to?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from unsoftmax.candidates import candidates
from unsoftmax.desk import Desk, Progress
from unsoftmax.families import Family, Size
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.oracles.base import Oracle
from unsoftmax.proof.settings import PROOF
from unsoftmax.recognition.diagnosis import Diagnosis
from unsoftmax.wishes import Wishes


def diagnose(
    target: Any, *, width: int | None = None, max_norm: float | None = None, max_length: int | None = None, seed: int = 0
) -> Diagnosis:
    """Tell the family of a target, with the evidence, from at most ``200 + 4 * width`` queries.

    Args:
        target: as for ``recover``.
        width: token length, where the target does not tell it.
        max_norm: send no token longer than this.
        max_length: send no sequence of more tokens than this; None finds out what the target takes.
        seed: same seed, same questions.

    >>> import numpy as np, unsoftmax as us
    >>> head = us.Attention.single(W=np.diag([1.0, 2.0, -1.0, 0.5]), v=[1.0, -2.0, 3.0, 0.7])
    >>> us.diagnose(head).family
    'attention'
    """
    return diagnosed(as_oracle(target, width), max_norm=max_norm, max_length=max_length, seed=seed)


def diagnosed(
    oracle: Oracle,
    *,
    max_norm: float | None,
    seed: int,
    max_length: int | None = None,
    on_progress: Progress | None = None,
) -> Diagnosis:
    """As ``diagnose``, for a target that is open already."""
    wishes = Wishes(max_norm=max_norm, seed=seed, max_length=max_length)
    wishes = replace(wishes, max_length=min(PROOF.longest, max_length or PROOF.longest))
    # no sentinels of its own: the tests ask early questions again at their end
    desk = Desk(oracle, wishes, on_progress=on_progress, sentinels=0)
    family = next(candidates(desk, learners=False), None)
    told = desk.told
    if told is None:
        assert family is not None, "either the tests tell, or a law holds"
        return _of_family(desk, family)
    if family is None:
        return told
    everywhere = told.answers == "all positions"
    size = Size(width=oracle.width, outputs=told.outputs or 1, heads=told.heads, bias=told.bias, everywhere=everywhere)
    return replace(told, bill=family.estimate(size))


def _of_family(desk: Desk, family: Family) -> Diagnosis:
    look = desk.first_look()
    desk.facts.extend(family.named_more(desk))
    told = " ".join(fact.sentence for fact in desk.facts if fact.passed)
    return Diagnosis(
        family=family.name,
        inside=True,
        heads=None,
        reason=f"{(family.__doc__ or family.name).splitlines()[0]} {told}",
        evidence=(*desk.facts, *(() if desk.case is None else desk.case.evidence)),
        queries=desk.meter.spent,
        answers=look.layout,
        outputs=None if look.layout == "scalar" else look.outputs,
        causal=None,
        constant=bool(np.any(look.zero_answer)),
        bias=None,
        residual=None,
        floor=look.grid if desk.precision.unclear and look.grid.exact else desk.precision,  # a bend left it open, not the answers
        scale=None,
        bill=family.estimate(Size(width=desk.width, outputs=look.outputs)),
    )
