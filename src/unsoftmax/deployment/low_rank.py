"""Whether a change of weights is an update of low rank, as adapters make: fitted on most answers, judged on the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from unsoftmax.deployment.checkpoint import shown
from unsoftmax.deployment.scene import Part, Scene

if TYPE_CHECKING:
    import torch

RANKS = (1, 2, 4, 8)
FITS = 0.95  # share of held-out deviations that an update of low rank must explain
CALLS = 32  # that the fit uses
STEPS = 30  # of L-BFGS
START = 1e-2  # size of the factors that it starts from, relative to the weights
ROOM = 4  # an update of rank r must be this much smaller than the matrix


def fitted_rank(scene: Scene, names: Sequence[str], rng: np.random.Generator) -> tuple[int | None, float]:
    """The lowest rank whose update of these matrices explains held-out answers, and the share explained; None if none does."""
    room = max(min(scene.checkpoint.tensors[name].shape) for name in names) // ROOM
    ranks = [rank for rank in RANKS if rank <= room]
    if not ranks or _share(scene, names, ranks[-1], rng) <= FITS:
        return None, 0.0
    for rank in ranks:
        share = _share(scene, names, rank, rng)
        if share > FITS or rank == ranks[-1]:
            return rank, share
    raise AssertionError("the last rank was returned")


def _share(scene: Scene, names: Sequence[str], rank: int, rng: np.random.Generator) -> float:
    import torch

    loud = scene.loudest[:CALLS]
    held, used = scene.joined(loud[::4]), scene.joined([i for n, i in enumerate(loud) if n % 4])
    tensors = scene.checkpoint.tensors
    slopes = _slopes(scene, names, used)
    parts = []
    for name in names:
        left, spread, right = torch.linalg.svd(slopes[name], full_matrices=False)
        root = spread[:rank].sqrt()
        parts += [left[:, :rank] * root, right[:rank] * root[:, None]]
    size = float(np.sqrt(sum(float(p.pow(2).sum()) for p in parts) / sum(p.numel() for p in parts))) or 1.0
    start = [(p / size * START + START / 100 * torch.as_tensor(rng.normal(size=tuple(p.shape)))).contiguous() for p in parts]
    for factor in start:
        factor.requires_grad_(True)
    scales = {name: float(tensors[name].pow(2).mean().sqrt()) for name in names}

    def changed() -> dict[str, torch.Tensor]:
        return {name: tensors[name] + scales[name] * start[2 * i] @ start[2 * i + 1] for i, name in enumerate(names)}

    total = sum(part.energy for part in used)
    optimiser = torch.optim.LBFGS(start, max_iter=STEPS, history_size=20, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def closure() -> float:
        optimiser.zero_grad()
        left = _left(scene, used, changed()) / total
        left.backward()  # type: ignore[no-untyped-call]
        return float(left.detach())

    optimiser.step(closure)  # type: ignore[no-untyped-call]  # torch has no types there
    with torch.no_grad():
        left = float(_left(scene, held, changed()))
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
