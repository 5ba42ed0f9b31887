"""Which tensors changed: deviations explained by the checkpoint's own Jacobian, group by group.

Under the hypothesis "these tensors changed by a random relative amount", deviations are Gaussian with the covariance
``t K + S``: K sums the inner products of Jacobian rows over the group, S is rounding and what is not linear. The hypothesis with
the highest likelihood over t wins; the t of the winner is the size of the change. This is group-sparse regression with the weights
integrated out, so that it needs far fewer answers than a tensor has entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unsoftmax.deployment.checkpoint import Checkpoint, View, by_length
from unsoftmax.deployment.jacobian import jacobian_rows
from unsoftmax.deployment.settings import SETTINGS
from unsoftmax.models import Floats

ATTENTION = ("q_proj", "k_proj", "v_proj", "query", "key", "value", "c_attn", "in_proj")


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that changed together: a tensor, a layer, a role in all layers, or everything."""

    name: str
    tensors: tuple[str, ...]
    layer: str | None


@dataclass(frozen=True, slots=True)
class Located:
    """The likeliest group, the relative rms change of its tensors, and how many nats each group has."""

    group: Group
    size: float
    evidence: dict[str, float]

    @property
    def others(self) -> list[str]:
        """Groups that explain the deviations nearly as well."""
        best = self.evidence[self.group.name]
        return [name for name, nats in self.evidence.items() if name != self.group.name and best - nats < SETTINGS.likely]


def groups(checkpoint: Checkpoint, names: Sequence[str]) -> list[Group]:
    """Every tensor, layer and role, and all of them."""
    layers: dict[str, list[str]] = {}
    roles: dict[str, list[str]] = {}
    for name in names:
        layer = checkpoint.layer_of(name)
        layers.setdefault(layer, []).append(name)
        if layer.startswith("layer "):
            roles.setdefault(name.split(f".{layer.removeprefix('layer ')}.", 1)[-1], []).append(name)
    found = [Group(name, (name,), checkpoint.layer_of(name)) for name in names]
    found += [Group(layer, tuple(held), layer) for layer, held in layers.items() if len(held) > 1]
    found += [Group(f"{role} of every layer", tuple(held), None) for role, held in roles.items() if len(held) > 1]
    scores = tuple(name for name in names if any(f".{word}." in f".{name}" for word in ATTENTION))
    if len(scores) > 1:
        found.append(Group("queries, keys and values of every layer", scores, None))
    matrices = tuple(name for name in names if checkpoint.tensors[name].ndim == 2)
    found.append(Group("every layer", matrices or tuple(names), None))
    return found


def located(
    checkpoint: Checkpoint,
    names: Sequence[str],
    batches: Sequence[Floats],
    deviations: Sequence[Floats],
    levels: Sequence[Floats],
    view: View | None,
    rng: np.random.Generator,
    sketch: int = 64,
    most: int = 2**26,
) -> Located:
    """The group of tensors that explains the deviations best.

    Args:
        checkpoint: the weights.
        names: tensors that show in the answers; no other can be the one.
        batches: sequences ``(batch, length, width)``.
        deviations: ``(batch, outputs)`` each.
        levels: rms rounding of an answer ``(batch,)`` each.
        view: what the endpoint lets see.
        rng: for the directions of the answers.
        sketch: random directions for tensors whose Jacobian has no factors,
        most: and is larger than that many numbers.
    """
    kept = telling(batches, deviations, levels, tokens=SETTINGS.tokens)
    places = by_length([batches[i] for i in kept]).values()
    batches, deviations, levels = (
        [np.concatenate([part[kept[n]] for n in held]) for held in places] for part in (batches, deviations, levels)
    )
    directions = [rng.normal(size=part.shape) / np.sqrt(part.shape[1]) for part in deviations]
    rows = jacobian_rows(checkpoint, batches, directions, view, sketch=sketch, most=most, precision="float32")
    measured = np.concatenate([np.sum(a * b, axis=1) for a, b in zip(deviations, directions, strict=True)])
    own = np.concatenate([np.sqrt(np.mean(part**2, axis=1)) for part in deviations])
    scale = np.sqrt(np.concatenate(levels) ** 2 + (SETTINGS.not_linear * own) ** 2)
    kernels: dict[str, Floats] = {}
    for name in [name for name in names if name in rows]:
        kernels[name] = rows[name].kernel() * checkpoint.size_of(name) ** 2 / np.outer(scale, scale)
    return likeliest(groups(checkpoint, list(kernels)), kernels, measured / scale)


