"""Which family a target belongs to, with the evidence, in at most 200 + 4 width queries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.bills import Bill
from unsoftmax.brevity import Brief
from unsoftmax.errors import Sign, check_positive
from unsoftmax.oracles.base import Oracle
from unsoftmax.precision.first_look import FirstLook
from unsoftmax.recognition.case import Case, DecidedError, Shape, Verdict, inconclusive, outside
from unsoftmax.recognition.depth import several_layers
from unsoftmax.recognition.floor import measure_floor, one_token_noise
from unsoftmax.recognition.heads import several_heads
from unsoftmax.recognition.invariances import invariances
from unsoftmax.recognition.line import behind_network
from unsoftmax.recognition.names import name_affine, name_bent, residual_left_open
from unsoftmax.recognition.one_head import one_head
from unsoftmax.recognition.one_token import Pilot, grows, ignores_length, one_token, pilot, sharp
from unsoftmax.recognition.piecewise import chord_law, transformer
from unsoftmax.recognition.settings import TESTS
from unsoftmax.recognition.stepwise import PRICE, judged, pairs_in_steps
from unsoftmax.results import Fact, Floor

DEEP = "the answers' kinks end or change on their way: a network with several hidden layers"
FAMILIES = ("attention", "transformer", "ffn", "attention-behind-network")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis(Brief):
    """What a target is, as far as its answers tell.

    Attributes:
        family: "attention", "transformer", "ffn", "attention-behind-network", or "outside: …" with the kind.
        inside: whether a learner of this package can recover it.
        heads: number of heads, where it was found.
        reason: the verdict in one sentence.
        evidence: every test with its number and threshold, in the order asked.
        queries: sequences asked.
        answers: "scalar", "vector" or "all positions".
        outputs: length of a vector answer.
        causal: whether earlier positions ignore later ones; None where only the last position is answered.
        constant: whether the zero token gets a nonzero answer (b); None where not asked.
        bias: whether scores carry a term of the earlier token alone (c); None where not asked.
        residual: whether the last token is added before the network; None where that means nothing.
        floor: precision of the answers.
        scale: root mean square entry of tokens at which scores are of order one; None where not found.
        bill: what recovery would cost; None outside the family.
        signs: what the tests told beside that, for whoever chooses what to try next.
    """

    family: str
    inside: bool
    heads: int | None
    reason: str
    evidence: tuple[Fact, ...]
    queries: int
    answers: str
    outputs: int | None
    causal: bool | None
    constant: bool | None
    bias: bool | None
    residual: bool | None
    floor: Floor
    scale: float | None
    bill: Bill | None
    signs: tuple[Sign, ...] = ()


@dataclass
class _Findings:
    heads: int | None = None
    causal: bool | None = None
    constant: bool | None = None
    bias: bool | None = None
    residual: bool | None = None
    scale: float | None = None


def diagnose_oracle(
    oracle: Oracle,
    *,
    rng: np.random.Generator,
    max_norm: float | None = None,
    look: FirstLook | None = None,
    longest: int = 256,
    asked: int = 0,
) -> Diagnosis:
    """Tell the family of a target from at most ``200 + 4 * width`` queries.

    Tests go from cheap to dear and stop at the first that decides: shape and precision of the answers, the scale of the scores,
    one-token answers, invariances (order, repeats, doubled tokens), then the law of one head, of several heads, or of one head
    before a network.
    A test without enough power never says "inside"; the verdict is then "outside: inconclusive (…)".

    Args:
        oracle: the target.
        rng: source of the random probes.
        max_norm: no token longer than this is sent.
        look: the first answers, where they were asked already; exact ones need no further questions about their precision.
        longest: no sequence of more tokens than this is sent.
        asked: questions that were asked before and count towards the limit.

    Raises:
        TargetError: the target fails on a single token of moderate size.
    """
    check_positive(max_norm=max_norm)
    case, found = Case(oracle, rng, max_norm), _Findings()
    case.longest = longest
    case.asked = asked
    known = look is not None and look.floor.exact and case.known_from(look)

    def decided() -> Verdict:
        if not known:
            measure_floor(case)
        return _decide(case, found)

    verdict = case.tried(decided)
    change = _sentinels(case)
    if change > 1 and Sign.RANDOM not in verdict.signs:
        words = "An early question got another answer at the end: the target changed, or several replicas answer."
        verdict = outside("changed while asked", words, Sign.CHANGED)
    family = verdict.family
    inside = family in FAMILIES
    return Diagnosis(
        family=family,
        inside=inside,
        heads=found.heads if inside else None,
        reason=verdict.reason,
        evidence=tuple(case.evidence),
        queries=case.asked,
        answers="all positions" if case.everywhere else ("scalar" if case.outputs is None else "vector"),
        outputs=case.outputs,
        causal=found.causal,
        constant=found.constant,
        bias=found.bias,
        residual=found.residual if inside else None,
        floor=_in_units(case.floor, case.unit),
        scale=found.scale,
        bill=bill(family, case.width, found.heads, case.outputs) if inside else None,
        signs=tuple(dict.fromkeys([*verdict.signs, *case.signs])),
    )


def _in_units(floor: Floor, unit: float) -> Floor:
    """The floor in the target's own units."""
    if unit == 1.0:
        return floor
    return replace(floor, absolute=floor.absolute / unit, step=None if floor.step is None else floor.step / unit)


