"""A learned gated network in the form that is handed out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unsoftmax.learners.gated.gates import Gates
from unsoftmax.learners.gated.settings import GATES
from unsoftmax.learners.smooth.answers import Answers
from unsoftmax.learners.smooth.settings import BENDS
from unsoftmax.models import GatedFFN

PARTS = ("normal", "shift", "up", "lift", "out", "linear", "constant")
AMBIGUITY = (
    "equal up to the order of the gates and one factor per gate, shared between what it lets through and its output weights; "
    "swish with another factor is SiLU with other weights"
)


def without_trifles(gates: Gates, misfit: float, answers: Answers) -> Gates:
    """The network without biases of gates, biases of what they let through, and linear part where those are none; fitted again.

    A bias is measured by what it adds to the answers: that of a faint gate is told badly. Those that answers miss stay.
    """
    out = np.linalg.norm(gates.out, axis=1)
    strengths = out * np.linalg.norm(gates.up, axis=1)
    sizes = {
        "shift": float((np.abs(gates.shift) * strengths).max() / strengths.max()),
        "lift": float((np.abs(gates.lift) * out).max() / strengths.max()),
        "linear": float(np.linalg.norm(gates.linear) / strengths.sum()),
    }
    trifles = [name for name, size in sizes.items() if size <= GATES.nothing]
    if not trifles:
        return gates
    plain = replace(gates, **{name: np.zeros_like(getattr(gates, name)) for name in trifles})
    fitted, left = answers.fit(plain, plain.free(*(name for name in PARTS if name not in trifles)))
    return fitted if left <= max(1.0, BENDS.as_good * misfit) else gates


def to_gated(gates: Gates) -> GatedFFN:
    """The function as a model, output weights of length one, strongest gates first."""
    lengths = np.linalg.norm(gates.out, axis=1)
    up, lift = gates.up * lengths[:, None], gates.lift * lengths
    order = np.argsort(-np.linalg.norm(gates.normal, axis=1) * np.linalg.norm(up, axis=1), kind="stable")
    return GatedFFN(
        gates.normal[order],
        up[order],
        (gates.out / lengths[:, None])[order].T,
        gates.shift[order] if gates.shift.any() else None,
        lift[order] if lift.any() else None,
        gates.constant,
        gates.linear if gates.linear.any() else None,
        activation=gates.phi.name,
    )
