"""``diagnose``: which family does a target belong to?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from unsoftmax.bills import Bill
from unsoftmax.desk import Desk, Progress
from unsoftmax.errors import RefusalError, TargetError, check_positive, tried
from unsoftmax.families import Family, Size, extra_families
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.oracles.base import Oracle
from unsoftmax.oracles.meter import Metered
from unsoftmax.planning import CHECK, plan_attention
from unsoftmax.proof.settings import PROOF
from unsoftmax.recognition.diagnosis import Diagnosis, diagnose_oracle
from unsoftmax.wishes import Wishes

SOME = 16  # questions more or less than planned, as the answers demand


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
    """As ``diagnose``, for a target that is open already; heads are billed as ``unsoftmax plan`` does it."""
    check_positive(max_norm=max_norm)
    longest = min(PROOF.longest, max_length or PROOF.longest)
    desk = Desk(oracle, Wishes(max_norm=max_norm, seed=seed, max_length=longest), on_progress=on_progress)
    family = _by_law(desk)
    if family is not None:
        return _of_family(desk, family)
    rest = Metered(oracle, on_count=on_progress)
    rest.begin_phase("diagnosis")
    told = diagnose_oracle(rest, rng=np.random.default_rng(seed), max_norm=max_norm, longest=longest, asked=desk.meter.spent)
    if told.family != "attention" or told.bill is None:
        return told
    d, outputs = oracle.width, told.outputs or 1
    several = told.heads != 1
    most = plan_attention(d, outputs=outputs, heads=told.heads).queries_max + 2 * d * bool(told.bias)
    most += SOME + several * most // 10
    least = plan_attention(d, outputs=outputs, heads=told.heads, rank=None if several else 0).queries - SOME // 2
    least -= several * least // 10
    if told.answers == "all positions":  # each sequence then counts for as many as it has tokens
        least = SOME + sum(queries for _, queries, _ in CHECK)
    return replace(told, bill=Bill(least, max(least, most), told.bill.formula))


def _by_law(desk: Desk) -> Family | None:
    """The first family whose own law holds, as ``recover`` would try it; the classical ones are told by the tests below."""
    if desk.embeddings is not None:
        return None
    if isinstance(tried(desk.first_look, TargetError), RefusalError):  # it may take sequences of another length: the tests tell
        return None
    return next(extra_families(desk), None)


def _of_family(desk: Desk, family: Family) -> Diagnosis:
    look = desk.first_look()
    desk.facts.extend(family.named_more(desk))
    told = " ".join(fact.sentence for fact in desk.facts if fact.passed)
    return Diagnosis(
        family=family.name,
        inside=True,
        heads=None,
        reason=f"{(family.__doc__ or family.name).splitlines()[0]} {told}",
        evidence=tuple(desk.facts),
        queries=desk.meter.spent,
        answers=look.layout,
        outputs=None if look.layout == "scalar" else look.outputs,
        causal=None,
        constant=bool(np.any(look.zero_answer)),
        bias=None,
        residual=None,
        floor=desk.precision,
        scale=None,
        bill=family.estimate(Size(width=desk.width, outputs=look.outputs)),
    )
