"""Many heads with vector answers: number of heads, W, V, c and b from last-position or all-position answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from array_api_compat import array_namespace

from unsoftmax.errors import (
    OR_NO_HEADS,
    NotIdentifiableError,
    NotInFamilyError,
    RefusalError,
    Sign,
    TooNoisyError,
    alike_within,
    tried,
)
from unsoftmax.learners.scalar_heads import unseen_gap
from unsoftmax.learners.vector_heads.addressing import Pairs, Steering, has_biases, steer, steps_for
from unsoftmax.learners.vector_heads.all_positions import SideBySide, demix_everywhere, looks_back_only, spread_values
from unsoftmax.learners.vector_heads.answers import Answers, unit
from unsoftmax.learners.vector_heads.demixing import MOST_SEARCHED, Mixture, Totals, demix, one_token
from unsoftmax.learners.vector_heads.keys import copies_for
from unsoftmax.learners.vector_heads.projected import WIDEST, learn_projected
from unsoftmax.learners.vector_heads.scores import ScoreMatrices, read_matrices
from unsoftmax.learners.vector_heads.short_tokens import read_matrices_everywhere
from unsoftmax.learners.vector_heads.slices import Switches, collect, slices_for
from unsoftmax.learners.vector_heads.unnamed import unnamed_values
from unsoftmax.learners.vector_heads.values import Values, direct_values, group_size, split_values
from unsoftmax.linalg import on_host
from unsoftmax.models import Attention, Floats
from unsoftmax.models.matrices import Matrices
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Floor, Learned
from unsoftmax.symmetry import canonical
from unsoftmax.watching import watchers

COARSEST = 2.0**-16  # relative error of answers beyond which weights in a mixture of heads cannot be read
WORST = 3e-8  # expected relative error of W beyond which a head is not known; the estimate may be a few times too small
SPREAD = 4.0  # error of W over that of V, or over that of fresh answers, at its largest among heads of about equal strength


@dataclass(frozen=True, slots=True)
class VectorHeadsLearner:
    """Recover all heads of an attention layer with vector answers, ``heads <= min(width, outputs)``.

    Price for last-position answers, with ``g`` keys per question (``group_size``) and ``k`` a few more than the rank:
    ``width + 2`` one-token answers, about ``8 + 2 * heads`` saturated pairs (ten a head beyond 20 heads),
    ``10 + 2 * heads + width / 32`` for scales, about ``(heads - 1) * (k + 1)`` switched answers (``(heads - 1) * width`` and a
    few at full rank), ``k * ceil(width / g) + (width - k) * ceil(rank / g)`` for scores (``width * ceil(width / g)`` at full
    rank), and ``3 + ceil(width / g)`` more where there are biases c. On a device probes are built and answers read there.

    Assumes tokens of any length unless ``max_norm`` is given, values of different heads that are linearly independent for a
    random direction, and scores that can be switched one by one; refuses otherwise. Reference: arXiv 2608.03294 shows why
    sequences of two distinct tokens and their copies identify the heads.

    Args:
        floor: how coarse the answers are; every threshold follows from it.
        heads: how many heads there are at most; None finds the number (always done).
        rank: an upper bound on the rank of W, if one is known.
        max_norm: no token longer than this; saturation needs long tokens, so a small bound is refused.
    """

    floor: Floor = field(default_factory=Floor)
    heads: int | None = None
    rank: int | None = None
    max_norm: float | None = None

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Ask ``oracle`` and return the model in canonical form, checked on a few fresh sequences."""
        if self.floor.relative > COARSEST:
            raise TooNoisyError(
                f"The answers carry a relative error of {self.floor.relative:.1g}; many heads can be read down to {COARSEST:.1g}. "
                "Ask the target for float32 or better answers."
            )
        answers = Answers(oracle, self.floor, self.max_norm)
        phase(oracle, "values")
        first = oracle(np.zeros((1, 2, oracle.width)))
        b = first.reshape(-1, first.shape[-1] if first.ndim > 1 else 1)[-1]
        constant = answers.there(b)
        everywhere = first.ndim == 3 and self.floor.exact and self.max_norm is None
        totals = None if everywhere else one_token(answers, constant, rng)

        def read(attempt: int) -> Learned:
            if everywhere and attempt == 0:
                return self._everywhere(answers, constant, rng)
            return self._last(answers, one_token(answers, constant, rng) if totals is None else totals, rng)

        refusal: NotInFamilyError | None = None
        for attempt in range(2):  # a base direction may be unlucky for one head; the second try is always at the last position
            found = tried(partial(read, attempt), NotInFamilyError, NotIdentifiableError)
            if not isinstance(found, RefusalError):
                return found
            unlucky = isinstance(found, NotInFamilyError)
            if Sign.TOO_MANY in found.signs if unlucky else not everywhere or attempt == 1:  # the last position shows faint heads
                raise found
            refusal = found if isinstance(found, NotInFamilyError) else refusal
        assert refusal is not None
        if not self.floor.exact:
            message = f"{refusal} The answers are {self.floor.kind}; exact ones may do."
            raise TooNoisyError(message, evidence=refusal.evidence, model=refusal.model, signs=refusal.signs) from refusal
        if self.max_norm is not None:
            message = f"{refusal} No token may be longer than {self.max_norm:g}, and heads show one by one to long tokens only."
            raise NotInFamilyError(message, evidence=refusal.evidence, model=refusal.model, signs=refusal.signs) from refusal
        if oracle.width > WIDEST or len(b) < 2:
            raise refusal
        return self._projected(answers, b, refusal, rng)

    def _projected(self, answers: Answers, b: Floats, refusal: NotInFamilyError, rng: np.random.Generator) -> Learned:
        try:
            model, rounding = learn_projected(answers, b, rng, heads=self.heads)
            misfit = self_check(answers, model, rng)
        except RefusalError as error:
            within = error.within if isinstance(error, NotInFamilyError) else np.inf  # of its own check
            if within < 1e-3:  # heads that explain the answers this far are heads, and two of them are one
                raise NotIdentifiableError(
                    "Two heads lie too close together to be told apart by float64 answers: those found explain fresh sequences "
                    f"only to {within:.1g} of their spread. {OR_NO_HEADS}",
                    model=error.model,
                    evidence={**error.evidence, "merged_within": within},
                    signs=alike_within(within),
                ) from error
            message = f"{error} (Read from one mixture of the outputs, since switching the heads one by one failed: {refusal})"
            evidence = {**refusal.evidence, **error.evidence}
            signs = (*refusal.signs, *error.signs)
            raise type(error)(message, evidence=evidence, model=_without_mixed(error.model), signs=signs) from error
        ranks = tuple(int(np.linalg.matrix_rank(W, tol=1e-9 * float(np.linalg.norm(W, 2)))) for W in model.W)
        value_ranks = tuple(int(np.linalg.matrix_rank(V, tol=1e-9 * float(np.linalg.norm(V, 2)))) for V in _values(model).whole())
        return package(model, ranks, value_ranks, 0.0, misfit, max(rounding, SPREAD * misfit))

    def _everywhere(self, answers: Answers, b: Floats, rng: np.random.Generator) -> Learned:
        causal = looks_back_only(answers, b, rng)
        mixture, steering = demix_everywhere(answers, rng, heads=self.heads)
        totals = Totals(b=b, total=answers.there(np.zeros((answers.width, len(b)))))
        slicer = SideBySide.of(answers, steering, len(b), rng)
        values = self._values_everywhere(answers, totals, mixture, steering, slicer, rng).ordered()
        biased = has_biases(Pairs.of(answers, totals, mixture))
        scores = read_matrices_everywhere(answers, totals, values, rng, biased=biased, causal=causal)
        return self._packed(answers, b, values, scores, rng, causal=causal)

    def _values_everywhere(
        self,
        answers: Answers,
        totals: Totals,
        mixture: Mixture,
        steering: Steering,
        slicer: SideBySide,
        rng: np.random.Generator,
    ) -> Values:
        blocks = unnamed_values(slicer, mixture, steering.step, rng)
        if blocks is None:
            slices = collect(answers, totals, mixture, steering.step, slicer, rng, widen=True)
            if len(slices.U) >= answers.width:
                return direct_values(answers, slices)
            blocks = list(slices.Y)
        return spread_values(answers, blocks, rng)

    def _last(self, answers: Answers, totals: Totals, rng: np.random.Generator) -> Learned:
        mixture = demix(answers, totals, rng, heads=self.heads)
        while (steering := steer(answers, totals, mixture, rng)) is None:
            mixture = demix(answers, totals, rng, heads=self.heads, begun=mixture)
        switches = Switches.of(answers, totals, mixture, steering)
        reach = min(0.3, 2 * steering.step) if answers.coarse else steering.step  # coarse answers are all checked as they come
        slices = collect(answers, totals, mixture, reach, switches, rng, widen=False)
        whole = len(slices.U) >= answers.width
        values = (direct_values(answers, slices) if whole else split_values(switches, slices, steering.step)).ordered()
        for watcher in watchers():
            watcher.sees(
                lambda: Attention(np.zeros((len(values.V), answers.width, answers.width)), on_host(values.V), b=on_host(totals.b))
            )
        offset = float(np.abs(steering.offsets).max()) if steering.offsets.any() else None
        guess = max(values.ranks) if self.rank is None else min(self.rank, answers.width)
        scores = read_matrices(answers, totals, values, steering.strength, offset, rng, rank=guess)
        return self._packed(answers, totals.b, scores.values, scores, rng)

    def _packed(
        self,
        answers: Answers,
        b: Floats,
        values: Values,
        scores: ScoreMatrices,
        rng: np.random.Generator,
        *,
        causal: bool | None = None,
    ) -> Learned:
        """The heads, checked where they are; their matrices stay there, in factors, until the proof is over."""
        constant = on_host(b)
        model = Attention(
            W=scores.W,
            V=values.matrices,
            c=on_host(scores.biases.c) if scores.c is not None else None,
            b=constant if np.abs(constant).max() > answers.floor.absolute else None,
        )
        misfit = self_check(answers, model, rng, causal=causal)
        error = known(answers, model, np.maximum(scores.errors, SPREAD * values.errors(answers)), misfit)
        return package(model, scores.ranks, values.ranks, scores.residual, misfit, error)


