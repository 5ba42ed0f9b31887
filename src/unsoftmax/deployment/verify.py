"""Hold an endpoint against a checkpoint: ask, take the deviations apart, judge, and say what changed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from unsoftmax.deployment.asking import Desk, opened
from unsoftmax.deployment.checkpoint import Checkpoint
from unsoftmax.deployment.coherence import Pairs, coherence, paired
from unsoftmax.deployment.exam import Exam, prepared
from unsoftmax.deployment.explain import explained
from unsoftmax.deployment.precision import Precision, measured_precision
from unsoftmax.deployment.probes import PAIRS
from unsoftmax.deployment.replicas import APART, contradicts, suspects, versions
from unsoftmax.deployment.results import Change, Deployment, Verdict, Version
from unsoftmax.deployment.scene import Scene
from unsoftmax.deployment.sensitivity import smallest_changes
from unsoftmax.errors import check_positive
from unsoftmax.models import Floats

QUERIES = 960  # sequences, twins included: 120 requests, so that a replica that takes 1 in 20 is met with 99.8%


def verify_deployment(
    endpoint: Any,
    checkpoint: Checkpoint,
    *,
    queries: int = QUERIES,
    precision: str | None = None,
    max_length: int | None = None,
    max_norm: float | None = None,
    seed: int | None = None,
    explain: bool = True,
) -> Deployment:
    """Whether an endpoint answers as a checkpoint does; if not, what changed and where.

    Price: ``queries`` sequences in calls of eight, and up to 132 single ones where answers contradict each other.

    Args:
        endpoint: an oracle, a torch module, or a callable on arrays.
        checkpoint: the weights, which are run here.
        queries: sequences to ask.
        precision: the arithmetic that the endpoint must have (``"float32"`` …); None takes the one that its rounding shows.
        max_length: send no longer sequences.
        max_norm: send no longer tokens.
        seed: of the questions; None draws one from the operating system.
        explain: look for what changed where it differs.

    Raises:
        ValueError: another width or another number of answers than the checkpoint's; the message names both.
    """
    check_positive(max_norm=max_norm)
    if queries < 2 * PAIRS:
        raise ValueError(f"queries is {queries}; at least {2 * PAIRS} are needed.")
    seed = secrets.randbits(63) if seed is None else seed
    desk = opened(endpoint, checkpoint)
    exam = prepared(checkpoint, desk.view, queries=queries, max_length=max_length, max_norm=max_norm, seed=seed)
    return judged(desk, exam, precision=precision, explain=explain)


def judged(desk: Desk, exam: Exam, *, precision: str | None = None, explain: bool = True) -> Deployment:
    """Ask the questions of an exam and say what the answers show."""
    checkpoint, batches, noise, strength = exam.checkpoint, exam.batches, exam.noise, exam.strength
    answers = [desk.ask(batch) for batch in batches]
    setting = measured_precision(exam, answers, wish=precision)
    deviations = [a - b for a, b in zip(answers, setting.reference, strict=True)]
    pairs = paired(deviations, noise)
    weightings = np.concatenate([np.ones((1, strength.shape[1])), strength**2 + 1e-12 * np.max(strength**2)])
    own = coherence(setting.honest, weightings)
    found = coherence(pairs, weightings, own.share)
    several = _roll_call(desk, batches, setting, pairs, noise)
    spread = float(np.sqrt(np.mean([np.mean(np.var(y, axis=0)) for y in answers]))) or 1.0
    differs = found.differs or setting.coarser
    verdict = Verdict.REPLICAS_DIFFER if several else Verdict.DIFFERS if differs else Verdict.MATCHES
    change = None
    if setting.coarser:
        words = f"answers are rounded more coarsely than {setting.name} arithmetic does, which was asked for"
        change = Change(kind="lower precision", where=["every layer"], words=words)
    elif verdict is Verdict.DIFFERS and explain:
        scene = Scene(checkpoint, batches, setting, noise, weightings, own.share, exam.view, exam.names, strength)
        change = explained(scene, np.random.default_rng(exam.seed))
    smallest, weakest = smallest_changes(checkpoint, exam.names, strength, found, pairs)
    typical = float(np.sqrt(np.mean([np.mean(level**2) for level in noise])))
    return Deployment(
        verdict=verdict,
        precision=setting.name,
        noise=pairs.noise * typical / spread,
        deviation=_rms(deviations) / spread,
        coherent=pairs.size * typical / spread if verdict is Verdict.DIFFERS else 0.0,
        excess=float(found.excess.max()),
        queries=desk.queries,
        calls=desk.calls,
        smallest=smallest,
        weakest=weakest,
        unseen=sorted(set(checkpoint.tensors) - set(exam.names)),
        change=change,
        versions=several,
        histogram=_histogram(pairs),
        threshold=pairs.noise * APART,
        checkpoint=checkpoint.name,
        endpoint=desk.name,
        width=checkpoint.width,
        outputs=desk.outputs,
        seed=exam.seed,
        notes=setting.notes,
    )


def _roll_call(desk: Desk, batches: Sequence[Floats], setting: Precision, pairs: Pairs, noise: Sequence[Floats]) -> list[Version]:
    """The versions behind the endpoint, where one question is answered in several ways; else none."""
    for suspect in suspects(pairs, setting.honest):
        call, place = divmod(suspect, 2 * PAIRS)
        question = batches[call][place : place + 1]
        level = float(noise[call][place]) * pairs.noise
        first = setting.answers[call][place : place + 1]
        again = np.concatenate([first, *(desk.ask(question) for _ in range(4))])
        if not contradicts(again, level):
            continue
        roll = np.concatenate([again, *(desk.ask(question) for _ in range(120))])  # a share of 1/20 is missed in 0.002
        expected = setting.reference[call][place]
        return versions(roll, expected, level, tolerance=APART * level)
    return []


def _rms(parts: list[Floats]) -> float:
    return float(np.sqrt(sum(float(np.sum(part**2)) for part in parts) / sum(part.size for part in parts)))


def _histogram(pairs: Pairs, most: int = 20) -> list[tuple[float, int]]:
    """Counts of single answers by their deviation in float32 roundings: bins of half powers of two, or wider ones."""
    sizes = np.log2(np.maximum(np.sqrt(pairs.energy), 2.0**-10))
    width = 0.5
    while np.ptp(np.floor(sizes / width)) >= most:
        width *= 2
    bins = np.floor(sizes / width).astype(int)
    return [(float(2.0 ** (width * place)), int(np.sum(bins == place))) for place in range(int(bins.min()), int(bins.max()) + 1)]
