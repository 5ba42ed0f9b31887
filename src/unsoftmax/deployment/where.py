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
from unsoftmax.models import Floats

NOT_LINEAR = 0.03  # share of a deviation that the Jacobian cannot explain, for changes of some percent
LIKELY = 6.0  # nats: other hypotheses this close to the best are named too
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
        return [name for name, nats in self.evidence.items() if name != self.group.name and best - nats < LIKELY]


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
        batches: sequences ``(batch, length, width)``.
        deviations: ``(batch, outputs)`` each.
        levels: rms rounding of an answer ``(batch,)`` each.
        view: what the endpoint lets see.
        rng: for the directions of the answers.
        sketch: random directions for tensors whose Jacobian has no factors,
        most: and is larger than that many numbers.
    """
    kept = _kept(batches, deviations, levels)
    places = by_length([batches[i] for i in kept]).values()
    batches, deviations, levels = (
        [np.concatenate([part[kept[n]] for n in held]) for held in places] for part in (batches, deviations, levels)
    )
    directions = [rng.normal(size=part.shape) / np.sqrt(part.shape[1]) for part in deviations]
    rows = jacobian_rows(checkpoint, batches, directions, view, sketch=sketch, most=most)
    measured = np.concatenate([np.sum(a * b, axis=1) for a, b in zip(deviations, directions, strict=True)])
    own = np.concatenate([np.sqrt(np.mean(part**2, axis=1)) for part in deviations])
    scale = np.sqrt(np.concatenate(levels) ** 2 + (NOT_LINEAR * own) ** 2)
    kernels: dict[str, Floats] = {}
    for name, part in rows.items():
        kernels[name] = part.kernel() * checkpoint.size_of(name) ** 2 / np.outer(scale, scale)
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
    wider = [group for group in hypotheses if group.layer is None]
    if winner.layer is not None and wider and _needs_more(winner.layer, hypotheses, kernels, measured):
        winner = max(wider, key=lambda group: evidence[group.name])
    return Located(winner, sizes[winner.name], evidence)


def _needs_more(
    layer: str, hypotheses: Sequence[Group], kernels: Mapping[str, Floats], measured: Floats, odds: float = 3.0
) -> bool:
    """Whether the tensors of one layer, each with a change of its own size, leave unexplained what those of all layers explain."""
    held = {name for group in hypotheses if group.layer == layer for name in group.tensors}
    alone = own_sizes({name: kernel for name, kernel in kernels.items() if name in held}, measured)
    return own_sizes(kernels, measured) - alone > odds  # 20 to 1


def own_sizes(kernels: Mapping[str, Floats], measured: Floats, steps: int = 40) -> float:
    """Nats where every tensor changed by an amount of its own; each step raises the likelihood (Zhou and others, 2019)."""
    known = np.stack(list(kernels.values()))
    usual = np.maximum(np.trace(known, axis1=1, axis2=2), np.finfo(float).tiny) / len(measured)
    sizes = max(float(np.mean(measured**2)) - 1.0, 1.0) / (len(known) * usual)
    for _ in range(steps):
        inverse = np.linalg.inv(np.eye(len(measured)) + np.tensordot(sizes, known, 1))
        solved = inverse @ measured
        wanted, chance = (known @ solved) @ solved, np.tensordot(known, inverse, 2)
        sizes = sizes * np.sqrt(np.maximum(wanted, 0.0) / np.maximum(chance, np.finfo(float).tiny))
        kept = sizes * usual > 1e-6 * float(np.sum(sizes * usual))  # what has faded does not come back
        known, usual, sizes = known[kept], usual[kept], sizes[kept]
    total = np.eye(len(measured)) + np.tensordot(sizes, known, 1)
    return -0.5 * float(np.linalg.slogdet(total)[1] + measured @ np.linalg.solve(total, measured))


def _kept(batches: Sequence[Floats], deviations: Sequence[Floats], levels: Sequence[Floats], most: int = 3000) -> list[int]:
    """The calls that show most, of that many tokens in all: kernels are (tokens, tokens)."""
    seen = [float(np.mean(part**2 / level[:, None] ** 2)) for part, level in zip(deviations, levels, strict=True)]
    kept: list[int] = []
    tokens = 0
    for i in np.argsort(-np.asarray(seen)):
        size = batches[i].shape[0] * batches[i].shape[1]
        if tokens + size <= most or not kept:
            kept.append(int(i))
            tokens += size
    return sorted(kept)