def _decide(case: Case, found: _Findings) -> Verdict:
    if case.longest == 1:
        shape, size = one_token(case, 1.0)
        case.record("longer sequences", 1.0, 1.0, False, "The target takes one token only.")
        return _network(case, shape, size, "The target takes one token only")
    point = pilot(case)
    shape, size = one_token(case, point.scale)
    if not point.listens:
        case.record("earlier tokens", 0.0, 1.0, False, "Earlier tokens do not change the answer.")
        return _network(case, shape, size, "Only the last token matters")
    invariant = invariances(case, shape, point.scale)
    if isinstance(invariant, Verdict):
        return invariant
    if not invariant:
        return _network(case, shape, size, "Only the first token matters")
    found.scale = point.scale
    if point.hard:
        return outside(
            "hard attention",
            "Weights are saturated for tokens of every size: hard attention, or scores that do not shrink with the tokens.",
        )
    _extras(case, found, point.scale)
    if shape is Shape.AFFINE:
        return _attention(case, found, point)
    if ignores_length(case, point.scale):
        return outside(
            "LayerNorm before attention",
            "Earlier tokens count by their direction alone, not by their length: a LayerNorm or RMSNorm stands before attention.",
        )
    growing = shape is not Shape.SMOOTH and grows(case, size)
    if growing and (shape is Shape.PIECEWISE or not point.flat):
        verdict = _relu(case, found, point, shape, size)
        if verdict is not None:
            return verdict
    return _behind(case, found, point, shape, size, growing)


def _network(case: Case, shape: Shape, scale: float, why: str) -> Verdict:
    if shape is Shape.PIECEWISE:
        if not grows(case, scale):
            return outside("bounded network", f"{why}, and one-token answers stop growing: a norm or a clip is involved.")
        if not _kinks(case, scale):
            return outside(
                "not piecewise linear", f"{why}, and the answer jumps or bends smoothly somewhere: no network with ReLU does that."
            )
        deep = several_layers(case, scale, kinks=2)
        if deep:
            return outside("deep network", f"{why}, and {DEEP}, which is not learned.")
        told = " with one hidden layer." if deep is False else ". Whether it has one hidden layer, as recovery needs, was not told."
        return Verdict("ffn", f"{why}, and one-token answers are piecewise linear: a network with ReLU{told}")
    if shape is Shape.AFFINE:
        return outside("affine map", f"{why}: an affine map of the last token, with no attention to recover.")
    if shape is Shape.UNCLEAR:
        return inconclusive("kinks", f"{why}; its answers are neither straight nor evenly bent at the precision at hand.")
    return outside("smooth network", f"{why}, and one-token answers bend smoothly: a network without ReLU.")


def _extras(case: Case, found: _Findings, scale: float) -> None:
    """Constant, bias and causality: 3 queries."""
    p = case.cap(scale, 1.5) * case.draw()
    zero = np.zeros(case.width)
    answers = case.attempt(np.stack([[zero, zero, zero], [p, -p, zero]]))
    if answers is None:  # a target that divides by the length of a token
        return
    size = case.tolerance(answers, case.sentinels[0][1])
    found.constant = bool(np.abs(answers[0]).max() > size)
    found.bias = bool(np.abs(answers[1] - answers[0]).max() > size)
    case.record(
        "constant b",
        float(np.abs(answers[0]).max()) / size,
        1.0,
        True,
        f"Zero tokens get {'an' if found.constant else 'no'} answer of their own.",
    )
    case.record(
        "bias c",
        float(np.abs(answers[1] - answers[0]).max()) / size,
        1.0,
        True,
        f"Scores {'carry a' if found.bias else 'show no'} term of the earlier token alone.",
    )
    if case.everywhere:
        X = case.cap(scale, 1.5) * case.draw(2, 3)
        X[1, :2] = X[0, :2]
        case.asked += 2
        everywhere = case.oracle(X) * case.unit
        gap = float(np.abs(everywhere[0, :2] - everywhere[1, :2]).max()) / case.tolerance(everywhere)
        found.causal = gap <= 1
        case.record("causal", gap, 1.0, found.causal, f"Earlier positions {'ignore' if found.causal else 'see'} later tokens.")


