"""The proof of a recovery: the learned model against fresh answers, and what a mismatch means."""

from __future__ import annotations

import numpy as np

from unsoftmax.checks.held_out import Predict, compared, fresh_sequences, join_checks, predictor, summed_up
from unsoftmax.errors import BudgetExceededError, NotIdentifiableError, NotInFamilyError, RefusalError, TooNoisyError
from unsoftmax.families import Found, Options
from unsoftmax.learners.one_head.learner import LOW_RANK_GROWTH
from unsoftmax.linalg import on_host
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.drift import Watched, post_mortem
from unsoftmax.oracles.meter import Metered
from unsoftmax.results import Check, Floor, Learned

EXACT_TOLERANCE = 1e-8  # relative error on fresh sequences up to which float64 answers count as matched
COARSE_FACTOR = 2048.0  # the same in units of the answers' own relative precision, for coarser answers
CONSTANT_FACTOR = 2.0**-38  # misfit of one head that the rounding of a large constant explains, relative to the largest answer
NOISE_FACTOR = {"noisy": 8.0}  # noise that the largest of some hundred answers may carry, in standard deviations
BOUNDED_FACTOR = 2.0  # the same for errors that are bounded, as those of rounding are
MORE_THAN_ROUNDING = 0.31  # of the step: rounding alone errs by 0.29 (rms)
HALF = 0.5  # of the answers' spread: noise beyond that hides any model
ALMOST = 1e-5  # heads that explain fresh sequences this far, but not to rounding, are merged ones
LOOSEST = 1e-2  # beyond this a match proves nothing
LOOSEST_HALF = 2.0**-5  # 16 units of half precision, where the largest values are four times the answers' spread
MOST_PUZZLING = 32  # early answers that a right model does not explain and that are asked again


