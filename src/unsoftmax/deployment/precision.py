"""Which arithmetic an endpoint has, by the rounding of its answers alone, and what the checkpoint says in that arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.deployment.coherence import Pairs, paired
from unsoftmax.deployment.exam import Exam
from unsoftmax.models import Floats

HALF = ("float16", "bfloat16")
FACTOR = (
    24.0  # rounding that is farther from that of any arithmetic is called coarse; decimals of a log-probability cost a factor 5
)
HIDDEN = 300.0  # energy of a coherent deviation over that of rounding: twins differ by one percent, so that no more can be told
FINE = 2.0**-12  # of float32 rounding: below it, the arithmetic is float64


@dataclass(frozen=True, slots=True, eq=False)
class Precision:
    """The arithmetic of an endpoint.

    Attributes:
        name: ``"float64"``, ``"float32"``, ``"float16"``, ``"bfloat16"``; ``"coarse"`` for rounding or noise of another kind,
            ``"hidden"`` where a large difference hides it.
        weights: the precision that the checkpoint's weights have in it.
        reference: the checkpoint's answers with its weights in that precision, free of rounding, call by call.
        answers: the endpoint's.
        honest: deviations that this machine's own arithmetic of that precision has, taken apart.
        notes: what to say about it.
        coarser: rounding is coarser than that of the arithmetic that was asked for.
    """

    name: str
    weights: str
    reference: list[Floats]
    answers: list[Floats]
    honest: Pairs
    notes: list[str] = field(default_factory=list)
    coarser: bool = False


def measured_precision(exam: Exam, answers: list[Floats], *, wish: str | None = None) -> Precision:
    """Compare the rounding of answers, taken from twins, with that of each arithmetic on this machine."""
    checkpoint, batches, view, noise, reference, local = (
        exam.checkpoint,
        exam.batches,
        exam.view,
        exam.noise,
        exam.reference,
        exam.local,
    )
    pairs = paired([a - b for a, b in zip(answers, reference, strict=True)], noise)
    rough = pairs.noise
    single = paired([a - b for a, b in zip(local, reference, strict=True)], noise)
    if wish is None and float(np.median(pairs.product)) > HIDDEN * rough**2:
        note = "The difference is so large that it hides the endpoint's own rounding; its arithmetic is not known."
        return Precision("hidden", checkpoint.stored, reference, answers, single, [note])
    if wish in (None, "float32", "float64") and (rough < np.sqrt(FACTOR) * single.noise or wish is not None):
        name = wish or ("float64" if rough < FINE * single.noise else "float32")
        return Precision(name, checkpoint.stored, reference, answers, single, coarser=rough > FACTOR * single.noise)
    found: dict[str, tuple[list[Floats], Pairs]] = {}
    for half in HALF if wish is None else (wish,):
        rounded = {key: _rounded(tensor, half) for key, tensor in checkpoint.tensors.items()}
        exact = checkpoint.each(batches, changed=rounded, view=view)
        coarse = checkpoint.each(batches, precision=half, view=view)
        if all(np.isfinite(part).all() for part in coarse):
            found[half] = exact, paired([a - b for a, b in zip(coarse, exact, strict=True)], noise)
    levels = {"float32": single.noise, **{half: own.noise for half, (_, own) in found.items()}}
    nearest = min(levels, key=lambda name: abs(np.log(rough / levels[name])))
    apart = max(rough / levels[nearest], levels[nearest] / rough)
    if nearest in found and (apart <= FACTOR or wish is not None):
        exact, own = found[nearest]
        notes = [
            f"The endpoint computes in {nearest}; a change of weights below that rounding is seen only in the mean of many answers."
        ]
        if checkpoint.stored in ("float32", "float64"):
            notes.append(
                f"The checkpoint is stored in {checkpoint.stored}: the endpoint rounds its weights to {nearest} too, which is not "
                "counted as a difference. Ask for --precision float32 to have it count."
            )
        return Precision(nearest, nearest, exact, answers, own, notes, coarser=wish is not None and rough > FACTOR * own.noise)
    if apart <= FACTOR:
        return Precision("float32", checkpoint.stored, reference, answers, single)
    note = f"Answers are rounded or noisy in a way of their own, {rough / single.noise:.2g} times as coarse as float32."
    return Precision("coarse", checkpoint.stored, reference, answers, single, [note])


def _rounded(tensor: object, precision: str) -> object:
    import torch

    assert isinstance(tensor, torch.Tensor)
    return tensor.to(getattr(torch, precision)).to(torch.float64)
