"""Whether a change of weights is an update of low rank, as adapters make: fitted on most answers, judged on the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy

from unsoftmax.deployment.checkpoint import shown
from unsoftmax.deployment.scene import Part, Scene
from unsoftmax.deployment.settings import SETTINGS
from unsoftmax.models import Floats

if TYPE_CHECKING:
    import torch


def fitted_rank(scene: Scene, names: Sequence[str], rng: np.random.Generator) -> tuple[int | None, float]:
    """The lowest rank whose update of these matrices explains held-out answers, and the share explained; None if none does."""
    room = max(min(scene.checkpoint.tensors[name].shape) for name in names) // 4  # low means far below the matrix's own
    ranks = [rank for rank in SETTINGS.ranks if rank <= room]
    if not ranks:
        return None, 0.0
    best = _share(scene, names, ranks[-1], rng)
    if best <= SETTINGS.fits or 1.0 - best > SETTINGS.better * (1.0 - _share(scene, names, None, rng)):
        return None, 0.0
    for rank in ranks[:-1]:
        share = _share(scene, names, rank, rng)
        if share > SETTINGS.fits:
            return rank, share
    return ranks[-1], best


def _share(
    scene: Scene, names: Sequence[str], rank: int | None, rng: np.random.Generator, steps: int = 30, start: float = 1e-2
) -> float:
    """The share of held-out deviations that the best update of one rank explains.

    Args:
        scene: what is to be explained.
        names: the matrices that may move.
        rank: of the update of each; None: any.
        rng: breaks ties of the start.
        steps: of L-BFGS.
        start: size of the factors that it begins with, relative to the weights.
    """
    import torch

    calls = _calls(scene, steps)  # of which every fourth is held out
    held, used = scene.joined(calls[::4]), scene.joined([i for n, i in enumerate(calls) if n % 4])
    tensors, slopes = scene.checkpoint.tensors, _slopes(scene, names, used)
    scales = {name: float(tensors[name].pow(2).mean().sqrt()) for name in names}
    parts = [part for name in names for part in _begun(slopes[name], rank)]
    flat = np.concatenate([part.numpy().ravel() for part in parts])
    if rank is None:
        flat = np.zeros(len(flat))
    else:
        flat = flat / (np.sqrt(np.mean(flat**2)) or 1.0) * start + start / 100 * rng.normal(size=flat.size)
    total = sum(part.energy for part in used)

    def factors(numbers: Floats) -> list[torch.Tensor]:
        pieces = np.split(numbers, np.cumsum([part.numel() for part in parts])[:-1])
        return [torch.as_tensor(piece.reshape(part.shape)) for piece, part in zip(pieces, parts, strict=True)]

    def changed(made: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        each = len(made) // len(names)
        moved = [made[i] if each == 1 else made[i] @ made[i + 1] for i in range(0, len(made), each)]
        return {name: tensors[name] + scales[name] * update for name, update in zip(names, moved, strict=True)}

    def energy(numbers: Floats) -> tuple[float, Floats]:
        made = [factor.requires_grad_(True) for factor in factors(numbers)]
        left = _left(scene, used, changed(made)) / total
        slopes = torch.autograd.grad(left, made)
        return float(left.detach()), np.concatenate([slope.numpy().ravel() for slope in slopes])

    # SciPy's, not torch's: that one loads a compiler of several seconds
    found = scipy.optimize.minimize(
        energy, flat, jac=True, method="L-BFGS-B", options={"maxiter": steps, "maxcor": 20, "ftol": 0.0, "gtol": 1e-12}
    )
    with torch.no_grad():
        left = float(_left(scene, held, changed(factors(found.x))))
    return 1.0 - left / sum(part.energy for part in held)


def _begun(slope: torch.Tensor, rank: int | None) -> list[torch.Tensor]:
    """Where a fit begins: the matrix itself, or the two factors of its strongest directions."""
    import torch

    if rank is None:
        return [slope]
    left, spread, right = torch.linalg.svd(slope, full_matrices=False)
    root = spread[:rank].sqrt()
    return [left[:, :rank] * root, right[:rank] * root[:, None]]


def _calls(scene: Scene, steps: int, most: int = 32) -> list[int]:
    """The loudest calls; of a large checkpoint, which affords fewer tokens, those that tell most for their length."""
    weights = sum(int(tensor.numel()) for key, tensor in scene.checkpoint.tensors.items() if "embed" not in key)
    tokens = int(SETTINGS.fit_work / (6.0 * weights * steps))
    loud = scene.loudest[:most]
    return loud if sum(scene.batches[i].shape[0] * scene.batches[i].shape[1] for i in loud) <= tokens else scene.telling(tokens)


def _left(scene: Scene, parts: Sequence[Part], changed: dict[str, torch.Tensor]) -> torch.Tensor:
    """Energy of the deviations that this change leaves."""
    import torch

    left = torch.zeros((), dtype=torch.float64)
    for part in parts:
        tokens = torch.as_tensor(np.ascontiguousarray(part.sequences))
        moved = shown(
            scene.checkpoint.tensor(tokens, precision=scene.arithmetic, changed=changed, gradients=torch.is_grad_enabled()),
            scene.view,
        )
        left = left + (((moved - torch.as_tensor(part.answers)) / torch.as_tensor(part.noise)) ** 2).sum()
    return left


def _slopes(scene: Scene, names: Sequence[str], parts: Sequence[Part]) -> dict[str, torch.Tensor]:
    """The direction in which each matrix would have to move first."""
    import torch

    weights = {name: scene.checkpoint.tensors[name].clone().requires_grad_(True) for name in names}
    slopes = torch.autograd.grad(_left(scene, parts, weights), list(weights.values()))
    return {name: -slope for name, slope in zip(names, slopes, strict=True)}
