"""Decoder language models: every attention head of every layer from logits, MLPs unknown."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.errors import NotInFamilyError, TooNoisyError
from unsoftmax.learners.decoder.answers import ask_blocks, collected
from unsoftmax.learners.decoder.biased import Positioned
from unsoftmax.learners.decoder.certificate import misfit
from unsoftmax.learners.decoder.everywhere import asked_orders, fitted, number_of_parameters, orders_for
from unsoftmax.learners.decoder.heads import find_heads
from unsoftmax.learners.decoder.limit import Limit, are_log_probabilities, centred, limit_of, read_out
from unsoftmax.learners.decoder.order import Heads, Order, find_order
from unsoftmax.learners.decoder.polish import polished
from unsoftmax.learners.decoder.recognition import demand_plain
from unsoftmax.learners.decoder.scores import Scored, distances, read_scores
from unsoftmax.learners.decoder.settings import EVERYWHERE, LOGITS, ROUGHLY, settings_for
from unsoftmax.learners.decoder.values import read_values
from unsoftmax.learners.decoder.weak import weak_values
from unsoftmax.models import Floats
from unsoftmax.models.decoder import Decoder, DecoderLayer
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.results import Bounds, Floor, Learned

AMBIGUITY = (
    "Of each head's queries and keys one complex number per rotary frequency is free, of its values and output an invertible "
    "matrix; gains of the norms are part of the matrices behind them. MLPs are not known."
)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What the steps found, the heads after the last fit with what it left, and error bars."""

    gap: float
    scored: Scored
    heads: Heads
    left: float
    bars: Floats | None = None


