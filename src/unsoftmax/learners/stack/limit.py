"""How a stack acts on very long tokens: answers of its limit, exact to rounding, for one question each."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsoftmax.learners.stack.settings import Settings, Sight
from unsoftmax.learners.stack.sphere import Sphere, support
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Answered questions of one shape: keys, how often each stands, the last token and how often it stands.

    Attributes:
        keys: tokens ``(n, keys, width)`` on the sphere.
        counts: how often each key stands, ``(keys,)``.
        readers: last tokens ``(n, width)`` on the sphere.
        copies: how often the last token stands.
        moved: ``(n, width)``: the answer less that to the last token alone.
        clean: ``(n, width)``: outputs at which the last token is zero, so that the answer is exact.
    """

    keys: Floats
    counts: Floats
    readers: Floats
    copies: int
    moved: Floats
    clean: NDArray[np.bool_]

    @property
    def steps(self) -> Floats:
        """From the last token to each key, ``(n, keys, width)``."""
        return self.keys - self.readers[:, None]

    def only(self, rows: NDArray[np.int_]) -> Batch:
        """Of these questions."""
        arrays = (getattr(self, name)[rows] for name in ("keys", "readers", "moved", "clean"))
        keys, readers, moved, clean = arrays
        return Batch(keys, self.counts, readers, self.copies, moved, clean)


