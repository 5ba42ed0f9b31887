"""A model against fresh answers: one way to compare them, whatever they are compared for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import TargetError, tried
from unsoftmax.linalg import all_on_host, on_host
from unsoftmax.models import Floats, Model
from unsoftmax.oracles.base import Oracle, is_local, one_commit
from unsoftmax.oracles.local import checked_answers
from unsoftmax.proof.fresh import Fresh
from unsoftmax.proof.settings import PROOF
from unsoftmax.proof.together import Together

Predict = Callable[[list[Floats]], Floats]  # batches of sequences to the answers of a model to all of them, at the last position


@dataclass(frozen=True, eq=False)
class Compared:
    """Answers and predictions, a row for each sequence, or for each position of each where all are answered.

    Attributes:
        answers: ``(rows, outputs)``.
        predicted: the same of the model.
        batches: the sequences, in order.
        causal: where every position was answered, whether later tokens are hidden from it; None where only the last was.
        positions: how many positions of each batch were looked at; empty for the last alone.
        unanswered: lengths of natural sequences that the target failed on.
        price: queries that each sequence took.
        padded: the sequences as few arrays, on the host and on a device, where somebody made them.
    """

    answers: Floats
    predicted: Floats
    batches: tuple[Fresh, ...]
    causal: bool | None = None
    positions: tuple[int, ...] = ()
    unanswered: tuple[int, ...] = ()
    price: int = 1
    padded: dict[bool, Together] = field(init=False, default_factory=dict)  # a copy with other sequences begins anew

    def _by_row(self, of_batch: list[Any]) -> NDArray[Any]:
        places = self.positions or (1,) * len(self.batches)
        rows = [len(batch.sequences) * at for batch, at in zip(self.batches, places, strict=True)]
        return np.repeat(np.asarray(of_batch), rows)

    @cached_property
    def lengths(self) -> NDArray[np.intp]:
        """Tokens of each row's sequence ``(rows,)``."""
        return self._by_row([batch.length for batch in self.batches])

    @cached_property
    def natural(self) -> NDArray[np.bool_]:
        """Whether its tokens have natural size ``(rows,)``."""
        return self._by_row([batch.natural for batch in self.batches])

    @property
    def sequences(self) -> int:
        """How many sequences were asked."""
        return self.price * sum(len(batch.sequences) for batch in self.batches)

    @property
    def drawn(self) -> int:
        """How many of them were drawn and not chosen, so that they speak for others drawn alike."""
        return self.price * sum(len(batch.sequences) for batch in self.batches if not batch.chosen)

    @property
    def where(self) -> str:
        """The positions that were compared, in words."""
        if self.causal is None:
            return "the last position"
        whole = all(at == batch.length for at, batch in zip(self.positions, self.batches, strict=True))
        return f"{'every position' if whole else 'some positions of each sequence'}{', causal' if self.causal else ''}"

    @cached_property
    def deviations(self) -> Floats:
        """How far they lie apart ``(rows, outputs)``."""
        off: Floats = np.abs(self.answers - self.predicted)
        return off

    @cached_property
    def spreads(self) -> Floats:
        """For each row the standard deviation of the answers of its kind (root mean square over outputs).

        The answers' own spread, so that a constant in them cannot hide an error; natural answers apart, as they may vary far more.
        Answers of a kind that do not vary beyond their rounding, as those of neurons that sleep there, are held to the others'.
        """
        natural = self.natural
        kinds = [rows for rows in (natural, ~natural) if rows.any()]
        found = [float(np.sqrt(np.mean(np.var(self.answers[rows], axis=0)))) for rows in kinds]
        still = [size <= 2.0**-40 * np.abs(self.answers[rows]).max() for size, rows in zip(found, kinds, strict=True)]
        spread = np.zeros(len(natural))
        for size, rows, constant in zip(found, kinds, still, strict=True):
            spread[rows] = max(found) if constant else size
        spread.flags.writeable = False  # everybody gets the same array
        return spread

    def together(self, like: Floats | None) -> Together:
        """All sequences as few arrays on the device of ``like``, made once."""
        there = like is not None
        if there not in self.padded:
            self.padded[there] = Together.of([batch.sequences for batch in self.batches], like)
        return self.padded[there]


