"""One head, answers off by at most a tolerance, in whatever way: intervals that hold whatever the errors were."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import NotInFamilyError, Sign, TooNoisyError
from unsoftmax.learners.noisy.design import tilted_keys
from unsoftmax.learners.noisy.intervals import Interval, key_score, log_odds
from unsoftmax.learners.noisy.keys import axis_pairs, score_keys
from unsoftmax.learners.noisy.probes import ask_pairs, ask_tokens
from unsoftmax.learners.noisy.settings import NOISY
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.results import Bounds, Learned

# factors tried for the length of the last token, and steps beside the balanced number of copies
LENGTHS = 2.0 ** (-np.arange(25) / 4)
COPY_STEPS = np.array([-2, 0, 2])


@dataclass(frozen=True, slots=True)
class CertifiedHeadLearner:
    """Certified intervals for W and v of one head, from answers within a tolerance of the truth.

    Without ``biases`` the intervals are for heads that have none; with them c and b are unknowns with intervals of their own,
    and those of W come out about twice as wide, since a constant within the tolerance could be in every answer.

    Keys bisect the value direction and plus or minus each axis, so that their values never vanish; each is asked as
    copies of ``±key`` that balance its score. Half-widths come to about ``2 tolerance / (max_norm^3 |v|)`` for W,
    which no sound method can beat by more than a factor of two, and ``tolerance / max_norm`` for v.

    Price: ``3 (width^2 + width) + 3 width + 4`` queries, and re-asks where an answer saturates.

    Args:
        tolerance: every answer lies within ± this of the truth.
        max_norm: no token is longer than this.
        relative: answers are off by up to this times their own size as well (float16 answers: ``2**-11 * (1 + 2**-10)``).
        copies: tokens per question beside the last one; 256 gains a quarter in width.
        rounds: times that all scores are asked again around what is known.
        biases: whether the target may have a constant b and a query bias c; ``2 width - 1`` more queries.
    """

    tolerance: float
    max_norm: float
    relative: float = 0.0
    copies: int = 64
    rounds: int = 1
    biases: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite(self.tolerance) and self.tolerance >= 0 and 0 <= self.relative < 0.5):
            raise ValueError(f"tolerance={self.tolerance}, relative={self.relative}: both must be finite and >= 0, relative < 0.5.")
        if not (np.isfinite(self.max_norm) and self.max_norm > 0):
            raise ValueError(f"max_norm is {self.max_norm}; certified intervals need a finite, positive limit on the tokens.")
        if self.copies < 4 or self.copies % 2 or self.rounds < 1:
            raise ValueError(f"copies={self.copies}, rounds={self.rounds}: copies must be even and at least 4, rounds at least 1.")

    def price(self, width: int) -> list[tuple[str, int, int]]:
        """Phases, queries and tokens of a run without re-asks."""
        long = self.copies + 1
        values = 3 * width + 2 + (2 * width + 1 if self.biases else 2)
        return [
            ("values", values, 3 * width + 2 + (values - 3 * width - 2) * long),
            ("pilot", 2 * width + width**2, 4 * width + width**2 * long),
            ("scores", (2 * width + 1) * width * self.rounds, (2 * width + 1) * width * self.rounds * long),
        ]

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Ask and certify; ``NotInFamilyError`` if no head explains the answers, ``TooNoisyError`` if an end stays infinite."""
        return _Run(self, oracle).learn(rng)