@dataclass(frozen=True, slots=True)
class DecoderLearner:
    """Recover unembedding, heads, layers and positions of a decoder from its logits.

    Without biases and with RMSNorm (Llama): groups, rotary base and epsilon too. With biases (GPT-2): the table of positions.

    Price: see ``docs/decoders.md``; about 12,500 for 2 layers of 2 heads at width 32, 3,000 where every position is answered.

    Assumes: pre-norm blocks with RMSNorm and no bias anywhere, rotary positions, gated MLPs, a final RMSNorm, a vocabulary
    larger than the width; at most about ``3 width / 4 - 2`` heads in all.

    Args:
        floor: how coarse the answers are.
        max_norm: no token longer than this may be asked; the learner needs long ones and refuses it.
        longest: tokens of the longest sequences that the target takes.
        log: whether answers are log-probabilities; None finds out.
        places: learned positions that are read, where there are such.
        checks: fresh sequences that the model must explain at the end, two limit answers each.
    """

    floor: Floor = field(default_factory=Floor)
    max_norm: float | None = None
    longest: int = 256
    log: bool | None = None
    places: int = 64
    checks: int = 8

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the decoder; answers are logits or log-probabilities, of the last position or of every one."""
        if self.max_norm is not None:
            raise TooNoisyError(f"max_norm is {self.max_norm:g}; a decoder is read from very long tokens. Leave `max_norm` out.")
        settings = settings_for(self.floor)
        if settings is None:
            raise TooNoisyError(f"The answers are {self.floor.kind}; a decoder is read from float64 or float32 answers only.")
        whole, oracle = oracle, LastPosition(oracle)
        phase(oracle, "unembedding")
        tokens = rng.normal(size=(1, 2, oracle.width))
        told = whole(tokens)
        log = are_log_probabilities(told) if self.log is None else self.log
        everywhere = told.ndim == 3 and not settings.single and _causal(whole, tokens, told, settings.same)
        readout = read_out(oracle, log=log, settings=settings)
        zero = centred(oracle(np.zeros((1, 1, oracle.width))), log) - readout.bias
        if readout.norm == "layer" or readout.bias.any() or np.abs(zero).max() > settings.same * np.abs(readout.table).max():
            if settings.single:
                raise TooNoisyError(
                    f"The answers are {self.floor.kind}, and the decoder has biases or LayerNorm (as GPT-2); such a one is read "
                    "from float64 answers only: zero tokens do not stay zero in it, and without them heads are told apart by small "
                    "differences of answers that are rounded to five digits here. Run it in float64 (`model.double()`)."
                )
            return Positioned(readout, min(self.places, self.longest), self.checks, whole if everywhere else None).run(
                oracle, rng=rng
            )
        if self.longest < settings.shortest:
            raise NotInFamilyError(
                f"The target takes sequences of {self.longest} tokens at most; a decoder is read from sequences of "
                f"{settings.shortest}. Ask one with a longer context."
            )
        phase(oracle, "recognition")
        limit = limit_of(oracle, readout, settings, rng, min(settings.most_zeros, self.longest - 2))
        limit.everywhere = whole if everywhere else None
        strength = demand_plain(limit, rng)
        weak = strength < settings.weak
        if weak and settings.single:
            raise TooNoisyError(
                "Scores are weak, as initial weights give them (zero tokens change answers as without scores, to "
                f"{strength:.1e}; {settings.weak:g} and more are read). In answers that are {self.floor.kind} the slow "
                "rotations of heads so weak are not told apart. Ask a trained decoder, or float64 answers.",
                evidence={"strength": strength},
            )
        phase(oracle, "heads")
        if weak:
            limit = limit.measured(rng)
        found = self._roughly(limit, rng) if everywhere and not weak else None
        if found is None:
            found = self._finely(limit, rng, weak=weak)
        heads = found.heads
        phase(oracle, "layers")
        order = find_order(limit, heads, rng)
        model, places = in_layers(heads, order, limit)
        phase(oracle, "check")
        off = misfit(limit, model, self.checks, self.longest, rng)
        evidence = {
            "head_gap": found.gap,
            "rank_drop": found.scored.cliff,
            "base_misfit": found.scored.base_misfit,
            "score_misfit": found.scored.misfit,
            "left": found.left,
            "order_off": order.off,
            "check_error": off,
        }
        if not off <= limit.settings.certain:
            raise NotInFamilyError(
                f"The {model.heads} heads found miss fresh sequences of very long tokens by {off:.1e} of what contexts change. "
                "The target has something beside attention with rotary positions and MLPs.",
                evidence=evidence,
                model=model,
            )
        return Learned(
            model=model,
            ambiguity=AMBIGUITY,
            notes=_notes(model),
            evidence=evidence,
            ranks=tuple(layer.rank for layer in model.layers for _ in layer.heads),
            entry_error=off,
            bounds=None if found.bars is None else _bounds(found.bars[:, places], limit.width),
        )

    def _steps(self, limit: Limit, rng: np.random.Generator, *, weak: bool = False) -> Found:
        """Heads, values and scores, one after the other."""
        phase(limit.oracle, "heads")
        if weak:
            V, gap = weak_values(limit, rng)
        else:
            closed = find_heads(limit, rng)
            phase(limit.oracle, "values")
            V, gap = read_values(limit, closed.world, closed.pairs, closed.x, closed.alone).V, closed.gap
        phase(limit.oracle, "scores")
        scored = read_scores(limit, V, self.longest, rng)
        return Found(gap, scored, scored.heads, np.inf)

    def _finely(self, limit: Limit, rng: np.random.Generator, *, weak: bool) -> Found:
        """The steps from exact answers, then a fit to all of these."""
        found, settings = self._steps(limit, rng, weak=weak), limit.settings
        ask_blocks(limit, found.scored.lasts, self.longest, rng)
        fit = polished(found.heads, collected(limit.asked, 1 / settings.repeats), limit.noise, settings, rng)
        if fit.bars is not None and not fit.left <= settings.errors * limit.noise:
            raise NotInFamilyError(
                f"All heads together leave {fit.left:.1e} of an answer, beyond its error of {limit.noise:.1e}: scores at some "
                "distance are not those of rotary positions, or the last fit did not find them.",
                evidence={"left": fit.left},
            )
        return replace(found, heads=fit.heads, left=fit.left, bars=fit.bars)

    def _roughly(self, limit: Limit, rng: np.random.Generator) -> Found | None:
        """The same from rough answers, then a fit of exact ones at all positions; None where heads are too many for that."""
        rough = replace(
            limit, settings=ROUGHLY, fine=ROUGHLY.fine, rough=ROUGHLY.rough, noise=EVERYWHERE.rough, zeros=limit.zeros, asked=[]
        )
        found = self._steps(rough, rng)
        if number_of_parameters(found.heads) > limit.settings.largest:
            return None
        phase(limit.oracle, "all positions")
        heads, left = fitted(found.heads, asked_orders(limit, found.heads, self.longest, rng), limit.noise)
        return replace(found, heads=heads, left=left)

    def price(self, width: int, heads: int, rank: int, *, everywhere: bool = False) -> tuple[tuple[str, int], ...]:
        """Queries by phase for ``heads`` in all layers, if the first frame and every key do; ``everywhere``: at all positions."""
        exact = LOGITS.fine.count
        each = ROUGHLY.fine.count if everywhere else exact
        few = heads <= 6
        q, rows, columns = (3, 12, 3) if few else (4, max(12, 2 * heads), 4)
        design = 10 * rows + 10 * rows * columns + (0 if rows == 12 and few else 10 * 12 + 10 * 12 * 3)
        world = 5 * (q - 1) * rows * columns + 5 * 4 * q * (q + 1) // 2 + 7 * each * (24 if few else 12 + 3 * heads)
        anchors, total, curves = rank + LOGITS.spare, int(np.ceil(LOGITS.more * width)), LOGITS.curves
        scores, lasts = 8 * (total + anchors), int(np.ceil(12 * heads * rank / (width - 1))) + 20
        last: tuple[tuple[str, int], ...] = ()
        if everywhere:  # one sequence tells a pair at all distances
            beside = min(anchors, ROUGHLY.partners or anchors)
            scores += each * (curves * (curves + 1) + anchors * (anchors + 2) + 2 * total * (beside + 1))
            orders = orders_for(4 * heads * rank * width, width, self.longest)
            last, lasts = (("all positions", exact * orders),), lasts // LOGITS.order_length
        else:
            turns, near, offsets = len(LOGITS.turns), len(LOGITS.near), len(distances(rank, LOGITS.farthest))
            scores += each * (curves * (curves + 1) * offsets + anchors * ((anchors + 1) * turns + 1))
            scores += each * total * (2 * anchors * near + near + 1)
        return (
            ("unembedding", 2 * width + 3 + everywhere),
            ("recognition", 28 * exact + 32),
            ("heads", design + world),
            ("values", each * (width - q) * (3 * heads + 8)),
            ("scores", scores),
            *last,
            ("layers", 2 * exact * lasts),
            ("check", 2 * exact * self.checks),
        )


def _causal(oracle: Oracle, tokens: Floats, told: Floats, same: float) -> bool:
    """Whether the first position is answered as if nothing came behind it: one question."""
    return bool(np.abs(oracle(tokens[:, :1])[:, 0] - told[:, 0]).max() <= same * np.abs(told).max())


def _bounds(bars: Floats, width: int) -> Bounds:
    """Half-widths for the entries of every head's scores (``W``, at any distance up to 100) and values."""
    V, W = (np.broadcast_to(part[:, None, None], (len(part), width, width)) for part in bars)
    return Bounds(kind="estimated", W=W, V=V)


