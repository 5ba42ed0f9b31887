"""Learn an attention layer from recorded examples, without asking anything: ``learn_from_examples``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unsoftmax.accounts import Account
from unsoftmax.errors import NotIdentifiableError, RefusalError, TooNoisyError, is_whole
from unsoftmax.evidence import Evidence
from unsoftmax.learners.from_examples.data import Examples, Frame, frame_of, hold_out, read_examples
from unsoftmax.learners.from_examples.errors import error_bars
from unsoftmax.learners.from_examples.refusals import refusal_of, refuse_hopeless, refuse_silent, refuse_two_tokens, too_few
from unsoftmax.learners.from_examples.sculpting import decide_by_sculpting
from unsoftmax.learners.from_examples.search import PLAIN, Candidate, Search, predict
from unsoftmax.learners.from_examples.settings import EXAMPLES
from unsoftmax.learners.from_examples.verdict import decide
from unsoftmax.models import Attention, Floats, Sizes
from unsoftmax.results import Bounds, Check, Recovery, Status
from unsoftmax.symmetry import canonical


@dataclass
class _Seen:
    """What is known so far, for the account, whichever way it ends."""

    numbers: dict[str, Any]
    evidence: Evidence = field(default_factory=Evidence)
    notes: tuple[str, ...] = ()
    sizes: Sizes | None = None

    def added_to(self, account: Account, more: Evidence | None = None) -> Account:
        """The account with it, and with ``more`` numbers."""
        numbers = Evidence({**self.numbers, **(more or {})})
        return replace(account, evidence=self.evidence, notes=self.notes, sizes=self.sizes, more=numbers)


def learn_from_examples(
    X: ArrayLike,
    Y: ArrayLike,
    *,
    heads: int | None = None,
    causal: bool = False,
    mask: ArrayLike | None = None,
    method: Literal["fit", "sculpt"] = "fit",
    seed: int = 0,
    on_failure: Literal["raise", "return"] = "raise",
    progress: Callable[[str], None] | None = None,
) -> Recovery:
    """Recover the attention layer behind recorded examples; no query is asked.

    A part of the answers is set aside before anything is fitted and decides at the end. With ``m`` heads of width ``d`` and
    vector answers about ``8 m d / length`` sequences suffice (four equations per unknown).

    Args:
        X: inputs ``(examples, length, width)``.
        Y: answers: ``(examples, length, outputs)`` at all positions, ``(examples, outputs)`` or ``(examples,)`` at the last one.
        heads: number of heads; None finds it.
        causal: whether a position sees only itself and those before it.
        mask: ``(examples, length)``, True where a token is real; answers at padding are ignored.
        method: "fit" (variable projection, any layer) or "sculpt" (the six phases of Chen & Li, one or two heads).
        seed: same seed and data, same result.
        on_failure: "raise" a ``RefusalError`` that carries ``.recovery``, or "return" that recovery.
        progress: called with one line per stage.

    Returns:
        A ``Recovery`` with ``queries = 0``. A residual (a linear map of the asking token, which no ``Attention`` holds) stands
        in ``facts["residual"]``: the answers are ``model(X, "all") + X @ residual``.

    Raises:
        ValueError: arrays that do not fit together or are not finite, or options out of range.
        RefusalError: no layer could be recovered; the message says why and how many examples would be needed.

    Reference: Chen & Li, "Provably learning a multi-head attention layer" (arXiv 2402.04084), for the setting.

    >>> rng = np.random.default_rng(0)
    >>> truth = Attention(W=rng.normal(size=(1, 3, 3)), V=rng.normal(size=(1, 3, 3)))
    >>> X = rng.normal(size=(20, 4, 3))
    >>> found = learn_from_examples(X, truth(X, "all"))
    >>> found.status.name, bool(np.abs(found.model.W - truth.W).max() < 1e-8)
    ('EXACT', True)
    """
    if method not in ("fit", "sculpt"):
        raise ValueError(f"method is {method!r}; it must be 'fit' or 'sculpt'.")
    if on_failure not in ("raise", "return"):
        raise ValueError(f"on_failure is {on_failure!r}; it must be 'raise' or 'return'.")
    if heads is not None and not is_whole(heads, 1):
        raise ValueError(f"heads is {heads!r}; it must be a positive whole number, or None to find it.")
    if not is_whole(seed, 0):
        raise ValueError(f"seed is {seed!r}; it must be a whole number of at least 0.")
    if not isinstance(causal, bool | np.bool_):
        raise ValueError(f"causal is {causal!r}; it must be True or False.")
    heads, seed = None if heads is None else int(heads), int(seed)
    examples = read_examples(X, Y, mask, causal=causal)
    tell = progress or (lambda line: None)
    seen = _Seen({"method": method, "floor": {"kind": examples.floor.kind}})
    account = Account(
        family="attention", width=examples.tokens.shape[2], outputs=None if examples.scalar else examples.answers.shape[2],
        layout="at all positions" if examples.all_positions else "at the last position", seed=seed, examples=len(examples.tokens),
    )  # fmt: skip
    try:
        return _recovery(examples, heads, method, account, tell, seen)
    except RefusalError as refusal:
        refusal.recovery = Recovery(
            model=refusal.model,
            status=Status[refusal.status_name],
            queries=0,
            check=refusal.check,
            bounds=None,
            ambiguity="Nothing was recovered; the model, if any, is the best fit so far and must not be relied upon.",
            message=str(refusal),
            account=seen.added_to(account, refusal.evidence),
        )
        if on_failure == "raise":
            raise
        failed: Recovery = refusal.recovery
        return failed


def _recovery(
    examples: Examples, heads: int | None, method: str, account: Account, tell: Callable[[str], None], seen: _Seen
) -> Recovery:
    rng = np.random.default_rng(account.seed)
    held = hold_out(examples, rng)
    frame = frame_of(examples)
    refuse_hopeless(examples, frame)
    exact = examples.floor.exact
    search = Search(examples, frame, examples.counts & ~held, rng, EXAMPLES.exact if exact else digits_hit(examples), exact, tell)
    if not search.enough(heads or 1, PLAIN):
        raise too_few(examples, heads or 1)
    if method == "sculpt":
        verdict, seen.numbers["phases"] = decide_by_sculpting(search, heads)
    else:
        plenty = _plenty(examples, search.learn, rng) if exact else None
        if plenty is not None:  # exact answers need no averaging: learn from a part, check on all the rest
            part = replace(search, learn=plenty, best={}, problems={})
            verdict = decide(part, heads)
            if verdict.exact and verdict.accepted:
                search, held = part, examples.counts & ~plenty
        if plenty is None or search.learn is not plenty:
            verdict = decide(search, heads)
    seen.numbers["starts"], seen.evidence = search.starts, Evidence(verdict.evidence)
    if verdict.candidate is None:
        raise too_few(examples, heads or 1)
    candidate = verdict.candidate
    if verdict.accepted:
        refuse_silent(candidate)
    model, residual, bounds = _in_user_terms(candidate, frame, examples, rng if verdict.accepted and not verdict.exact else None)
    check, noise = _check(search, candidate, held)
    _describe(seen, examples, candidate, model, residual, held)
    if not verdict.accepted:
        raise refusal_of(examples, heads, verdict, model, check)
    if frame.missing:
        raise NotIdentifiableError(
            f"The tokens vary in only {model.width - frame.missing} of {model.width} directions, so W and V are unknown along the "
            f"rest; on such tokens the layer found is right to {check.max_abs_error:.1e}. "
            "Record examples whose tokens span all directions.",
            model=model,
            check=check,
        )
    refuse_two_tokens(examples, model, check, verdict.exact)
    if verdict.exact:
        status, tolerance = Status.EXACT, 1e-8
    else:
        allowed = _tolerance(examples, noise, held)
        status, tolerance = Status.WITHIN_TOLERANCE, allowed / _spread(examples)
        seen.numbers["noise"] = noise
        if check.max_abs_error > allowed:
            raise TooNoisyError(
                f"Held-out answers differ by up to {check.max_abs_error:.1e}, beyond the {allowed:.1e} that noise of size "
                f"{noise:.1e} explains. Look for outliers among the examples.",
                model=model,
                check=check,
            )
    return Recovery(
        model=model, status=status, queries=0, check=check, bounds=bounds,
        ambiguity="Equal up to the order of the heads; of Wq, Wk, Wv, Wo only the products in W and V are known.",
        message=_success(model, residual, examples, check, status),
        account=replace(seen.added_to(account), tolerance=tolerance),
    )  # fmt: skip


def _plenty(examples: Examples, learn: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_] | None:
    """A random part of the sequences with forty equations per unknown of eight heads; None unless there are twice as many."""
    width, outputs = examples.tokens.shape[2], examples.answers.shape[2]
    wanted = 40 * 8 * width * (width + 1 + outputs) / outputs
    sequences = np.flatnonzero(learn.any(axis=1))
    number = ceil(wanted * len(sequences) / max(int(learn.sum()), 1))
    if 2 * number > len(sequences):
        return None
    part = np.zeros_like(learn)
    part[rng.permutation(sequences)[:number]] = True
    return part & learn


def digits_hit(examples: Examples) -> float:
    """Relative training error that the digits of the answers alone explain."""
    floor = examples.floor
    spread = (floor.absolute + floor.relative * np.abs(examples.answers[examples.counts])) / np.sqrt(3.0)
    slack = 8.0 if floor.single else 2.0  # a layer that computes in float32 is off by several roundings
    return min(slack * float(np.sqrt(np.mean(spread**2))) / examples.rms, 0.05)


def _in_user_terms(
    candidate: Candidate, frame: Frame, examples: Examples, rng: np.random.Generator | None
) -> tuple[Attention, Floats | None, Bounds | None]:
    """The canonical model, the residual and, with ``rng``, the error bars, heads in one order."""
    point = candidate.fit.point
    raw, residual = frame.to_model(point.theta, point.values, candidate.extras, scalar=examples.scalar)
    model = canonical(raw)
    bounds = None
    if rng is not None and model.heads == raw.heads:
        bounds = error_bars(candidate, frame, rng, scalar=examples.scalar)
    if bounds is not None:  # the canonical form has the heads in its own order
        order = [int(np.argmin([np.abs(W - other).max() for other in raw.W])) for W in model.W]
        bounds = replace(bounds, W=_take(bounds.W, order), V=_take(bounds.V, order), c=_take(bounds.c, order))
    return model, residual, bounds


def _take(block: Floats | None, order: list[int]) -> Floats | None:
    return None if block is None else block[order]


def _check(search: Search, candidate: Candidate, held: NDArray[np.bool_]) -> tuple[Check, float]:
    """The held-out check in the units of the answers, and the noise level that the training part shows."""
    examples, scale = search.examples, search.frame.scale
    used = held.any(axis=1)
    problem = search.frame.problem(examples, held, candidate.extras)
    error = np.abs(problem.answers - predict(problem, candidate)).reshape(int(used.sum()), held.shape[1], -1).max(axis=2) * scale
    lengths = examples.present[used].sum(axis=1)
    check = Check(
        sequences=int(used.sum()),
        max_abs_error=float(error.max()),
        relative_error=float(error.max()) / _spread(examples),
        by_length={int(n): float(error[lengths == n].max()) / _spread(examples) for n in np.unique(lengths)},
    )
    return check, candidate.fit.error * scale / np.sqrt(max(1.0 - 1.0 / candidate.surplus, 0.1))


def _spread(examples: Examples) -> float:
    """Root mean square of the answers' deviation from their mean."""
    answers = examples.answers[examples.counts]
    return float(np.sqrt(np.mean((answers - answers.mean(axis=0)) ** 2))) or examples.rms