def known(answers: Answers, model: Attention, errors: Floats, misfit: float) -> float:
    """The largest relative error of a head's W, as rounding and the learner's own check tell; refuses where it is not known."""
    worst, head = float(errors.max()), int(errors.argmax())
    if worst > (1e-2 if answers.coarse else WORST):
        W, V = model.score_sizes, _values(model).sizes
        raise NotIdentifiableError(
            f"The answers tell the W of one head only to about {worst:.1g}: its values are {V[head] / V.max():.1g} and its scores "
            f"{W[head] / W.max():.1g} of the largest among the {model.heads} heads, and the rounding of answers hides it. "
            "The model explains fresh sequences all the same; answers of higher precision would tell more.",
            model=canonical(model),
            evidence={"estimated_error": worst},
            signs=(Sign.POORLY_KNOWN,),
        )
    return max(worst, SPREAD * misfit)


def package(
    model: Attention, ranks: tuple[int, ...], value_ranks: tuple[int, ...], residual: float, misfit: float, error: float
) -> Learned:
    """The heads in canonical order with the words that the report needs.

    ``misfit`` is the error of the learner's own check, ``error`` what it expects of W.
    """
    form = canonical(model)
    rows = model.scores.first_rows
    order = [int(np.argmin(np.linalg.norm(rows - kept, axis=1))) for kept in form.scores.first_rows]
    ranks, value_ranks = tuple(ranks[i] for i in order), tuple(value_ranks[i] for i in order)
    heads = f"{form.heads} head{'s' if form.heads > 1 else ''}"
    words, interval = unseen_gap(max(misfit, residual))
    return Learned(
        model=form,
        ambiguity=f"W, V, c and b are unique up to the order of the heads; the factors of W and V (queries, keys) cannot be known. "
        f"Heads with V = 0 do not show; {words}.",
        notes=(
            f"{heads} found; ranks of W: {', '.join(map(str, sorted(ranks)))}.",
            f"Ranks of V: {', '.join(map(str, sorted(value_ranks)))}.",
            f"The part of the answers that the heads do not explain is {residual:.1g} of their size.",
        ),
        evidence={
            "heads": form.heads,
            "ranks": list(ranks),
            "value_ranks": list(value_ranks),
            "residual": residual,
            "own_check": misfit,
            "estimated_error": error,
            "merged_below": interval,
        },
        ranks=ranks,
        known_to=error,
    )


