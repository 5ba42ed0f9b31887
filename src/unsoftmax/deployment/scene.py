"""The answers of an endpoint beside the checkpoint's, joined by length, for explanations to be held against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.deployment.checkpoint import Checkpoint, View, by_length
from unsoftmax.deployment.coherence import coherence, paired
from unsoftmax.deployment.precision import Precision
from unsoftmax.deployment.settings import SETTINGS
from unsoftmax.deployment.where import telling
from unsoftmax.models import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Sequences of one length: what was asked, answered and expected, and the rms rounding of each answer ``(batch, 1)``."""

    sequences: Floats
    answers: Floats
    expected: Floats
    noise: Floats

    @property
    def energy(self) -> float:
        """Squared deviations, in units of rounding."""
        return float(np.sum(((self.answers - self.expected) / self.noise) ** 2))


class Scene:
    """Everything that an explanation is held against.

    Args:
        checkpoint: the weights.
        batches: the calls.
        setting: the endpoint's arithmetic, and its answers.
        noise: rms rounding of each answer.
        weightings: ways to weigh the pairs.
        honest: coherent share that this machine's own rounding has in each.
        view: what the endpoint lets see.
        names: tensors that answers depend on.
        strength: how a relative change of each of them shows in each pair, in units of rounding.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        batches: Sequence[Floats],
        setting: Precision,
        noise: Sequence[Floats],
        weightings: Floats,
        honest: Floats,
        view: View | None,
        names: Sequence[str],
        strength: Floats,
    ) -> None:
        self.checkpoint, self.batches, self.setting, self.names = checkpoint, batches, setting, names
        self.noise, self.weightings, self.honest, self.view = noise, weightings, honest, view
        self.deviations = [a - b for a, b in zip(setting.answers, setting.reference, strict=True)]
        loud = [float(np.mean((d / n[:, None]) ** 2)) for d, n in zip(self.deviations, noise, strict=True)]
        self.loudest = [int(i) for i in np.argsort(-np.asarray(loud))]
        self.level = paired(self.deviations, noise).noise
        self.energy = float(np.mean(loud))
        self.reach = dict(zip(names, np.mean(strength**2, axis=1).tolist(), strict=True))
        self.most = 2.0 * float(
            np.mean([np.mean(np.var(y, axis=0)) / np.mean(n**2) for y, n in zip(setting.answers, noise, strict=True)])
        )
        self.arithmetic = (
            "float32" if self.energy > SETTINGS.loud else "float64"
        )  # for trials: twice as fast, and precise enough where it is loud
        self.whole = self.joined(range(len(batches)))
        some = self.loudest[:24:4]  # every fourth of the loudest, for a first look
        self.look = self.joined(some)
        self.glance = self.joined([min(some, key=lambda i: batches[i].shape[1])])  # the shortest of them, before that

    def joined(self, calls: Iterable[int]) -> list[Part]:
        """These calls, those of one length side by side."""
        chosen = list(calls)
        places = by_length([self.batches[i] for i in chosen])
        return [
            Part(
                np.concatenate([self.batches[i] for i in held]),
                np.concatenate([self.setting.answers[i] for i in held]),
                np.concatenate([self.setting.reference[i] for i in held]),
                np.concatenate([self.noise[i] for i in held])[:, None],
            )
            for held in ([chosen[n] for n in group] for group in places.values())
        ]

    def telling(self, tokens: int) -> list[int]:
        """The calls that tell most for their length, of that many tokens in all."""
        return telling(self.batches, self.deviations, [self.level * part for part in self.noise], tokens=tokens)

    def possible(self, changed: Mapping[str, Any]) -> bool:
        """Whether a change of this size, in any direction, would show about as much as the deviations do."""
        moved = 0.0
        for name in changed.keys() & self.reach.keys():
            apart = (changed[name] - self.checkpoint.tensors[name]).pow(2).mean().sqrt()
            moved += self.reach[name] * float(apart / self.checkpoint.size_of(name)) ** 2
        moved = min(moved, self.most)
        return self.energy / SETTINGS.far < moved < self.energy * SETTINGS.far

    def explained_by(self, changed: Mapping[str, Any], parts: Sequence[Part]) -> float:
        """Share of the deviations' energy that this change of weights explains."""
        left = 0.0
        for part in parts:
            moved = self.checkpoint(part.sequences, precision=self.arithmetic, changed=changed, view=self.view)
            left += float(np.sum(((part.answers - moved) / part.noise) ** 2))
        total = sum(part.energy for part in parts)
        return 1.0 - left / total if total else 0.0

    def settled_by(self, changed: Mapping[str, Any]) -> tuple[bool, float]:
        """Whether our copy, changed so, answers as the endpoint does; and the share of the deviations that the change explains."""
        deviations = []
        for part in self.whole:
            moved = self.checkpoint(part.sequences, changed=changed, view=self.view)
            deviations.append(part.answers - moved)
        order = [i for held in by_length(self.batches).values() for i in held]
        pairs = paired(deviations, [part.noise[:, 0] for part in self.whole])
        places = np.concatenate([np.arange(i * _pairs(self.batches), (i + 1) * _pairs(self.batches)) for i in order])
        left = sum(float(np.sum((d / part.noise) ** 2)) for d, part in zip(deviations, self.whole, strict=True))
        total = sum(part.energy for part in self.whole)
        return not coherence(pairs, self.weightings[:, places], self.honest).differs, 1.0 - left / total if total else 0.0


def _pairs(batches: Sequence[Floats]) -> int:
    return len(batches[0]) // 2
