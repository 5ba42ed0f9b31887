"""One question of every reply, kept so that a reply that was not the target's own can be found, and asked for again."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import numpy as np

from unsoftmax.errors import DriftingError
from unsoftmax.models import Floats
from unsoftmax.oracles.base import Oracle, phase
from unsoftmax.oracles.contradiction import CONFIRMED, Precision, Remembered, Spread, changes
from unsoftmax.oracles.drift import Sizes

Place = tuple[str, int, int]  # of a request in a journal: stream, call, and the sequence it starts with


@dataclass(slots=True)
class Receipts:
    """A question and its answer from each of at most ``most`` replies, drawn by the operating system.

    A gateway that delivers somebody else's reply gets every number of it wrong, so that one question tells.
    """

    most: int = 256
    kept: list[tuple[Place, Floats, Floats]] = field(default_factory=list)
    _seen: int = 0
    _sizes: Sizes = field(default_factory=Sizes)
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(secrets.randbits(256)))

    def take(self, place: Place, sequences: Floats, answers: Floats) -> None:
        """Keep one question of a reply; of more replies than there is room for, a fair sample."""
        self._seen += 1
        some = slice(None, None, len(sequences) // 16 + 1)
        self._sizes.learn(np.array(sequences[some]), np.array(answers[some]))
        at = len(self.kept) if len(self.kept) < self.most else int(self._rng.integers(self._seen))
        if at < self.most:
            size = np.maximum(np.abs(sequences).max(axis=(1, 2)), np.finfo(np.float64).tiny)
            row = int(np.abs(np.log(size)).argmin())  # of natural size: tokens of zeros tell nothing, large ones hang on last bits
            self.kept[at : at + 1] = [(place, np.array(sequences[row]), np.array(answers[row]))]

    def misdelivered(self, oracle: Oracle, floor: Precision | None) -> list[Place]:
        """Requests whose answers the target does not repeat: few among many, or it is the target that changed, and none is named.

        Price: one query for each reply kept, twice that where the precision is not known, and those of ``changes``.
        """
        phase(oracle, "sentinels")
        kept, self.kept = self.kept, []
        now = self._asked(oracle, kept)
        if floor is None:
            off = [np.abs(a - b).max() for a, b in zip(now, self._asked(oracle, kept), strict=True)]
            floor = Spread(float(np.median(off)) if off else 0.0)
        items = [Remembered(question, answer, self._sizes.of(question[None])[0]) for _, question, answer in kept]
        found = [c for c in changes(oracle, list(zip(items, now, strict=True)), floor) if c is not None]
        places = [place for (place, _, _), item in zip(kept, items, strict=True) if any(c.item is item for c in found)]
        return places if len(places) < min(CONFIRMED, len(kept) / 2) else []

    def _asked(self, oracle: Oracle, kept: list[tuple[Place, Floats, Floats]]) -> list[Floats]:
        """Answers in the order kept; questions of one length ride together."""
        answers: dict[int, Floats] = {}
        for length in sorted({len(question) for _, question, _ in kept}):
            places = [i for i, (_, question, _) in enumerate(kept) if len(question) == length]
            answers |= zip(places, oracle(np.stack([kept[i][1] for i in places])), strict=True)
        return [np.asarray(answers[i]) for i in range(len(kept))]


def misdelivery(wrong: int, replies: int) -> DriftingError:
    """The refusal of a run that some replies of others were delivered to."""
    return DriftingError(
        f"{wrong} of {replies} replies were not the target's own: one question of each was asked again, these got another answer "
        "and the rest got the same. A gateway mixes replies up, or one replica differs. The journal asks those requests, and the "
        "check, again: run the same command once more.",
        evidence={"misdelivered": wrong, "replies": replies},
    )