def _without_mixed(model: Attention | None) -> Attention | None:
    """A model read from one mixture of the outputs: its V are of the mixture alone, so only W and c are handed on."""
    if model is None or model.outputs is not None:
        return model
    return Attention(W=model.W, V=None, c=model.c if model.has_c else None)


def _values(model: Attention) -> Matrices:
    assert model.values is not None
    return model.values


def self_check(answers: Answers, model: Attention, rng: np.random.Generator, *, causal: bool | None = None) -> float:
    """The error on six fresh sequences with scores around 1 and around 10; refuses where it is too large.

    At every position two sequences will do; ``causal`` is None where the last one is looked at.
    """
    phase(answers.oracle, "self-check")
    count = 6 if causal is None else 2
    directions = answers.there(unit(rng, count * 5, answers.width))
    xp, apart, found = array_namespace(directions), directions.reshape(count, 5, -1), model.on_device(directions)
    scored = found.scores.turned(directions).reshape(-1, *apart.shape)
    quadratic = float(xp.max(xp.abs(apart @ scored.swapaxes(2, 3))))
    linear = float(xp.max(xp.abs(directions @ found.c.T)))
    length = min(1 / np.sqrt(quadratic + 1e-300), 1 / (linear + 1e-300), 1e6)
    if answers.max_norm is not None:
        length = min(length, answers.max_norm / 4)
    X = apart * answers.there(length * np.where(np.arange(count) % 2, 1.0, 3.0))[:, None, None]
    everywhere = causal is not None
    asked = answers.everywhere(X) if everywhere else answers.last(X)
    predicted = found(X, everywhere=everywhere, causal=bool(causal))
    told, predicted = (on_host(answer).reshape(-1, answer.shape[-1]) for answer in (asked, predicted))
    spread = np.abs(told - told.mean(axis=0)).max(axis=1)
    error = float((np.abs(told - predicted).max(axis=1) / np.maximum(spread, np.abs(told).max() * 1e-6 + 1e-300)).max())
    allowed = max(1e-8, 2.0**12 * answers.eps(float(np.abs(told).max() + 1e-300)))
    if error > allowed:
        raise NotInFamilyError(
            f"The heads found do not explain fresh sequences: relative error {error:.2g}, allowed {allowed:.2g}. "
            "Two heads may be nearly equal, or the target is more than attention; `unsoftmax diagnose` tells which test it fails.",
            evidence={"self_check_error": error, "allowed": allowed},
            within=error,
            model=model,
        )
    return error


