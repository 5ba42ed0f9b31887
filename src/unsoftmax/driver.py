"""``recover``: look, choose a learner, run it, check it on fresh questions, pack the result."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from unsoftmax import __version__
from unsoftmax.checks.held_out import fresh_sequences, held_out, join_checks, predictor
from unsoftmax.errors import (
    BudgetExceededError,
    DriftingError,
    JournalError,
    NotIdentifiableError,
    NotInFamilyError,
    RefusalError,
    TargetError,
    TooNoisyError,
)
from unsoftmax.families import Found, Options, learn
from unsoftmax.models import FFN, Attention, Floats, Model, Transformer
from unsoftmax.oracles.adapt import as_oracle, identity_of
from unsoftmax.oracles.base import Oracle
from unsoftmax.oracles.drift import Watched, post_mortem
from unsoftmax.oracles.guard import NormGuard
from unsoftmax.oracles.journal import Journal, Journaled
from unsoftmax.oracles.meter import Metered
from unsoftmax.results import Check, Floor, Learned, Recovery, Status

EXACT_TOLERANCE = 1e-8  # relative error on fresh sequences up to which float64 answers count as matched
COARSE_FACTOR = 2048.0  # the same in units of the answers' own relative precision, for coarser answers
NOISE_FACTOR = {"noisy": 8.0}  # noise that the largest of some hundred answers may carry, in standard deviations
BOUNDED_FACTOR = 2.0  # the same for errors that are bounded, as those of rounding are
MORE_THAN_ROUNDING = 0.31  # of the step: rounding alone errs by 0.29 (rms)
HALF = 0.5  # of the answers' spread: noise beyond that hides any model
ALMOST = 1e-5  # heads that explain fresh sequences this far, but not to rounding, are merged ones
LOOSEST = 1e-2  # beyond this a match proves nothing
LOOSEST_HALF = 2.0**-5  # 16 units of half precision, where the largest values are four times the answers' spread
MOST_PUZZLING = 32  # early answers that a right model does not explain and that are asked again
SENTINELS = 4  # questions asked again in an exact run, whatever its length
Progress = Callable[[str, int], None]


def recover(
    target: Any,
    *,
    width: int | None = None,
    family: str = "auto",
    rank: int | None = None,
    heads: int | None = None,
    tolerance: float | None = None,
    max_norm: float | None = None,
    budget: int | None = None,
    adaptive: bool = True,
    grid: Any = None,
    journal: str | Path | None = None,
    seed: int = 0,
    on_failure: str = "raise",
    accuracy: float | None = None,
    entropy: int | None = None,
    on_progress: Progress | None = None,
) -> Recovery:
    """Recover a target's parameters from its answers, and prove the match on fresh questions.

    Args:
        target: a callable on ``(batch, length, width)`` arrays, a ``torch.nn.Module``, a model of ours, or an oracle.
        width: token length, where the target does not tell it.
        family: "auto", "attention", "transformer", "ffn" or "attention-behind-network".
        rank: rank of the score matrices; None finds it.
        heads: how many heads there are at most; None finds their number.
        tolerance: every answer is within this of the truth; None measures the precision of the answers.
        max_norm: no token longer than this is sent.
        budget: never ask more sequences than this, the held-out check included.
        accuracy: wanted rms error of W where answers are noisy or rounded; asks as many queries as that takes.
        adaptive: False draws all probes before the first answer.
        grid: known spacing of the weights, or "auto".
        journal: file that keeps every answer; the same call resumes from it.
        seed: same seed, same questions, same result.
        on_failure: "raise" an exception that carries ``.recovery``, or "return" it.
        entropy: source of the sentinels and of the held-out check, for tables that must be repeatable; None, the default, asks the
            operating system, so that no target can foresee them.
        on_progress: called with a phase name and a number of sequences after every call.

    Returns:
        The ``Recovery``. Its status is EXACT or WITHIN_TOLERANCE only after a held-out check on sequences whose randomness
        comes from the operating system.

    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(7)
    >>> head = us.Attention.single(W=rng.normal(size=(4, 4)), v=rng.normal(size=4))
    >>> found = us.recover(head)
    >>> found.status.name, found.queries <= 4 * 4 + 4 + 32, us.distance(found.model, head) < 1e-13
    ('EXACT', True, True)
    """
    if on_failure not in ("raise", "return"):
        raise ValueError(f"on_failure is {on_failure!r}; it must be 'raise' or 'return'.")
    options = Options(
        family=family,
        rank=rank,
        heads=heads,
        tolerance=tolerance,
        max_norm=max_norm,
        budget=budget,
        accuracy=accuracy,
        adaptive=adaptive,
        grid=grid,
        seed=seed,
    )
    oracle = as_oracle(target, width)
    if rank is not None and rank > oracle.width:
        raise ValueError(f"rank is {rank}, but the width is only {oracle.width}.")
    if grid is not None and not isinstance(grid, str) and np.size(grid) not in (1, oracle.width):
        raise ValueError(f"grid holds {np.size(grid)} steps; it must be one, or one for each of the {oracle.width} rows of W.")
    run = _Run(oracle, options, journal, on_progress, entropy)
    try:
        recovery = run.recover()
    finally:
        run.close()
    if not recovery.status.success and on_failure == "raise":
        error = run.refusal if run.refusal is not None else NotInFamilyError(recovery.message)
        error.recovery = recovery
        raise error
    return recovery


class _Run:
    """One recovery: the stack of oracles, the random numbers, and what was found so far."""

    def __init__(
        self,
        oracle: Oracle,
        options: Options,
        journal: str | Path | None,
        on_progress: Progress | None,
        entropy: int | None = None,
    ) -> None:
        self.options = options
        self.started = time.perf_counter()
        self.journal: Journal | None = None
        guarded: Oracle = NormGuard(oracle, options.max_norm)
        source = secrets.randbits(256) if entropy is None else entropy
        learning, checking = guarded, guarded
        if journal is not None:
            plan = {k: _noted(v) for k in Options.__slots__ if (v := getattr(options, k)) is not None and k != "budget"}
            self.journal = Journal(journal, {"target": identity_of(oracle), "width": oracle.width, "version": __version__, **plan})
            source = self.journal.entropy if entropy is None else entropy
            learning, checking = Journaled(guarded, self.journal, "learn"), Journaled(guarded, self.journal, "check")
        # what the target must not foresee comes from the operating system; what must be repeatable from the seed
        watch, self.fresh = (np.random.default_rng(s) for s in np.random.SeedSequence(source).spawn(2))
        self.rng = np.random.default_rng(options.seed)
        self.meter = Metered(learning, budget=options.budget, on_count=on_progress)
        self.oracle = Watched(self.meter, watch, cap=SENTINELS, expected=oracle.width**2)
        self.checked = Metered(checking, on_count=on_progress)
        self.found = Found()
        self.learned: Learned | None = None
        self.check: Check | None = None
        self.predict: Callable[[Floats], Floats] | None = None  # the model that was found, once it is being checked
        self.noise = 0.0  # what noise and rounding may add to the largest error on fresh sequences
        self.refusal: RefusalError | None = None

    def close(self) -> None:
        """Let go of the journal."""
        if self.journal is not None:
            self.journal.close()

    def recover(self) -> Recovery:
        """Run to the end; a refusal becomes a status."""
        try:
            self.learned = learn(self.oracle, self.options, self.found, self.rng, self._floor_known)
            self._verify(self.learned)
            assert self.check is not None
            exact = self.found.floor.kind == "exact" and self.check.relative_error <= EXACT_TOLERANCE
            status = Status.EXACT if exact else Status.WITHIN_TOLERANCE
            message = status.value
        except Exception as error:  # contradictory answers may also end in an error of the arithmetic
            self.refusal = self._look_back(error)
            status, message = Status[self.refusal.status_name], str(self.refusal)
        return self._pack(status, message)

    def _look_back(self, error: Exception) -> RefusalError:
        """The reason to report for a failed run: if the target contradicts its earlier answers, that; else ``error``."""
        told = isinstance(error, DriftingError | BudgetExceededError | TargetError | JournalError)
        if self.oracle.asked and not told:
            if self.options.budget is not None:  # the check has had its share
                self.meter.budget = self.options.budget - self.checked.spent
            try:
                self.oracle.look_for_replicas()
            except DriftingError as reason:
                reason.model = getattr(error, "model", None)
                return reason
            except RefusalError:
                pass  # no budget left for a look, or no target: the first reason stands
        if isinstance(error, RefusalError):
            return error
        if isinstance(error, ArithmeticError | ValueError | np.linalg.LinAlgError):
            return NotInFamilyError(
                f"The answers lead to numbers that no model of this family gives ({type(error).__name__}: {error}). "
                "`unsoftmax diagnose` tells what the target may be."
            )
        raise error

    def _floor_known(self, floor: Floor) -> None:
        self.oracle.floor = None if floor.kind == "coarse" else floor

    @property
    def tolerance(self) -> float:
        """The relative error that this run holds itself to on fresh sequences, beyond what noise and rounding add."""
        relative = self.found.floor.relative
        if self.found.family == "attention-behind-network" and self.learned is not None:
            relative = max(relative, self.learned.evidence["entry_error"])  # a flat network passes on only so many digits
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

    def _verify(self, learned: Learned) -> None:
        """Compare with fresh answers; a mismatch is a drifting target or one outside the family."""
        self.checked.begin_phase("held-out check")
        batches = self._fresh_batches(learned)
        if self._carries_noise(learned):
            self._verify_through_noise(learned, batches)
            return
        if self.found.family == "attention-behind-network":
            from unsoftmax.learners.behind_network import held_out_check as behind_network_check

            check = join_checks([behind_network_check(self.checked, learned, batch) for batch in batches])
        else:
            self.predict = self.found.predict or predictor(learned.model, self._like(learned))
            check = held_out(self.checked, self.predict, batches)
        self.check = check
        spread = check.max_abs_error / check.relative_error if check.relative_error else np.inf
        noise = NOISE_FACTOR.get(self.found.floor.kind, BOUNDED_FACTOR) * self.found.floor.absolute
        if self.found.floor.kind == "digits" and self.predict is not None:  # each answer is off by up to this share of itself
            noise = BOUNDED_FACTOR * self.found.floor.relative * max(float(np.abs(self.predict(batch)).max()) for batch in batches)
        self.noise = noise
        allowed = self.tolerance * spread + noise
        if check.max_abs_error <= allowed and noise <= HALF * spread:
            self._explain(learned, check)
            self._certify(learned, check)
            return
        if check.max_abs_error <= allowed:
            raise TooNoisyError(
                f"Answers carry errors of about {self.found.floor.absolute:.2g} where they vary by {spread:.2g}: fresh sequences "
                "cannot tell a right model from a wrong one. Allow longer tokens, or average the target's answers.",
                model=learned.model,
            )
        heads = learned.model.heads if isinstance(learned.model, Attention) else 0
        if heads > 1 and self.found.floor.kind == "exact" and check.relative_error <= ALMOST:
            raise NotIdentifiableError(
                f"{heads} heads explain fresh sequences to {check.relative_error:.1g} of their spread, where "
                f"{allowed / spread:.1g} is allowed: two heads lie too close together, and are known only merged, within that, "
                "or one is too faint beside the others.",
                model=learned.model,
                evidence={"merged_within": check.relative_error, "by_length": check.by_length},
            )
        if heads > 1 and self.found.floor.kind != "exact" and check.relative_error <= LOOSEST:
            raise TooNoisyError(
                f"{heads} heads explain fresh sequences to {check.relative_error:.1g} of their spread, where "
                f"{allowed / spread:.1g} is allowed: the answers ({self.found.floor.kind}) are too coarse to tell these heads. "
                "Ask for answers in float64.",
                model=learned.model,
            )
        raise NotInFamilyError(
            f"The model that fits all {self.meter.spent} answers fails on fresh sequences: relative error "
            f"{check.relative_error:.2g}, where {allowed / spread:.1g} is allowed. {self._or_else(heads)} "
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

    def _verify_through_noise(self, learned: Learned, batches: list[Floats]) -> None:
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

    def _explain(self, learned: Learned, check: Check) -> None:
        """A model that is right on fresh sequences but not on the first answers: ask those again, the target changed meanwhile."""
        if self.found.family == "attention-behind-network":
            return  # its model cannot answer by itself
        error = max(check.relative_error, self.found.floor.relative)
        puzzling = self.oracle.unexplained(self.predict or predictor(learned.model), error)
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
        embeddings = getattr(self.oracle, "embeddings", None)
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

    def _pack(self, status: Status, message: str) -> Recovery:
        learned, found = self.learned, self.found
        model = learned.model if learned is not None else getattr(self.refusal, "model", None)
        evidence = {**({} if learned is None else learned.evidence), **({} if self.refusal is None else self.refusal.evidence)}
        facts: dict[str, Any] = {
            "family": found.family,
            "width": self.oracle.width,
            "layout": None if found.look is None else found.look.layout,
            "outputs": None if found.look is None else found.look.outputs,
            "floor": {name: getattr(found.floor, name) for name in Floor.__slots__},
            "tolerance": self.stated_tolerance,
            "queries": {
                "learn": self.meter.spent,
                "check": self.checked.spent,
                "total": self.meter.spent + self.checked.spent,
            },
            "phases": {name: {"queries": c.queries, "tokens": c.tokens, "calls": c.calls} for name, c in self.meter.phases.items()},
            "notes": [*found.notes, *(() if learned is None else learned.notes)],
            "evidence": evidence,
            "seed": self.options.seed,
            "seconds": time.perf_counter() - self.started,
            "version": __version__,
            "options": {k: _noted(v) for k in Options.__slots__ if (v := getattr(self.options, k)) is not None},
        }
        if self.journal is not None:
            facts["journal"] = {"sha256": self.journal.digest, "possibly_asked_twice": self.journal.repeated}
        if model is not None:
            facts |= model_sizes(model, evidence)
        return Recovery(
            model=model,
            status=status,
            queries=self.meter.spent,
            check=self.check,
            bounds=None if learned is None else learned.bounds,
            ambiguity="" if learned is None else learned.ambiguity,
            message=message,
            facts=facts,
        )


def _noted(value: Any) -> Any:
    """An option as a journal and a report keep it."""
    return value if isinstance(value, bool | int | float | str) else np.asarray(value).tolist()


def model_sizes(model: Model, evidence: dict[str, Any]) -> dict[str, Any]:
    """Heads, rank and the number of free parameters: what no exact scheme can ask less of, counted in real answers."""
    if isinstance(model, FFN):
        return {"neurons": len(model.biases[0]), "parameters": _network_parameters(model)}
    head = model.attention if isinstance(model, Transformer) else model
    d = head.width
    ranks = evidence.get("ranks") or [evidence["rank"] if evidence.get("rank") is not None else d] * head.heads
    scores = sum(r * (2 * d - r) for r in ranks) + head.heads * d * head.has_c
    known = {"heads": head.heads, "rank": max(ranks), "ranks": list(ranks)}
    if isinstance(model, Transformer):
        return {
            **known,
            "neurons": len(model.ffn.biases[0]),
            "parameters": scores + _network_parameters(model.ffn) + d * d * model.residual,
        }
    outputs = head.outputs or 1
    values = 0 if head.V is None else head.heads * d * outputs + outputs * head.has_b
    return {**known, "parameters": scores + values}


def _network_parameters(network: FFN) -> int:
    return sum(w.size for w in network.weights) + sum(b.size for b in network.biases)
