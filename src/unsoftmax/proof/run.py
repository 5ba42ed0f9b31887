"""The proof of a recovery: the learned model against fresh answers, and what a mismatch means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unsoftmax.errors import BudgetExceededError, NotIdentifiableError, RefusalError, tried
from unsoftmax.models import Floats
from unsoftmax.oracles.base import is_local
from unsoftmax.oracles.drift import post_mortem
from unsoftmax.precision.law import Floor
from unsoftmax.precision.settings import READING
from unsoftmax.proof import refusals
from unsoftmax.proof.bars import fitting_bars
from unsoftmax.proof.compare import Compared, computed_in
from unsoftmax.proof.doubts import (
    beside_ties,
    by_rounding,
    doubts,
    faintest_output,
    in_short_numbers,
    moved,
    scores_in_doubt,
    strangeness,
)
from unsoftmax.proof.fresh import COUNT, Fresh, afforded, fresh_batches, tokens_of_check
from unsoftmax.proof.judge import carries_noise, checked, covered, relative_errors, tolerance_of, varies
from unsoftmax.proof.limits import LIMITS
from unsoftmax.proof.noisy import alike_by_chance, answered_as_before, loud_batches, noisy_held_out
from unsoftmax.proof.rare import lengths, very_long, with_them
from unsoftmax.proof.settings import PROOF
from unsoftmax.proof.tangent import sequences_for, unexplained
from unsoftmax.results import Bounds, Check, Learned, Proof, Status

if TYPE_CHECKING:
    from unsoftmax.desk import Desk
    from unsoftmax.families.base import Family


def prove(desk: Desk, family: Family, learned: Learned) -> Proof:
    """Compare with fresh answers and judge; a mismatch is a drifting target or one outside the family."""
    return _Proof(desk, family, learned).run()


class _Proof:
    """One proof in progress."""

    def __init__(self, desk: Desk, family: Family, learned: Learned) -> None:
        self.desk, self.family, self.learned = desk, family, learned
        self.floor = family.precision(desk, learned)
        self.tolerance = tolerance_of(self.floor, network=family.network)
        self.noise = 0.0  # what noise and rounding may add to the largest error
        self.check: Check | None = None
        self.stated: float | None = None
        self.bounds: Bounds | None = None
        self.open = 0.0  # deviation that error bars explain, though it is too large to promise anything
        self._noise_share = 0.0  # what noise and rounding may add, of the spread of the answers of each kind
        self._relative = np.inf  # error that the verdict rests on, what is explained otherwise taken off

    @property
    def stated_tolerance(self) -> float:
        """The relative error that fresh sequences may show, noise and rounding of the answers included."""
        if self.stated is not None:
            return self.stated
        if self.check is None or not self.check.relative_error:
            return self.tolerance
        return self.tolerance + self._noise_share

    def run(self) -> Proof:
        """Ask and judge."""
        self.desk.watched.settle()
        if self.learned.model.attentions and self.family.longest(self.desk) < 2:
            alone = refusals.one_token_alone(self.learned)
            return Proof(status=Status[alone.status_name], check=None, tolerance=self.stated_tolerance, refusal=alone)
        self.desk.checked.begin_phase("held-out check")
        batches = self._fresh()
        noisy = carries_noise(self.floor, 0.0 if self.learned.noise is None else self.learned.noise[0])
        refusal = self._through_noise(batches) if noisy else self._plainly(batches)
        exact = self.floor.exact and self.check is not None and self.stated is None and self._relative <= LIMITS.exact
        status = Status[refusal.status_name] if refusal is not None else Status.EXACT if exact else Status.WITHIN_TOLERANCE
        return Proof(status=status, check=self.check, tolerance=self.stated_tolerance, refusal=refusal, bounds=self.bounds)

    def _plainly(self, batches: list[Fresh]) -> RefusalError | None:
        """Compare answer by answer."""
        desk, learned, floor = self.desk, self.learned, self.floor
        seen = self.family.compare(desk, learned, batches)
        own = floor.off(seen.answers)
        self.noise = float(own.max()) if own.any() else floor.largest  # each may be off by a share of itself; what is beyond counts
        check = self._said(seen)
        spread = seen.spreads[:, None]
        if not varies(seen, floor.relative):
            return refusals.hardly_varies(seen, learned)
        beyond = seen.deviations - own
        allowed = self.tolerance * spread + (0.0 if own.any() else self.noise)
        self._relative = relative_errors(seen).all
        reason = None
        if floor.half and not self.family.network:
            reason = self._in_short_numbers(seen, allowed)
        elif not (beyond <= allowed).all() and not self._explained(seen, beyond, allowed):
            reason = self._why(seen, check, allowed)
        reason = reason or self._faint_outputs(seen) or self._foreign(seen, check)
        if reason is not None:
            return reason
        if not self.family.network:
            self.bounds = fitting_bars(learned, floor, seen, own, desk.fresh)
        reason = self._beside_ties(seen)
        if reason is not None:
            return reason
        sized = float(spread[~seen.natural].max(initial=0.0)) or float(spread.max())
        if self.noise > LIMITS.half * sized:
            return refusals.hidden_by_errors(floor, sized, learned)
        reason = self._far(seen)
        if reason is not None:
            return reason
        check = self.check or check
        self._look_back(check)
        return self._certify(check)

    def _far(self, seen: Compared) -> RefusalError | None:
        """The same on a few sequences of very many tokens, where these are cheap: what strikes one token in thousands."""
        desk, learned, left = self.desk, self.learned, self.desk.left()
        cheap = is_local(desk) and desk.like is None and desk.embeddings is None and seen.causal is None
        wanted = desk.wishes.check is None and desk.wishes.max_length is None and self.family.longest(desk) >= PROOF.longest
        heads = self.family.made_of_heads and self.family.compares_answers and self.floor.exact
        if not (cheap and wanted and heads) or (left is not None and left < len(lengths(desk.width)) + LIMITS.asked_again):
            return None
        batches = very_long(desk.checked, desk.width, desk.fresh, natural=desk.wishes.natural, max_norm=desk.max_norm)
        if not batches:
            return None
        far = self.family.compare(desk, learned, batches)
        both = with_them(seen, far)
        rows = slice(len(seen.answers), None)
        beyond = (far.deviations - self.floor.off(far.answers) > self.stated_tolerance * both.spreads[rows, None]).any(axis=1)
        if self._heads() == 1:
            beyond |= self._strangeness(both)[rows] > 1
        if beyond.any():
            return self._answered_otherwise(far, LIMITS.again) or refusals.very_long_ones_miss(far, learned, self._heads())
        self._said(both)
        return None

    def _said(self, seen: Compared) -> Check:
        tolerance = self.tolerance if self.stated is None else self.stated
        words = covered(seen, tolerance=tolerance, max_norm=self.desk.max_norm, sampled=self.desk.wishes.natural is not None)
        if seen.lengths.max() < 64 or self.desk.longest < max(PROOF.longest, self.desk.wishes.max_length or 0):
            words += f" Longer sequences than {int(seen.lengths.max())} tokens were not asked."
        self.check = checked(seen, words)
        spread = seen.spreads
        own = self.floor.off(seen.answers).max(axis=1)
        off = own if own.any() else np.full(len(own), self.noise)
        self._noise_share = float((off[spread > 0] / spread[spread > 0]).max(initial=0.0))
        return self.check

    def _in_short_numbers(self, seen: Compared, allowed: Floats) -> RefusalError | None:
        """Half precision: all deviations together, each in errors that such arithmetic and the error bars let expect of it.

        Cast at the end or computed so throughout: one-token answers do not always tell, so the wider law judges.
        """
        expected = computed_in(seen, self.learned.model, self.floor.unit, self.desk.fresh)
        bars = doubts(seen, self.learned, self.desk.fresh)
        expected = np.maximum(np.sqrt(expected if bars is None else expected + bars**2), np.finfo(float).tiny)
        kinds = [rows for rows in (seen.natural, ~seen.natural) if rows.any()]
        if not all(self.floor.explains(seen.deviations[rows], expected[rows]) for rows in kinds):
            return self._why(seen, self._said(seen), allowed)
        spread = seen.spreads[:, None]
        shares = seen.deviations / np.where(spread > 0, spread, np.inf)
        usual = max(float(shares.max()), READING.largest_noise * float(np.sqrt(np.mean(shares**2))))
        if usual > LIMITS.half:
            return refusals.hidden_by_arithmetic(self.floor, float(shares.max()), self.learned)
        strayed = max(float(np.sqrt(np.mean((seen.deviations[rows] / expected[rows]) ** 2))) for rows in kinds)
        wishes, fresh = self.desk.wishes, self.desk.fresh
        rare = strayed * in_short_numbers(seen, self.learned, self.floor.unit, fresh, wishes.natural, self.desk.max_norm)
        self.stated = max(float(shares.max()), rare)
        self._said(seen)
        return None

    def _explained(self, seen: Compared, beyond: Floats, allowed: Floats) -> bool:
        """Whether rounding inside the target or the stated error bars explain deviations beyond the tolerance."""
        learned, fresh = self.learned, self.desk.fresh
        if self.family.network:
            return False
        rounding = LIMITS.shaken * moved(seen, learned.model, learned.model.shaken(LIMITS.shake * self.floor.relative, fresh))
        if (beyond <= allowed + rounding).all():
            self._relative = relative_errors(seen, rounding + self.floor.off(seen.answers)).all
            return True
        bars = doubts(seen, learned, fresh)
        certified = learned.bounds is not None and learned.bounds.certified
        loosest = LIMITS.half if certified else LIMITS.loosest  # certified intervals say themselves how much is known
        worst = relative_errors(seen, self.floor.off(seen.answers)).all
        if bars is None or not (beyond <= allowed + rounding + LIMITS.doubts * bars).all():
            return False
        if worst > loosest:
            self.open = worst
            return False
        spread = seen.spreads
        self.stated = worst + self.noise / float(spread[spread > 0].min())
        self.desk.notes.append(
            f"Fresh sequences differ by up to {worst:.1g} of their spread, which the error bars of W explain: tokens that "
            "show W better could not be asked."
        )
        return True

    def _why(self, seen: Compared, check: Check, allowed: Floats) -> RefusalError:
        """The reason for deviations that nothing explains: random answers, a constant that hides a head, or another family."""
        desk, learned, floor, heads = self.desk, self.learned, self.floor, self._heads()
        reason = self._answered_otherwise(seen)
        if reason is None and floor.exact and heads == 1 and not (self._strangeness(seen) > 1).any():
            reason = refusals.hidden_by_constant(seen, check, learned, self.tolerance)
        if reason is None and self.open:
            reason = refusals.open_beside_ties(seen, self.open, learned)
        return reason or refusals.mismatch(
            seen, check, learned, floor, heads=heads, asked=desk.meter.spent, allowed=allowed, rank=desk.wishes.rank
        )

    def _answered_otherwise(self, seen: Compared, share: float = LIMITS.half) -> RefusalError | None:
        """Random answers, where the worst fresh questions can be asked again; see ``refusals.answered_otherwise``."""
        left = self.desk.left()
        affordable = left is None or left >= LIMITS.asked_again
        if not (self.family.compares_answers and not self.family.network and affordable):
            return None
        return refusals.answered_otherwise(self.desk.checked, seen, self.floor, self.learned, share)

    def _foreign(self, seen: Compared, check: Check) -> RefusalError | None:
        """A misfit within the tolerance, and yet far beyond what anything of the family explains: something else takes part.

        Heads whose errors have no bars of their own, or such as the learner took from its own misfit, are known no better than
        that, whatever made it: there what no change of their parameters explains is foreign.
        """
        if not self.floor.exact or not self.family.made_of_heads or not self.family.compares_answers:
            return None
        barred = self._heads() == 1 and not self.learned.known_to
        seen, strange = (seen, self._strangeness(seen)) if barred else self._beside_tangent(seen)
        if not (strange > 1).any():
            return None
        return self._answered_otherwise(seen) or refusals.something_else(seen, check, self.learned, strange, heads=self._heads())

    def _strangeness(self, seen: Compared) -> Floats:
        """How far each row misses what rounding and error bars explain, of what is let pass."""
        like = self.family.like(self.desk)
        return strangeness(seen, self.learned, self.floor, self.desk.fresh, allowed=LIMITS.foreign, like=like)

    def _beside_tangent(self, seen: Compared) -> tuple[Compared, Floats]:
        """The same of several heads, compared with more fresh sequences where parameters are many; zeros where that is dear."""
        model, fresh = self.learned.model, self.desk.fresh
        nothing = seen, np.zeros(len(seen.answers))
        (layer,) = model.attentions
        if not layer.can_answer or model.sizes(None).parameters > PROOF.largest_tangent:
            return nothing
        rounding = LIMITS.foreign * by_rounding(seen, self.learned, self.floor, fresh)
        if (seen.deviations <= rounding).all():
            return nothing
        wanted, left = sequences_for(seen, layer), self.desk.left()
        if wanted > seen.sequences:
            if left is not None and left < wanted:
                return nothing
            seen = self.family.compare(self.desk, self.learned, self._fresh(wanted))
            rounding = LIMITS.foreign * by_rounding(seen, self.learned, self.floor, fresh)
        return seen, unexplained(seen, layer, rounding, fresh)

    def _heads(self) -> int:
        """How many heads were learned; 0 where these are not the whole model."""
        return self.learned.model.sizes(self.learned.ranks).heads or 0 if self.family.made_of_heads else 0

    def _faint_outputs(self, seen: Compared) -> RefusalError | None:
        """Each output by its own spread: what a faint one misses by is stated, and refused where it says nothing any more."""
        if not self.floor.exact or self.family.network or seen.answers.shape[1] == 1:
            return None
        worst, output = faintest_output(seen)
        if worst <= 2 * LIMITS.exact or worst <= 2 * self._relative:
            return None
        if worst > LIMITS.loosest:
            return refusals.faint_output(output, worst, self.learned)
        self.stated = max(worst, self.stated or 0.0)
        self.desk.notes.append(f"Output {output}, faint beside the others, is known to {worst:.1g} of its own spread.")
        return None

    def _beside_ties(self, seen: Compared) -> RefusalError | None:
        """What error bars leave open where two tokens nearly tie is stated in place of the tolerance where it exceeds that."""
        learned, wishes, bounds = self.learned, self.desk.wishes, self.bounds or self.learned.bounds
        coarse = self.floor.half or bool(self.floor.decimals)  # judged by their own arithmetic; a step is in every answer alike
        if self.family.network or coarse or not scores_in_doubt(learned, bounds, self.tolerance):
            return None
        like = self.family.like(self.desk)
        expected = beside_ties(learned, bounds, self.desk.fresh, wishes.natural, self.desk.max_norm, like)
        loosest = LIMITS.loosest if self.floor.exact else LIMITS.half
        if expected > loosest and not (bounds is not None and bounds.certified):
            return refusals.open_beside_ties(seen, expected, learned)
        if expected > self.stated_tolerance:
            self.stated = expected
            self.desk.notes.append(
                f"Where two tokens nearly tie, natural sequences may differ by {expected:.1g} of their spread, by the error bars."
            )
        return None

    def _through_noise(self, batches: list[Fresh]) -> RefusalError | None:
        """Compare with fresh answers all together; where noise hides ordinary ones, with sequences that answer loudly."""
        desk, learned = self.desk, self.learned
        assert learned.noise is not None
        noise, freedom = learned.noise
        self._relative = np.inf
        self.noise = Floor(kind="noisy", absolute=noise).largest
        sized = [learned.model.answer(batch.sequences).ravel() for batch in batches if not batch.natural]
        if self.noise > LIMITS.half * float(np.std(np.concatenate(sized))):
            count = max(PROOF.least, int(PROOF.share * desk.meter.spent))
            if desk.wishes.budget is not None:
                count = min(count, desk.wishes.budget - desk.meter.spent - desk.checked.spent)
            batches = loud_batches(learned.model, desk.fresh, count=count, max_norm=desk.max_norm)
        found = noisy_held_out(desk.checked, learned, batches, desk.fresh, noise=noise, freedom=freedom)
        check = self._said(found.seen)
        refusal = refusals.through_noise(found, check, learned, noise=noise, asked=desk.meter.spent)
        refusal = refusal or self._no_noise(found.seen, noise, freedom)
        if refusal is None:
            self._look_back(check)
        return refusal

    def _no_noise(self, seen: Compared, noise: float, freedom: int) -> RefusalError | None:
        """Rounded answers that miss by more than rounding leaves, and never change when asked again: no noise does both."""
        floor, left = self.floor, self.desk.left()
        if not floor.decimals or floor.step is None or floor.fresh or (left is not None and left < LIMITS.repetitions):
            return None
        by_chance = alike_by_chance(noise, freedom, floor.step, LIMITS.repetitions)
        if by_chance > PROOF.false_alarm or not answered_as_before(self.desk.checked, seen, LIMITS.repetitions):
            return None
        return refusals.steady_misfit(noise / floor.step, by_chance, self.learned)

    def _look_back(self, check: Check) -> None:
        """A model that is right on fresh sequences but not on the first answers: ask those again, the target changed meanwhile."""
        predict = self.family.predictor(self.desk, self.learned)
        if predict is None:
            return  # its model cannot answer by itself
        error = max(check.relative_error, self.floor.relative) if np.isfinite(check.relative_error) else self.floor.relative
        puzzling = self.desk.watched.unexplained(predict, error)
        left = self.desk.left()
        most = LIMITS.puzzling if left is None else min(LIMITS.puzzling, max(0, left))
        post_mortem(self.desk.checked, puzzling[:most], Floor(relative=error, absolute=self.floor.absolute))

    def _certify(self, check: Check) -> RefusalError | None:
        """What else the family proves about the parameters."""
        tolerance = self.stated_tolerance
        rounding = max(self.floor.relative, tolerance - self.tolerance)  # what rounding adds, relative to the answers' spread
        held_out = min(check.relative_error, tolerance) if self._relative <= LIMITS.exact else check.relative_error
        sentences = tried(
            lambda: self.family.certify(self.desk, self.learned, held_out=held_out, tolerance=tolerance, rounding=rounding),
            NotIdentifiableError,
        )
        if isinstance(sentences, RefusalError):
            return sentences
        self.desk.notes.extend(sentences)
        return None

    def _fresh(self, count: int | None = None) -> list[Fresh]:
        """Fresh sequences, so many or as wished for, if the budget allows; nothing is announced unchecked."""
        desk, price, more = self.desk, 2 if self.family.network else 1, count is not None
        if count is None and desk.ahead is not None:
            return desk.ahead.fresh
        if count is None:
            count = desk.wishes.check if desk.wishes.check is not None or price == 1 else COUNT
        every = (count is None or count // price >= COUNT) and is_local(desk) and desk.like is None
        many = every and self.floor.exact and not more
        batches = fresh_batches(
            self.learned.model,
            desk.fresh,
            longest=self.family.longest(desk),
            max_norm=desk.max_norm,
            vocabulary=desk.embeddings,
            natural=desk.wishes.natural,
            like=self.family.like(desk),
            count=None if count is None else count // price,
            every=every,
            tokens=tokens_of_check(desk.width) if many else PROOF.tokens,
        )
        left = desk.left()
        if left is None:
            return batches
        if left < LIMITS.fewest * price:
            raise BudgetExceededError(
                f"Learning took {desk.meter.spent} queries and the held-out check needs at least {LIMITS.fewest * price} more, but "
                f"the budget is {desk.wishes.budget}. Raise `budget`; nothing is announced unchecked.",
                model=self.learned.model,
            )
        return afforded(batches, left // price, desk.fresh)
