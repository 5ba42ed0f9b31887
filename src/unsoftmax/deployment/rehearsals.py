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

SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7)  # of weights set to zero, between which the share is found
DRAWS = 8  # of each rule


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
    seen = _apart([part.answers for part in parts], parts)
    own = np.mean(seen**2, axis=1, keepdims=True) + np.finfo(float).tiny

    def moved(changed: Mapping[str, Any]) -> Floats:
        run = (scene.checkpoint(part.sequences, precision=scene.arithmetic, changed=changed, view=scene.view) for part in parts)
        return _apart(run, parts)

    def zeros(share: float) -> Floats:
        return moved({name: tensors[name] * _torch(rng.random(tuple(tensors[name].shape)) >= share) for name in names})

    def other(share: float) -> Floats:
        size = {name: share**0.5 * scene.checkpoint.size_of(name) for name in names}
        return moved({name: tensors[name] + size[name] * _torch(rng.normal(size=tuple(tensors[name].shape))) for name in names})

    louder = np.asarray([float(np.mean(np.log(np.mean(zeros(share) ** 2, axis=1) / own[:, 0]))) for share in SHARES])
    if not louder[0] < 0.0 < louder[-1]:
        return None
    share = float(np.exp(np.interp(0.0, np.maximum.accumulate(louder), np.log(SHARES))))
    shrunk = moved({name: tensors[name] * (1.0 - share) for name in names}) / own
    rehearsed, random = ([float(np.sum(shrunk * rule(share))) for _ in range(DRAWS)] for rule in (zeros, other))
    there, elsewhere, here = float(np.mean(rehearsed)), float(np.mean(random)), float(np.sum(shrunk * seen))
    spread = (np.var(rehearsed, ddof=1) + np.var(random, ddof=1)) / 2
    nats = ((here - elsewhere) ** 2 - (here - there) ** 2) / (2 * spread)
    too_far = 2 * there - elsewhere  # as far beyond zeros as zeros are beyond random changes: weights that shrank, say
    return share if nats > SETTINGS.odds and here < too_far else None


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

    others = [shuffled() for _ in range(DRAWS)]
    return bool(own > np.mean(others) + SETTINGS.unlike * np.std(others, ddof=1))


def _common(one: Any, other: Sequence[Floats]) -> float:
    """Correlation of answers, each length about its own mean."""
    pairs = [(a - a.mean(axis=0), b - b.mean(axis=0)) for a, b in zip(one, other, strict=True)]
    left, right = (np.concatenate([pair[i].ravel() for pair in pairs]) for i in (0, 1))
    return float(left @ right) / (float(np.linalg.norm(left) * np.linalg.norm(right)) or 1.0)


def _some(scene: Scene) -> list[Part]:
    """Calls of all kinds, a few of each, without their twins; as many as a large checkpoint affords."""
    weights = sum(int(tensor.numel()) for key, tensor in scene.checkpoint.tensors.items() if "embed" not in key)
    tokens = SETTINGS.fit_work / (2.0 * weights * (2 * DRAWS + len(SHARES)))
    calls = np.random.default_rng(0).permutation(len(scene.batches))  # kinds come in turn, which steps would fall into
    size = np.cumsum([scene.batches[i].shape[0] // 2 * scene.batches[i].shape[1] for i in calls])
    kept = calls[: max(1, min(int(np.sum(size <= tokens)), SETTINGS.rehearsed))]
    return [Part(part.sequences[0::2], part.answers[0::2], part.expected[0::2], part.noise[0::2]) for part in scene.joined(kept)]


def _apart(answers: Any, parts: Sequence[Part]) -> Floats:
    """Deviations ``(sequences, outputs)`` from what the checkpoint answers."""
    return np.concatenate([found - part.expected for found, part in zip(answers, parts, strict=True)])


def _torch(values: Any) -> Any:
    import torch

    return torch.as_tensor(values)