def price(
    width: int, outputs: int, heads: int, rank: int | None = None, *, value_rank: int | None = None, biases: bool = True
) -> list[tuple[str, int, int]]:
    """The usual bill of last-position answers as (phase, queries, tokens); saturated pairs and re-asks vary by a few dozen.

    Args:
        width: length of a token.
        outputs: length of an answer.
        heads: number of heads.
        rank: rank of each head's W; None for full rank.
        value_rank: rank of each head's V; None for the same as W.
        biases: whether there is a query bias c.
    """
    full = min(width, outputs)
    shown = value_rank if value_rank is not None else rank if rank is not None else full
    size = group_size(outputs, heads, min(shown, full))
    goal = slices_for(shown) if shown * heads <= outputs and shown < width - 2 else width
    slices, equal = 1, slices_for(outputs // heads)
    while slices < goal:
        step = max(4, slices)
        step = equal - slices if slices < equal < slices + step else step
        slices = min(width, slices + step)
    scales = 4 + (3 if biases else 0) + steps_for(width, heads)
    groups = -(-width // size)
    low = width if rank is None else rank
    columns = width if -(-low // size) >= groups else min(width, slices_for(low))
    column_queries = groups * (columns + (1 if biases else 0))
    row_groups = -(-low // size)
    per_row = -(-min(row_groups * size, low + 2 + low // 4) // row_groups)
    told_apart = 8 + 2 * heads if heads <= MOST_SEARCHED else 10 * heads
    switched = max(1, heads - 1) * (slices - 1) + 2 * heads
    bill = [
        ("values", width + 2, width + 2),
        ("heads", told_apart, 2 * told_apart),
        ("scales", scales, 2 * scales),
        ("slices", switched, 2 * switched),
        ("columns", column_queries + 2, (column_queries + 2) * _tokens(-(-width // groups))),
    ]
    if columns < width:
        bill.append(("rows", row_groups * (width - columns), row_groups * (width - columns) * _tokens(per_row)))
    return [*bill, ("self-check", 6, 30)]


def _tokens(size: int) -> int:
    """Tokens of a question with ``size`` keys."""
    return size + copies_for(size)
