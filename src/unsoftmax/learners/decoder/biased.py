"""Decoders with biases and learned positions (GPT-2): behind the final norm they are a stack, and are read as one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, TooNoisyError
from unsoftmax.learners.decoder.limit import Readout, best_nodes
from unsoftmax.learners.decoder.nodes import Nodes
from unsoftmax.learners.decoder.settings import LOGITS
from unsoftmax.learners.stack.assemble import drafted
from unsoftmax.learners.stack.certificate import compared_limit, misfit
from unsoftmax.learners.stack.heads import Base, find_heads
from unsoftmax.learners.stack.learner import fitted, in_layers
from unsoftmax.learners.stack.limit import Limit
from unsoftmax.learners.stack.order import find_order
from unsoftmax.learners.stack.recognition import recognised
from unsoftmax.learners.stack.settings import NODES, Settings
from unsoftmax.learners.stack.sphere import Sphere
from unsoftmax.learners.stack.values import read_values
from unsoftmax.models import Decoder, Floats
from unsoftmax.models.decoder import BiasedLayer
from unsoftmax.models.stack import Stack
from unsoftmax.oracles.base import Oracle, Wrapper, phase
from unsoftmax.results import Learned

AMBIGUITY = (
    "Heads are known up to their order within a layer; W and V as products, never their factors; gains and biases of the norms are "
    "folded into W, c and V. Positions are known up to one vector that all share. MLPs, constants beside them and epsilon are not "
    "known; nor is what all coordinates of the hidden state share, which LayerNorm removes."
)


class Hidden(Wrapper):
    """A decoder as a stack without final norm: very long tokens are answered with the last one, and the limit where that is zero.

    What the answers lack of the hidden state is its part along the last token; where that is zero, nothing is missing. ``count``
    questions for each, as many of them in one call as ``LOGITS.crowd`` numbers hold.
    """

    def __init__(self, inner: Oracle, readout: Readout, nodes: Nodes = LOGITS.fine) -> None:
        super().__init__(inner)
        self.readout, self.nodes = readout, nodes

    def __call__(self, sequences: Floats, /) -> Floats:
        """Hidden states ``(batch, width)``."""
        size = sequences[:1].size + len(self.readout.table)
        step = max(1, LOGITS.crowd // (self.nodes.count * size))
        return np.concatenate([self._part(sequences[i : i + step]) for i in range(0, max(1, len(sequences)), step)])

    def _part(self, sequences: Floats) -> Floats:
        last = sequences[:, -1]
        short = sequences.copy()
        short[:, -1] *= np.sqrt(self.width) / np.linalg.norm(last, axis=1, keepdims=True)
        return np.where(last != 0, last, self.readout.limits(self.inner, short, self.nodes))


def settings() -> Settings:
    """What suits limits that are good to 1e-11: twice the answers that a stack takes, because they carry six digits less."""
    return replace(
        NODES,
        scale=2.0**60,
        finite=2.0**16,
        same=1e-8,
        order=1e-2,
        theta=0.05,
        quiet=3e-5,  # errors of the limits times ``finite`` are some 1e-6
        share=1.6,
        fill=0.35,
        over=4.0,
        spread=2.0,
        keys=1.4,
    )


def leaner(base: Base, settings: Settings) -> tuple[Base, Settings]:
    """For many heads, whose fits take minutes and get more answers anyway, no more than a stack takes."""
    few = replace(settings, share=1.2, over=3.0, spread=1.5, keys=1.0)
    count = few.readers(base.heads)
    return replace(base, readers=base.readers[:count], fit=replace(base.fit, z=base.fit.z[:count])), few


@dataclass(frozen=True, slots=True)
class Positioned:
    """Read a decoder with biases: heads as those of a stack, then the table of positions.

    Args:
        readout: its unembedding and final norm.
        places: positions that are read.
        checks: fresh sequences that the heads must explain, two limit answers each.
        everywhere: the target, answering every position; None where it answers the last one alone.
    """

    readout: Readout
    places: int
    checks: int
    everywhere: Oracle | None = None

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the heads and the positions."""
        phase(oracle, "recognition")
        fine = settings()
        seen = recognised(Hidden(oracle, self.readout), rng=rng, settings=fine)
        if not seen.holds:
            if seen.random:
                raise TooNoisyError(seen.words, evidence={"repeated": seen.number})
            raise NotInFamilyError(
                f"The decoder has biases or LayerNorm, and: {seen.words} With biases, positions that depend on the distance "
                "(rotary ones as in Qwen2, GPT-NeoX or Phi, or ALiBi) are not covered; learned ones (GPT-2) are.",
                evidence={"recognised": seen.number},
            )
        if seen.norm != self.readout.norm:
            raise NotInFamilyError("The final norm is not of the kind of the other norms.")
        sphere = Sphere(oracle.width, seen.norm)
        hidden = Hidden(
            oracle, self.readout, best_nodes(oracle, self.readout, rng, replace(LOGITS, fine=Nodes(4, LOGITS.deep), lengths=8))[0]
        )
        limit = Limit(hidden, fine.scale, seen.positions)
        phase(oracle, "heads")
        base = find_heads(limit, sphere, fine, rng)
        if base is None:
            raise NotIdentifiableError(
                f"The answers show more heads than a decoder with biases of width {oracle.width} lets be told apart: about "
                f"{oracle.width // 2 - 5}."
            )
        if base.heads >= LOGITS.many:
            base, fine = leaner(base, fine)
        phase(oracle, "values")
        known = read_values(limit, base, fine, rng)
        draft = drafted(limit, base, known, fine, rng)
        phase(oracle, "layers")
        order = find_order(limit, sphere, draft.model(), fine, rng, draft.T)
        phase(oracle, "rows")
        heads = fitted(limit, draft, fine, rng)
        phase(oracle, "positions")
        positions = self._positions(hidden, sphere, rng) if seen.positions else None
        phase(oracle, "check")
        off = misfit(limit, sphere, heads.model, self.checks, rng)
        stack = in_layers(heads.model, order, sphere)
        model = Decoder(
            [BiasedLayer(layer) for layer in stack.layers],
            self.readout.table,
            None,
            norm=stack.norm,
            bias=self.readout.bias,
            positions=positions,
            log=self.readout.log,
        )
        evidence = {
            "head_gap": base.gap,
            "misfits": heads.misfits,
            "score_ranks": heads.score_ranks,
            "order_off": order.off,
            "check_error": off,
        }
        if not off <= fine.certain:
            raise NotInFamilyError(
                f"The {model.heads} heads found miss fresh sequences of very long tokens by {off:.1e} of what keys change. "
                "The target has something beside pre-norm attention and MLPs, or scores too weak to be read.",
                evidence=evidence,
                model=model,
            )
        shape = ", ".join(str(len(layer.heads)) for layer in model.layers)
        norm = "LayerNorm" if stack.norm == "layer" else "RMSNorm"
        table = f"a table of positions, of which {self.places} were read" if seen.positions else "no positions"
        return Learned(
            model=model,
            ambiguity=AMBIGUITY,
            notes=(
                f"A decoder of {len(model.layers)} layers ({shape} heads) with {norm}, biases and {table}.",
                "MLPs are not recovered, so the model predicts answers to very long tokens alone.",
            ),
            evidence=evidence,
            ranks=tuple(rank for rank in heads.score_ranks),
            entry_error=off,
        )

    def _positions(self, hidden: Hidden, sphere: Sphere, rng: np.random.Generator) -> Floats:
        """The table less its first row: tokens that are all alike give every head the same values at any length."""
        x = sphere.dense(LOGITS.rows_by[self.everywhere is not None], rng)
        flat = np.eye(sphere.width) - (1 / sphere.width if sphere.norm == "layer" else 0.0)
        seen = [flat - np.outer(one, one) / sphere.width for one in x]  # what the direction of the hidden state tells
        inverse = np.linalg.pinv(np.concatenate(seen), rcond=1e-9)
        if self.everywhere is not None:
            copies = np.repeat(x[:, None], self.places, axis=1)
            told = self.readout.limits_everywhere(self.everywhere, copies[:, :0], copies, hidden.nodes).swapaxes(0, 1)
        else:
            told = np.stack([self._repeated(hidden, x, length) for length in range(1, self.places + 1)])
        rows = told.reshape(self.places, -1)
        return np.asarray((rows - rows[0]) @ inverse.T)

    def _repeated(self, hidden: Hidden, x: Floats, length: int) -> Floats:
        """Limits ``(n, width)`` at the last of so many copies of ``x (n, width)``."""
        sequences = np.repeat(x[:, None], length, axis=1)
        sequences[:, :-1] *= settings().scale
        return self.readout.limits(hidden.inner, sequences, hidden.nodes)


def compared(oracle: Oracle, model: Decoder, batches: list[Floats], rng: np.random.Generator) -> tuple[Floats, Floats, int]:
    """For every sequence of the batches what its context changes, ``(n, width)``, what the heads say, and the queries for each."""
    assert model.bias is not None
    readout = Readout(model.unembedding, model.bias, model.norm, model.log)
    stack = Stack([layer.attention for layer in model.layers if isinstance(layer, BiasedLayer)], model.norm, None)
    hidden = Hidden(oracle, readout)
    answers, predicted = compared_limit(hidden, stack, model.positions is not None, batches, settings(), rng)
    return answers, predicted, 2 * hidden.nodes.count