def in_layers(heads: Heads, order: Order, limit: Limit) -> tuple[Decoder, list[int]]:
    """The decoder, heads of a layer by groups, groups by the size of their values; and which head is where."""
    strength = np.linalg.norm(heads.V, axis=(1, 2))
    layers, places = [], []
    root = np.sqrt(np.sqrt(heads.query.shape[1]))  # scores are divided by the root of the rank, as is usual
    for layer in range(int(order.layers.max()) + 1):
        mine = np.flatnonzero(order.layers == layer)
        groups = sorted(set(heads.group[mine].tolist()), key=lambda g: -strength[mine][heads.group[mine] == g].max())
        members = [sorted(mine[heads.group[mine] == g].tolist(), key=lambda h: -strength[h]) for g in groups]
        if len({len(group) for group in members}) > 1:  # heads share keys unevenly: then each has its own
            members = [[h] for group in members for h in group]
        every = [h for group in members for h in group]
        firsts = [group[0] for group in members]
        places += every
        layers.append(
            DecoderLayer(root * heads.query[every], root * heads.key[firsts], heads.value[firsts], heads.out[every], heads.base)
        )
    return Decoder(layers, limit.readout.table, order.epsilon, log=limit.readout.log), places


def _notes(model: Decoder) -> tuple[str, ...]:
    shape = ", ".join(f"{len(layer.heads)} heads with {layer.groups} keys and values" for layer in model.layers)
    return (
        f"A decoder of {len(model.layers)} layers ({shape}), rank {model.layers[0].rank}, rotary base {model.base:.6g}, "
        f"epsilon about {model.epsilon:.3g}; answers are {'log-probabilities' if model.log else 'logits'}.",
        "MLPs are not recovered, so the model predicts answers to very long tokens alone.",
        *(("Of log-probabilities the unembedding is known up to one row that is added to all.",) if model.log else ()),
    )
