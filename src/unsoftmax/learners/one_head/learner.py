"""One softmax head of any rank from exact answers.

Every functional of W is read in a random rotation on both sides, so that no head looks special: heavy rows, tiny columns and zeros
in the values all become generic numbers of one known size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from array_api_compat import array_namespace, device

from unsoftmax.errors import InconclusiveError, NotIdentifiableError, NotInFamilyError, Sign, TargetError, tried
from unsoftmax.learners.one_head.positions import Loud, PositionReader, biased_size, is_causal, loud_values, read_pairs
from unsoftmax.learners.one_head.score_matrix import read_score_matrix
from unsoftmax.learners.one_head.scores import ScoreReader, StepReader, Values, copies
from unsoftmax.learners.one_head.settings import HEAD
from unsoftmax.linalg import INSIDE, on_host, orthonormal
from unsoftmax.models import Attention, Floats
from unsoftmax.models.attention import all_finite
from unsoftmax.oracles.base import LastPosition, Oracle, phase
from unsoftmax.oracles.local import checked_answers
from unsoftmax.probes.pairs import BATCH_NUMBERS
from unsoftmax.results import Bounds, Floor, Learned

T = TypeVar("T")
AMBIGUITY = (
    "The parameters are unique in this form: W, v, c and b are determined by the function. "
    "A target built from query and key matrices has W = Wk^T Wq / sqrt(r): those two are known only through W, "
    "and a key bias not at all."
)


@dataclass(frozen=True, slots=True)
class OneHeadLearner:
    """Recover one head (W, V, c, b) in ``d + r(2d - r)`` queries, ``d`` more for a query bias, and about a dozen more.

    With m-fold answers a score query reads ``m`` numbers: ``d + ceil(d/m) r + ceil(r/m) (d - r)`` and the dozen; a rank that
    is low but not told adds about 2%.

    Attributes:
        rank: rank of W; None finds it.
        max_norm: no token longer than this is sent.
        floor: precision of the answers.
        zero_answer: the raw answer ``(1, …)`` to the one-token sequence ``[0]``, where it was already asked.
        known: tokens ``(n, width)`` and their one-token answers ``(n, outputs)``, where some were already asked.
    """

    rank: int | None = None
    max_norm: float | None = None
    floor: Floor = Floor()  # noqa: RUF009 - frozen
    zero_answer: Floats | None = None
    known: tuple[Floats, Floats] | None = None

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Ask for the values, the biases, the scale of the scores, columns of W, and its remaining rows."""
        d = oracle.width
        last = LastPosition(oracle)
        phase(oracle, "values")
        zero = oracle(np.zeros((1, 1, d))) if self.zero_answer is None else self.zero_answer
        everywhere = zero.ndim == 3
        loud = None
        if everywhere and self.max_norm is None and self.floor.exact:
            loud = loud_values(oracle, zero.reshape(-1), self.known, rng)
        values = self._values(oracle, zero, loud)
        c, key_size = self._query_bias(last, values, loud, rng, in_pairs=everywhere and values.usable == d)
        free = not np.any(c) and self.max_norm is None
        told = None if loud is None else loud.causal
        causal = everywhere and (
            is_causal(oracle, values.V, values.b, 2.0**-10 * min(1.0, key_size), rng) if told is None else told
        )
        if everywhere and not free and values.usable == d:
            phase(oracle, "pairs")
            longest = np.inf if self.max_norm is None else INSIDE * self.max_norm
            W, c, noise = read_pairs(oracle, values, min(key_size, longest), longest, causal, self.floor, rng)
            rank = int(np.linalg.matrix_rank(W, tol=noise * d))
        else:
            kind = ScoreReader if free or values.usable == 1 else StepReader
            saturated = HEAD.saturated if self.floor.exact else HEAD.saturated_coarsely
            template = kind(last, values, key_size, 1.0, c if np.any(c) else None, saturated=saturated)
            if everywhere and free:
                template = PositionReader(oracle, values, key_size, 1.0, causal=causal)
            reader, unseen = self._scale(template, free, rng)
            if reader is not None and not (everywhere and free):  # there all of W costs less than the test, and fresh answers tell
                self._one_softmax(reader, rng)
            like = getattr(oracle, "like", None)
            if reader is not None and like is not None and zero.ndim < 3 and values.usable == 1:
                reader = reader.moved(like)
            most = d if everywhere and free else self.rank
            if isinstance(reader, StepReader):
                reader = reader.evened(d, self._worst(reader.gain / d))
            W, rank, noise = (np.zeros((d, d)), 0, unseen) if reader is None else read_score_matrix(reader, self.floor, most, rng)
        if not all_finite(W):
            raise NotInFamilyError(
                "The answers to two tokens are no mean of the answers to one: several heads whose values cancel, or no head.",
                signs=(Sign.NO_MEAN,),
            )
        W = on_host(W)
        W.setflags(write=False)  # no copy of it is needed
        scalar = zero.ndim == 1
        model = Attention(
            W=W[None],
            V=values.V.T if scalar else values.V[None],
            c=c[None] if np.any(c) else None,
            b=(values.b[0] if scalar else values.b) if np.any(values.b) else None,
        )
        blur = values.blur(key_size)
        self._refuse_hidden(model, 2 * noise / blur)  # what a constant hides shows on fresh sequences
        return Learned(
            model=model,
            ambiguity=AMBIGUITY,
            bounds=self._bounds(model, noise, rank, blur),
            notes=() if rank else (f"W does not show in the answers; entries below about {noise:.1g} would not.",),
            evidence={"rank": rank, "causal": causal},
            causal=causal,
            ranks=(rank,),
        )

    def _refuse_hidden(self, model: Attention, error: float) -> None:
        """Beside a huge query bias W shows only as far as it matters to tiny tokens; neither it nor longer ones can be promised."""
        bias = float(np.abs(model.c).max())
        if not bias or self.max_norm is not None or not self.floor.exact:
            return
        known = float(np.abs(model.W).max())
        if error > (HEAD.digits * known if known else HEAD.unseen * bias):
            entries = f"its largest entry is about {known:.2g}" if known else "it may well not be zero"
            raise NotIdentifiableError(
                f"The query bias of about {bias:.2g} saturates the softmax for all but tiny tokens, and those show W only to about "
                f"{error:.1g} ({entries}): answers to longer tokens depend on more of it. "
                "If short tokens are all that matters, say so with `max_norm`.",
                model=model,
                evidence={"error": error, "bias": bias},
            )

    def _bounds(self, model: Attention, noise: float, rank: int, blur: float) -> Bounds:
        """Error bars from the errors of the answers; in low rank they pass through a basis that has errors itself."""
        precision = 4 * self.floor.relative
        assert model.V is not None
        bars = {
            "W": 2 * noise * (1.0 if rank in (0, model.width) else HEAD.low_rank_growth),
            "V": precision * float(np.abs(model.V).max()),
            "c": 16 * blur * precision * float(np.abs(model.c).max()),
            "b": precision * float(np.abs(model.b).max()),
        }
        return Bounds(kind="estimated", **{name: np.broadcast_to(bar, getattr(model, name).shape) for name, bar in bars.items()})

    def _values(self, oracle: Oracle, zero: Floats, loud: Loud | None) -> Values:
        """The value of each axis: ``d`` one-token queries, unless loud tokens have told them."""
        d = oracle.width
        b = zero.reshape(-1)
        lengths = self.axis_lengths(b)
        V, size = (
            unless_overflowing(lambda size: ((self._axes(oracle, size).reshape(d, -1) - b) / size, size), lengths)
            if loud is None
            else (loud.V, lengths[0])
        )
        if np.abs(V).max() <= 4 * self.floor.of(float(np.abs(b).max())) / size:
            if self.max_norm is None and self._wakes(oracle, b):
                raise InconclusiveError(
                    "Tokens along the axes are answered like the zero token, but far longer ones are not: neurons of a network may "
                    "sleep on ordinary tokens. `family=` tries one family; longer natural tokens may wake them."
                )
            raise NotIdentifiableError(
                f"Every one-token answer equals {b[0]:.6g}: the value vector v is zero, so the attention weights never show and "
                "W (and c) cannot be identified. Ask a target whose answers depend on its tokens."
            )
        return Values.of(V, b, self.floor)

    def _wakes(self, oracle: Oracle, b: Floats) -> bool:
        """Whether a very long token or its opposite is answered otherwise than the zero token, though axes are not; 2 queries."""
        far = np.cos(np.arange(1.0, oracle.width + 1)) / HEAD.separation
        told = tried(lambda: LastPosition(oracle)(np.stack([far, -far])[:, None]).reshape(2, -1) - b, TargetError)
        return not isinstance(told, TargetError) and bool(np.abs(told).max() > 4 * self.floor.of(float(np.abs(b).max())))

    def axis_lengths(self, b: Floats) -> tuple[float, ...]:
        """Lengths to ask axes at: long tokens drown a constant, a rounding step or noise; without them no length matters.

        Second, where scores of long tokens may overflow inside the target, the least that keeps a constant from costing digits.
        """
        if self.max_norm is not None:
            return (INSIDE * self.max_norm,)
        largest = float(np.abs(b).max())
        if self.floor.absolute or not largest:
            return (2.0**60 if self.floor.absolute else 1.0,)
        values = largest if self.known is None else float(np.abs(self.known[1] - b).max())
        beside = 2.0 ** np.rint(np.log2(largest / values)) if values else 1.0  # the constant in terms of the values
        return 2.0**20 * max(1.0, beside), max(HEAD.axis, beside)

    def _axes(self, oracle: Oracle, size: float) -> Floats:
        """The answers to each axis as the only token, of length ``size``."""
        like = getattr(oracle, "like", None)
        like = np.empty(0) if like is None else like
        xp, d = array_namespace(like), oracle.width
        step = max(1, BATCH_NUMBERS // d)
        answers = []
        for at in range(0, d, step):
            tokens = xp.eye(min(step, d - at), d, k=at, dtype=like.dtype, device=device(like))
            answers.append(oracle(size * tokens[:, None]))
        return np.concatenate([checked_answers(on_host(part), (len(part), 1, d)) for part in answers])

    def _noise(self, values: Values, key_size: float) -> float:
        """Size of a score that is nothing but rounding, for keys of this size."""
        worth = key_size * float(np.linalg.norm(values.worth[:, -1])) / float(np.sqrt(len(values.V)))
        return 64 * (self.floor.of(float(np.abs(values.b).max())) / worth + self.floor.relative)

    def _longest_key(self, values: Values) -> float:
        """Largest key size: a key is up to 2 long before scaling, or 3 with vector answers and a step from a token of length 1."""
        return np.inf if self.max_norm is None else INSIDE * self.max_norm / (3.0 if values.usable == 1 else 4.0)

    def _query_bias(
        self, oracle: Oracle, values: Values, loud: Loud | None, rng: np.random.Generator, *, in_pairs: bool
    ) -> tuple[Floats, float]:
        """The bias c from keys before a zero token, and the key size to use; about ``d + 6`` queries with one.

        Without a bias 1 query, or none where loud tokens have told that there is none. Where c is read together with W,
        ``in_pairs``, only its size is asked for, along the direction that loud tokens have told: 1 query.
        """
        phase(oracle, "query bias")
        d = oracle.width
        worth = float(np.linalg.norm(values.worth[:, -1])) / np.sqrt(d)
        longest = self._longest_key(values)
        size = min(max(2.0**30, self.floor.absolute * 2.0**54 / worth), longest)

        def products(reader: ScoreReader, keys: Floats, size: float) -> Floats:
            told = tried(lambda: replace(reader, key_size=size).products(keys, np.zeros((1, d)), retries=0)[0], TargetError)
            if not isinstance(told, TargetError):
                return told
            if Sign.OVERFLOWS not in told.signs or size < 1.0 or self.max_norm is not None:
                raise told
            return np.full((len(keys), 1), np.inf)  # scores beyond what the target can exponentiate saturate

        reader = ScoreReader(oracle, values, key_size=size, token_size=1.0)
        if loud is None:
            biased = size * np.abs(products(reader, reader.keys(orthonormal(d, rng, rows=1)), size)).max() > self._noise(
                values, size
            )
        else:
            biased = loud.against is not None
        if not biased:
            return np.zeros(d), size
        if loud is not None and loud.against is not None and in_pairs:
            size = biased_size(oracle, values.V, values.b, loud.against)
            return -HEAD.biased / size * loud.against, size
        rotation, reader = orthonormal(d, rng), reader.evened(d)
        keys, pilot = reader.keys(rotation), max(2, reader.values.usable)
        for _ in range(HEAD.learner_search):
            rms = size * float(np.sqrt(np.mean(products(reader, keys[:pilot], size) ** 2)))
            if not np.isfinite(rms):
                size /= 2.0**10
            elif rms > 2 * HEAD.score:
                size *= HEAD.score / rms
            elif rms < HEAD.score / 4 and size < longest:
                size = min(size * HEAD.score / max(rms, 1e-9), longest)
            else:
                break
        for _ in range(HEAD.resizes):
            read = products(reader, keys, size)
            few = (np.abs(size * read) > HEAD.saturated)[:, 0]
            if values.usable == 1 and np.mean(few) <= HEAD.strays:  # a key of its own query may have a length of its own
                for shorter in size * 8.0 ** -np.arange(1, HEAD.resizes):
                    if few.any():
                        read[few] = products(reader, keys[few], shorter)
                        few[few] = (np.abs(shorter * read[few]) > HEAD.saturated)[:, 0]
            rms = size * float(np.sqrt(np.mean(read**2)))
            if not few.any():
                break
            typical = size * float(np.median(np.abs(read))) / HEAD.median  # those that saturate are read too large
            size *= HEAD.score / typical if np.isfinite(typical) else 0.25
        else:
            raise NotInFamilyError(
                f"Keys before a zero token saturate the softmax at every length down to {size:.1g}; no query bias does that. "
                "The target is not a softmax head on its raw tokens (several heads, positions, or a norm before the scores).",
                evidence={"saturated_keys": size},
                signs=(Sign.SATURATED,),
            )
        key_size = min(size * HEAD.score / rms if rms > 0 else np.inf, longest)
        if not np.isfinite(key_size):
            raise NotInFamilyError(
                f"Keys before a zero token of length {size:.1g} are weighed all alike, though one of another length was not: no "
                "query bias does that. `unsoftmax diagnose` tells what the target may be.",
                signs=(Sign.SATURATED,),
            )
        finer = replace(reader, key_size=key_size).evened(d, self._worst(key_size**2 / d) / HEAD.share_of_c, patience=d)
        if finer.values.usable < reader.values.usable or (values.usable > 1 and not size / 2 <= key_size <= 2 * size):
            again = products(finer, finer.keys(rotation), key_size)  # the first few told their length roughly, or were too many
            if np.isfinite(again).all():
                reader, read = finer, again
        zeros = np.zeros((d, 1))
        return reader.frame(rotation).refined(zeros, read, zeros)[:, 0], key_size

    def _worst(self, gain: float) -> float:
        """How far scores may magnify errors of coarse answers; ``gain`` is the size of a score over that of natural tokens."""
        return np.inf if self.floor.exact else HEAD.magnified * gain

    def _scale(self, template: ScoreReader, free: bool, rng: np.random.Generator) -> tuple[ScoreReader | None, float]:
        """A reader whose scores are of size ``SCORE``, or None if W is zero.

        The number beside it is the size of a product that would not show.
        """
        phase(template.oracle, "scale")
        d = template.oracle.width
        reader = self._at_gain(template, HEAD.score * np.sqrt(d), free)
        for _ in range(HEAD.learner_search):
            some_keys, some_tokens = reader.samples
            keys = reader.keys(orthonormal(d, rng, rows=min(d, some_keys)))
            tokens = _away(orthonormal(d, rng, rows=min(d, some_tokens)), reader.values)
            seen = np.abs(reader.products(keys, tokens, retries=0)[0]) * reader.gain
            noise = self._noise(reader.values, reader.key_size)
            size = float(np.sqrt(np.mean(seen**2)))
            if not np.isfinite(size) or seen.max() > HEAD.readable:
                reader = self._at_gain(template, reader.gain / min(2.0**12, max(2.0, seen.max())), free)
                continue
            louder = self._at_gain(template, min(HEAD.largest_gain, reader.gain * 2.0**24), free)
            if size > 32 * noise:
                reader = self._at_gain(template, reader.gain * HEAD.careful / size, free)
                break
            if louder.gain <= reader.gain:
                if size <= noise:
                    return None, noise / reader.gain
                break
            reader = louder
        return reader, 0.0

    def _at_gain(self, template: ScoreReader, gain: float, free: bool) -> ScoreReader:
        """The reader whose keys and tokens multiply to ``gain``, or as near as the limits allow."""
        if free:  # tiny tokens, huge keys
            key = max(float(np.sqrt(gain / HEAD.separation)), template.key_size)
            return replace(template, key_size=key, token_size=gain / key)
        longest = (HEAD.beside if isinstance(template, StepReader) else HEAD.nearest) * template.key_size
        return replace(template, token_size=min(gain / template.key_size, longest), longest=longest)

    def _one_softmax(self, reader: ScoreReader, rng: np.random.Generator) -> None:
        """Two copies of a key must count exactly twice as much as one; 2 queries."""
        d = reader.oracle.width
        key = reader.key_size * reader.keys(orthonormal(d, rng, rows=1))
        token = reader.token_size * _away(orthonormal(d, rng, rows=1), reader.values)
        last = LastPosition(reader.oracle)
        one = reader.values.read(last(np.stack([key, token], axis=1)))
        two = reader.values.read(last(np.stack([key, key, token], axis=1)))
        low, high = token @ reader.values.worth, key @ reader.values.worth
        span = high - low
        share = np.array([((answer - low) @ span.T).item() for answer in (one, two)]) / float(np.sum(span**2))
        off_line = max(float(np.abs(answer - low - s * span).max()) for answer, s in zip((one, two), share, strict=True))
        expected = 2 * share[0] / (1 + share[0])
        error = max(abs(share[1] - expected), off_line / float(np.linalg.norm(span)))
        if not error <= 16 * self._noise(reader.values, reader.key_size):
            raise NotInFamilyError(
                f"Two copies of a key should weigh {expected:.9g} of the answer if one softmax head answers, "
                f"but weigh {share[1]:.9g} (deviation {error:.2g}). The target has several heads, positions, or something else "
                "between tokens and answer.",
                evidence={"copies_deviation": error},
                signs=(Sign.OFF_COPIES,) if np.isfinite(error) else (Sign.NO_MEAN,),
                values=(reader.values.b, reader.values.V),
            )


def unless_overflowing(step: Callable[[float], T], lengths: tuple[float, ...]) -> T:
    """What a step tells with tokens of the first of these lengths, or the next where the target's numbers overflow."""
    *others, last = lengths
    for length in others:
        told = tried(partial(step, length), TargetError)
        if not isinstance(told, TargetError):
            return told
        if Sign.OVERFLOWS not in told.signs:
            raise told
    return step(last)


def _away(tokens: Floats, values: Values) -> Floats:
    """Flip tokens so that their value is opposite to that of the keys: the answer then spans both."""
    return np.asarray(tokens * np.where(tokens @ values.directions[:, :1] > 0, -1.0, 1.0))


def price(width: int, *, outputs: int = 1, rank: int | None = None, bias: bool = False) -> list[tuple[str, int, int]]:
    """What ``OneHeadLearner`` asks beyond the zero token: (phase, queries, tokens); full rank if ``rank`` is None."""
    usable = min(width, outputs)
    r = width if rank is None else rank
    length = usable + copies(usable)
    columns, rows = r * -(-width // usable), (width - r) * -(-r // usable)
    asked = [("values", width, width), ("query bias", 1, 2), ("scale", 4 if usable == 1 else 3, 9)]
    if bias:
        asked[1] = ("query bias", 1 + 4 + -(-width // usable), (5 + -(-width // usable)) * length)
    return [*asked, ("columns", columns, columns * length), ("rows", rows, rows * length)]
