"""Several versions behind one endpoint: found by answers that stand apart, proved by asking the same question again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from unsoftmax.deployment.coherence import Pairs
from unsoftmax.deployment.results import Version
from unsoftmax.models import Floats

APART = 4.0  # two answers to one question differ by this many times what rounding explains: measured, honest answers stay below 2

Ask = Callable[[Floats], Floats]


def suspects(pairs: Pairs, honest: Pairs, most: int = 3) -> list[int]:
    """Sequences whose deviations stand apart from the others', beyond what the spread of honest ones does; the worst first."""
    usual = float(np.median(pairs.energy))
    spread = max(float(np.max(honest.energy) / np.median(honest.energy)), 1.0)
    bound = APART**2 * spread
    away = np.maximum(pairs.energy / usual, usual / np.maximum(pairs.energy, np.finfo(float).tiny))
    found = np.flatnonzero(away > bound)
    return [int(i) for i in found[np.argsort(-away[found])][:most]]


def contradicts(answers: Floats, noise: float) -> bool:
    """Whether answers to one question ``(times, outputs)`` differ from the first by more than rounding of this size explains."""
    apart = np.sqrt(np.mean((answers - answers[0]) ** 2, axis=1))
    return bool(np.any(apart > APART * np.sqrt(2.0) * noise))


def versions(answers: Floats, expected: Floats, noise: float, tolerance: float) -> list[Version]:
    """Group answers to one question: answers closer than rounding explains are of one version.

    Args:
        answers: ``(times, outputs)``.
        expected: what the checkpoint answers.
        noise: rms rounding of an answer.
        tolerance: rms distance up to which a version is the checkpoint's.
    """
    left = list(range(len(answers)))
    found = []
    while left:
        centre = answers[left[0]]
        near = [i for i in left if np.sqrt(np.mean((answers[i] - centre) ** 2)) <= APART * np.sqrt(2.0) * noise]
        mean = answers[near].mean(axis=0)
        off = float(np.sqrt(np.mean((mean - expected) ** 2)))
        found.append(Version(share=len(near) / len(answers), matches=off <= tolerance))
        left = [i for i in left if i not in near]
    return sorted(found, key=lambda version: -version.share)
