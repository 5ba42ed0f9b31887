"""What changed: first what can be tried on our own copy, then where the deviations come from, then how the weights there moved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unsoftmax.deployment.checkpoint import Checkpoint
from unsoftmax.deployment.kinds import Trial, head_trials, layer_trials, pruning_trials, rounding_trials
from unsoftmax.deployment.low_rank import fitted_rank
from unsoftmax.deployment.rehearsals import dropped_share, related
from unsoftmax.deployment.results import Change
from unsoftmax.deployment.scene import Part, Scene
from unsoftmax.deployment.settings import SETTINGS
from unsoftmax.deployment.where import Located, located


def explained(scene: Scene, rng: np.random.Generator) -> Change:
    """Find the change that explains the deviations best."""
    checkpoint = scene.checkpoint
    matrices = [name for name in scene.names if checkpoint.tensors[name].ndim == 2]
    inner = [name for name in matrices if checkpoint.layer_of(name).startswith("layer ")]
    scopes = {"every layer": inner} if inner else {}
    if inner != matrices:
        scopes["every matrix"] = matrices
    trials = [*rounding_trials(checkpoint, scopes), *pruning_trials(checkpoint, scopes)]
    trials += [*head_trials(checkpoint), *layer_trials(checkpoint)]
    best = best_trial(scene, trials)
    if best is not None and (best.exact or best.explained > SETTINGS.mostly):
        return best
    if not related(scene, rng):
        words = "answers have no more in common with the checkpoint's than with those of shuffled weights: other weights altogether"
        return Change(kind="other weights", where=["every layer"], words=words)
    levels = [scene.level * part for part in scene.noise]
    place = located(checkpoint, scene.names, scene.batches, scene.deviations, levels, scene.view, rng)
    local = {name: [n for n in held if n in matrices] for name, held in _scopes(place, checkpoint).items()}
    near = best_trial(scene, [*rounding_trials(checkpoint, local), *pruning_trials(checkpoint, local)])
    if near is not None and (near.exact or near.explained > SETTINGS.mostly):
        return near
    return _described(scene, place, matrices, rng)


def best_trial(scene: Scene, trials: Sequence[Trial], promising: int = 12, finalists: int = 3) -> Change | None:
    """The trial that explains most; the first that explains everything.

    All are held against a few answers, the ``promising`` ones against more, the ``finalists`` against all.
    """
    found: Change | None = None
    for trial in _ranked(scene, _ranked(scene, trials, scene.glance)[:promising], scene.look)[:finalists]:
        changed = trial.make()
        exact, whole = scene.settled_by(changed)
        if found is None or exact:
            found = Change(
                kind=trial.kind, where=list(trial.where), layer=trial.layer, explained=whole, exact=exact, words=trial.words
            )
        if exact:
            break
    return found


def _ranked(scene: Scene, trials: Sequence[Trial], parts: Sequence[Part], least: float = 0.3) -> list[Trial]:
    """Trials that explain at least that share of the deviations there, the best first; of equal ones the first."""
    shares = []
    for trial in trials:
        changed = trial.make()
        shares.append(round(scene.explained_by(changed, parts), 6) if scene.possible(changed) else 0.0)
    return [trials[i] for i in sorted(range(len(trials)), key=lambda i: (-shares[i], i)) if shares[i] > least]


def _scopes(place: Located, checkpoint: Checkpoint) -> dict[str, Sequence[str]]:
    found: dict[str, Sequence[str]] = {place.group.name: place.group.tensors}
    if place.group.layer is not None and place.group.layer != place.group.name:
        found[place.group.layer] = checkpoint.layers()[place.group.layer]
    return found


def _described(scene: Scene, place: Located, matrices: Sequence[str], rng: np.random.Generator) -> Change:
    """A change that no trial reproduces: weights set to zero at random, an update of low rank, or its size and where it is."""
    group = place.group
    where = list(group.tensors) if len(group.tensors) <= 4 else [group.name]
    names = [name for name in group.tensors if name in matrices]
    inner = [name for name in matrices if scene.checkpoint.layer_of(name).startswith("layer ")]
    share = dropped_share(scene, names if group.layer is not None else inner, rng)
    if share is not None:
        scope = group.name if group.layer is not None else "every layer"
        words = f"about {share:.1%} of the weights set to zero, in {scope}"
        kept = where if group.layer is not None else [scope]
        return Change(kind="pruned", where=kept, layer=group.layer, size=share**0.5, words=words, others=place.others)
    # a change that moves answers farther than they vary is not linear, and a fit of half a minute does not follow it
    rank, part = fitted_rank(scene, names, rng) if names and not _overwhelming(scene) else (None, 0.0)
    if rank is not None:
        words = f"an update of rank {rank} in {group.name}"
        return Change(
            kind="low-rank update",
            where=where,
            layer=group.layer,
            size=place.size,
            explained=part,
            rank=rank,
            words=words,
            others=place.others,
        )
    if group.layer is None:
        kind, words = (
            "changed in every layer",
            f"{group.name} changed, by about {place.size:.1e} of the weights' size, as by further training",
        )
    elif len(group.tensors) == 1:
        kind, words = "one tensor changed", f"{group.name} is off by about {place.size:.1e} of its size"
    else:
        kind, words = "one layer changed", f"the tensors of {group.name} are off by about {place.size:.1e} of their size"
    return Change(kind=kind, where=where, layer=group.layer, size=place.size, words=words, others=place.others)


def _overwhelming(scene: Scene) -> bool:
    """Whether deviations are larger than the spread of answers."""
    spread = np.mean([np.mean(np.var(part, axis=0)) for part in scene.setting.answers])
    return bool(np.mean([np.mean(part**2) for part in scene.deviations]) > spread)