class Proof:
    """Compares a learned model with a target on sequences that no learner saw.

    Args:
        checked: asks the fresh questions.
        watched: what learning asked, and a sample of the answers it got.
        meter: what learning spent.
        options: what the caller wished.
        found: what is known about the target.
        fresh: randomness of the fresh questions, which the target must not foresee.

    Attributes:
        check: how far fresh answers deviate, once asked.
        noise: what noise and rounding may add to the largest error on fresh sequences.
    """

    def __init__(
        self, checked: Metered, watched: Watched, meter: Metered, options: Options, found: Found, fresh: np.random.Generator
    ) -> None:
        self.checked, self.watched, self.meter = checked, watched, meter
        self.options, self.found, self.fresh = options, found, fresh
        self.check: Check | None = None
        self.noise = 0.0
        self._learned: Learned | None = None
        self._predict: Predict | None = None

    @property
    def tolerance(self) -> float:
        """The relative error that this run holds itself to on fresh sequences, beyond what noise and rounding add."""
        relative = self.found.floor.relative
        if self.found.family == "attention-behind-network" and self._learned is not None:
            relative = max(relative, self._learned.evidence["entry_error"])  # a flat network passes on only so many digits
        if self.found.floor.kind == "exact" and self.found.family != "attention-behind-network":
            return EXACT_TOLERANCE
        loosest = max(LOOSEST, 4 * relative if self.found.floor.kind in ("float16", "bfloat16") else 0.0)
        if self.found.floor.kind == "float16":  # cast at the end or computed so throughout: the answers do not always tell
            loosest = max(loosest, LOOSEST_HALF)
        return float(min(loosest, max(EXACT_TOLERANCE, COARSE_FACTOR * relative)))

    @property
    def stated_tolerance(self) -> float:
        """The relative error that fresh sequences may show, noise and rounding of the answers included."""
        if self.check is None or not self.check.relative_error:
            return self.tolerance
        return self.tolerance + self.noise * self.check.relative_error / self.check.max_abs_error

    def verify(self, learned: Learned) -> Check:
        """Compare with fresh answers; a mismatch is a drifting target or one outside the family."""
        self._learned = learned
        self.watched.settle()
        self.checked.begin_phase("held-out check")
        batches = self._fresh_batches(learned)
        if self._carries_noise(learned):
            return self._verify_through_noise(learned, batches)
        if self.found.family == "attention-behind-network":
            from unsoftmax.learners.behind_network import held_out_check as behind_network_check

            check = join_checks([behind_network_check(self.checked, learned, batch) for batch in batches])
        else:
            self._predict = self.found.predict or predictor(learned.model, self._like(learned))
            asked, told = compared(self.checked, self._predict, batches)
            check = summed_up(asked, told, batches)
        self.check = check
        spread = check.max_abs_error / check.relative_error if check.relative_error else np.inf
        self.noise = NOISE_FACTOR.get(self.found.floor.kind, BOUNDED_FACTOR) * self.found.floor.absolute
        error, allowed = check.max_abs_error, self.tolerance * spread + self.noise
        cast = self.found.floor.kind == "digits" or (self.found.calibration is not None and self.found.calibration.cast)
        if cast and self._predict is not None:  # each answer is off by up to this share of itself; what is beyond counts
            own = self.found.floor.relative * np.abs(asked)
            error, self.noise = float((np.abs(asked - told) - own).max()), float(own.max())
        if not error <= allowed:
            self._refuse_constant(learned, check, batches)
            raise self._mismatch(learned, check, allowed / spread)
        if self.noise > HALF * spread:
            raise TooNoisyError(
                f"Answers carry errors of about {self.found.floor.absolute:.2g} where they vary by {spread:.2g}: fresh sequences "
                "cannot tell a right model from a wrong one. Allow longer tokens, or average the target's answers.",
                model=learned.model,
            )
        self._explain(learned, check)
        self._certify(learned, check)
        return check

    def _refuse_constant(self, learned: Learned, check: Check, batches: list[Floats]) -> None:
        """One head beside a constant so large that its rounding explains the misfit: what is known is not known well enough."""
        if (
            self.found.floor.kind != "exact"
            or not isinstance(learned.model, Attention)
            or learned.model.heads > 1
            or not self._predict
        ):
            return
        largest = _largest_answer(self._predict, batches)
        growth = 1.0 if learned.evidence.get("rank", learned.model.width) == learned.model.width else LOW_RANK_GROWTH
        if check.max_abs_error <= growth * CONSTANT_FACTOR * largest:
            spread = check.max_abs_error / check.relative_error
            raise TooNoisyError(
                f"Answers of about {largest:.3g} vary by {spread:.2g} only, so that their rounding hides the head: fresh sequences "
                f"agree to {check.relative_error:.1g} of that, where {self.tolerance:.0e} is wanted. Take the constant off the "
                "answers inside the target, where they are still precise.",
                model=learned.model,
                evidence={"relative_error": check.relative_error, "constant": largest},
            )

    def _mismatch(self, learned: Learned, check: Check, allowed: float) -> RefusalError:
        """Why a model fails on fresh sequences that fits all answers before."""
        heads = learned.model.heads if isinstance(learned.model, Attention) else 0
        several = (
            f"{heads} heads explain fresh sequences to {check.relative_error:.1g} of their spread, where {allowed:.1g} is allowed"
        )
        if heads > 1 and self.found.floor.kind == "exact" and check.relative_error <= ALMOST:
            return NotIdentifiableError(
                f"{several}: two heads lie too close together, and are known only merged, within that, "
                "or one is too faint beside the others.",
                model=learned.model,
                evidence={"merged_within": check.relative_error, "by_length": check.by_length},
            )
        if heads > 1 and self.found.floor.kind != "exact" and check.relative_error <= LOOSEST:
            return TooNoisyError(
                f"{several}: the answers ({self.found.floor.kind}) are too coarse to tell these heads. Ask for answers in float64.",
                model=learned.model,
            )
        return NotInFamilyError(
            f"The model that fits all {self.meter.spent} answers fails on fresh sequences: relative error "
            f"{check.relative_error:.2g}, where {allowed:.1g} is allowed. {self._or_else(heads)} "
            "`unsoftmax diagnose` tells what it may be.",
            model=learned.model,
            evidence={"relative_error": check.relative_error, "by_length": check.by_length},
        )

    def _or_else(self, heads: int) -> str:
        """What explains a misfit: a target of another family, and what else may."""
        if self.options.rank is not None:
            return f"Either rank={self.options.rank} is too small (leave it out), or the target is not a model of this family."
        if heads == 1 and self.found.floor.kind != "exact":
            return "Either there are several heads (ask for float64 answers), or the target is not a model of this family."
        return "The target is not a model of this family."

    def _carries_noise(self, learned: Learned) -> bool:
        """Whether the answers carry random noise, measured by a fit; rounded ones may hide more of it than the rounding's own."""
        floor, noise = self.found.floor, learned.evidence.get("noise", 0.0)
        if floor.kind == "rounded" and floor.step is not None:
            hidden = floor.fresh or noise <= floor.step  # more of it would show when a question is repeated: then it is a misfit
            return bool(noise > MORE_THAN_ROUNDING * floor.step and hidden)
        return bool(floor.kind == "noisy" and not floor.given and noise > 0)

    def _verify_through_noise(self, learned: Learned, batches: list[Floats]) -> Check:
        """Compare with fresh answers all together; where noise hides ordinary ones, with sequences that answer loudly."""
        from unsoftmax.checks.held_out_noisy import LEAST, SHARE, SLOPE_ERROR, loud_batches, noisy_held_out

        assert isinstance(learned.model, Attention)
        noise = learned.evidence["noise"]
        self.noise = NOISE_FACTOR["noisy"] * noise
        spread = float(np.std(np.concatenate([learned.model(batch).ravel() for batch in batches])))
        if NOISE_FACTOR["noisy"] * noise > HALF * spread:
            limit = self.options.max_norm if self.options.max_norm is not None else self.found.max_norm
            count = max(LEAST, int(SHARE * self.meter.spent))
            if self.options.budget is not None:
                count = min(count, self.options.budget - self.meter.spent)
            batches = loud_batches(learned.model, self.fresh, count=count, max_norm=limit)
        known = learned.evidence["noise_freedom"]
        found = noisy_held_out(self.checked, learned.model, learned.bounds, batches, noise, self.fresh, freedom=known)
        self.check = found.check
        if not found.agrees:
            raise NotInFamilyError(
                f"The model that fits all {self.meter.spent} answers fails on fresh sequences: against its predictions the answers "
                f"have a slope of {found.slope:.2f} ± {found.slope_error:.2f}, and deviations {found.excess:.2f} times the largest "
                "that noise explains. The target is not a model of this family. `unsoftmax diagnose` tells what it may be.",
                model=learned.model,
                evidence={"slope": found.slope, "excess": found.excess},
            )
        if not found.conclusive:
            needed = int(1.3 * (found.slope_error / SLOPE_ERROR) ** 2 * found.check.sequences / SHARE)
            raise TooNoisyError(
                f"Answers carry errors of about {noise:.2g}: {found.check.sequences} fresh sequences cannot tell a right model "
                f"from a wrong one. A budget of about {needed} would do; raise `budget` or allow longer tokens (`max_norm`).",
                model=learned.model,
                evidence={"queries": needed},
            )
        self._explain(learned, found.check)
        return found.check

    def _explain(self, learned: Learned, check: Check) -> None:
        """A model that is right on fresh sequences but not on the first answers: ask those again, the target changed meanwhile."""
        if self.found.family == "attention-behind-network":
            return  # its model cannot answer by itself
        error = max(check.relative_error, self.found.floor.relative)
        puzzling = self.watched.unexplained(self._predict or predictor(learned.model), error)
        left = MOST_PUZZLING
        if self.options.budget is not None:
            left = min(left, max(0, self.options.budget - self.meter.spent - self.checked.spent))
        post_mortem(self.checked, puzzling[:left], Floor(relative=error, absolute=self.found.floor.absolute))

    def _certify(self, learned: Learned, check: Check) -> None:
        """Several heads: a small error on fresh sequences is not enough, since empty or split heads answer alike."""
        model = learned.model
        if not isinstance(model, Attention) or model.V is None or model.heads == 1:
            return
        from unsoftmax.checks.certificate import certificate

        coarse = self.stated_tolerance - self.tolerance  # what rounding adds, relative to the spread of the answers
        rounding = max(self.found.floor.relative, coarse)
        found = certificate(model, held_out=check.relative_error, tolerance=self.stated_tolerance, rounding=rounding)
        if not found.holds:
            raise NotIdentifiableError(" ".join(found.reasons), model=model, evidence={"condition": found.condition})
        self.found.notes.extend(found.reasons)

    def _fresh_batches(self, learned: Learned) -> list[Floats]:
        """Fresh sequences, as many as the budget allows; nothing is announced unchecked."""
        embeddings = getattr(self.watched, "embeddings", None)
        limit = self.options.max_norm if self.options.max_norm is not None else self.found.max_norm
        like = self._like(learned)
        batches = fresh_sequences(learned.model, self.fresh, max_norm=limit, vocabulary=embeddings, like=like)
        price = 1
        if self.found.family == "attention-behind-network":  # the target's own one-token answers are the prediction
            price, batches = 2, [batch[: len(batch) // 2] for batch in batches]
        if self.options.budget is None:
            return batches
        left = self.options.budget - self.meter.spent
        per_length = min(len(batches[0]), left // (price * len(batches)))
        if per_length < 1:
            raise BudgetExceededError(
                f"Learning took {self.meter.spent} queries and the held-out check needs at least {price * len(batches)} more, but "
                f"the budget is {self.options.budget}. Raise `budget`; nothing is announced unchecked.",
                model=learned.model,
            )
        return [batch[:per_length] for batch in batches]

    def _like(self, learned: Learned) -> Floats | None:
        """The kind of array in which fresh sequences are best drawn and predicted: of the target's device, where it can be."""
        there = self.found.floor.kind == "exact" and isinstance(learned.model, Attention) and self.found.family == "attention"
        return getattr(self.checked, "like", None) if there else None


def _largest_answer(predict: Predict, batches: list[Floats]) -> float:
    return float(np.abs(on_host(predict(batches))).max())