def _attention(case: Case, found: _Findings, point: Pilot) -> Verdict:
    outcome = one_head(case, point.scale, flat=point.flat)
    if outcome.passed:
        found.heads = 1
        words = "One softmax head: one-token answers are affine and sequences are answered as six measured scores foretell."
        return _of_heads(case, words)
    if outcome.passed is None and outcome.plane is not None:
        return inconclusive(
            "power", f"It looks like one head, but {outcome.why}: the answers are too coarse to exclude other targets."
        )
    heads = several_heads(case, point.scale)
    if heads.heads is not None and not heads.residual:
        found.heads = heads.heads
        return _of_heads(case, f"{heads.heads} softmax heads: they explain all answers along a line and foretell others.")
    if outcome.passed is None and case.coarse and not heads.residual:
        return inconclusive("power", f"Neither proved nor excluded: {outcome.why}, and no small number of heads fits.")
    return name_affine(case, point.scale, residual=heads.residual)


def _of_heads(case: Case, words: str) -> Verdict:
    """Heads, unless float64 answers are computed more coarsely because scores are rounded: then no learner can read them."""
    if case.finer and case.left() >= PRICE + 8 and one_token_noise(case) <= TESTS.exact:  # a token alone has no scores
        case.begin("steps")
        X = pairs_in_steps(case.width, case.rng, case.max_norm)
        fact = judged(case.ask(X.reshape(-1, 2, case.width)).reshape(*X.shape[:2], -1), few=1)  # heads have no jumps
        case.evidence.append(fact)
        if not fact.passed:
            return outside("scores in steps", fact.sentence, Sign.OTHER_SCORES)
    return Verdict("attention", words)


def _relu(case: Case, found: _Findings, point: Pilot, shape: Shape, size: float) -> Verdict | None:
    if point.flat:
        outcome = one_head(case, point.scale, flat=True)
        if outcome.passed:
            found.heads, found.residual = 1, False
            return _by_depth(case, found, size, "The mean of the tokens (scores are zero), then a network with ReLU.")
        return name_bent(case, Shape.PIECEWISE)
    scale = point.scale * 0.4 / max(0.4, point.strength)
    outcome, residual = transformer(case, scale)
    # a law that was broken once needs a clean second plane: one-token answers alone are too weak a witness then
    broken = outcome.broken
    for _ in range(1 if broken else 2):
        if outcome.passed is None and (broken or residual is not False) and case.left() > TESTS.piecewise_enough:
            # another plane: the detour by one-token answers is closed; shorter tokens, as scores may have been too large to read
            scale *= 1.0 if case.coarse else 0.5
            outcome, residual = transformer(case, scale)
    if outcome.passed and residual is False:
        first = _not_last(case, size, point.scale)
        if first is not None:
            return first
    # with a residual a smooth network would be outside: then kinks must be seen
    look = _kinks_if_affordable if residual is False else lambda case, _, size: _kinks(case, size)
    if outcome.passed and ((shape is Shape.PIECEWISE and not case.coarse) or look(case, shape, size)):
        found.heads, found.residual = 1, residual
        extra = ", the last token added," if residual else ""
        reason = f"One softmax head{extra} and then a network with ReLU: sequences with the same weighted mean are answered alike."
        return _by_depth(case, found, size, reason)
    if shape is Shape.PIECEWISE and (outcome.passed is False or (broken and not outcome.passed)):
        return name_bent(case, Shape.PIECEWISE)
    if residual:
        return inconclusive("power", f"It looks like one head with a residual before a network, but {outcome.why}.")
    return None


def _by_depth(case: Case, found: _Findings, size: float, reason: str) -> Verdict:
    """A head before a network with ReLU: learned whole if that has one hidden layer, else the head alone, if nothing is added."""
    deep = several_layers(case, size, kinks=2 if found.residual else 1)  # only behind a residual all hangs on it
    if not deep:
        open_end = (
            "" if deep is False else " Whether the network has one hidden layer was not told; of more, only the head is learned."
        )
        return Verdict("transformer", reason + open_end)
    if not found.residual:
        found.residual = None
        return Verdict(
            "attention-behind-network", f"{reason} But {DEEP}: the head can be read through it, the network is not learned."
        )
    if (case.outputs or 1) >= case.width:
        return residual_left_open(case)
    return outside(
        "deep network behind a residual",
        f"{reason} But {DEEP}: with the last token added a head is read through it only where answers have at least {case.width} "
        "numbers.",
    )


