"""Whether a change of weights is an update of low rank, as adapters make: fitted on most answers, judged on the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize

from unsoftmax.deployment.checkpoint import shown
from unsoftmax.deployment.scene import Part, Scene
from unsoftmax.models import Floats

if TYPE_CHECKING:
    import torch

RANKS = (1, 2, 4, 8)
FITS = 0.95  # share of held-out deviations that an update of low rank must explain


def fitted_rank(scene: Scene, names: Sequence[str], rng: np.random.Generator) -> tuple[int | None, float]:
    """The lowest rank whose update of these matrices explains held-out answers, and the share explained; None if none does."""
    room = max(min(scene.checkpoint.tensors[name].shape) for name in names) // 4  # low means far below the matrix's own
    ranks = [rank for rank in RANKS if rank <= room]
    if not ranks or _share(scene, names, ranks[-1], rng) <= FITS:
        return None, 0.0
    for rank in ranks:
        share = _share(scene, names, rank, rng)
        if share > FITS or rank == ranks[-1]:
            return rank, share
    raise AssertionError("the last rank was returned")


def _share(
    scene: Scene, names: Sequence[str], rank: int, rng: np.random.Generator, calls: int = 32, steps: int = 30, start: float = 1e-2
) -> float:
    """The share of held-out deviations that the best update of one rank explains.

    Args:
        scene: what is to be explained.
        names: the matrices that may move.
        rank: of the update of each.
        rng: breaks ties of the start.
        calls: the loudest, of which every fourth is held out.
        steps: of L-BFGS.
        start: size of the factors that it begins with, relative to the weights.
    """
    import torch

    loud = scene.loudest[:calls]
    held, used = scene.joined(loud[::4]), scene.joined([i for n, i in enumerate(loud) if n % 4])
    tensors, slopes = scene.checkpoint.tensors, _slopes(scene, names, used)
    parts = []
    for name in names:
        left, spread, right = torch.linalg.svd(slopes[name], full_matrices=False)
        root = spread[:rank].sqrt()
        parts += [left[:, :rank] * root, right[:rank] * root[:, None]]
    flat = np.concatenate([part.numpy().ravel() for part in parts])
    flat = flat / (np.sqrt(np.mean(flat**2)) or 1.0) * start + start / 100 * rng.normal(size=flat.size)
    scales = {name: float(tensors[name].pow(2).mean().sqrt()) for name in names}
    total = sum(part.energy for part in used)

    def factors(numbers: Floats) -> list[torch.Tensor]:
        pieces = np.split(numbers, np.cumsum([part.numel() for part in parts])[:-1])
        return [torch.as_tensor(piece.reshape(part.shape)) for piece, part in zip(pieces, parts, strict=True)]

    def changed(made: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensors[name] + scales[name] * made[2 * i] @ made[2 * i + 1] for i, name in enumerate(names)}

    def energy(numbers: Floats) -> tuple[float, Floats]:
        made = [factor.requires_grad_(True) for factor in factors(numbers)]
        left = _left(scene, used, changed(made)) / total
        slopes = torch.autograd.grad(left, made)
        return float(left.detach()), np.concatenate([slope.numpy().ravel() for slope in slopes])

    # SciPy's, not torch's: that one loads a compiler of several seconds
    found = minimize(
        energy, flat, jac=True, method="L-BFGS-B", options={"maxiter": steps, "maxcor": 20, "ftol": 0.0, "gtol": 1e-12}
    )
    with torch.no_grad():
        left = float(_left(scene, held, changed(factors(found.x))))
    return 1.0 - left / sum(part.energy for part in held)


def _left(scene: Scene, parts: Sequence[Part], changed: dict[str, torch.Tensor]) -> torch.Tensor:
    """Energy of the deviations that this change leaves."""
    import torch

    left = torch.zeros((), dtype=torch.float64)
    for part in parts:
        tokens = torch.as_tensor(np.ascontiguousarray(part.sequences))
        moved = shown(scene.checkpoint.tensor(tokens, changed=changed, gradients=torch.is_grad_enabled()), scene.view)
        left = left + (((moved - torch.as_tensor(part.answers)) / torch.as_tensor(part.noise)) ** 2).sum()
    return left


def _slopes(scene: Scene, names: Sequence[str], parts: Sequence[Part]) -> dict[str, torch.Tensor]:
    """The direction in which each matrix would have to move first."""
    import torch

    weights = {name: scene.checkpoint.tensors[name].clone().requires_grad_(True) for name in names}
    slopes = torch.autograd.grad(_left(scene, parts, weights), list(weights.values()))
    return {name: -slope for name, slope in zip(names, slopes, strict=True)}
