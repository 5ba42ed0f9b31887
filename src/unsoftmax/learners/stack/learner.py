"""Pre-norm stacks: every attention head of every layer, MLPs unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, tried
from unsoftmax.learners.stack.assemble import Draft, Heads, drafted, finished
from unsoftmax.learners.stack.certificate import misfit
from unsoftmax.learners.stack.heads import Base, find_heads, room
from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.mlps import Reading, read_mlps
from unsoftmax.learners.stack.order import Order, find_order
from unsoftmax.learners.stack.polish import polished
from unsoftmax.learners.stack.price import Sizes, price
from unsoftmax.learners.stack.recognition import Recognised, recognised
from unsoftmax.learners.stack.rehearsal import rehearsed_bounds
from unsoftmax.learners.stack.settings import EXACT, NODES, STACK, Settings, Sight, settings_for
from unsoftmax.learners.stack.sphere import Sphere
from unsoftmax.learners.stack.values import read_values
from unsoftmax.models import Attention
from unsoftmax.models.stack import Norm, Stack
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Bounds, Floor, Learned


@dataclass(frozen=True, slots=True)
class StackLearner:
    """Recover all heads of all layers of ``h <- h + attention(norm h)``, ``h <- h + mlp(norm h)``, whatever the MLPs are.

    Tokens are sent ``2^60`` times as long as normalised ones. Then the stack acts as ONE attention layer of all its heads on
    normalised tokens, plus a function of the last token alone; where the last token is zero nothing large is ever added, so one
    question gives the limit to rounding. One key at finite scale shows in which layer each head is.

    Price: 3 to 4.5 times the counting bound ``heads * (2 r (2 d - r) + r) / d`` for heads of rank ``r``; see ``price``.

    Assumes: pre-norm blocks with LayerNorm or RMSNorm and a plain residual path, answered before any final norm; no two heads with
    the same scores; at most about ``width - 14`` heads in all, up to ``width - 6`` for three times as many questions.

    Args:
        floor: how coarse the answers are.
        max_norm: no token longer than this is asked. Below ``2^62`` times a normalised one every answer of the limit is
            extrapolated from two or three lengths; below ``2^18`` times it is refused.
        checks: fresh sequences that the heads must explain at the end, two questions each.
        seen: what ``recognised`` said, where it was asked already.
        mlps: ReLU MLPs are learned as well where that costs at most so many times what the heads did; 0 learns none.
        left: tells how many questions may still be asked, None for any number.
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    checks: int = 24
    seen: Recognised | None = None
    mlps: float = 20.0
    left: Callable[[], int | None] | None = None

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the heads; answers must be the hidden state, at the last position or at every one."""
        settings = settings_for(self.floor, None if self.max_norm is None else self.max_norm / np.sqrt(oracle.width))
        phase(oracle, "recognition")
        seen = self.seen or recognised(oracle, rng=rng, settings=settings)
        if not seen.holds:
            raise NotInFamilyError(f"This is no pre-norm stack. {seen.words}", evidence={"recognised": seen.number})
        sphere = Sphere(oracle.width, seen.norm)
        limit = Limit.of(oracle, settings, seen.positions)
        if self.floor.exact:
            limit.look(sphere, settings, rng)
        found, reader, fine = self._draft(limit, sphere, settings, rng), limit, settings
        if found is None and settings is EXACT:  # too many heads for outputs at which last tokens are zero: read all outputs
            settings = NODES
            reader = replace(Limit.of(oracle, settings, seen.positions), extrapolated=True)
            found = self._draft(reader, sphere, settings, rng)
        if found is None:
            raise NotIdentifiableError(
                f"The answers show more heads than a stack of width {sphere.width} lets be told apart in this way: about "
                f"{room(sphere.width, STACK.narrowest)}, fewer in float32.",
            )
        draft, sure, gap = found
        phase(oracle, "layers")
        order = find_order(limit, sphere, draft.model(), fine, rng, draft.T)
        phase(oracle, "rows")
        heads = fitted(reader, draft, settings, rng)
        phase(oracle, "check")
        off = misfit(limit, sphere, heads.model, self.checks, rng)
        evidence = {
            "norm": seen.norm,
            "positions": seen.positions,
            "causal": order.causal,
            "heads": heads.model.heads,
            "layers": int(order.layers.max()) + 1,
            "score_ranks": heads.score_ranks,
            "value_ranks": heads.value_ranks,
            "head_gap": gap,
            "assignment": sure,
            "misfits": heads.misfits,
            "order_off": order.off,
            "order_residual": order.residual,
            "check_error": off,
        }
        stack = in_layers(heads.model, order, sphere)
        if not off <= settings.certain:
            raise NotInFamilyError(
                f"The {heads.model.heads} heads found miss fresh sequences of very long tokens by {off:.1e} of what keys change. "
                "The target has something beside pre-norm attention and MLPs.",
                evidence=evidence,
                model=stack,
            )
        bounds = None
        if not self.floor.exact:
            chosen = in_order(heads.model, order)
            ordered = Attention(heads.model.W[chosen], heads.model.V[chosen], heads.model.c[chosen])  # type: ignore[index]  # a stack has values
            bounds = self._bars(limit, sphere, ordered, heads.left, settings, np.random.default_rng(rng.integers(2**63)))
        reading = Reading()
        if self.mlps and fine is EXACT and not seen.positions:
            phase(oracle, "MLPs")
            left = None if self.left is None else self.left()
            reading = read_mlps(limit, sphere, heads.model, stack, order, fine, rng, self.mlps * reader.questions, left)
            evidence |= {"mlp_error": reading.misfit, "neurons": reading.neurons}
        return Learned(
            model=stack if reading.stack is None else reading.stack,
            ambiguity=AMBIGUITY if reading.stack is None else WHOLE,
            notes=(*_notes(heads, order, seen.words), *reading.notes),
            evidence=evidence,
            bounds=bounds,
            entry_error=off if reading.misfit is None else reading.misfit,
            ranks=tuple(heads.score_ranks[h] for h in in_order(heads.model, order)),
        )

    def price(
        self, width: int, heads: int, rank: int, *, norm: Norm = "layer", sight: Sight | None = None
    ) -> list[tuple[str, int]]:
        """Questions by phase for ``heads`` in all layers together, of rank ``rank``, where nothing has to be asked twice.

        Args:
            width: length of a token.
            heads: of all layers.
            rank: of W and V of each.
            norm: of the blocks; a LayerNorm leaves one dimension less.
            sight: where every position is answered, what tokens see of each other: ``"causal"`` or ``"all"``.
        """
        found = price(Sizes(settings_for(self.floor), width, heads, rank, norm, sight))
        return [*found, ("check", 2 * self.checks), ("MLPs", 4 if self.mlps and self.floor.exact else 0)]

    def _bars(
        self, limit: Limit, sphere: Sphere, heads: Attention, left: float, settings: Settings, rng: np.random.Generator
    ) -> Bounds | None:
        """Error bars where answers are coarse: everything once more on heads that are known."""

        def learn(target: Oracle, rng: np.random.Generator) -> tuple[Attention, float]:
            again = Limit.of(target, settings, False)
            found = self._draft(again, sphere, settings, rng)
            assert found is not None  # as many heads as were told apart before
            rehearsed = fitted(again, found[0], settings, rng)
            return rehearsed.model, rehearsed.left

        told = np.stack([np.where(np.abs(answer) < STACK.very_long, answer, 0.0) for answer in limit.alone.values()])
        beside = np.sqrt(np.mean(told**2)) * np.sign(rng.normal(size=sphere.width))
        return rehearsed_bounds(heads, sphere, beside, learn, left, rng)

    def _draft(
        self, limit: Limit, sphere: Sphere, settings: Settings, rng: np.random.Generator
    ) -> tuple[Draft, float, float] | None:
        """All heads on some last tokens; a step that fails after heads were told apart starts again in another frame."""
        refusal: NotInFamilyError | None = None
        few, crowded = False, limit.sight is not None
        for attempt in range(STACK.attempts + crowded):
            if attempt == STACK.attempts:  # many positions at once failed: the last one alone asks more, of better placed keys
                limit.sight = None
            phase(limit.oracle, "heads")
            base = find_heads(limit, sphere, settings, rng)
            if base is None:
                return None
            if base.frame.few:  # few outputs beyond the heads: tokens that are read all at once would cost digits
                limit.sight = None
            found = tried(partial(_drafted, limit, base, settings, rng), NotInFamilyError)
            if not isinstance(found, NotInFamilyError):
                return found
            refusal, few = found, base.frame.few
        assert refusal is not None
        if few:  # every output tells more
            return None
        raise refusal


def _drafted(limit: Limit, base: Base, settings: Settings, rng: np.random.Generator) -> tuple[Draft, float, float]:
    """The heads on these last tokens, how sure it is which is which, and how far they are apart."""
    phase(limit.oracle, "values")
    known = read_values(limit, base, settings, rng)
    if len(known.tokens) and not known.exceeded:
        limit.sight = None  # next time the last position alone is read: ranks near the width leave tokens too few outputs in common
        raise NotInFamilyError("Values have too large a rank for tokens that are read all at once.")
    return drafted(limit, base, known, settings, rng), known.sure, base.gap


def fitted(limit: Limit, draft: Draft, settings: Settings, rng: np.random.Generator) -> Heads:
    """Read the last scores, then fit all heads to all answers."""
    heads = finished(limit, draft, settings, rng)
    fit = polished(limit.batches, heads.model, heads.score_ranks, heads.value_ranks, settings.settled)
    if fit is None:
        return heads
    return replace(heads, model=fit.model, misfits={**heads.misfits, "all answers": fit.misfit}, left=fit.misfit)


AMBIGUITY = (
    "Heads are known up to their order within a layer; W and V as products, never their factors; gains and biases of the norms are "
    "folded into W, c and V. MLPs, attention biases b and the norms' epsilon are not learned: for very long tokens they are all "
    "one function of the last token."
)


WHOLE = (
    "Heads are known up to their order within a layer, W and V as products, never their factors; gains and biases of the norms are "
    "folded into W, c, V and the MLPs. Neurons are known up to their order, and ReLU ones up to a positive factor; with LayerNorm, "
    "what the attention's constant b adds to all coordinates alike is told as part of the MLP's."
)


def in_layers(model: Attention, order: Order, sphere: Sphere) -> Stack:
    """The heads of the limit layer as a stack, largest values first within each layer."""
    assert model.V is not None
    blocks, heads = [], in_order(model, order)
    for layer in range(int(order.layers.max()) + 1):
        chosen = heads[order.layers[heads] == layer]
        blocks.append(Attention(model.W[chosen], model.V[chosen], model.c[chosen]))
    return Stack(blocks, sphere.norm, epsilon=None)


def in_order(model: Attention, order: Order) -> NDArray[np.int_]:
    """Numbers of the heads, first layer first, largest values first within each."""
    assert model.V is not None
    return np.lexsort((-np.linalg.norm(model.V, axis=(1, 2)), order.layers))


def _notes(heads: Heads, order: Order, words: str) -> tuple[str, ...]:
    counts = np.bincount(order.layers)
    return (
        f"The target is {words}.",
        f"{heads.model.heads} heads in {len(counts)} layer{'s' * (len(counts) > 1)} ({', '.join(map(str, counts))}).",
        f"Ranks of the score matrices: {_ranks(heads.score_ranks)}; of the values: {_ranks(heads.value_ranks)}.",
        *(("It attends to earlier tokens only (causal).",) if order.causal else ()),
    )


def _ranks(ranks: tuple[int, ...]) -> str:
    return str(ranks[0]) if len(set(ranks)) == 1 else f"{min(ranks)} to {max(ranks)}"