def compared(
    oracle: Oracle, model: Model, batches: list[Fresh], like: Floats | None = None, together: Together | None = None
) -> Compared:
    """Ask every batch and predict it, at every position where every position is answered.

    All are asked before the first is looked at: a device answers meanwhile. Natural sequences may fail (scores that overflow
    inside the target); then they are left out, and ``unanswered`` says so. ``together`` are all batches on the device of ``like``,
    where somebody has put them there already.
    """
    asked = ask(oracle, batches)
    told = all_on_host([raw for raw in asked if raw is not None])
    answered = [batch for batch, raw in zip(batches, asked, strict=True) if raw is not None]
    sound = [np.isfinite(part).all() or not batch.natural for batch, part in zip(answered, told, strict=True)]
    kept = tuple(batch for batch, good in zip(answered, sound, strict=True) if good)
    told = [checked_answers(part, batch.sequences.shape) for batch, part in zip(kept, _kept(told, sound), strict=True)]
    unanswered = tuple(sorted({batch.length for batch in batches} - {batch.length for batch in kept}))
    if told[0].ndim < 3:
        answers = np.concatenate([part.reshape(len(part), -1) for part in told])
        forward = model.on_device(np.empty(0) if like is None else like)
        if forward is None:
            return Compared(answers, predictor(model)([batch.sequences for batch in kept]), kept, unanswered=unanswered)
        if together is None or len(kept) < len(batches):
            together = Together.of([batch.sequences for batch in kept], like)
        predicted = on_host(together.told(forward.many)).reshape(len(answers), -1)
        seen = Compared(answers, predicted, kept, unanswered=unanswered)
        seen.padded[like is not None] = together
        return seen
    best: Compared | None = None
    for causal in (False, True):  # whichever form is nearer
        places, predictions = zip(*(model.answer_at(on_host(batch.sequences), causal=causal) for batch in kept), strict=True)
        answers = np.concatenate([a[:, at].reshape(-1, a.shape[2]) for a, at in zip(told, places, strict=True)])
        flat = np.concatenate([p.reshape(-1, p.shape[2]) for p in predictions])
        form = Compared(answers, flat, kept, causal=causal, positions=tuple(map(len, places)), unanswered=unanswered)
        if best is None or form.deviations.max() < best.deviations.max():
            best = form
    assert best is not None
    return best


def _kept(parts: list[Floats], sound: list[Any]) -> list[Floats]:
    return [part for part, good in zip(parts, sound, strict=True) if good]


def predicted_as(seen: Compared, model: Model) -> Floats:
    """What another model predicts for everything compared ``(rows, outputs)``."""
    if seen.causal is None:
        forward = model.on_device(np.empty(0))
        if forward is not None:
            return seen.together(None).told(forward.many).reshape(len(seen.answers), -1)
        return np.concatenate([model.answer(on_host(batch.sequences)) for batch in seen.batches])
    told = [model.answer_at(on_host(batch.sequences), causal=seen.causal)[1] for batch in seen.batches]
    return np.concatenate([part.reshape(-1, part.shape[2]) for part in told])


def computed_in(seen: Compared, model: Model, unit: float, rng: np.random.Generator) -> Floats:
    """Variance ``(rows, outputs)`` of answers of a target that computes in numbers with a relative error of ``unit`` (rms).

    Tokens, products of scores, weights and the answer are each rounded once; the weights count as the tokens' values do.
    """
    here = predicted_as(seen, model)
    total = PROOF.draws * (unit * here) ** 2
    for _ in range(PROOF.draws):
        off = [(batch, 1 + unit * rng.normal(size=batch.sequences.shape)) for batch in seen.batches]
        rounded = tuple(replace(batch, sequences=on_host(batch.sequences) * factors) for batch, factors in off)
        total += 2 * (predicted_as(replace(seen, batches=rounded), model) - here) ** 2
        total += (predicted_as(seen, model.shaken(unit, rng)) - here) ** 2
    return total / PROOF.draws


def ask(oracle: Oracle, batches: list[Fresh]) -> list[Floats | None]:
    """Raw answers to each batch; None for natural ones that the target fails on although it still answers others."""
    raw: list[Floats | None] = []
    with one_commit(oracle):
        for batch in batches:
            answers = batch.told if batch.told is not None else tried(partial(oracle, batch.sequences), TargetError)
            if isinstance(answers, TargetError):
                if not (batch.natural and is_local(oracle)):
                    raise answers
                oracle(batches[0].sequences[:1])  # a target that is gone fails here again
            raw.append(None if isinstance(answers, TargetError) else answers)
    return raw


def predictor(model: Model, like: Floats | None = None) -> Predict:
    """The model as a function of batches of sequences, of any lengths, that tells all answers at the last position.

    Attention takes many lengths in one go; with ``like``, on its device, where the answers stay.
    """
    forward = model.on_device(np.empty(0) if like is None else like)
    if forward is None:
        return lambda batches: np.concatenate([model.answer(on_host(batch)) for batch in batches])
    many = forward.many
    if like is not None:
        return lambda batches: Together.of(batches, like).told(many)
    return lambda batches: Together.of(batches, None).told(many).reshape(sum(map(len, batches)), -1)