def likeliest(hypotheses: Sequence[Group], kernels: Mapping[str, Floats], measured: Floats) -> Located:
    """Compare hypotheses by their likelihood at the best size of change; ``measured`` has unit rounding."""
    evidence, sizes = {}, {}
    for group in hypotheses:
        total = sum((kernels[name] for name in group.tensors), np.zeros_like(next(iter(kernels.values()))))
        values, vectors = np.linalg.eigh(total)
        values = np.maximum(values, 0.0)
        squares = (vectors.T @ measured) ** 2
        top = float(values.max()) or 1.0
        trials = np.logspace(-3, 12, 151) / top
        spread = 1.0 + trials[:, None] * values[None]
        nats = -0.5 * np.sum(np.log(spread) + squares / spread, axis=1)
        best = int(np.argmax(nats))
        evidence[group.name], sizes[group.name] = float(nats[best]), float(np.sqrt(trials[best]))
    winner = max(hypotheses, key=lambda group: evidence[group.name])
    wider = max((g for g in hypotheses if g.layer is None), key=lambda g: evidence[g.name], default=None)
    if winner.layer is not None and wider is not None:
        near = evidence[winner.name] - evidence[wider.name] < SETTINGS.odds
        if near or _needs_more(winner.layer, hypotheses, kernels, measured):
            winner = wider
    return Located(winner, sizes[winner.name], evidence)


def _needs_more(layer: str, hypotheses: Sequence[Group], kernels: Mapping[str, Floats], measured: Floats) -> bool:
    """Whether what the tensors of one layer, each with a change of its own size, cannot foretell, those of all layers do."""
    held = {name for group in hypotheses if group.layer == layer for name in group.tensors}
    alone = foretold({name: kernel for name, kernel in kernels.items() if name in held}, measured)
    return foretold(kernels, measured) - alone > SETTINGS.odds


def foretold(kernels: Mapping[str, Floats], measured: Floats, parts: int = 4) -> float:
    """Nats of each part of the deviations given the others, where every tensor changed by an amount that the others tell.

    Amounts fitted to the same deviations would always look better with more tensors; those that foretell other deviations do not.
    """
    whole = np.stack([*kernels.values(), np.eye(len(measured))])  # the last one: rounding may be larger than it was taken for
    turn = np.arange(len(measured)) // 2 % parts  # twins stay together
    nats = 0.0
    for part in range(parts):
        known = np.flatnonzero(turn != part)
        sizes = own_sizes(whole[:, known][:, :, known], measured[known])
        total = np.eye(len(measured)) + np.tensordot(sizes, whole, 1)
        nats += _nats(total, measured) - _nats(total[np.ix_(known, known)], measured[known])
    return nats


def own_sizes(kernels: Floats, measured: Floats, steps: int = 40) -> Floats:
    """The likeliest squared change of each tensor; each step raises the likelihood (Zhou and others, 2019)."""
    usual = np.maximum(np.trace(kernels, axis1=1, axis2=2), np.finfo(float).tiny) / len(measured)
    sizes = max(float(np.mean(measured**2)) - 1.0, 1.0) / (len(kernels) * usual)
    left = np.arange(len(kernels))
    for _ in range(steps):
        known = kernels[left]
        inverse = np.linalg.inv(np.eye(len(measured)) + np.tensordot(sizes[left], known, 1))
        solved = inverse @ measured
        wanted, chance = (known @ solved) @ solved, np.tensordot(known, inverse, 2)
        sizes[left] *= np.sqrt(np.maximum(wanted, 0.0) / np.maximum(chance, np.finfo(float).tiny))
        faded = sizes * usual <= 1e-6 * float(np.sum(sizes * usual))  # what has faded does not come back
        sizes[faded] = 0.0
        left = np.flatnonzero(~faded)
    return np.asarray(sizes)


def _nats(covariance: Floats, measured: Floats) -> float:
    """Log-likelihood of Gaussian numbers, without its constant."""
    return -0.5 * float(np.linalg.slogdet(covariance)[1] + measured @ np.linalg.solve(covariance, measured))


def telling(batches: Sequence[Floats], deviations: Sequence[Floats], levels: Sequence[Floats], *, tokens: int) -> list[int]:
    """The calls that tell most for their length, of that many tokens in all.

    A deviation tells the logarithm of its size over rounding, up to what is not linear; what it costs grows with its tokens.
    """
    worth = []
    for batch, part, level in zip(batches, deviations, levels, strict=True):
        energy = min(float(np.mean(part**2 / level[:, None] ** 2)), SETTINGS.not_linear**-2)
        worth.append(float(np.log1p(energy)) / batch.shape[1])
    kept: list[int] = []
    spent = 0
    for i in np.argsort(-np.asarray(worth), kind="stable"):
        size = batches[i].shape[0] * batches[i].shape[1]
        if spent + size <= tokens or not kept:
            kept.append(int(i))
            spent += size
    return sorted(kept)
