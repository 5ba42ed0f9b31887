"""What the answers are like, before anything is spent: exact, low precision, rounded, noisy, dependent on the batch, clipped."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import DriftingError
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.oracles.contradiction import BY_CHANCE, replicas
from unsoftmax.precision.formats import MANTISSA, decimal_form, to_bits
from unsoftmax.precision.inside import rounds_inside, values_in_steps
from unsoftmax.precision.settings import READING
from unsoftmax.results import Floor

# whole-number combinations of the two tokens, and powers of two of the first
COMBINATIONS = np.array(
    [[1, 1], [1, -1], [2, 1], [1, 2], [2, -1], [1, -2], [3, 1], [1, 3], [3, -1], [1, -3], [0, 1], [3, 2], [2, -3]], dtype=np.float64
)
POWERS = 2.0 ** np.array([-6, -3, 3, 6, 9, 12])
NULL_STEPS = 2.0**-8 * np.arange(-3, 3)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What 30 queries tell about the answers.

    Attributes:
        floor: precision of the answers.
        decimals: number of decimals, where the answers are rounded.
        digits: number of significant digits, where the answers are rounded so.
        clip_norm: length to which longer tokens are shortened, as far as seen; None if they are not.
        affine: one-token answers are affine; if not, the target is more than an attention layer, and ``floor`` rests on repeats.
        batch_size: largest difference between the same question asked in different batches.
        rounds: what the target rounds inside, in words, where one-token answers stay the same while tokens move; empty if nothing.
        summary: in words.
    """

    floor: Floor
    decimals: int | None = None
    digits: int | None = None
    clip_norm: float | None = None
    affine: bool = True
    batch_size: float = 0.0
    rounds: str = ""
    summary: str = ""


def examine(oracle: Oracle, *, rng: np.random.Generator, max_norm: float | None = None) -> Calibration:
    """Precision of the answers: 30 one-token queries in 4 calls (60 where tokens are clipped, 6 more where errors may be bends).

    One-token answers of an attention layer are affine, which is the ruler.
    """
    phase(oracle, "calibration")
    found = _examine(oracle, rng, max_norm)
    if found.clip_norm is not None and max_norm is None:
        inside = _examine(oracle, rng, 0.9 * found.clip_norm)
        words = f"tokens longer than {found.clip_norm:.4g} are shortened; {inside.summary}"
        found = replace(inside, clip_norm=found.clip_norm, summary=words)
    return found


