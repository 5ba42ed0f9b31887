"""Changes that only a rule describes (weights set to zero at random, other weights): our own copy is changed by it, several times.

Such a change cannot be reproduced, but what it does to answers can be rehearsed, however large it is: nothing here is linear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unsoftmax.deployment.scene import Part, Scene
from unsoftmax.deployment.settings import SETTINGS
from unsoftmax.models import Floats


def dropped_share(scene: Scene, names: Sequence[str], rng: np.random.Generator) -> float | None:
    """The share of these matrices' weights that was set to zero at random; None where something else explains the answers better.

    The share is the one whose rehearsals deviate as much as the endpoint. Zeros also shrink the weights by that share, on the
    average, which other changes of this size do not: how far answers moved the way that shrunk weights move them is compared with
    weights set to zero at random and with a random change of the same size.
    """
    if not names:
        return None
    parts = _some(scene)
    tensors = scene.checkpoint.tensors
    seen = [part.answers - part.expected for part in parts]
    own = [np.sum(part**2, axis=1, keepdims=True) + np.finfo(float).tiny for part in seen]  # each sequence counts alike

    def moved(changed: Mapping[str, Any]) -> list[Floats]:
        run = (scene.checkpoint(part.sequences, precision=scene.arithmetic, changed=changed, view=scene.view) for part in parts)
        return [answers - part.expected for answers, part in zip(run, parts, strict=True)]

    def zeros(share: float) -> list[Floats]:
        return moved({name: tensors[name] * _torch(rng.random(tuple(tensors[name].shape)) >= share) for name in names})

    def other(share: float) -> list[Floats]:
        size = {name: share**0.5 * scene.checkpoint.size_of(name) for name in names}
        return moved({name: tensors[name] + size[name] * _torch(rng.normal(size=tuple(tensors[name].shape))) for name in names})

    def louder(share: float) -> float:
        energies = [np.sum(part**2, axis=1, keepdims=True) / energy for part, energy in zip(zeros(share), own, strict=True)]
        return float(np.mean(np.log(np.concatenate(energies) + np.finfo(float).tiny)))

    nats = np.maximum.accumulate([louder(share) for share in SETTINGS.shares])
    if not nats[0] < 0.0 < nats[-1]:
        return None
    share = float(np.exp(np.interp(0.0, nats, np.log(SETTINGS.shares))))
    shrunk = moved({name: tensors[name] * (1.0 - share) for name in names})

    def along(deviations: Sequence[Floats]) -> float:
        return sum(float(np.sum(one * other / energy)) for one, other, energy in zip(deviations, shrunk, own, strict=True))

    rehearsed, random = ([along(rule(share)) for _ in range(SETTINGS.draws)] for rule in (zeros, other))
    there, elsewhere, here = float(np.mean(rehearsed)), float(np.mean(random)), along(seen)
    spread = (np.var(rehearsed, ddof=1) + np.var(random, ddof=1)) / 2
    better = ((here - elsewhere) ** 2 - (here - there) ** 2) / (2 * spread)  # nats
    too_far = 2 * there - elsewhere  # as far beyond zeros as zeros are beyond random changes: weights that shrank, say
    return share if better > SETTINGS.odds and here < too_far else None


def related(scene: Scene, rng: np.random.Generator) -> bool:
    """Whether the checkpoint foretells more of the answers than the same numbers do in another order."""
    parts = _some(scene)
    tensors = scene.checkpoint.tensors
    seen = [part.answers for part in parts]
    own = _common([part.expected for part in parts], seen)
    if own > SETTINGS.in_common:
        return True

    def shuffled() -> float:
        changed = {
            name: _torch(rng.permutation(tensors[name].numpy().ravel())).reshape(tensors[name].shape)
            for name in scene.names
            if tensors[name].ndim == 2
        }
        run = (scene.checkpoint(p.sequences, precision=scene.arithmetic, changed=changed, view=scene.view) for p in parts)
        return _common(run, seen)

    others = [shuffled() for _ in range(SETTINGS.draws)]
    return bool(own > np.mean(others) + SETTINGS.unlike * np.std(others, ddof=1))


def _common(one: Any, other: Sequence[Floats]) -> float:
    """Correlation of answers, each length about its own mean."""
    pairs = [(a - a.mean(axis=0), b - b.mean(axis=0)) for a, b in zip(one, other, strict=True)]
    left, right = (np.concatenate([pair[i].ravel() for pair in pairs]) for i in (0, 1))
    return float(left @ right) / (float(np.linalg.norm(left) * np.linalg.norm(right)) or 1.0)


def _some(scene: Scene) -> list[Part]:
    """Calls of all kinds, a few of each, without their twins; as many as a large checkpoint affords."""
    weights = sum(int(tensor.numel()) for key, tensor in scene.checkpoint.tensors.items() if "embed" not in key)
    tokens = SETTINGS.fit_work / (2.0 * weights * (2 * SETTINGS.draws + len(SETTINGS.shares)))
    calls = np.random.default_rng(0).permutation(len(scene.batches))  # kinds come in turn, which steps would fall into
    size = np.cumsum([scene.batches[i].shape[0] // 2 * scene.batches[i].shape[1] for i in calls])
    kept = calls[: max(1, min(int(np.sum(size <= tokens)), SETTINGS.rehearsed))]
    return [Part(part.sequences[0::2], part.answers[0::2], part.expected[0::2], part.noise[0::2]) for part in scene.joined(kept)]


def _torch(values: Any) -> Any:
    import torch

    return torch.as_tensor(values)