@dataclass(slots=True, eq=False)
class Limit:
    """The limit of a stack for long tokens: one attention layer of all its heads, and a function of the last token alone.

    Sequences are sent ``scale`` times as long as the sphere; there the answer is ``scale * x_N + sum_h attention_h + g(x_N)``. At
    outputs where ``x_N`` is zero nothing large is ever added. The answer to ``x_N`` alone takes ``g`` off. At small widths that
    leaves too few outputs; from three shorter lengths, ``scale`` the shortest, the limit is extrapolated at all of them.

    Attributes:
        oracle: the target.
        scale: length of tokens over that of normalised ones.
        positions: the target adds something that depends on the position: take ``g`` off at the same length.
        nodes: lengths, each twice the one before, from which the limit is extrapolated where tokens may not be very long.
        extrapolated: every output is read, for three questions each and fewer digits.
        sight: where every position is answered, whether tokens see earlier ones alone (``"causal"``) or all of them; else None.
        questions: how many were asked.
        alone: answers to last tokens alone.
        batches: all other answers, for a fit to all of them.
    """

    oracle: Oracle
    scale: float = 2.0**60
    positions: bool = False
    nodes: int = 1
    extrapolated: bool = False
    sight: Sight | None = None
    questions: int = 0
    alone: dict[tuple[bytes, int], Floats] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)

    @classmethod
    def of(cls, oracle: Oracle, settings: Settings, positions: bool) -> Limit:
        """With tokens as long as ``settings`` say."""
        return cls(oracle, settings.scale, positions, settings.nodes)

    @property
    def like(self) -> Any:
        """An array of the kind that the target takes on its device, where it has one: fits are done there."""
        return getattr(self.oracle, "like", None)

    def look(self, sphere: Sphere, settings: Settings, rng: np.random.Generator) -> None:
        """Find out whether every position is answered, and whether tokens see later ones: two questions."""
        if self.positions or self.nodes > 1:  # what positions add is known at the last one only
            return
        reader, key = (
            sphere.sparse(rng.choice(sphere.width, size=support(sphere.width), replace=False), rng),
            sphere.dense(1, rng)[0],
        )
        self.questions += 1
        answers = self.oracle(self.scale * np.stack([reader, key])[None])
        if answers.ndim == 3:
            moved = np.abs(answers[0, 0] - self.bases(reader[None], 1)[0])[reader == 0]
            self.sight = (
                "causal" if moved.max() <= settings.same * max(1.0, float(np.abs(answers[0, 0][reader == 0]).max())) else "all"
            )

    def raw(self, sequences: Floats, scale: float | None = None) -> Floats:
        """The last answer to sequences ``(n, length, width)`` of tokens on the sphere, sent ``scale`` times as long."""
        if len(sequences) == 0:
            return np.zeros((0, sequences.shape[2]))
        if self.nodes > 1 and scale is None:
            told = [self.raw(sequences, s) - s * sequences[:, -1] for s in self.scale * 2.0 ** np.arange(self.nodes)]
            for i in range(1, self.nodes):  # terms in 1 / scale cancel, then those in its square
                told = [(2**i * far - near) / (2**i - 1) for near, far in itertools.pairwise(told)]
            return np.asarray(told[0])
        self.questions += len(sequences)
        answers = self.oracle(sequences * (self.scale if scale is None else scale))
        return np.asarray(answers[:, -1] if answers.ndim == 3 else answers)

    def clean(self, readers: Floats) -> NDArray[np.bool_]:
        """Outputs ``(n, width)`` at which answers to last tokens ``readers`` tell the limit."""
        return np.ones(readers.shape, dtype=bool) if self.extrapolated else readers == 0

    def bases(self, readers: Floats, length: int) -> Floats:
        """The answers to last tokens ``(n, width)`` alone; asked once each."""
        length = length if self.positions else 1
        names = [(reader.tobytes(), length) for reader in readers]
        fresh = {name: i for i, name in enumerate(names) if name not in self.alone}
        if fresh:
            some = readers[list(fresh.values())]
            told = self.raw(np.repeat(some[:, None], length, axis=1))
            self.alone.update(zip(fresh, told, strict=True))
        return np.stack([self.alone[name] for name in names])

    def seen(self, length: int) -> NDArray[np.bool_]:
        """Which tokens of a sequence each one attends to beside itself, ``(length, length)``."""
        others = ~np.eye(length, dtype=bool)
        return np.tril(others) if self.sight == "causal" else others

    def everywhere(self, sequences: Floats) -> Floats:
        """The answers of all positions ``(n, length, width)``, where they are all told."""
        self.questions += len(sequences)
        answers = np.asarray(self.oracle(sequences * self.scale))
        if self.sight == "causal":  # the first token sees itself alone
            self.alone.update(((token.tobytes(), 1), told[0]) for token, told in zip(sequences[:, 0], answers, strict=True))
        return answers

    def together(self, sequences: Floats, copies: int = 1) -> list[Batch]:
        """The answers of all positions of ``sequences (n, length, width)``, a batch for each that sees others.

        With ``copies`` the first token of each stands that often, and is a key alone.
        """
        first = np.repeat(sequences[:, :1], copies - 1, axis=1)
        answers, found = self.everywhere(np.concatenate([first, sequences], axis=1))[:, copies - 1 :], []
        for i, seen in enumerate(self.seen(sequences.shape[1])):
            if not seen.any() or (i == 0 and copies > 1):
                continue
            readers, counts = sequences[:, i], np.ones(int(seen.sum()))
            counts[0] = copies
            found.append(Batch(sequences[:, seen], counts, readers, 1, answers[:, i] - self.bases(readers, 1), self.clean(readers)))
        self.batches += found
        return found

    def ask(self, keys: Floats, readers: Floats, counts: tuple[int, ...] | None = None, copies: int = 1) -> Batch:
        """Ask ``keys (n, J, width)``, each as often as ``counts`` says, before ``copies`` of ``readers (n, width)``."""
        times = np.ones(keys.shape[1], dtype=int) if counts is None else np.asarray(counts, dtype=int)
        tail = np.repeat(readers[:, None], copies, axis=1)
        if self.sight == "causal" and copies > 1:  # one of the copies in front sees itself alone
            sequences = np.concatenate([tail[:, :1], np.repeat(keys, times, axis=1), tail[:, 1:]], axis=1)
            told = self.everywhere(sequences)[:, -1]
        else:
            sequences = np.concatenate([np.repeat(keys, times, axis=1), tail], axis=1)
            told = self.raw(sequences)
        moved = told - self.bases(readers, sequences.shape[1])
        batch = Batch(keys, times.astype(np.float64), readers, copies, moved, self.clean(readers))
        self.batches.append(batch)
        return batch
