"""Attention through an unknown position-wise network: W and c come out, the network is never learned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, RefusalError, Sign, TooNoisyError, tried
from unsoftmax.learners.behind_network.columns import Base, Columns, tilted_frame
from unsoftmax.learners.behind_network.lines import Mixing, Reader, Target
from unsoftmax.learners.behind_network.residual import residual_mixing
from unsoftmax.learners.behind_network.settings import BEHIND
from unsoftmax.models import Attention, Floats
from unsoftmax.models.forward import softmax
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned


@dataclass(frozen=True, slots=True)
class BehindNetworkLearner:
    """Recover W and c of one attention head that is followed by any position-wise network, with the network left unknown.

    ``f([x + u; x]) = f([x + t u])`` with ``t = sigmoid(u·(W x + c))``: the one-token target inverts itself along segments.
    Assumes exact or nearly exact answers and a network that is not constant; any depth and activation, biases, scalar or
    vector answers. With a residual it needs at least ``width`` outputs, and returns ``M = (I + V)^-1 V`` in the evidence.

    Price: 6 to 8 queries a segment and ``(r + 1)(2 d + 1 - r)`` segments for rank r (``(d + 1)^2`` at full rank), plus about
    ``d + 60`` to find a good place; the rank need not be known. Reference: SCIENCE, "Behind an unknown network".

    Attributes:
        floor: how coarse the answers are.
        max_norm: longest token that may be sent.
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Ask and learn; the model has ``V=None``. Refuses a target that is flat, bent on every segment, or outside the family."""
        target = Target(oracle, self.floor)
        reason: RefusalError | None = None
        attempts = 0
        phase(oracle, "place")
        for base in _places(target, self.max_norm, rng):
            found = tried(partial(self._learn_at, target, base, rng), NotInFamilyError, NotIdentifiableError, TooNoisyError)
            if not isinstance(found, RefusalError):
                return found
            reason = found
            # a place where no segment could be read was cheap and says only that tokens of this size are no good
            attempts += Sign.UNREADABLE not in reason.signs
            if attempts == BEHIND.attempts:
                break
            phase(oracle, "place")
        raise reason or NotIdentifiableError(
            f"The one-token answers are flat or bent at all {len(BEHIND.scales)} places tried (token entries of size "
            f"{min(BEHIND.scales):g} to {max(BEHIND.scales):g}), so no segment could be inverted. Check that the target depends on "
            "its input; `unsoftmax diagnose` names the family.",
            evidence={"places": len(BEHIND.scales)},
        )

    def _learn_at(self, target: Target, base: Base, rng: np.random.Generator) -> Learned:
        base, mixing = _with_family(target, base, self.max_norm, rng)
        phase(target.oracle, "scores")
        columns = Columns(target, base, rng)
        W, c, error = columns.learn()
        has_bias = np.abs(c).max() > BEHIND.safety * error * max(1.0, float(np.linalg.norm(base.place)))
        model = Attention(W=W[None], V=None, c=c[None] if has_bias else None)
        phase(target.oracle, "bilinear")
        columns.confirm(model)
        words = "without a residual" if mixing is None else "with a residual around the attention"
        return Learned(
            model=model,
            ambiguity="W and c are unique. The network behind the attention and the value matrix were not learned.",
            notes=(
                f"The score matrix has rank {columns.rank_found}; it was read through an unknown network, {words}.",
                f"Estimated error of an entry of W: {error:.1e}.",
            ),
            evidence={
                "rank": columns.rank_found,
                "entry_error": error,
                "segment_length": base.reader.length,
                "segments": columns.lines,
                "residual": mixing is not None,
            },
            ranks=(columns.rank_found,),
            entry_error=error,
            mixing=None if mixing is None else mixing.matrix,
        )


def _places(target: Target, max_norm: float | None, rng: np.random.Generator) -> Iterator[Base]:
    """Places at which the one-token target can be inverted: the first clear ones at once, the others at the end, best first."""
    unclear = []
    for scale in BEHIND.scales:
        place = rng.normal(size=target.oracle.width)
        norm = scale * np.sqrt(len(place))
        # tokens of a run lie within twice this length of the origin
        place *= (norm if max_norm is None else min(norm, 0.45 * max_norm)) / np.linalg.norm(place)
        base = _base_at(target, place, None, max_norm)
        if base is not None and base.clarity >= BEHIND.clear:
            yield base
        elif base is not None:
            unclear.append(base)
    yield from sorted(unclear, key=lambda base: -base.clarity)


def _base_at(target: Target, place: Floats, mixing: Mixing | None, max_norm: float | None) -> Base | None:
    """The steepest direction at a place and the longest nearly straight segment along it, or None where there is none."""
    norm = float(np.linalg.norm(place))
    nudge = norm / 64
    around = target.one(np.vstack([place, place + nudge * np.eye(len(place))]))
    value, jacobian = around[0], (around[1:] - around[0]).T / nudge
    if np.abs(around[1:] - value).max() <= 64 * target.noise(around):
        return None
    left, _, right = np.linalg.svd(jacobian if mixing is None else jacobian @ mixing.matrix)
    view, steepest = left[:, 0], right[0]
    path = steepest if mixing is None else mixing.matrix @ steepest
    reach = 1.0 if mixing is None or max_norm is None else max(1.0, float(np.linalg.norm(mixing.matrix, 2)))
    for length in norm / reach * 2.0 ** -np.arange(1.0, 10.0):
        ends = target.one(np.stack([place + length * path, place - length * path]))
        ahead, behind = (ends[0] - value) @ view, (value - ends[1]) @ view
        noise = target.noise(np.vstack([ends, value]))
        if min(ahead, behind) > max(0.6 * max(ahead, behind), 64 * noise):
            return Base(place, value, steepest, Reader(target, view, float(length), mixing), float(ahead / noise))
    return None


def _with_family(target: Target, base: Base, max_norm: float | None, rng: np.random.Generator) -> tuple[Base, Mixing | None]:
    """Tell a plain head from one with a residual, by copies: they must shift every log-odds by ``log(copies)``."""
    width, outputs = len(base.place), len(base.value)
    frame = tilted_frame(base.steepest, np.zeros((width, 0)), rng)[:4]
    single, error, lengths = base.reader.read(base.place, base.value, frame)
    several, error_several, _ = base.reader.read(base.place, base.value, frame, BEHIND.learner_copies)
    both = ~np.isnan(single + several)
    gap = np.abs(single - several)[both]
    if both.any() and (gap <= BEHIND.safety * (error + error_several)[both]).all():
        length = float(lengths[both].min())  # served everywhere: there the scores do not saturate and the network is not bent
        clarity = base.clarity * length / base.reader.length
        return replace(base, reader=replace(base.reader, length=length), clarity=clarity), None
    unreadable = () if both.any() else (Sign.UNREADABLE,)
    evidence = {"readable": int(both.sum()), "gap": float(gap.max(initial=0.0)), "outputs": outputs}
    if outputs < width and not both.any():
        raise NotIdentifiableError(
            f"None of the {len(frame)} segments tried at the last place could be inverted: the answer to two tokens is not among "
            "the one-token answers between them, or those are bent. Try another `seed`; `unsoftmax diagnose` names the family.",
            evidence=evidence,
            signs=unreadable,
        )
    if outputs < width:
        raise NotInFamilyError(
            f"Repeating a token {BEHIND.learner_copies} times does not shift its score by log {BEHIND.learner_copies} (it is off "
            f"by {gap.max():.2g}), so this is no single head followed by a position-wise network, or it has a residual, which "
            f"needs at least width = {width} outputs to be resolved (there are {outputs}). Run `unsoftmax diagnose` to see which "
            "family the target belongs to.",
            evidence=evidence,
            signs=unreadable,
        )
    mixing = residual_mixing(target, base.place, base.value, base.reader.length, max_norm, rng)
    turned = _base_at(target, base.place, mixing, max_norm)
    if turned is None:
        raise NotInFamilyError(
            "With a residual the answers change too little with the attended tokens to be inverted at the place tried. "
            "Run `unsoftmax diagnose` to see which family the target belongs to.",
            evidence=evidence,
            signs=unreadable,
        )
    return turned, mixing


def mixed_tokens(learned: Learned, sequences: Floats) -> Floats:
    """The one token ``(batch, width)`` that is worth each sequence to the network."""
    model = cast(Attention, learned.model)
    last = sequences[:, -1]
    scores: Floats = np.einsum("bnd,bd->bn", sequences, last @ model.W[0].T + model.c[0])
    mean: Floats = np.einsum("bn,bnd->bd", softmax(scores), sequences)
    return mean if learned.mixing is None else last + (mean - last) @ learned.mixing.T


def price(width: int, rank: int | None = None) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
    """Phases with the range of queries and of tokens, for answers without residual; rank None covers every rank."""
    fewest = rank if rank is not None else 0
    most = rank if rank is not None else width
    lines = [(r + 1) * (width + 1) + (width - r) * (r + 1) for r in (fewest, most)]
    return [
        ("place", (width + 35, 12 * (width + 15) + 300), (width + 50, 12 * (width + 15) + 600)),
        ("scores", (4 * lines[0], 12 * lines[1] + 16 * width), (5 * lines[0], 13 * lines[1] + 16 * width)),
        ("bilinear", (16, 80), (20, 100)),
    ]