class _Run:
    """One run: the keys, what is certified of their values and scores so far, and the answers behind it."""

    def __init__(self, settings: CertifiedHeadLearner, oracle: Oracle) -> None:
        self.settings = settings
        self.oracle = oracle
        self.width = oracle.width
        self.norm = settings.max_norm * NOISY.shrink
        self.slack = 0.0
        self.constant = 0.0  # answer to the zero token, where b is an unknown
        self.doubt = 0.0  # and how far b may lie from it
        self.key_bias = Interval(np.zeros(2 * self.width + 1), np.zeros(2 * self.width + 1))
        self.bias = Interval(np.zeros(self.width), np.zeros(self.width))

    def learn(self, rng: np.random.Generator) -> Learned:
        phase(self.oracle, "values")
        self.ask_values()
        if self.settings.biases:
            self.ask_query_bias()
        else:
            self.check_query_bias(rng)
        phase(self.oracle, "pilot")
        self.ask_last_tokens()
        pilot = np.arange(1, self.width + 1)
        lengths = np.minimum(0.6 * self.column_lengths, self.longest()[pilot])
        self.ask_scores(np.repeat(pilot, self.width), np.tile(np.arange(self.width), self.width), lengths.ravel(), None)
        phase(self.oracle, "scores")
        for _ in range(self.settings.rounds):
            self.ask_recentred()
        return self.packed(self.weights())

    def packed(self, W: Interval) -> Learned:
        """Midpoints and half-widths, or a refusal where an end is infinite."""
        settings, v = self.settings, self.values.middle
        has_c = bool((self.bias.low > 0).any() or (self.bias.high < 0).any())
        has_b = abs(self.constant) > self.doubt
        model = Attention.single(W=W.middle, v=v, c=self.bias.middle if has_c else None, b=self.constant if has_b else 0.0)
        c, b = self.bias.half if has_c else self.bias.largest, self.doubt if has_b else self.doubt + abs(self.constant)
        infinite = int((~np.isfinite(W.half)).sum())
        if infinite:
            raise TooNoisyError(
                f"{infinite} of {W.half.size} entries of W have no finite certified interval: answers within "
                f"±{settings.tolerance:.3g} "
                f"of values up to {settings.max_norm * np.linalg.norm(v):.3g} say too little. "
                "Allow longer tokens (`max_norm`) or vouch for a smaller `tolerance`; more queries do not help.",
                evidence={"infinite": infinite, "value_half_width": float(self.values.half.max())},
                model=model,
            )
        floor = float(2 * settings.tolerance / (settings.max_norm**3 * np.linalg.norm(v)))
        median = float(np.median(W.half))
        return Learned(
            model=model,
            ambiguity="nothing beyond the certified intervals"
            + ("" if settings.biases else ", for a head without constant and query bias"),
            bounds=Bounds(kind="certified", W=W.half[None], V=self.values.half[None], c=c[None], b=np.asarray(b))
            if settings.biases
            else Bounds(kind="certified", W=W.half[None], V=self.values.half[None]),
            notes=(
                f"Every answer was taken to lie within ±{settings.tolerance:.3g} of the truth; the intervals hold for any such "
                "errors.",
                f"The median half-width of W is {median:.3g}; no method can certify a typical entry below {floor:.3g}.",
                *(
                    (f"A query bias up to {c.max():.3g} and a constant up to {b:.3g} beside those stated are allowed for.",)
                    * settings.biases
                ),
            ),
            evidence={"half_width_median": median, "half_width_max": float(W.half.max()), "half_width_floor": floor},
        )

    def truth(self, answers: Floats) -> Interval:
        """Where the truth behind ``answers`` lies, the constant taken off."""
        within = self.settings.tolerance + self.settings.relative * np.abs(answers) + self.slack + self.doubt
        answers = answers - self.constant
        return Interval(answers - within, answers + within)

    def ask_values(self) -> None:
        """Intervals for v, the keys, and intervals for the keys' values."""
        width, norm = self.width, self.norm
        answers = ask_tokens(self.oracle, norm * np.eye(width + 1, width)).answers  # each axis, and the zero token
        self.slack = NOISY.evaluation * float(np.abs(answers).sum())  # bounds every value that a token can have
        if self.settings.biases:
            constant = float(answers[width])
            self.doubt = self.settings.tolerance + self.settings.relative * abs(constant) + self.slack
            self.constant = constant
        else:
            self.refuse_bias(answers[width:], "a constant b")
        self.values = self.truth(answers[:width]).times(1 / norm)
        v = self.values.middle
        if not np.any(np.abs(v) > self.values.half):
            raise TooNoisyError(
                f"All {width} one-token answers are zero within the tolerance ±{self.settings.tolerance:.3g}, so nothing can be "
                "said "
                "about W. Allow longer tokens (`max_norm`) or vouch for a smaller `tolerance`; if v = 0 no answer ever depends "
                "on W.",
                evidence={"largest_value": float(np.abs(v).max())},
                model=Attention.single(W=np.zeros((width, width)), v=v),
            )
        self.keys = score_keys(v, norm)
        self.pairs = axis_pairs(self.keys)
        answers = ask_tokens(self.oracle, self.keys).answers
        spread = np.abs(self.keys) @ self.values.half
        from_values = Interval(self.keys @ v - spread, self.keys @ v + spread).widened(self.slack)
        self.key_values = self.truth(answers).meet(from_values, "the value of a key")
        self.last_signs = np.where(v >= 0, -1.0, 1.0)
        self.last_values = self.values.times(self.last_signs * norm)
        if not (self.key_values.low > 0).all():
            raise TooNoisyError(
                f"The largest answers ({norm * np.linalg.norm(v):.3g}) hardly exceed the tolerance ±{self.settings.tolerance:.3g}, "
                "so no score can be read. Allow longer tokens (`max_norm`) or vouch for a smaller `tolerance`; more queries do "
                "not help.",
                evidence={"largest_value": float(norm * np.linalg.norm(v))},
                model=Attention.single(W=np.zeros((width, width)), v=v),
            )

    def check_query_bias(self, rng: np.random.Generator) -> None:
        """Balanced copies beside a zero token answer zero, unless there is a query bias."""
        keys = np.concatenate([self.keys[:1], tilted_keys(rng, 1, self.values.middle, self.norm)])
        half = np.full(2, self.settings.copies / 2)
        self.refuse_bias(ask_pairs(self.oracle, keys, half, half, np.zeros_like(keys)).answers, "a query bias c", Sign.QUERY_BIAS)

    def ask_query_bias(self) -> None:
        """Intervals for c along every key and every axis: balanced copies beside a zero token."""
        count = len(self.keys)
        half = np.full(count, self.settings.copies / 2)
        answers = ask_pairs(self.oracle, self.keys, half, half, np.zeros_like(self.keys)).answers
        nothing = Interval(np.zeros(count), np.zeros(count))
        self.key_bias = key_score(self.truth(answers), half, half, nothing, self.key_values, nothing)
        if not self.key_bias.finite.all():
            raise NotInFamilyError(
                f"Keys of length {self.norm:.3g} beside a zero token saturate the softmax: a query bias c that large leaves no "
                "certified interval. Lower `max_norm`, or leave `tolerance` out to get estimated ones.",
                evidence={"found": "a query bias c"},
                signs=(Sign.QUERY_BIAS,),
            )
        self.bias = self.along_axes(self.key_bias[:, None])[:, 0]

    def refuse_bias(self, answers: Floats, name: str, *signs: Sign) -> None:
        """Refuse ``answers`` that should be 0 and are not."""
        truth = self.truth(answers)
        if (truth.low > 0).any() or (truth.high < 0).any():
            raise NotInFamilyError(
                f"The target has {name}: a question whose answer should be 0 was answered "
                f"{answers[np.argmax(np.abs(answers))]:.6g}, "
                f"beyond the tolerance ±{self.settings.tolerance:.3g}. Certified intervals cover heads without biases; "
                "leave `tolerance` out to get estimated ones.",
                evidence={"found": name, "answer": float(np.abs(answers).max())},
                signs=signs,
            )

    def longest(self) -> Floats:
        """Longest usable last tokens ``(keys, columns)``, as a share of the norm limit."""
        with np.errstate(divide="ignore"):
            return np.minimum(1.0, NOISY.largest_last_value * self.key_values.low[:, None] / self.last_values.largest[None, :])

    def ask_last_tokens(self) -> None:
        """Two tokens, ``[±key; last]``, give the score of the first key and the last token's own, without any prior bound."""
        width = self.width
        self.scores = Interval.unknown((2 * width + 1, width))
        self.own = Interval.unknown((width,))
        self.column_lengths = np.minimum(1.0, self.longest()[0] / NOISY.largest_last_value * 0.8)
        columns = np.arange(width)
        for _ in range(NOISY.certified_max_halvings):
            length = self.column_lengths[columns]
            last = (length * self.last_signs[columns] * self.norm)[:, None] * np.eye(width)[columns]
            on = np.repeat([1.0, 0.0], len(columns))
            keys = np.tile(self.keys[0], (2 * len(columns), 1))
            answers = ask_pairs(self.oracle, keys, on, 1 - on, np.concatenate([last, last])).answers
            value = self.last_values[columns].times(length)
            key_value = self.key_values[np.zeros(len(columns), dtype=int)]
            above = log_odds(self.truth(answers[: len(columns)]), value, key_value)
            below = log_odds(self.truth(answers[len(columns) :]).times(-1.0), value.times(-1.0), key_value)
            first = self.key_bias[np.zeros(len(columns), dtype=int)]
            score = above.plus(below.times(-1.0)).times(0.5).plus(first.times(-1.0)).times(1 / length)
            own = above.plus(below).times(-0.5).plus(self.own_bias(columns, length).times(-1.0)).times(1 / length**2)
            for known, found, where in ((self.scores, score, (0, columns)), (self.own, own, columns)):
                merged = known[where].meet(found, "the score of the first key")
                known.low[where], known.high[where] = merged.low, merged.high
            columns = columns[~(score.finite & own.finite)]
            if not len(columns):
                break
            self.column_lengths[columns] /= 2

    def ask_scores(self, key: np.ndarray, column: np.ndarray, length: Floats, plus: Floats | None) -> None:
        """Ask keys beside last tokens of given lengths; where an interval stays infinite, again with half the length."""
        for _ in range(NOISY.certified_max_halvings):
            counts = np.full(len(key), self.settings.copies / 2) if plus is None else plus
            last = (length * self.last_signs[column] * self.norm)[:, None] * np.eye(self.width)[column]
            answers = ask_pairs(self.oracle, self.keys[key], counts, self.settings.copies - counts, last).answers
            self.learn_scores(key, column, length, counts, answers)
            again = ~self.scores[key, column].finite & self.own[column].finite
            if not again.any():
                break
            key, column, length, plus = key[again], column[again], length[again] / 2, None

    def learn_scores(self, key: np.ndarray, column: np.ndarray, length: Floats, plus: Floats, answers: Floats) -> None:
        """Put what ``answers`` say about the keys' scores beside what is known."""
        found = key_score(
            self.truth(answers),
            plus,
            self.settings.copies - plus,
            self.own[column].times(length**2).plus(self.own_bias(column, length)),
            self.key_values[key],
            self.last_values[column].times(length),
        )
        found = found.plus(self.key_bias[key].times(-1.0)).times(1 / length)
        merged = self.scores[key, column].meet(found, "the score of a key")
        self.scores.low[key, column], self.scores.high[key, column] = merged.low, merged.high

    def own_bias(self, column: np.ndarray, length: Floats) -> Interval:
        """What the query bias adds to the last tokens' own scores."""
        return self.bias[column].times(length * self.last_signs[column] * self.norm)

    def ask_recentred(self) -> None:
        """All keys on all columns, with lengths and copies that promise the narrowest intervals."""
        count, width = 2 * self.width + 1, self.width
        guess = self.guessed_scores()
        length, plus = np.empty((count, width)), np.empty((count, width))
        longest = self.longest()
        for column in range(width):
            length[:, column], plus[:, column] = self.best_questions(column, guess[:, column], longest[:, column])
        key, column_of = np.repeat(np.arange(count), width), np.tile(np.arange(width), count)
        self.ask_scores(key, column_of, length.ravel(), plus.ravel())
        diagonal = np.arange(width)
        own = self.weights()[diagonal, diagonal].times(self.norm**2)
        merged = self.own.meet(own, "a diagonal entry of W")
        self.own.low[:], self.own.high[:] = merged.low, merged.high

    def guessed_scores(self) -> Floats:
        """Scores of all keys: midpoints where known, else from the two keys that span the same plane."""
        guess = self.scores.middle.copy()
        for i in range(self.width):
            first, second, third = self.keys[0], self.keys[1 + i], self.keys[1 + self.width + i]
            share, *_ = np.linalg.lstsq(np.stack([first, second], axis=1), third, rcond=1e-8)
            unknown = ~self.scores[1 + self.width + i].finite
            guess[1 + self.width + i, unknown] = (share @ guess[[0, 1 + i]])[unknown]
        return guess

    def best_questions(self, column: int, guess: Floats, longest: Floats) -> tuple[Floats, Floats]:
        """Length and copies per key that minimise the predicted half-width, over a grid, at the worst likely score."""
        with np.errstate(divide="ignore"):
            top = np.minimum(longest, 4.0 / np.abs(guess))  # beyond a score of 4 copies cannot balance
        length = top[:, None] * LENGTHS
        bias = self.key_bias.middle[:, None]
        balanced = self.settings.copies / (
            1 + np.exp(np.clip(2 * (length * guess[:, None] + bias), -NOISY.largest_own, NOISY.largest_own))
        )
        plus = np.clip(np.rint(balanced[..., None] + COPY_STEPS), 1, self.settings.copies - 1)
        spread = self.scores[:, column].half
        spread = np.where(np.isfinite(spread), spread, 0.0)
        cost = np.zeros(plus.shape)
        for sign in (-1.0, 0.0, 1.0):
            score = (length * (guess + sign * spread)[:, None] + bias)[..., None]
            cost = np.maximum(cost, self.predicted_half(column, length[..., None], plus, score))
        best = cost.reshape(len(guess), -1).argmin(axis=1)
        row = np.arange(len(guess))
        return length[row, best // len(COPY_STEPS)], plus.reshape(len(guess), -1)[row, best]

    def predicted_half(self, column: int, length: Floats, plus: Floats, score: Floats) -> Floats:
        """First-order half-width of a key's score, per unit of length."""
        own = length**2 * np.clip(self.own.middle[column], -NOISY.largest_own, NOISY.largest_own)
        top = np.maximum(np.abs(score), own)
        up, down, rest = plus * np.exp(score - top), (self.settings.copies - plus) * np.exp(-score - top), np.exp(own - top)
        total = up + down + rest
        up, down, rest = up / total, down / total, rest / total
        key, last = self.key_values.middle[:, None, None], length * self.last_values.middle[column]
        answer = key * (up - down) + last * rest
        slope = np.maximum(
            key * (up + down) - answer * (up - down), 1e-100
        )  # never 0: the cost of a saturated question is huge, not undefined
        own_half = self.own.half[column]
        error = (
            self.settings.tolerance
            + self.settings.relative * np.abs(answer)
            + np.abs(rest * (last - answer)) * length**2 * (own_half if np.isfinite(own_half) else 0.0)
            + np.abs(up - down) * self.key_values.half[:, None, None]
            + rest * length * self.last_values.half[column]
        )
        half: Floats = (error / slope + self.key_bias.half[:, None, None]) / length
        return half

    def weights(self) -> Interval:
        """Intervals for W: each axis from two of the three keys in its plane, with the coefficients of the vectors really sent."""
        return self.along_axes(self.scores.times(1.0 / (self.last_signs * self.norm)))

    def along_axes(self, scores: Interval) -> Interval:
        """Intervals ``(width, k)`` of vectors' entries from those of their products with the keys ``(keys, k)``."""
        parts, leftovers = [], []
        for pair in self.pairs:
            sums = scores[pair.one].times(pair.shares[:, :1]).plus(scores[pair.other].times(pair.shares[:, 1:]))
            # a leftover above rounding size means that the two keys do not span the axis: the pair says nothing
            parts.append(sums.widened(np.where(pair.leftover < NOISY.largest_leftover, 0.0, np.inf)[:, None]))
            leftovers.append(pair.leftover[:, None])
        rough = parts[0].meet(parts[1], "an entry of W").meet(parts[2], "an entry of W")
        # what two keys miss of an axis acts on a column of W, which these intervals bound
        column_size = 2 * np.linalg.norm(rough.largest, axis=0)
        found = Interval.unknown(rough.low.shape)
        for part, leftover in zip(parts, leftovers, strict=True):
            found = found.meet(part.widened(leftover * column_size), "an entry of W")
        return found
