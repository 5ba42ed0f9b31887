"""The proof of a recovery: the learned model against fresh answers, and what a mismatch means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unsoftmax.errors import BudgetExceededError, DriftingError, NotIdentifiableError, NotInFamilyError, RefusalError, TooNoisyError
from unsoftmax.learners.one_head.learner import LOW_RANK_GROWTH
from unsoftmax.linalg import normal, on_host
from unsoftmax.models import Floats, Model
from unsoftmax.oracles.base import LastPosition
from unsoftmax.oracles.drift import post_mortem
from unsoftmax.precision.law import Floor
from unsoftmax.proof.bars import fitting_bars
from unsoftmax.proof.compare import Compared, predicted_as, predictor
from unsoftmax.proof.fresh import COUNT, Fresh, fresh_batches
from unsoftmax.proof.judge import checked, covered, relative_errors, varies
from unsoftmax.proof.noisy import LEAST, SHARE, SLOPE_ERROR, doubt, loud_batches, noisy_held_out
from unsoftmax.results import Bounds, Check, Learned, Proof, Status

if TYPE_CHECKING:
    from unsoftmax.desk import Desk
    from unsoftmax.families.base import Family

EXACT_TOLERANCE = 1e-8  # relative error on fresh sequences up to which float64 answers count as matched
COARSE_FACTOR = 2048.0  # the same in units of the answers' own relative precision, for coarser answers
CONSTANT_FACTOR = 2.0**-38  # misfit of one head that the rounding of a large constant explains, relative to the largest answer
MORE_THAN_ROUNDING = 0.31  # of the step: rounding alone errs by 0.29 (rms)
HALF = 0.5  # of the answers' spread: noise beyond that hides any model
ALMOST = 1e-5  # heads that explain fresh sequences this far, but not to rounding, are merged ones
LOOSEST = 1e-2  # beyond this a match proves nothing
LOOSEST_HALF = 2.0**-5  # 16 units of half precision, where the largest values are four times the answers' spread
MOST_PUZZLING = 32  # early answers that a right model does not explain and that are asked again
SHAKE = 4.0  # units of the precision by which scores inside a target may be off
SHAKEN = 8.0  # times the change under one such draw: another draw may be larger
DOUBTS = 4.0  # standard deviations by which predictions may be off within the stated error bars
FAINTEST = 2.0**-44  # of the loudest output's spread: what is fainter is rounding of the others
OWN_ROUNDING = 2.0**-40  # of an output's size: misfit that its own rounding explains
TIES, TIED = 2048, 12  # natural sequences of so many tokens on which models within the error bars are compared
ASKED_AGAIN = 4  # fresh questions, the worst, that are repeated before a target is blamed
FEWEST = 11  # fresh sequences, or nothing is announced


def prove(desk: Desk, family: Family, learned: Learned) -> Proof:
    """Compare with fresh answers and judge; a mismatch is a drifting target or one outside the family."""
    return _Proof(desk, family, learned).run()


class _Proof:
    """One proof in progress."""

    def __init__(self, desk: Desk, family: Family, learned: Learned) -> None:
        self.desk, self.family, self.learned = desk, family, learned
        self.floor = family.precision(desk, learned)
        self.noise = 0.0  # what noise and rounding may add to the largest error
        self.check: Check | None = None
        self.stated: float | None = None
        self.bounds: Bounds | None = None
        self._relative = np.inf  # error that the verdict rests on, what is explained otherwise taken off

    @property
    def tolerance(self) -> float:
        """The relative error that this run holds itself to on fresh sequences, beyond what noise and rounding add."""
        floor = self.floor
        if floor.exact and not self.family.network:
            return EXACT_TOLERANCE
        loosest = max(LOOSEST, 4 * floor.relative if floor.half else 0.0)
        if floor.float16:  # cast at the end or computed so throughout: the answers do not always tell
            loosest = max(loosest, LOOSEST_HALF)
        return float(min(loosest, max(EXACT_TOLERANCE, COARSE_FACTOR * floor.relative)))

    @property
    def stated_tolerance(self) -> float:
        """The relative error that fresh sequences may show, noise and rounding of the answers included."""
        if self.stated is not None:
            return self.stated
        if self.check is None or not self.check.relative_error:
            return self.tolerance
        return self.tolerance + self.noise * self.check.relative_error / self.check.max_abs_error

    def run(self) -> Proof:
        """Ask and judge."""
        self.desk.watched.settle()
        self.desk.checked.begin_phase("held-out check")
        batches = self._fresh()
        refusal = self._through_noise(batches) if self._carries_noise() else self._plainly(batches)
        exact = self.floor.exact and self.check is not None and self.stated is None and self._relative <= EXACT_TOLERANCE
        status = Status[refusal.status_name] if refusal is not None else Status.EXACT if exact else Status.WITHIN_TOLERANCE
        return Proof(status=status, check=self.check, tolerance=self.stated_tolerance, refusal=refusal, bounds=self.bounds)

    def _plainly(self, batches: list[Fresh]) -> RefusalError | None:
        """Compare answer by answer."""
        desk, learned, floor = self.desk, self.learned, self.floor
        seen = self.family.compare(desk, learned, batches)
        self._said(seen)
        self.noise = floor.largest
        own = floor.off(seen.answers)
        if own.any():  # each answer is off by up to this share of itself; what is beyond counts
            self.noise = float(own.max())
        spread = seen.spreads()[:, None]
        if not varies(seen, floor.relative):
            return NotIdentifiableError(
                f"Fresh answers of about {np.abs(seen.answers).max():.3g} vary by {spread.max():.2g} only, hardly more than their "
                "rounding: that they agree proves nothing. Ask a target whose answers depend on its tokens.",
                model=learned.model,
            )
        beyond = seen.deviations - own
        allowed = self.tolerance * spread + (0.0 if own.any() else self.noise)
        self._relative = relative_errors(seen).all
        if not (beyond <= allowed).all():
            reason = self._explained(seen, beyond, allowed, spread)
            if reason is not None:
                return reason
        reason = self._faint_outputs(seen)
        if reason is not None:
            return reason
        if not self.family.network:
            self.bounds = fitting_bars(learned, floor, seen, own, desk.fresh)
        reason = self._beside_ties(seen)
        if reason is not None:
            return reason
        sized = float(spread[~seen.natural].max(initial=0.0)) or float(spread.max())
        if self.noise > HALF * sized:
            return TooNoisyError(
                f"Answers carry errors of about {floor.absolute:.2g} where they vary by {sized:.2g}: fresh sequences "
                "cannot tell a right model from a wrong one. Allow longer tokens, or average the target's answers.",
                model=learned.model,
            )
        self._look_back()
        return self._certify()

    def _said(self, seen: Compared) -> None:
        words = covered(seen, tolerance=self.tolerance, max_norm=self.desk.max_norm, sampled=self.desk.wishes.natural is not None)
        if seen.lengths.max() < 64 or self.desk.longest < 256:
            words += f" Longer sequences than {int(seen.lengths.max())} tokens were not asked."
        self.check = checked(seen, words)

    def _explained(self, seen: Compared, beyond: Floats, allowed: Floats, spread: Floats) -> RefusalError | None:
        """Deviations beyond the tolerance: None if rounding inside the target or the stated error bars explain them."""
        model, fresh = self.learned.model, self.desk.fresh
        if not self.family.network:
            shaken = model.shaken(SHAKE * self.floor.relative, fresh)
            off = self._moved(seen, shaken)
            if (beyond <= allowed + SHAKEN * off).all():
                self._relative = relative_errors(seen, SHAKEN * off + self.floor.off(seen.answers)).all
                return None
            bars = self._doubt(seen)
            certified = self.learned.bounds is not None and self.learned.bounds.kind == "certified"
            loosest = HALF if certified else LOOSEST  # certified intervals say themselves how much is known
            worst = relative_errors(seen, self.floor.off(seen.answers)).all
            if bars is not None and (beyond <= allowed + SHAKEN * off + DOUBTS * bars).all() and worst <= loosest:
                self.stated = worst + self.noise / float(spread[spread > 0].min())
                self.desk.notes.append(
                    f"Fresh sequences differ by up to {worst:.1g} of their spread, which the error bars of W explain: tokens that "
                    "show W better could not be asked."
                )
                return None
        return self._refuse_random(seen) or self._refuse_constant(seen) or self._mismatch(seen, allowed, spread)

    def _refuse_random(self, seen: Compared) -> RefusalError | None:
        """The worst fresh questions asked again: another answer means a random target, or a reply that was not its own."""
        left = self.desk.left()
        if seen.causal is not None or self.family.network or (left is not None and left < ASKED_AGAIN):
            return None
        worst = np.argsort(seen.deviations.max(axis=1))[::-1][:ASKED_AGAIN]
        starts = np.cumsum([0, *(len(batch.sequences) for batch in seen.batches)])
        for row in worst:
            batch = int(np.searchsorted(starts, row, side="right")) - 1
            question = on_host(seen.batches[batch].sequences)[row - starts[batch]][None]
            again = LastPosition(self.desk.checked)(question).reshape(-1)
            off = float(np.abs(again - seen.answers[row]).max())
            if off > max(HALF * float(seen.deviations[row].max()), 2 * self.floor.of(float(np.abs(again).max()))):
                return DriftingError(
                    f"A fresh question of {question.shape[1]} tokens was answered {seen.answers[row][0]:.9g}, and {again[0]:.9g} "
                    "when asked again: the answers are random now and then (dropout, replicas that differ, replies of others). "
                    "Switch dropout off (`eval()`), or ask one replica.",
                    model=self.learned.model,
                    evidence={"repeated_deviation": off},
                )
        return None

    def _faint_outputs(self, seen: Compared) -> RefusalError | None:
        """Each output by its own spread: one far fainter than the others may be wrong although it hardly counts among them."""
        if not self.floor.exact or self.family.network or seen.answers.shape[1] == 1:
            return None
        worst, output = 0.0, -1
        for kind in (False, True):
            rows = seen.natural == kind
            if not rows.any():
                continue
            spread, size = seen.answers[rows].std(axis=0), np.abs(seen.answers[rows]).max(axis=0)
            told = spread > FAINTEST * spread.max()
            off = np.maximum(seen.deviations[rows].max(axis=0) - OWN_ROUNDING * size, 0.0)
            share = np.where(told, off / np.where(told, spread, 1.0), 0.0)
            if share.max() > worst:
                worst, output = float(share.max()), int(np.argmax(share))
        if worst <= 2 * EXACT_TOLERANCE or worst <= 2 * self._relative:
            return None
        if worst > LOOSEST:
            return NotIdentifiableError(
                f"Output {output} is so faint beside the others that fresh answers of it miss by {worst:.2g} of their own spread. "
                "Scale that output up, or ask for it alone.",
                model=self.learned.model,
                evidence={"output": output, "own_error": worst},
            )
        self.stated = max(worst, self.stated or 0.0)
        self.desk.notes.append(f"Output {output}, faint beside the others, is known to {worst:.1g} of its own spread.")
        return None

    def _beside_ties(self, seen: Compared) -> RefusalError | None:
        """Natural sequences on which two tokens nearly tie are rare, and show every error of the scores; the check may meet none.

        How far models within the error bars differ on many more natural sequences is counted without a question; what exceeds the
        tolerance is stated in its place, and refused where it says nothing any more.
        """
        learned, rng = self.learned, self.desk.fresh
        if self.family.network or not self.floor.exact or not self._scores_in_doubt():
            return None
        like = self.family.like(self.desk)
        X = normal((TIES, TIED, learned.model.width), rng, like)
        if self.desk.wishes.natural is not None:
            X = self.desk.wishes.natural[rng.integers(0, len(self.desk.wishes.natural), size=(TIES, TIED))]
        if self.desk.max_norm is not None:
            X = X * min(1.0, self.desk.max_norm / float(np.linalg.norm(on_host(X), axis=-1).max()))

        def answers(model: Model) -> Floats:
            return on_host(predictor(model, like)([X]))

        centre = answers(learned.model)
        bounds = self.bounds or learned.bounds
        others = [learned.model.within(bounds, rng) for _ in range(4)]
        if learned.known_to > 0:
            others.append(learned.model.shaken(learned.known_to, rng))
        moved = max((float(np.abs(answers(other) - centre).max()) for other in others if other is not None), default=0.0)
        expected = moved / max(float(centre.std(axis=0).max()), np.finfo(float).tiny)
        if expected > LOOSEST and not (bounds is not None and bounds.kind == "certified"):
            largest, spread = float(np.abs(seen.predicted).max()), float(seen.spreads()[~seen.natural].max(initial=0.0))
            return TooNoisyError(
                f"Answers of up to {largest:.3g} vary by {spread:.2g} only, so that their rounding hides the head: by the error "
                f"bars of its scores, natural sequences may differ by {expected:.1g} of their spread. Take the constant off the "
                "answers inside the target, where they are still precise, or make a large query bias smaller.",
                model=learned.model,
                evidence={"expected_error": expected, "constant": largest},
            )
        if expected > self.stated_tolerance:
            self.stated = expected
            self.desk.notes.append(
                f"Where two tokens nearly tie, natural sequences may differ by {expected:.1g} of their spread, by the error bars."
            )
        return None

    def _scores_in_doubt(self) -> bool:
        """Whether the error bars leave scores of natural tokens open by more than the tolerance."""
        bounds, width = self.bounds or self.learned.bounds, self.desk.width
        if self.learned.known_to > 0:
            return True
        if bounds is None or bounds.W is None:
            return False
        of_c = 0.0 if bounds.c is None else float(np.max(bounds.c)) * width**0.5
        return float(np.max(bounds.W)) * width + of_c > EXACT_TOLERANCE / 4

    def _moved(self, seen: Compared, other: Model) -> Floats:
        """How far another model's predictions lie from this one's, for every answer compared ``(rows, outputs)``."""
        moved: Floats = np.abs(predicted_as(seen, other) - predicted_as(seen, self.learned.model))
        return moved

    def _doubt(self, seen: Compared) -> Floats | None:
        """How far every prediction may be off by what is not known of the parameters; None where nothing is said about that."""
        if self.learned.known_to > 0:
            return self._moved(seen, self.learned.model.shaken(self.learned.known_to, self.desk.fresh))
        if self.learned.bounds is None or self.learned.bounds.W is None:
            return None
        return np.sqrt(doubt(self.learned.model, self.learned.bounds, self.desk.fresh, lambda other: predicted_as(seen, other)))

    def _refuse_constant(self, seen: Compared) -> RefusalError | None:
        """One head beside a constant so large that its rounding explains the misfit: what is known is not known well enough."""
        assert self.check is not None
        model, width = self.learned.model, self.desk.width
        if not self.floor.exact or self.family.name != "attention" or self._heads() != 1:
            return None
        largest = float(np.abs(seen.predicted[~seen.natural]).max(initial=0.0))
        growth = 1.0 if (self.learned.ranks or (width,))[0] == width else LOW_RANK_GROWTH
        off = float(seen.deviations[~seen.natural].max(initial=0.0))
        natural = relative_errors(seen).natural
        if off > growth * CONSTANT_FACTOR * largest or (natural > LOOSEST):
            return None
        spread = float(seen.spreads()[~seen.natural].max(initial=0.0))
        return TooNoisyError(
            f"Answers of about {largest:.3g} vary by {spread:.2g} only, so that their rounding hides the head: fresh sequences "
            f"agree to {self.check.relative_error:.1g} of that, where {self.tolerance:.0e} is wanted. Take the constant off the "
            "answers inside the target, where they are still precise.",
            model=model,
            evidence={"relative_error": self.check.relative_error, "constant": largest},
        )

    def _heads(self) -> int:
        sizes = self.learned.model.sizes(self.learned.ranks)
        return int(sizes.get("heads", 0)) if self.family.name == "attention" else 0

    def _mismatch(self, seen: Compared, allowed: Floats, spread: Floats) -> RefusalError:
        """Why a model fails on fresh sequences that fits all answers before."""
        assert self.check is not None
        check, model, heads = self.check, self.learned.model, self._heads()
        share = float((allowed[spread > 0] / spread[spread > 0]).max())
        several = (
            f"{heads} heads explain fresh sequences to {check.relative_error:.1g} of their spread, where {share:.1g} is allowed"
        )
        if heads > 1 and self.floor.exact and check.relative_error <= ALMOST:
            return NotIdentifiableError(
                f"{several}: two heads lie too close together, and are known only merged, within that, "
                "or one is too faint beside the others.",
                model=model,
                evidence={"merged_within": check.relative_error, "by_length": check.by_length},
            )
        if heads > 1 and not self.floor.exact and check.relative_error <= LOOSEST:
            return TooNoisyError(
                f"{several}: the answers ({self.floor.kind}) are too coarse to tell these heads. Ask for answers in float64.",
                model=model,
            )
        errors = relative_errors(seen)
        where = ""
        if errors.natural > 10 * errors.sized:
            where = " It shows on tokens of natural size and on long sequences, not on those sized by the model."
        return NotInFamilyError(
            f"The model that fits all {self.desk.meter.spent} answers fails on fresh sequences: relative error "
            f"{check.relative_error:.2g}, where {share:.1g} is allowed.{where} {self._or_else(heads)} "
            "`unsoftmax diagnose` tells what it may be.",
            model=model,
            evidence={"relative_error": check.relative_error, "by_length": check.by_length},
        )

    def _or_else(self, heads: int) -> str:
        """What explains a misfit: a target of another family, and what else may."""
        rank = self.desk.wishes.rank
        if rank is not None:
            return f"Either rank={rank} is too small (leave it out), or the target is not a model of this family."
        if heads == 1 and not self.floor.exact:
            return "Either there are several heads (ask for float64 answers), or the target is not a model of this family."
        return "The target is not a model of this family."

    def _carries_noise(self) -> bool:
        """Whether the answers carry random noise, measured by a fit; rounded ones may hide more of it than the rounding's own."""
        floor, noise = self.floor, 0.0 if self.learned.noise is None else self.learned.noise[0]
        if floor.decimals and floor.step is not None:
            hidden = floor.fresh or noise <= floor.step  # more of it would show when a question is repeated: then it is a misfit
            return bool(noise > MORE_THAN_ROUNDING * floor.step and hidden)
        return bool(floor.random and noise > 0)

    def _through_noise(self, batches: list[Fresh]) -> RefusalError | None:
        """Compare with fresh answers all together; where noise hides ordinary ones, with sequences that answer loudly."""
        desk, learned = self.desk, self.learned
        assert learned.noise is not None
        noise, freedom = learned.noise
        self._relative = np.inf
        law = Floor(kind="noisy", absolute=noise)
        self.noise = law.largest
        spread = float(
            np.std(np.concatenate([learned.model.answer(batch.sequences).ravel() for batch in batches if not batch.natural]))
        )
        if self.noise > HALF * spread:
            count = max(LEAST, int(SHARE * desk.meter.spent))
            if desk.wishes.budget is not None:
                count = min(count, desk.wishes.budget - desk.meter.spent - desk.checked.spent)
            batches = loud_batches(learned.model, desk.fresh, count=count, max_norm=desk.max_norm)
        found = noisy_held_out(desk.checked, learned, batches, desk.fresh, noise=noise, freedom=freedom)
        self._said(found.seen)
        assert self.check is not None
        if not found.agrees:
            return NotInFamilyError(
                f"The model that fits all {desk.meter.spent} answers fails on fresh sequences: against its predictions the answers "
                f"have a slope of {found.slope:.2f} ± {found.slope_error:.2f}, and deviations {found.excess:.2f} times the largest "
                "that noise explains. The target is not a model of this family. `unsoftmax diagnose` tells what it may be.",
                model=learned.model,
                evidence={"slope": found.slope, "excess": found.excess},
            )
        if not found.conclusive:
            needed = int(1.3 * (found.slope_error / SLOPE_ERROR) ** 2 * self.check.sequences / SHARE)
            return TooNoisyError(
                f"Answers carry errors of about {noise:.2g}: {self.check.sequences} fresh sequences cannot tell a right model "
                f"from a wrong one. A budget of about {needed} would do; raise `budget` or allow longer tokens (`max_norm`).",
                model=learned.model,
                evidence={"queries": needed},
            )
        self._look_back()
        return None

    def _look_back(self) -> None:
        """A model that is right on fresh sequences but not on the first answers: ask those again, the target changed meanwhile."""
        predict = self.family.predictor(self.desk, self.learned)
        if predict is None:
            return  # its model cannot answer by itself
        assert self.check is not None
        sized = [e for e in (self.check.relative_error,) if np.isfinite(e)]
        error = max(*sized, self.floor.relative) if sized else self.floor.relative
        puzzling = self.desk.watched.unexplained(predict, error)
        left = self.desk.left()
        most = MOST_PUZZLING if left is None else min(MOST_PUZZLING, max(0, left))
        post_mortem(self.desk.checked, puzzling[:most], Floor(relative=error, absolute=self.floor.absolute))

    def _certify(self) -> RefusalError | None:
        """What else the family proves about the parameters."""
        assert self.check is not None
        coarse = self.stated_tolerance - self.tolerance  # what rounding adds, relative to the spread of the answers
        rounding = max(self.floor.relative, coarse)
        held_out = (
            min(self.check.relative_error, self.stated_tolerance)
            if self._relative <= EXACT_TOLERANCE
            else self.check.relative_error
        )
        try:
            sentences = self.family.certify(
                self.desk, self.learned, held_out=held_out, tolerance=self.stated_tolerance, rounding=rounding
            )
        except NotIdentifiableError as refusal:
            return refusal
        self.desk.notes.extend(sentences)
        return None

    def _fresh(self) -> list[Fresh]:
        """Fresh sequences, as many as the budget allows; nothing is announced unchecked."""
        desk, price = self.desk, 2 if self.family.network else 1
        count = desk.wishes.check if desk.wishes.check is not None or price == 1 else COUNT
        batches = fresh_batches(
            self.learned.model,
            desk.fresh,
            longest=self.family.longest(desk),
            max_norm=desk.max_norm,
            vocabulary=desk.embeddings,
            natural=desk.wishes.natural,
            like=self.family.like(desk),
            count=None if count is None else count // price,
        )
        left = desk.left()
        if left is None:
            return batches
        if left < FEWEST * price:
            raise BudgetExceededError(
                f"Learning took {desk.meter.spent} queries and the held-out check needs at least {FEWEST * price} more, but "
                f"the budget is {desk.wishes.budget}. Raise `budget`; nothing is announced unchecked.",
                model=self.learned.model,
            )
        return afforded(batches, left // price, desk.fresh)


def afforded(batches: list[Fresh], most: int, rng: np.random.Generator) -> list[Fresh]:
    """At most so many of the sequences: fewer of each batch, or of fewer batches."""
    total = sum(len(batch.sequences) for batch in batches)
    if total <= most:
        return batches
    if most < len(batches):
        kept = sorted(rng.choice(len(batches), size=most, replace=False).tolist())
        if all(batches[i].natural for i in kept):
            kept[0] = 0
        return [batches[i].first(1) for i in kept]
    share, shorter = most / total, []
    for batch in batches:
        shorter.append(batch.first(max(1, int(share * len(batch.sequences)))))
    while sum(len(batch.sequences) for batch in shorter) > most:
        longest = max(range(len(shorter)), key=lambda i: len(shorter[i].sequences))
        shorter[longest] = shorter[longest].first(len(shorter[longest].sequences) - 1)
    return shorter