def _examine(oracle: Oracle, rng: np.random.Generator, max_norm: float | None) -> Calibration:
    asked = _ask(oracle, rng, max_norm)
    clip = None if max_norm is not None else _clip_norm(asked)
    if clip is not None:
        return Calibration(Floor(), clip_norm=clip)
    largest = float(np.abs(asked.combined).max())
    if asked.first != asked.second:
        _refuse_replicas(asked)
        noise = asked.spread if asked.affine else asked.null_spread
        # a short number format limits how large answers may get, whatever the noise
        formats = [2.0**-bits for bits in MANTISSA.values() if (asked.all == to_bits(asked.all, bits)).all()]
        return Calibration(
            Floor("noisy", absolute=noise, relative=max([2.0**-50, *formats]), fresh=True),
            affine=asked.affine,
            batch_size=asked.batch_size,
            summary=f"every answer carries fresh noise of about {noise:.2g}",
        )
    # a last-bit difference between batches is float64 rounding in another order, no dependence worth a name
    dependent = asked.batch_size > 2.0**-48 * largest
    if asked.batch_size > 2.0**-20 * largest:  # more than another order of summing: is it the batch, or chance?
        count, _ = replicas(oracle, asked.one[None], times=8)
        _refuse_versions(8, count)
    eight = _in_eight_bits(asked)
    if eight is not None:
        return eight
    rounded = _rounded(asked, dependent)
    if rounded is not None:
        return rounded
    low = _low_precision(asked, largest, dependent)
    if low is not None:
        return low
    fine = asked.spread <= READING.exact * np.sqrt(oracle.width) * largest
    if not fine and asked.affine:  # what a network bends vanishes over short steps; what comes by chance does not
        _refuse_random(oracle, asked, largest)
    if fine or not asked.affine:
        relative = max(2.0**-50, asked.batch_size / max(largest, np.finfo(float).tiny))
        floor = Floor(relative=relative, batch=dependent)
        return Calibration(floor, affine=asked.affine, batch_size=asked.batch_size, summary="answers are exact to float64 rounding")
    if _smooth(oracle, asked):
        floor = Floor(relative=2.0**-50, batch=dependent)
        words = f"answers are exact to float64 rounding, and miss a straight line by {asked.spread:.2g}"
        return Calibration(floor, affine=False, batch_size=asked.batch_size, summary=words)
    floor = Floor("noisy", absolute=asked.spread, batch=dependent)
    return Calibration(
        floor,
        batch_size=asked.batch_size,
        rounds=rounds_inside(oracle, COMBINATIONS[5] @ asked.pair) or values_in_steps(oracle, rng, max_norm),
        summary=f"answers carry errors of about {asked.spread:.2g} that stay the same when a question is repeated",
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """The answers to the 30 questions and what follows at once."""

    first: float
    second: float
    again: Floats  # the same question within a batch, three times
    batch_size: float
    combined: Floats
    powers: Floats
    null: Floats
    rows: Floats  # the questions behind ``all`` in terms of the two tokens and the constant
    one: Floats
    other: Floats
    batch: Floats  # tokens of the largest call, and their answers
    batch_answers: Floats
    spread: float  # residual of the affine fit
    null_spread: float  # the same near a zero of the answers
    affine: bool

    @property
    def pair(self) -> Floats:
        return np.stack([self.one, self.other])

    @property
    def all(self) -> Floats:
        return np.concatenate([[self.first], self.combined, self.null, self.powers])


def _ask(oracle: Oracle, rng: np.random.Generator, max_norm: float | None) -> _Asked:
    """Four calls: a token twice alone; combinations, powers and the token again in one batch; six points with answers near 0."""
    one, other, powers = _tokens(oracle.width, rng, max_norm)

    def ask(tokens: Floats) -> Floats:
        answers = oracle(tokens[:, None, :])
        flat = answers.reshape(len(answers), -1)
        return flat[:, 0]

    first, second = float(ask(one[None])[0]), float(ask(one[None])[0])
    modest = powers[: READING.modest, None] * one
    batch = np.concatenate([one[None], COMBINATIONS @ np.stack([one, other]), one[None], modest, one[None]])
    answers = ask(batch)
    count = len(COMBINATIONS)
    combined, scaled = answers[1 : 1 + count], answers[2 + count : 2 + count + READING.modest]
    again = answers[[0, 1 + count, -1]]
    system = np.pad(COMBINATIONS, ((0, 0), (0, 1)), constant_values=1.0)
    fitted = np.asarray(np.linalg.lstsq(system, combined, rcond=None)[0], dtype=np.float64)
    spread = float(np.sqrt(np.sum((combined - system @ fitted) ** 2) / (len(system) - 3)))
    steps = _near_zero(fitted)
    large = powers[READING.modest :, None] * one if not (answers == to_bits(answers, MANTISSA["float16"])).all() else one[None][:0]
    last = ask(np.concatenate([steps @ np.stack([one, other]), large]))
    null, scaled = last[: len(steps)], np.concatenate([scaled, last[len(steps) :]])
    line = np.stack([NULL_STEPS, np.ones(len(NULL_STEPS))], axis=1)
    null_fit = np.linalg.lstsq(line, null, rcond=None)[0]
    null_spread = float(np.sqrt(np.sum((null - line @ null_fit) ** 2) / (len(line) - 2)))
    step = 10.0 ** -max(_decimals(np.concatenate([combined, null])))
    null_spread = max(null_spread, step / np.sqrt(12))  # near a zero all answers may happen to be rounded to the same number
    # noise is the same everywhere; the curvature of a network behind shows far off and vanishes over steps of 1/256
    affine = not (null_spread < READING.smooth * spread and spread > 1e-6 * float(np.abs(combined).max()))
    batch_size = float(np.abs(again - first).max()) if first == second else 0.0
    scales = np.stack([powers[: len(scaled)], np.zeros(len(scaled))], axis=1)
    rows = np.pad(np.concatenate([[[1.0, 0.0]], COMBINATIONS, steps, scales]), ((0, 0), (0, 1)), constant_values=1.0)
    return _Asked(
        first, second, again, batch_size, combined, scaled, null, rows, one, other, batch, answers, spread, null_spread, affine
    )


def _smooth(oracle: Oracle, asked: _Asked) -> bool:
    """Whether answers follow steps of 1e-9 where they miss the straight line most: errors of a number format do not."""
    system = asked.rows[1 : 1 + len(COMBINATIONS)]
    fitted = np.linalg.lstsq(system, asked.combined, rcond=None)[0]
    worst = COMBINATIONS[np.abs(asked.combined - system @ fitted).argmax()]
    steps = worst + 2.0**-30 * np.arange(len(NULL_STEPS))[:, None] * np.sign(fitted[:2])
    moved = oracle((steps @ np.stack([asked.one, asked.other]))[:, None, :]).reshape(len(steps), -1)[:, 0]
    expected = 2.0**-30 * float(np.abs(fitted[:2]).sum())
    return bool(np.abs(np.diff(moved) - expected).max() < expected / 4)


def _in_eight_bits(asked: _Asked) -> Calibration | None:
    """Answers of so few bits that no other format writes them, and that miss a straight line by as much: values kept in fp8."""
    for name, bits in READING.eight_bits:
        off = asked.spread > 2.0 ** -(bits + 4) * float(np.abs(asked.combined).max())
        if off and (asked.all == to_bits(asked.all, bits)).all():
            words = f"answers are those of values in {name}"
            return Calibration(Floor("noisy", absolute=asked.spread), rounds=f"an {name} cache", summary=words)
    return None


def _refuse_replicas(asked: _Asked) -> None:
    """Noise is new each time; a few answers that come back to the last digit are those of a few models."""
    answers = np.array([asked.first, asked.second, *asked.again])
    distinct = np.unique(answers)
    digits = [decimal_form(value, False)[0] for value in asked.all if value != 0]
    if len(distinct) < 4 and np.median(digits) >= READING.full_digits:
        _refuse_versions(len(answers), len(distinct))


def _refuse_random(oracle: Oracle, asked: _Asked, largest: float) -> None:
    """Errors of no number format are random where the same batch, once more, is answered otherwise; one question may not tell."""
    again = oracle(asked.batch[:, None, :]).reshape(len(asked.batch), -1)[:, 0]
    other = int((np.abs(again - asked.batch_answers) > READING.steady * largest).sum())
    if other:
        raise DriftingError(
            f"Asked again, {other} of {len(again)} questions get another answer: {BY_CHANCE}",
            evidence={"answers_changed": other, "asked_again": len(again)},
        )


def _refuse_versions(times: int, count: int) -> None:
    if count > 1:
        raise DriftingError(
            f"One question, asked {times} times, got {count} fixed answers in turn: so many versions of the model answer. "
            "Pin one version of it and start again.",
            evidence={"replicas": count, "asked_again": times},
        )


def _near_zero(fitted: Floats) -> Floats:
    """Coefficients ``(6, 2)`` around a point where the fitted answers vanish, on a grid of 1/256 that half precision holds."""
    slope, constant = fitted[:2], fitted[2]
    size = max(float(np.abs(slope).max()), np.finfo(float).tiny)
    centre = np.array([slope[1], -slope[0]]) / size
    shift = -constant * slope / max(float(slope @ slope), np.finfo(float).tiny)
    if np.abs(shift).max() <= 2:
        centre = centre + shift
    steps: Floats = np.round(centre * 256) / 256 + NULL_STEPS[:, None] * np.array([1.0, 0.0])
    return steps


def _tokens(width: int, rng: np.random.Generator, max_norm: float | None) -> tuple[Floats, Floats, Floats]:
    """Two tokens of multiples of 1/8 (of a power of two, under a limit) and the factors by which the first is scaled."""
    draws = rng.integers(-2 * READING.grid, 2 * READING.grid + 1, size=(2, width)) / READING.grid
    draws[draws == 0] = 1 / READING.grid
    if max_norm is None:
        return draws[0], draws[1], POWERS
    longest = 5.0 * float(np.linalg.norm(draws, axis=1).max())  # combinations have coefficients up to 3 + 2
    scale = 2.0 ** np.floor(np.log2(max_norm / longest))
    return draws[0] * scale, draws[1] * scale, np.minimum(POWERS, 1.0)


def _clip_norm(asked: _Asked) -> float | None:
    """Length to which longer tokens are shortened: the longest two answer alike, and that length explains the combinations."""
    if len(asked.powers) < len(POWERS):
        return None
    unit = (asked.powers[1] - asked.powers[0]) / (POWERS[1] - POWERS[0])
    origin = asked.powers[0] - unit * POWERS[0]
    low, high = asked.powers[-2] - origin, asked.powers[-1] - origin
    noise = 4 * asked.null_spread
    if abs(high - 8 * low) <= READING.clip_ratio * abs(8 * low) + 9 * noise or abs(high) <= 4 * noise:
        return None
    at_one = asked.first - origin
    if abs(at_one - unit) <= READING.clip_ratio * abs(unit) + 9 * noise / POWERS[1]:
        unit = at_one  # not clipped yet, and a longer lever than the shortest two
    if unit == 0:
        return None
    norm = abs(float(np.linalg.norm(asked.one)) * high / unit)
    tokens = COMBINATIONS @ np.stack([asked.one, asked.other])
    share = np.minimum(1.0, norm / np.linalg.norm(tokens, axis=1, keepdims=True))
    system = np.pad(COMBINATIONS * share, ((0, 0), (0, 1)), constant_values=1.0)
    left = asked.combined - system @ np.linalg.lstsq(system, asked.combined, rcond=None)[0]
    explained = np.sqrt(np.mean(left**2)) <= max(0.2 * asked.spread, 2 * noise, 1e-9 * float(np.abs(asked.combined).max()))
    return float(norm) if explained or asked.affine else None


def _rounded(asked: _Asked, dependent: bool) -> Calibration | None:
    """Decimals or significant digits, read off the shortest decimal forms."""
    with np.errstate(over="ignore"):  # too large for float32 is no float32 number
        single = bool((asked.all == asked.all.astype(np.float32).astype(np.float64)).all())
    forms = [decimal_form(value, single) for value in asked.all if value != 0]
    if not forms:
        return None
    # short binary numbers have decimals enough, but no decimals of that many digits are all short binary numbers
    if max(digits for digits, _ in forms) > READING.few_digits and (asked.all == to_bits(asked.all, MANTISSA["float16"])).all():
        return None
    decimals = [max(0, -exponent) for _, exponent in forms]
    k = max(decimals)
    # multiples of a power of two have few decimals as well; only a rounding step explains how far the answers miss a straight line
    coarse = asked.spread if asked.affine else 0.0
    fits = k <= READING.most_decimals and coarse <= 10.0**-k
    by_decimals = Calibration(
        Floor("rounded", absolute=10.0**-k / 2, step=10.0**-k, batch=dependent),
        decimals=k,
        batch_size=asked.batch_size,
        summary=f"answers are rounded to {k} decimals",
    )
    if fits and np.mean(np.array(decimals) == k) > READING.share_full and not (k == 0 and len(forms) < 20):
        return by_decimals
    lengths = [digits for digits, _ in forms]
    n = max(lengths)
    few = n <= (READING.most_digits_float32 if single else READING.most_digits) and coarse <= 10.0 ** (1 - n) * float(
        np.abs(asked.combined).max()
    )
    if few and np.mean(np.array(lengths) == n) > READING.share_full:
        floor = Floor("digits", relative=0.5 * 10.0 ** (1 - n), batch=dependent, cast=True)
        return Calibration(floor, digits=n, batch_size=asked.batch_size, summary=f"answers are rounded to {n} digits")
    # sums of two answers that happen to end in zeros end in zeros as well, but are no multiples of a power of two
    places = np.ldexp(asked.all, READING.dyadic)
    return by_decimals if fits and not single and np.mean(places != np.rint(places)) > READING.share_full else None


def _decimals(values: Floats) -> list[int]:
    """Number of decimals of each value that is not 0."""
    return [max(0, -decimal_form(value, False)[1]) for value in values if value != 0] or [0]


def _low_precision(asked: _Asked, largest: float, dependent: bool) -> Calibration | None:
    """The coarsest number format that holds all answers, and whether only the answers were put into it."""
    for name, bits in MANTISSA.items():
        if not (asked.all == to_bits(asked.all, bits)).all():
            continue
        cast = _only_cast(asked, bits)
        if not asked.affine and largest > 0:  # a network behind: errors that shrink with the answers tell
            null_size = float(np.sqrt(np.mean(asked.null**2)))
            cast = cast or bool(name != "float32" and asked.null_spread < asked.spread * np.sqrt(null_size / largest))
        unit = 2.0**-bits
        straight = asked.affine or asked.spread <= READING.units * unit * largest  # what short numbers explain is no bend
        own = asked.spread / largest if straight and largest > 0 else 0.0
        floor = Floor(name, relative=unit if cast else max(16 * unit, own), batch=dependent, cast=cast)
        how = f"answers are cast to {name}" if cast else f"the target computes in {name}"
        return Calibration(floor, affine=straight, batch_size=asked.batch_size, summary=how)
    return None


def _only_cast(asked: _Asked, bits: int) -> bool:
    """Whether some affine answers, cast to this many bits, are all the answers: each says that the truth lies in its cell."""
    from scipy.optimize import linprog

    answers = asked.all
    half = np.maximum(np.ldexp(1.0, np.frexp(answers)[1] - bits - 1), READING.subnormal)
    rows, told = asked.rows / half[:, None], answers / half
    size = np.abs(rows).max(axis=0)
    below = np.pad(rows / size, ((0, 0), (0, 1)), constant_values=-1.0)
    above = np.pad(-rows / size, ((0, 0), (0, 1)), constant_values=-1.0)
    free = [(None, None)] * rows.shape[1]
    # the least number of half-cells that all answers lie within
    found = linprog(
        [0, 0, 0, 1], A_ub=np.concatenate([below, above]), b_ub=np.concatenate([told, -told]), bounds=[*free, (0, None)]
    )
    return bool(found.status == 0 and found.fun <= 1 + 1e-6)
