"""What a diagnosis tells."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unsoftmax.bills import Bill
from unsoftmax.brevity import Brief
from unsoftmax.errors import Sign
from unsoftmax.recognition.case import Case, Verdict
from unsoftmax.recognition.extras import Extras
from unsoftmax.recognition.plane import Plane
from unsoftmax.results import Fact, Floor


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis(Brief):
    """What a target is, as far as its answers tell.

    Attributes:
        family: "attention", "transformer", "ffn", "attention-behind-network", or "outside: …" with the kind.
        inside: whether a learner of this package can recover it.
        heads: number of heads, where it was found.
        reason: the verdict in one sentence.
        evidence: every test with its number and threshold, in the order asked.
        queries: sequences asked.
        answers: "scalar", "vector" or "all positions".
        outputs: length of a vector answer.
        causal: whether earlier positions ignore later ones; None where only the last position is answered.
        constant: whether the zero token gets a nonzero answer (b); None where not asked.
        bias: whether scores carry a term of the earlier token alone (c); None where not asked.
        residual: whether the last token is added before the network; None where that means nothing.
        floor: precision of the answers.
        scale: root mean square entry of tokens at which scores are of order one; None where not found.
        bill: what recovery would cost; None outside the family.
        signs: what the tests told beside that, for whoever chooses what to try next.
    """

    family: str
    inside: bool
    heads: int | None
    reason: str
    evidence: tuple[Fact, ...]
    queries: int
    answers: str
    outputs: int | None
    causal: bool | None
    constant: bool | None
    bias: bool | None
    residual: bool | None
    floor: Floor
    scale: float | None
    bill: Bill | None
    signs: tuple[Sign, ...] = ()


@dataclass
class Findings:
    """What the tests told beside their verdict; None where that was not asked.

    ``plane``: where the scores of one head were measured. Two were told before: ``not_one``, that one head was learned and does not
    explain fresh answers, and ``deep``, that a kink of one-token answers ends or changes on its way.
    """

    not_one: bool = False
    deep: bool = False
    heads: int | None = None
    extras: Extras = field(default_factory=Extras)
    residual: bool | None = None
    scale: float | None = None
    plane: Plane | None = None
    signs: tuple[Sign, ...] = ()


def diagnosis_of(case: Case, verdict: Verdict, found: Findings) -> Diagnosis:
    """What the tests of a diagnosis told, together."""
    return Diagnosis(
        family=verdict.family,
        inside=verdict.inside,
        heads=found.heads if verdict.inside else None,
        reason=verdict.reason,
        evidence=tuple(case.evidence),
        queries=case.asked,
        answers="all positions" if case.everywhere else ("scalar" if case.outputs is None else "vector"),
        outputs=case.outputs,
        causal=found.extras.causal,
        constant=found.extras.constant,
        bias=found.extras.bias,
        residual=found.residual if verdict.inside else None,
        floor=_in_units(case.floor, case.unit),
        scale=found.scale,
        bill=None,
        signs=tuple(dict.fromkeys([*verdict.signs, *found.signs])),
    )


def _in_units(floor: Floor, unit: float) -> Floor:
    """The floor in the target's own units."""
    if unit == 1.0:
        return floor
    return replace(floor, absolute=floor.absolute / unit, step=None if floor.step is None else floor.step / unit)