def _tolerance(examples: Examples, noise: float, held: NDArray[np.bool_]) -> float:
    """What a held-out answer may be off by: the largest of so many Gaussian errors, or the digits of the answers."""
    numbers = int(held.sum()) * examples.answers.shape[2]
    digits = 2.0 * examples.floor.of(float(np.abs(examples.answers).max())) if not examples.floor.exact else 0.0
    # twice: a held-out answer also carries the error of the fit, which is larger where the tokens are unusual
    return float(max(2.0 * noise * (np.sqrt(2.0 * np.log(numbers + 1.0)) + 1.0), digits))


def _describe(
    seen: _Seen, examples: Examples, candidate: Candidate, model: Attention, residual: Floats | None, held: NDArray[np.bool_]
) -> None:
    singular = np.linalg.svd(model.W, compute_uv=False)
    seen.sizes = model.sizes(tuple(int(np.sum(s > 1e-7 * s[0])) if s[0] > 0 else 0 for s in singular))
    seen.numbers |= {
        "training_error": candidate.fit.error * examples.rms, "held_out_answers": int(held.sum()),
        "equations_per_unknown": candidate.surplus, "fit_steps": candidate.fit.steps,
    }  # fmt: skip
    if residual is not None:
        identity = residual.shape[0] == residual.shape[1] and np.allclose(residual, np.eye(len(residual)), atol=1e-6)
        seen.numbers |= {"residual": np.eye(len(residual)) if identity else residual, "residual_is_identity": identity}
        seen.notes = (
            "The answers also hold a residual, which no attention layer expresses: they are model(X) + x @ residual, "
            + ("the residual being the identity." if identity else "with the matrix `residual` of recovery.json."),
        )


def _success(model: Attention, residual: Floats | None, examples: Examples, check: Check, status: Status) -> str:
    parts = [f"{model.heads} head{'s' * (model.heads > 1)} of width {model.width}"]
    parts += ["query biases"] * model.has_c + ["a constant"] * model.has_b + ["a residual (in facts)"] * (residual is not None)
    how = "exactly" if status is Status.EXACT else "as far as the noise in the answers allows"
    return (
        f"Recovered {how} from {len(examples.tokens)} examples: {', '.join(parts)}; "
        f"largest error on {check.sequences} held-out sequences {check.max_abs_error:.1e}."
    )
