"""What an owner may put before a model: each defence a row of the audit."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np

from unsoftmax.models import Floats
from unsoftmax.oracles import Cast, Clipped, Lengthened, Oracle, Rounded, Thresholded, TopOnly
from unsoftmax.oracles.base import Wrapper


@dataclass(frozen=True, slots=True, kw_only=True)
class Defence:
    """One defence; what is None is not used.

    Attributes:
        name: what the table calls it; also names its journal.
        decimals: answers rounded to this many decimals.
        digits: answers rounded to this many significant digits.
        noise: standard deviation of Gaussian noise on every answer.
        dtype: number format that answers are cast to.
        threshold: answers are replaced by one label: above this or not; of several outputs, the place of the largest.
        max_norm: longer tokens are shortened to this.
        min_norm: shorter tokens are refused; an attacker sends tokens of this length in their place.
        top: only so many of an answer's largest numbers are told.
        quota: sequences that one client may ask.
        rate: sequences a second that one client may ask; arithmetic on time, nothing is run.
    """

    name: str
    decimals: int | None = None
    digits: int | None = None
    noise: float | None = None
    dtype: str | None = None
    threshold: float | None = None
    max_norm: float | None = None
    min_norm: float | None = None
    top: int | None = None
    quota: int | None = None
    rate: float | None = None

    @property
    def slug(self) -> str:
        """The name as a file name."""
        return "-".join("".join(c if c.isalnum() or c == "." else " " for c in self.name).split())

    @property
    def weight(self) -> int:
        """How long extraction takes, roughly: rows of more weight start first, so that none is waited for alone at the end."""
        coarse = self.digits is not None or self.dtype is not None
        limited = self.max_norm is not None and (self.noise is not None or self.decimals is not None)
        return 3 * (limited and self.decimals is not None) + 2 * limited + coarse + 2 * (self.threshold is not None)

    @property
    def base(self) -> bool:
        """Whether this is the target as it stands."""
        return all(getattr(self, key) is None for key in self.__slots__ if key != "name")

    def wrap(self, oracle: Oracle, seed: int = 0) -> Oracle:
        """The target behind this defence."""
        if self.max_norm is not None:
            oracle = Clipped(oracle, self.max_norm)
        if self.min_norm is not None:
            oracle = Lengthened(oracle, self.min_norm)
        if self.top is not None:
            oracle = TopOnly(oracle, self.top)
        if self.noise is not None:
            oracle = Blurred(oracle, self.noise, seed)
        if self.decimals is not None or self.digits is not None:
            oracle = Rounded(oracle, decimals=self.decimals, digits=self.digits)
        if self.dtype is not None:
            oracle = Cast(oracle, self.dtype)
        return oracle if self.threshold is None else Thresholded(oracle, self.threshold)


class Blurred(Wrapper):
    """Gaussian noise on every answer, fresh each time a question is asked, whatever was asked in between.

    The noise follows from the seed, the question and how often it was asked, so a table is the same on one process, on many, and
    after a kill.
    """

    def __init__(self, inner: Oracle, scale: float, seed: int) -> None:
        super().__init__(inner)
        self.scale = scale
        self.seed = seed
        self._asked: Counter[bytes] = Counter()

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask, then add noise."""
        answers = np.asarray(self.inner(sequences), dtype=np.float64)
        noise = np.empty_like(answers)
        for row, sequence in enumerate(np.ascontiguousarray(sequences, dtype=np.float64)):
            question = hashlib.blake2b(sequence.tobytes(), digest_size=16).digest()
            self._asked[question] += 1
            source = [self.seed, self._asked[question], *np.frombuffer(question, dtype=np.uint32)]
            noise[row] = np.random.default_rng(source).normal(size=answers.shape[1:])
        return answers + self.scale * noise


def standard_defences(width: int, spread: float, middle: float = 0.0) -> tuple[Defence, ...]:
    """The standard table, for tokens of length ``width`` and answers of standard deviation ``spread`` around ``middle``.

    Noise and decimals follow the spread of the answers, so that a target in other units is treated alike. The norm limit lets
    every token of standard normal entries pass; the quota is half the entries of one score matrix.
    """
    unit, low, high, limit = _scales(width, spread)
    coarse = unit + 2

    def rounded(more: int) -> Defence:
        return Defence(name=f"{unit + more} decimals", decimals=unit + more)

    return (
        Defence(name="none"),
        rounded(6),
        rounded(4),
        rounded(2),
        Defence(name="3 digits", digits=3),
        Defence(name="float16", dtype="float16"),
        Defence(name="labels only", threshold=float(f"{middle:.2g}") if np.isfinite(middle) else 0.0),
        Defence(name=f"noise {low:g}", noise=low),
        Defence(name=f"noise {high:g}", noise=high),
        Defence(name=f"norm limit {limit:g}", max_norm=limit),
        Defence(name=f"norm {limit:g}, {coarse} decimals", max_norm=limit, decimals=coarse),
        Defence(name=f"norm {limit:g}, {coarse + 2} decimals", max_norm=limit, decimals=coarse + 2),
        Defence(name=f"norm {limit:g}, noise {low:g}", max_norm=limit, noise=low),
        Defence(name=f"norm {limit:g}, noise {high:g}", max_norm=limit, noise=high),
        Defence(name=f"quota {max(32, width * width // 2)}", quota=max(32, width * width // 2)),
        Defence(name="rate limit 1/s", rate=1.0),
    )


def deep_defences(width: int, spread: float, outputs: int) -> tuple[Defence, ...]:
    """The table for stacks and decoders, which are read from exact answers to very long tokens: formats, limits, noise.

    One norm limit lets every honest token pass, the other is a million times as long. More ``outputs`` than a token has entries are
    logits: then also the largest ones alone, and no tokens that are zero or short.
    """
    unit, low, _, limit = _scales(width, spread)
    generous = float(f"{1e6 * limit:.2g}")
    rows = [
        Defence(name="none"),
        Defence(name="float32", dtype="float32"),
        Defence(name="bfloat16", dtype="bfloat16"),
        *(Defence(name=f"{unit + more} decimals", decimals=unit + more) for more in (10, 6, 4)),
        Defence(name=f"noise {1e-6 * low:.2g}", noise=float(f"{1e-6 * low:.2g}")),
        Defence(name=f"noise {low:g}", noise=low),
        Defence(name=f"norm limit {generous:g}", max_norm=generous),
        Defence(name=f"norm limit {limit:g}", max_norm=limit),
    ]
    if outputs > width:
        rows += [
            Defence(name="top 20 alone", top=min(20, outputs - 1)),
            Defence(name="no zero tokens", min_norm=1e-30),
            Defence(name="shortest token 0.1", min_norm=0.1),
        ]
    quota = max(32, width * width // 2)
    return (*rows, Defence(name=f"quota {quota}", quota=quota), Defence(name="rate limit 1/s", rate=1.0))


def _scales(width: int, spread: float) -> tuple[int, float, float, float]:
    """Decimals at which one step is about the spread itself, faint and loud noise, and a norm limit that honest tokens pass."""
    spread = spread if np.isfinite(spread) and spread > 0 else 1.0
    low, high = (float(f"{share * spread:.2g}") for share in (0.01, 0.1))
    # four standard deviations and more above the usual length
    return -int(np.floor(np.log10(spread) + 0.5)), low, high, float(np.ceil(np.sqrt(width) + 4.0))
