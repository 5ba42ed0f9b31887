"""The questions of a verification, with all that the checkpoint says about them; made before anything is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unsoftmax.deployment.checkpoint import Checkpoint, View
from unsoftmax.deployment.probes import PAIRS, Probe, affordable, chosen_calls, drawn_calls, shown_by
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Exam:
    """Questions, call by call, and what the checkpoint says.

    Attributes:
        checkpoint: the weights.
        view: what the endpoint lets see of the answers.
        batches: the calls, sequences and twins in turn.
        reference: the checkpoint's answers in float64.
        local: the same in float32.
        noise: rms rounding of each answer in float32.
        names: tensors that the answers depend on.
        strength: how a relative change of each tensor shows in each pair, in units of that rounding ``(tensors, pairs)``.
        seed: of the questions.
    """

    checkpoint: Checkpoint
    view: View | None
    batches: list[Floats]
    reference: list[Floats]
    local: list[Floats]
    noise: list[Floats]
    names: list[str]
    strength: Floats
    seed: int


def prepared(
    checkpoint: Checkpoint,
    view: View | None,
    *,
    queries: int,
    max_length: int | None = None,
    max_norm: float | None = None,
    seed: int,
) -> Exam:
    """Draw a pool of calls, and keep those that show every tensor best."""
    rng = np.random.default_rng(seed)
    wanted = queries // (2 * PAIRS)
    pool = drawn_calls(checkpoint, max(wanted, affordable(checkpoint, wanted)), rng, max_length=max_length, max_norm=max_norm)
    whole = exam_on(checkpoint, view, [probe.sequences for probe in pool], seed=seed, rng=rng)
    responses = whole.strength.reshape(len(whole.names), len(pool), PAIRS)
    kept = chosen_calls(pool, np.sqrt(np.mean(responses**2, axis=2)), wanted)
    return Exam(
        checkpoint=checkpoint,
        view=view,
        batches=[whole.batches[i] for i in kept],
        reference=[whole.reference[i] for i in kept],
        local=[whole.local[i] for i in kept],
        noise=[whole.noise[i] for i in kept],
        names=whole.names,
        strength=responses[:, kept].reshape(len(whole.names), -1),
        seed=seed,
    )


def exam_on(
    checkpoint: Checkpoint, view: View | None, batches: Sequence[Floats], *, seed: int, rng: np.random.Generator | None = None
) -> Exam:
    """An exam on given calls, all of them kept: for recorded answers."""
    reference = checkpoint.each(batches, view=view)
    local = checkpoint.each(batches, precision="float32", view=view)
    noise = [rounding(a - b, b) for a, b in zip(local, reference, strict=True)]
    probes = [Probe(batch, natural=True) for batch in batches]
    names, strength = shown_by(checkpoint, probes, noise, view, rng or np.random.default_rng(seed))
    return Exam(
        checkpoint=checkpoint,
        view=view,
        batches=list(batches),
        reference=reference,
        local=local,
        noise=noise,
        names=names,
        strength=strength.reshape(len(names), -1),
        seed=seed,
    )


def rounding(deviation: Floats, answers: Floats) -> Floats:
    """Rms rounding of each answer, the same for twins, never below the resolution of float32 numbers of that size."""
    least = 2.0**-25 * np.sqrt(np.mean(answers**2, axis=1)) + np.finfo(float).tiny
    own = np.mean(deviation**2, axis=1)
    twins = np.sqrt((own[0::2] + own[1::2]) / 2)
    return np.asarray(np.maximum(np.repeat(twins, 2), least))