def _not_last(case: Case, size: float, scale: float) -> Verdict | None:
    """The verdict unless sequences are told from mixtures of one-token answers: a network on each token makes those."""
    for length in (size, scale, size):
        mixed = chord_law(case, length)
        if mixed:
            return outside(
                "network before attention", "Pairs are answered by mixing their one-token answers: a network works on each token."
            )
        if mixed is False:
            return None
    return inconclusive("power", "It looks like one head before a network, but the network may as well stand before the head.")


def _kinks(case: Case, scale: float) -> bool:
    """Whether bends are kinks; a second look where many kinks lay close together."""
    return sharp(case, scale) or (case.left() >= 40 and sharp(case, scale))


def _kinks_if_affordable(case: Case, shape: Shape, scale: float) -> bool:
    """The same where the head is proven and only the name of the network is open: the first look decides if questions run out."""
    found = case.tried(lambda: _kinks(case, scale))
    if not isinstance(found, Verdict):
        return found
    if shape is not Shape.PIECEWISE:
        raise DecidedError(found)
    return True


def _behind(case: Case, found: _Findings, point: Pilot, shape: Shape, size: float, growing: bool) -> Verdict:
    outcome = one_head(case, point.scale, flat=True) if point.flat else behind_network(case, shape, point.scale)
    if outcome.passed:
        found.heads = 1
        first = None if outcome.behind or point.flat else _not_last(case, size, point.scale)
        if first is not None:
            return first
        if not growing or not _kinks_if_affordable(case, shape, size):
            smooth = "smooth " if shape is Shape.SMOOTH else ""
            return Verdict(
                "attention-behind-network",
                f"One softmax head behind an unknown {smooth}network: a sequence is answered like its weighted mean.",
            )
        found.residual = False
        reason = "One softmax head and then a network with ReLU: a sequence is answered like its weighted mean."
        return _by_depth(case, found, size, reason)
    if outcome.passed is None:
        return inconclusive("power", f"Neither proved nor excluded: {outcome.why}.")
    if growing and case.coarse:  # a network with ReLU and a residual could not be excluded before
        return inconclusive("power", f"One head with a residual before a network is not excluded; without residual {outcome.why}.")
    return name_bent(case, shape)


def _sentinels(case: Case) -> float:
    """Ask two early questions again; returns the change over what the floor allows."""
    case.begin("sentinels")
    worst = 0.0
    case.reserve = 0
    for sequence, before in case.sentinels[:2]:
        if case.left() < 1:
            break
        after = case.ask(sequence[:1])
        worst = max(worst, float(np.abs(after - before[:1]).max()) / case.tolerance(before))
    case.record(
        "unchanged",
        worst,
        1.0,
        worst <= 1,
        "Early questions get the same answer at the end." if worst <= 1 else "An early question gets another answer at the end.",
    )
    return worst


def bill(family: str, width: int, heads: int | None, outputs: int | None) -> Bill:
    """What recovery would ask, its check on fresh sequences included, from the counting formulas of the learners."""
    d, m = width, outputs or 1
    parameters = (heads or 1) * (d * d + 2 * d) + 1
    if family == "attention" and heads == 1:
        few = "d + r (2d - r)" if m == 1 else f"d + r ceil((2d - r) / {m})"
        return Bill(d + 180, d + (d + 2) * -(-d // m) + 280, f"{few} for rank r, and about 260 to begin and to check")
    if family == "attention":
        share = -(-parameters // m)
        return Bill(
            share, 3 * share + 300, f"1 to 3 times the parameters H (d^2 + 2d) + 1, over {m} outputs, and about 250 to check"
        )
    if family == "attention-behind-network":
        return Bill(
            9 * d + 55,  # rank 0, nothing asked twice
            12 * (d + 1) ** 2 + 28 * d + 900,  # full rank, every search as long as it may be
            "4 to 12 for each of the (r + 1) (2d + 1 - r) scores that rank r takes, and up to 900 to find a place and to check",
        )
    if family == "transformer":
        return Bill(None, None, "about 1.6 (2 with residual) times d^2 + n (d + 2) + 1 for n hidden units")
    return Bill(None, None, "about 1.5 times n (d + 2) + 1 for n hidden units")
