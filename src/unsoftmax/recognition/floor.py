"""Diagnosis, first section: the shape of the answers, whether they repeat, and how coarse they are (about 25 queries)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import RefusalError, Sign, TargetError, tried
from unsoftmax.models import Floats
from unsoftmax.oracles.contradiction import BY_CHANCE
from unsoftmax.precision.first_look import FirstLook
from unsoftmax.precision.law import JITTER
from unsoftmax.proof.settings import PROOF
from unsoftmax.recognition.case import Case, DecidedError, Verdict, asked_once, inconclusive, outside
from unsoftmax.recognition.settings import TESTS
from unsoftmax.results import Floor


@dataclass(frozen=True, slots=True)
class Answers:
    """What answers are like, as far as decisions go by it.

    Attributes:
        coarse: they carry less than about 40 bits.
        single: the target takes one token only.
        outputs: how many numbers an answer has.
        width: how many a token has.
        bounded: tokens may not be longer than some ``max_norm``.
    """

    coarse: bool
    single: bool
    outputs: int
    width: int
    bounded: bool = False


@asked_once
def measure_answers(case: Case, look: FirstLook | None = None) -> Answers:
    """Shape and precision of the answers: as the first look has them where these are exact, else by questions of their own."""
    known = look is not None and look.floor.exact and case.known_from(look)
    if not known:
        measure_floor(case)
    elif case.alone:
        _find_longest(case)
    single = case.longest == 1
    if single:
        case.record("longer sequences", 1.0, 1.0, False, "The target takes one token only.")
    return Answers(case.coarse, single, case.outputs or 1, case.width, case.max_norm is not None)


def _find_longest(case: Case) -> None:
    """See whether sequences of 64 tokens are taken, as no other question has told: one query, up to seven where they are not."""
    tokens = PROOF.short * case.cap(1.0, 1.5) * case.draw(1, min(PROOF.moderate, case.most))
    if case.attempt(tokens) is None:
        case.longest = _taken(case, tokens)


def _taken(case: Case, tokens: Floats) -> int:
    """How many tokens are taken, where these are too many; up to six queries."""
    taken, refused = 1, tokens.shape[1]
    while refused - taken > 1:
        half = (taken + refused) // 2
        taken, refused = (half, refused) if case.attempt(tokens[:, :half]) is not None else (taken, half)
    return taken


def measure_floor(case: Case) -> None:
    """Learn shape, repeatability, number noise and rounding; leaves ``case.floor`` set.

    Raises:
        DecidedError: constant answers, dropout, quantised evaluation.
    """
    case.begin("floor")
    seen = [_shapes(case)]
    repeats = case.tried(lambda: _repeat(case, seen))
    kind, absolute, step = _grid(np.concatenate([a.ravel() for a in seen]))
    if isinstance(repeats, Verdict):
        case.floor = Floor(kind=kind, absolute=absolute, step=step if kind == "rounded" else None, fresh=True)
        raise DecidedError(repeats)
    jitter, sigma = repeats
    noise, lines, bends = _number_noise(case, absolute, sigma, _written(kind))
    seen += lines
    values = np.concatenate([a.ravel() for a in seen])
    kind, absolute, step = _grid(values)
    relative = _written(kind)
    if kind == "digits":
        relative, step = float(step or 0.0), None
    relative = max(relative, noise, jitter)
    if sigma > 0:
        kind, absolute = "noisy", max(absolute, 1.5 * sigma)
    elif kind == "exact" and relative > 2.0**-40:
        if jitter == 0:
            jitter = _refuse_random(case)
            relative = max(relative, jitter)
        little = 0 < jitter <= TESTS.jittery
        kind, case.finer = JITTER if little else "float32", jitter <= TESTS.float32  # sums of float32 inside depend on the batch
    case.floor = Floor(kind=kind, relative=relative, absolute=absolute, step=step, fresh=sigma > 0, batch=jitter > 0)
    case.record("floor", case.noise(values), float(np.abs(values).max()), True, f"Answers are {case.floor.words}.")
    spread = max(float(np.ptp(a, axis=0).max()) for a in (np.concatenate([a.reshape(len(a), -1) for a in seen]),))
    if not case.record(
        "constant", spread, case.tolerance(values), spread > case.tolerance(values), "Answers vary with the question."
    ):
        if spread > 0 or _wakes(case, values):
            words = "Answers vary by no more than their precision explains: whether they depend on the input is not seen."
            raise DecidedError(inconclusive("power", words))
        raise DecidedError(outside("constant", "Every answer is the same: the target does not depend on its input."))
    if len(bends) == 2 and not case.record("slope", max(bends), 0.5, min(bends) <= 0.5, "Small steps give small changes."):
        raise DecidedError(
            outside("quantised evaluation", "Tiny steps of the input change the answer in jumps: the target quantises its input.")
        )


def _wakes(case: Case, values: Floats) -> bool:
    """Whether much longer tokens are answered otherwise, where all ordinary ones are answered alike: neurons may sleep on these."""
    x = case.cap(TESTS.awake, 1.5) * case.draw(3)
    far = case.attempt(np.concatenate([x, -x])[:, None])
    return far is not None and float(np.abs(far - values.reshape(-1, far.shape[1])[0]).max()) > case.tolerance(far, values)


def _shapes(case: Case) -> Floats:
    scale = case.cap(1.0, 1.5)
    tokens = scale * case.draw(2, 4)
    case.asked += 2
    single = tried(lambda: case.oracle(tokens[:, :1].copy()), TargetError)
    if isinstance(single, RefusalError):
        raise _other_length(case, scale, single)
    single = case.measure(single)
    answers = [single[:, -1] if single.ndim == 3 else single.reshape(2, -1)]
    longer: tuple[Floats, Floats] | TargetError | None = None
    if case.most >= tokens.shape[1]:
        longer = tried(lambda: (case.oracle(tokens[:1].copy()), case.oracle(tokens[:1, :3].copy())), TargetError)
        case.asked += isinstance(longer, RefusalError)
    if longer is None or isinstance(longer, RefusalError):
        for length in (3, 2):
            if length <= case.most and case.attempt(tokens[:1, :length]) is not None:
                raise DecidedError(
                    inconclusive("length", f"The target takes {length} tokens but no more; longer sequences are needed.")
                )
        case.longest = 1
        case.everywhere = False
        case.outputs = None if single.ndim == 1 else answers[0].shape[1]
    else:
        four, three = longer
        case.asked += 2
        case.everywhere = four.ndim == 3 or (four.ndim == 2 and four.shape[1] == 4 and three.shape[1] == 3)
        case.outputs = None if four.ndim == 1 else (1 if case.everywhere and four.ndim == 2 else four.shape[-1])
        answers += [case.last(four, 4), case.last(three, 3)]
    case.sentinels.append((tokens[:, :1].copy(), answers[0]))
    kind = "at all positions" if case.everywhere else ("scalar" if case.outputs is None else f"vectors of {case.outputs}")
    case.record("shape", float(case.outputs or 1), 0.0, True, f"Answers are {kind}.")
    return np.concatenate([a[:, : answers[0].shape[1]] for a in answers])


def _other_length(case: Case, scale: float, error: RefusalError) -> Exception:
    """The target fails on one token: the verdict if it takes another length, else the failure itself (up to 11 queries)."""
    for length in (2, 3, 4, 5, 6, 7, 8, 10, 16, 32, 64):
        if case.attempt(scale * case.draw(1, length)) is not None:
            words = f"The target fails on one token but takes {length}: a network on a fixed number of tokens, or one that pools."
            return DecidedError(outside("fixed length", words))
    return error


def _repeat(case: Case, seen: list[Floats]) -> tuple[float, float]:
    """Ask one long sequence three times, twice beside another. Returns (relative jitter of batches, deviation of fresh noise).

    The other holds copies of one token: long sequences average to little, and what leaks from these would not show.
    """
    tokens = case.cap(0.5, 1.5) * case.draw(1, min(case.longest, 64))
    first = None
    while first is None:
        first = case.attempt(np.concatenate([tokens, np.repeat(-tokens[:, :1], tokens.shape[1], axis=1), tokens]))
        if first is None:  # too long for the target: find a length that it takes
            case.longest = _taken(case, tokens)
            if case.longest < 4:
                raise DecidedError(
                    inconclusive("length", "The target takes no sequences of more than three tokens; longer ones are needed.")
                )
            tokens = tokens[:, : case.longest]
    again = case.ask(tokens)
    answers = np.concatenate([first[::2], again])
    seen += [answers, first[1:2]]
    case.sentinels.append((tokens, again))
    size = max(float(np.abs(a).max()) for a in seen)  # long averages are small, their rounding errors are not
    jitter = float(np.ptp(answers, axis=0).max())
    if jitter <= 2.0**-45 * size:
        return 0.0, 0.0
    _refuse_versions(case, tokens, again, size, seen)
    within = float(np.ptp(first[::2], axis=0).max())
    last_bits = 512 if np.all(answers.astype(np.float32) == answers) else 64  # of float32: cancellation inside makes more of them
    if within == 0.0 and jitter <= last_bits * 2.0**-24 * size:
        return 2 * max(jitter / size, _refuse_random(case)), 0.0  # batches differ in the last bits of float32, one batch does not
    if within == 0.0 and _grid(np.concatenate([a.ravel() for a in seen]))[0] in ("exact", "float32"):
        words = f"One question is answered alike within a batch, and otherwise, by {jitter / size:.1g} of its size, in another one"
        case.record("one batch", jitter / size, last_bits * 2.0**-24, False, f"{words}.")
        words += ": sums in another order explain no such difference. Answers to some questions leak into those to others."
        raise DecidedError(outside("answers depend on the batch", words, Sign.CHANGED))
    tiny = case.ask(np.repeat(2.0**-20 * tokens, 6, axis=0))
    calm = tiny.std(axis=0, ddof=1)
    here = case.ask(np.repeat(tokens, 5, axis=0)).std(axis=0, ddof=1)
    loud = case.ask(np.repeat(case.cap(32.0, 1.0) * tokens, 5, axis=0))
    spread = loud.std(axis=0, ddof=1)
    steady = bool(spread.max() <= 6 * max(calm.max(), 1e-300) and here.max() <= 6 * max(calm.max(), 1e-300))
    bits = last_bits * 2.0**-24  # and so for tokens of every size
    if spread.max() <= bits * np.abs(loud).max() and here.max() <= bits * size and calm.max() <= bits * np.abs(tiny).max():
        return 2 * jitter / size, 0.0
    ratio = float(spread.max() / max(calm.max(), 1e-300))
    case.record(
        "repeat",
        ratio,
        6.0,
        steady,
        "Repeated questions differ by noise of one size." if steady else "Repeats differ more, the longer the tokens are.",
    )
    if not steady:
        raise DecidedError(
            outside(
                "dropout",
                "The same question gives other answers, and the more so the longer its tokens: dropout or sampling is on.",
                Sign.RANDOM,
            )
        )
    return 0.0, float(np.sqrt((calm**2).mean() + (here**2).mean() + (spread**2).mean()) / np.sqrt(3))


def _refuse_versions(case: Case, tokens: Floats, answer: Floats, size: float, seen: list[Floats]) -> None:
    """Ask the question alone, after one of two others in turn: an answer that comes back among others is no noise (8 queries).

    Sums in another order depend on the batch alone, so that a question asked alone gets one answer; noise is new every time.
    """
    others, told = case.cap(0.5, 1.5) * case.draw(2, 1, 1), [answer]
    for turn in range(TESTS.turns):
        case.ask(others[turn % 2])
        told.append(case.ask(tokens))
    values = np.concatenate(told)
    distinct = len(np.unique(values, axis=0))
    seen.append(values)
    if 1 < distinct <= TESTS.versions and _grid(np.concatenate([a.ravel() for a in seen]))[0] == "exact":
        words = f"One question, asked {len(values)} times, got {distinct} answers in turn"
        case.record("one answer", float(distinct), 1.0, False, f"{words}.")
        raise DecidedError(outside("random answers", f"{words}: {BY_CHANCE}", Sign.RANDOM))


def _refuse_random(case: Case) -> float:
    """Errors of no number format: the same batch of questions, twice, is answered alike unless chance decides (20 queries).

    Returns how far apart such answers lie, of their size, where they do by no more than a recovery takes for their precision.
    """
    if case.left() < 2 * TESTS.pairs_again:
        return 0.0
    questions = case.cap(1.0, 1.5) * case.draw(TESTS.pairs_again, min(2, case.longest))
    answers = case.ask(questions)
    apart = np.abs(case.ask(questions) - answers).max(axis=1)
    other, share = int((apart > 0).sum()), float(apart.max()) / max(float(np.abs(answers).max()), 1e-300)
    words = f"Asked twice, {other} of {len(questions)} questions get another answer"
    if share <= TESTS.jittery and 2 * other > len(questions):
        case.record("asked twice", share, TESTS.jittery, True, f"{words}, by {share:.1g} of their size at most.")
        return share
    if not case.record("asked twice", float(other), 1.0, other == 0, f"{words}."):
        raise DecidedError(outside("random answers", f"{words}: {BY_CHANCE}", Sign.RANDOM))
    return 0.0


def _grid(values: Floats) -> tuple[str, float, float | None]:
    """Which grid all answers lie on: (kind, absolute error, step or relative error of digits)."""
    values = values[values != 0]
    if values.size < 8:
        return "exact", 0.0, None
    narrow = bool(np.all(values.astype(np.float32) == values))
    for places in range(7 if narrow else 12):
        rounded = np.round(values, places)
        spacing = np.spacing(np.abs(values).astype(np.float32) if narrow else np.abs(values)).astype(np.float64)
        surprise = np.log2(np.maximum(10.0**-places / spacing, 1.0)).sum()  # bits: large numbers have few decimals anyway
        if surprise >= TESTS.surprise and np.all((rounded.astype(np.float32) if narrow else rounded) == values):
            return "rounded", 0.5 * 10.0**-places, 10.0**-places
    if np.all(_bfloat16(values) == values):
        return "bfloat16", 0.0, None
    with np.errstate(over="ignore"):
        if np.all(values.astype(np.float16) == values):
            return "float16", 0.0, None
    number = np.float32 if narrow else np.float64
    digits = max(
        len(np.format_float_scientific(number(v), unique=True).split("e")[0].replace(".", "").lstrip("-").rstrip("0"))
        for v in values
    )
    if digits <= (6 if narrow else 12):
        return "digits", 0.0, 0.5 * 10.0 ** (1 - digits)
    return ("float32" if narrow else "exact"), 0.0, None


def _written(kind: str) -> float:
    """Relative error of numbers of this kind."""
    return {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": TESTS.float32}.get(kind, TESTS.float64)


def _bfloat16(values: Floats) -> Floats:
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    kept: Floats = bits.view(np.float32).astype(np.float64)
    return kept


def line_noise(fine: Floats) -> float:
    """Three times the relative noise of answers ``(8, outputs)`` along a tiny line, by their fourth differences (Hamming)."""
    spread = float(np.sqrt((np.diff(fine, n=4, axis=0) ** 2).mean() / 70))
    return 3 * spread / max(float(np.abs(fine).max()), 1e-300)


def one_token_noise(case: Case) -> float:
    """Relative noise of one-token answers: fourth differences on a tiny line of them; 8 queries."""
    case.begin("floor")
    start, step = case.cap(1.0, 1.6) * case.draw(2, 1)
    return line_noise(case.ask(start + TESTS.tiny * np.arange(8.0)[:, None, None] * step))


def _number_noise(case: Case, absolute: float, sigma: float, written: float) -> tuple[float, list[Floats], list[float]]:
    """Relative noise of the evaluation by fourth differences on a tiny line (Hamming), and the slopes' disagreement.

    Answers ``written`` in short numbers stand still along such a line, which is no quantised input.
    """
    length = min(5, case.longest)
    noises, lines, bends = [], [], []
    for scale in (1.0, 8.0, 2.0):
        scale = case.cap(scale, 1.6)
        start, step = scale * case.draw(1, length), scale * case.draw(1, length)
        j = np.r_[np.arange(8), 128.0][:, None, None]
        answers = case.attempt(start + TESTS.tiny * j * step)
        if answers is None:
            case.reach = min(case.reach, scale / 2)
            continue
        size = max(float(np.abs(answers).max()), 1e-300)
        lines.append(answers)
        noise = line_noise(answers[:8])
        noises.append(noise if noise * size > 6 * absolute else 0.0)  # rounding is booked as such
        far, near = (answers[8] - answers[0]) / 128, (answers[7] - answers[0]) / 7
        floor = absolute + sigma + (noises[-1] + written) * size
        slope = float(np.abs(far).max())
        if slope * 7 > 20 * floor:
            bends.append(float(np.abs(near - far).max()) / slope)  # of the steepest output: saturated weights bend the others
        if len(noises) == 2 and max(noises) <= 30 * min(noises) + TESTS.float64:
            break
    noise = sorted(noises)[len(noises) // 2] if len(noises) == 3 else max(noises, default=0.0)
    if sigma > 0:
        noise = 0.0  # the fourth differences saw the noise, which is booked as such
    return noise, lines, bends
