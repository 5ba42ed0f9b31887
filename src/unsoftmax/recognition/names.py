"""Diagnosis: a name for targets that follow no law of the family (a few queries)."""

from __future__ import annotations

import numpy as np

from unsoftmax.errors import Sign, TargetError, tried
from unsoftmax.recognition.case import Case, Shape, Verdict, inconclusive, outside

NOT_BILINEAR = outside(
    "scores not bilinear (soft-cap or another law)",
    "Scores do not follow x·W·x + c·x: a soft-cap, QK-norm, another kernel, or more than one layer of attention.",
    Sign.OTHER_SCORES,
)


def name_affine(case: Case, scale: float, *, residual: bool) -> Verdict:
    """One-token answers are affine, yet neither one head nor several fit."""
    if residual:
        return outside(
            "residual", "Heads fit, but the last token has an effect of its own: a residual connection around the attention."
        )
    case.begin("naming")
    name = case.tried(lambda: tried(lambda: _of_affine(case, scale), TargetError))
    if isinstance(name, Verdict) and Sign.UNDECIDED not in name.signs:
        return name
    return NOT_BILINEAR


def _of_affine(case: Case, scale: float) -> Verdict | None:
    """A residual, a maximum, pooled answers or normalised keys, where one of them shows."""
    size = case.cap(scale, 5.0)
    p, x, y = size * case.draw(3)
    limit = many_copies(case, p / 4, x / 4)
    if limit > 1:
        return outside(
            "residual", "Many copies of a token do not outweigh the last one: a residual connection, or a maximum over tokens."
        )
    swap = case.ask(np.stack([[p, x, y], [y, x, p]]))
    gap = float(np.abs(swap[0] - swap[1]).max()) / case.tolerance(swap)
    case.record(
        "last token special",
        gap,
        1.0,
        gap > 1,
        "The last token " + ("plays" if gap > 1 else "does not play") + " a role of its own.",
    )
    if gap <= 1:
        return outside("pooled", "No token plays a role of its own, yet weights are unequal: answers are pooled over positions.")
    Z = np.stack([p, x, y])
    zero = 2.0**-40 * Z  # not quite: norms cannot take zero tokens
    ladder = case.ask(np.stack([zero, 2.0**-6 * Z, 2.0**-3 * Z, Z]))
    steps = (ladder[1:] - ladder[0]) / np.array([2.0**-6, 2.0**-3, 1.0])[:, None]
    wobble = float(np.abs(steps - steps[2]).max()) / max(float(np.abs(steps).max()), 1e-300)
    level = 64 * case.tolerance(ladder) / max(float(np.abs(steps).max()), 1e-300)
    case.record(
        "weights grow with tokens",
        wobble,
        max(1e-4, level),
        wobble > max(1e-4, level),
        "Weights " + ("follow" if wobble > max(1e-4, level) else "ignore") + " the size of the tokens.",
    )
    if wobble <= max(1e-4, level):
        return outside("QK-norm", "Weights do not change when all tokens grow: queries and keys are normalised (QK-norm).")
    return None


def many_copies(case: Case, p: np.ndarray, x: np.ndarray) -> float:
    """Limit of ``f([p^k; x])`` for k = 16, 32, 64, 128 by Richardson steps, against ``f([p])``; every number of heads must pass."""
    counts = [k for k in (16, 32, 64, 128) if k < case.longest]
    if not counts:  # the target takes too few tokens to tell
        return 0.0
    values = [case.ask(np.vstack([np.tile(p, (k, 1)), x])[None])[0] for k in counts]
    orders = [np.array(values)]
    for n in range(1, len(counts)):
        orders.append((2.0**n * orders[-1][1:] - orders[-1][:-1]) / (2.0**n - 1))
    goal = case.ask(p[None, None])[0]
    doubt = 3 * float(np.abs(orders[-1][0] - orders[-2][-1]).max()) if len(orders) > 1 else np.inf
    level = 8 * case.tolerance(np.array(values), goal) + doubt
    number = float(np.abs(orders[-1][0] - goal).max()) / level
    case.record(
        "many copies",
        number,
        1.0,
        number <= 1,
        "Many copies of a token " + ("outweigh" if number <= 1 else "do not outweigh") + " the last one.",
    )
    return number


def residual_left_open(case: Case) -> Verdict:
    """Answers of at least ``width`` numbers: a head behind a network may have the last token added, which only recovery tells."""
    return inconclusive(
        "residual",
        "A sequence is not answered like a weighted mean of its tokens. One head with the last token added, before an unknown "
        f"network, is not excluded: `recover` tells, as an answer has {case.outputs} numbers, no fewer than a token.",
        Sign.RESIDUAL_OPEN,
    )


def name_bent(case: Case, shape: Shape) -> Verdict:
    """One-token answers are not affine, and no head before a network fits."""
    case.begin("naming")
    name = case.tried(lambda: tried(lambda: _of_bent(case, shape), TargetError))
    if isinstance(name, Verdict) and (Sign.UNDECIDED not in name.signs or Sign.RESIDUAL_OPEN in name.signs):
        return name
    if shape is Shape.PIECEWISE and case.coarse:
        return inconclusive(
            "power",
            "One head before a network with ReLU is neither proved nor excluded: kinks spoil what answers of this precision tell "
            "of its scores. `recover` learns the network first, and tells.",
        )
    return outside(
        "not one head before a network",
        "A sequence is not answered like a weighted mean of its tokens: several heads or a residual before a network, "
        "or scores that are not bilinear.",
    )


def _of_bent(case: Case, shape: Shape) -> Verdict | None:
    """A norm, or a residual that only recovery can tell, where one of them shows."""
    x = case.cap(1.0, 24.0) * case.draw()
    y = case.ask(np.stack([x, 2 * x, 4 * x, 8 * x, 16 * x, -x, -4 * x, -8 * x])[:, None])
    swing = max(float(np.abs(y[0] - y[5]).max()), 1e-300)
    still = float(np.abs(y[[3, 7]] - y[[2, 6]]).max()) / swing  # both ways: neurons may sleep on one of them
    straight = float(np.abs(y[4] - 3 * y[3] + 2 * y[2]).max()) / max(float(np.abs(y[4] - y[3]).max()), 1e-300)
    case.record(
        "scale invariant",
        still,
        0.01,
        still > 0.01,
        "One-token answers " + ("change" if still > 0.01 else "do not change") + " when the token grows.",
    )
    if still <= 0.01:
        return outside("norm", "One-token answers ignore the token's length: a LayerNorm or RMSNorm is involved.")
    if shape is Shape.SMOOTH and (case.outputs or 1) >= case.width:
        return residual_left_open(case)
    if shape is Shape.SMOOTH and straight <= 1e-3:
        return outside(
            "LayerNorm before attention",
            "Along a ray one-token answers become straight: a LayerNorm or RMSNorm before the attention, a residual around it, "
            "or a residual network.",
        )
    return None
