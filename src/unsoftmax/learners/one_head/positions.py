"""Answers at every position: one query reads the values of many tokens, another all products with one group of keys."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unsoftmax.errors import NotInFamilyError, Sign
from unsoftmax.learners.one_head.scores import Products, ScoreReader, Sees, Values, log_weights, refuse_saturated
from unsoftmax.learners.one_head.settings import HEAD
from unsoftmax.linalg import orthonormal
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle
from unsoftmax.results import Floor


@dataclass(frozen=True, slots=True, eq=False)
class Loud:
    """What loud tokens tell: the values ``V (width, outputs)``, whether early positions see later ones, and a query bias.

    Scores of zero let them cancel everywhere: then ``causal`` is None. With a query bias ``against (width,)`` is the direction, of
    as many orthonormal ones, that it is most against.
    """

    V: Floats
    causal: bool | None
    against: Floats | None


def loud_values(oracle: Oracle, b: Floats, known: tuple[Floats, Floats] | None, rng: np.random.Generator) -> Loud:
    """Values, direction of sight and presence of a query bias from two queries, and one for every value that stays open.

    Some asking tokens, loud tokens ``± S t_i`` (a random rotation), many asking tokens, and the zero token. At each asking position
    the softmax picks one loud token and the answer is that token's value. Asked again with factors ``1 + i * NAMING``, the ratio of
    the two answers names i. Asking tokens in front see no loud token where positions see earlier ones only. Without a query bias
    the zero token sees all tokens alike, and the loud ones cancel. Up to as many directions as tokens are ``known`` may be missed.

    Args:
        oracle: answers at every position.
        b: the answer to the zero token.
        known: tokens ``(n, width)`` and their one-token answers ``(n, outputs)``, where some were asked before.
        rng: of the rotation and the asking tokens.
    """
    d = oracle.width
    rotation = orthonormal(d, rng)
    loud = HEAD.loud * np.vstack([rotation, -rotation])
    names = 1.0 + HEAD.naming * np.arange(1, 2 * d + 1)
    asking = HEAD.asking * rng.normal(size=(HEAD.askers * d, d)) / np.sqrt(d)
    ahead, zero = asking[: min(4, d)], np.zeros((1, d))
    sequences = [np.vstack([ahead, f * loud, asking, zero])[None] for f in (1.0, names[:, None])]
    first, second = (oracle(sequence)[0] for sequence in sequences)
    plain, named = (answers[len(ahead) + 2 * d : -1] for answers in (first, second))
    strongest = np.argmax(np.abs(plain), axis=1)[:, None]
    size = np.take_along_axis(plain, strongest, axis=1)
    factor = np.take_along_axis(named, strongest, axis=1) / np.where(size == 0, 1.0, size)
    winner = np.rint((factor[:, 0] - 1.0) / HEAD.naming).astype(int) - 1
    clean = (np.abs(factor[:, 0] - 1.0 - HEAD.naming * (winner + 1)) < 1e-3 * HEAD.naming) & (winner >= 0) & (winner < 2 * d)
    clean &= np.abs(named - factor * plain).max(axis=1) <= 1e-9 * np.abs(size[:, 0])
    values = np.full((d, len(b)), np.nan)
    for place in np.flatnonzero(clean):
        sign = 1.0 if winner[place] < d else -1.0
        values[winner[place] % d] = sign * plain[place] / HEAD.loud
    missed = np.isnan(values[:, 0])
    if missed.any():
        values[missed] = _missed_values(oracle, b, rotation, values, missed, known)
    V = np.asarray(rotation.T @ values)
    heard = 2.0**-40 * HEAD.loud * float(np.abs(V).max())
    early, late = (float(np.abs(answers - b).max()) > heard for answers in (first[: len(ahead)], plain))
    told = first[-1] - b
    if float(np.abs(told).max()) <= heard:
        return Loud(V, not early if late else None, against=None)
    looked_at = np.linalg.norm(np.vstack([values, -values]) - told / HEAD.loud, axis=1).argmin()
    return Loud(V, not early if late else None, against=-loud[looked_at] / HEAD.loud)


def _missed_values(
    oracle: Oracle, b: Floats, rotation: Floats, values: Floats, missed: NDArray[np.bool_], known: tuple[Floats, Floats] | None
) -> Floats:
    """Values of the directions that no position attended to: what known answers leave over, or one query each."""
    if known is not None:
        parts = known[0] @ rotation.T
        if np.linalg.matrix_rank(parts[:, missed], tol=0.1) == missed.sum():
            rest = known[1] - b - parts[:, ~missed] @ values[~missed]
            return np.asarray(np.linalg.lstsq(parts[:, missed], rest, rcond=None)[0])
    return np.asarray((oracle(HEAD.asking * rotation[missed][:, None])[:, 0] - b) / HEAD.asking)


def is_causal(oracle: Oracle, V: Floats, b: Floats, size: float, rng: np.random.Generator) -> bool:
    """Whether the first of two tokens is answered as if it stood alone; 1 query. ``size``: small enough for even weights."""
    pair = size * rng.normal(size=(2, len(V))) / np.sqrt(len(V))
    first = oracle(pair[None])[0, 0] - b
    alone, mixed = pair[0] @ V, pair.mean(axis=0) @ V
    return bool(np.linalg.norm(first - alone) < np.linalg.norm(first - mixed))


@dataclass(frozen=True, eq=False)
class PositionReader(ScoreReader):
    """A score reader for targets that answer at every position: all tokens share one query per group of keys.

    Needs tokens that vanish beside the keys (no query bias, no norm limit): each of them then counts as one more zero score.
    """

    causal: bool = False

    @property
    def samples(self) -> tuple[int, int]:
        """Keys and tokens that one query can take."""
        return self.values.usable, 8

    def _ask_all(self, group: Floats, tokens: Floats) -> Floats:
        """Products ``(n, k)`` from one sequence ``[keys, tokens]``."""
        n, k = len(group), len(tokens)
        sequence = np.vstack([self.key_size * group, self.token_size * tokens])
        answers = self.values.read(self.oracle(sequence[None])[0, n:])
        counts = np.arange(1, k + 1) if self.causal else np.full(k, k)
        worth = np.broadcast_to(self.key_size * (group @ self.values.worth), (k, n, answers.shape[1]))
        scores = log_weights(worth, self.token_size * (tokens @ self.values.worth), answers) + np.log(counts)[:, None]
        return np.asarray(scores.T / self.gain)

    def all_products(self, pairs: list[tuple[Floats, Floats]], retries: int = HEAD.retries, sees: Sees | None = None) -> Products:
        """Products ``(n, k)`` for each pair: one query per group of keys, whatever the number of tokens; all on this machine."""
        read = [self._read_pair(keys, tokens, retries) for keys, tokens in pairs]
        if sees is not None:
            sees(read)
        return read

    def _read_pair(self, keys: Floats, tokens: Floats, retries: int) -> tuple[Floats, Floats]:
        """Products of one pair, asked again if a score saturates."""
        usable = self.values.usable
        result = np.empty((len(keys), len(tokens)))
        ratios = np.empty_like(result)
        for at in range(0, len(keys), usable):
            reader = self
            result[at : at + usable] = reader._ask_all(keys[at : at + usable], tokens)
            for _ in range(retries):
                if np.abs(result[at : at + usable]).max() * reader.gain <= HEAD.saturated:
                    break
                reader = replace(reader, token_size=reader.token_size / 4)
                result[at : at + usable] = reader._ask_all(keys[at : at + usable], tokens)
            ratios[at : at + usable] = reader.ratio
        refuse_saturated(result, retries)
        return result, ratios


def biased_size(last: Oracle, V: Floats, b: Floats, against: Floats) -> float:
    """Length at which the query bias gives tokens scores of about ``HEAD.biased``; 1 query.

    Tokens of all lengths along the direction ``against`` which the bias is stand before a zero token: it sees the short ones, and
    their mean length tells how short that is.
    """
    lengths = 2.0 ** np.arange(-HEAD.ladder, HEAD.ladder + 1.0)
    told = last(np.vstack([lengths[:, None] * against, 0 * against])[None])[0] - b
    value = against @ V
    mean = float(told @ value / (value @ value))

    def foretold(bias: float) -> float:
        weights = np.exp(-bias * lengths)
        return float(weights @ lengths / (1 + weights.sum()))

    low, high = -HEAD.ladder, HEAD.ladder
    for _ in range(HEAD.learner_search):
        middle = (low + high) / 2
        low, high = (middle, high) if foretold(2.0**middle) > mean else (low, middle)
    return float(HEAD.biased / 2.0**low)


def read_pairs(
    oracle: Oracle, values: Values, size: float, longest: float, causal: bool, floor: Floor, rng: np.random.Generator
) -> tuple[Floats, Floats, float]:
    """W, c and the error of W's entries from one query ``[0 … 0, u_1 … u_d]``, and more for each change of size.

    The tokens are ``size`` long at first, and never longer than ``longest``.

    The zero tokens have score 0, so position j tells ``u_i·(W u_j + c)`` for every i, and a zero position tells ``u_i·c``.
    Needs values that tell d tokens apart (``values.usable == width``).
    """
    d = oracle.width
    rotation = orthonormal(d, rng)
    saturated = HEAD.saturated if floor.exact else HEAD.saturated_coarsely
    for _ in range(HEAD.positions_search):
        table = _pair_scores(oracle, values, size * rotation, causal)
        largest = float(np.abs(table).max())
        if largest <= saturated:
            spread = float(np.sqrt(np.mean((table[1:] - table[0]) ** 2)))
            if spread > 0.1 or largest > 1.0 or size >= longest:
                break
            size = min(longest, size * min(16.0, float(np.sqrt(0.4 / max(spread, 1e-3)))))
        else:
            size /= 4.0 if not np.isfinite(largest) else min(4.0, float(np.sqrt(2 * largest / saturated)))
    if not np.isfinite(table).all():
        raise NotInFamilyError(
            "The answers at every position are no means of the answers to one token: several heads, or no head.",
            signs=(Sign.NO_MEAN,),
        )
    c = rotation.T @ table[0] / size
    noise = 4 * d * floor.relative * float(np.linalg.cond(values.worth)) / size**2  # d tokens share the weight of one answer
    return np.asarray(rotation.T @ (table[1:] - table[0]).T @ rotation / size**2), np.asarray(c), noise


def _pair_scores(oracle: Oracle, values: Values, tokens: Floats, causal: bool) -> Floats:
    """Scores ``(1 + d, d)`` of every token: at a zero position that sees them all (row 0), then at each token.

    Where positions see earlier tokens only, all come once more in reverse: behind all of them each is asked, some seen twice.
    """
    d = len(tokens)
    zeros = np.zeros((max(1, round(float(np.sqrt(d)))), d))
    again = tokens[::-1] if causal else tokens[:0]
    answers = values.read(oracle(np.vstack([zeros, tokens, again, zeros[:1]])[None])[0])
    asked = answers[-1 - d : -1]
    answers = np.vstack([answers[-1:], asked[::-1] if causal else asked])  # the zero at the end sees every token, causal or not
    times = np.ones((1 + d, d))
    if causal:
        times += np.vstack([times[:1], np.tri(d).T])
    ends = np.arange(1 + d) == 0 if causal else 1  # whether the zero at the end is seen
    systems = np.broadcast_to(tokens @ values.worth, (1 + d, d, d))
    return np.asarray(
        log_weights(systems, np.zeros((1 + d, d)), answers) + np.log(len(zeros) + ends).reshape(-1, 1) - np.log(times)
    )
