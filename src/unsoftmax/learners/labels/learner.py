"""One softmax head from labels alone: the answer says on which side of a threshold it lies, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from unsoftmax.errors import DriftingError, NotIdentifiableError, NotInFamilyError, Sign, TooNoisyError, check_positive, tried
from unsoftmax.learners.labels.asking import Asker, LateFlipsError, StrangeLabelError
from unsoftmax.learners.labels.bill import bill, bits, bound
from unsoftmax.learners.labels.check import Pairs, boundary_pairs
from unsoftmax.learners.labels.classes import Middle, class_values, middles
from unsoftmax.learners.labels.design import designed
from unsoftmax.learners.labels.equations import Scores
from unsoftmax.learners.labels.low_rank import scores
from unsoftmax.learners.labels.majority import Majority, lead_wanted
from unsoftmax.learners.labels.paths import rounds
from unsoftmax.learners.labels.scores import DesignError, LostError, Reading, SizeError, block_sizes
from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.learners.labels.sizes import Sizes, SizeSearch
from unsoftmax.learners.labels.start import Start, flip_rate, start
from unsoftmax.learners.labels.values import Fine, Plane, PlaneSearch, Settled, rough_plane
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import Oracle, Wrapper, phase
from unsoftmax.results import Bounds, Learned


@dataclass(frozen=True, slots=True)
class LabelsLearner:
    """Recover one softmax head from answers that are one of two labels, or the index of the largest of several outputs.

    One token: the labels change on a plane, ``v·x = theta``. Two tokens ``[p; x]`` on either side of it: they change where
    ``(p - x)·(W x + c) = log((theta - v·x) / (v·p - theta))``, one linear equation in W and c per path on which the change is found
    by halving. All paths are halved side by side, one call a round.

    Price: about 45 labels for each of the ``r (2 d - r) + 2 d`` parameters at the usual accuracy of 2e-12, in 70 to 95 rounds;
    3.3 labels less or more per decimal digit.

    Args:
        accuracy: wanted relative error of W; None for 2e-12, or 1e-3 where labels are wrong now and then.
        flip: the share of wrong labels; None measures it.
        max_norm: no token longer than this is asked.
        rank: rank of W; None finds it.
        rounds: calls that should do; fewer take more labels, for late paths are then halved several times a call.
        designs: choices of tokens before a target is given up.
        checks: pairs of fresh questions of each length, one on either side of the boundary.
    """

    accuracy: float | None = None
    flip: float | None = None
    max_norm: float | None = None
    rank: int | None = None
    rounds: int = 76
    designs: int = 6
    checks: int = 16

    def __post_init__(self) -> None:
        check_positive(accuracy=self.accuracy, max_norm=self.max_norm)
        if self.flip is not None and not 0 <= self.flip < 0.5:
            raise ValueError(f"flip is {self.flip}; the share of wrong labels must lie between 0 and a half.")

    def price(self, width: int, rank: int | None = None) -> tuple[tuple[str, tuple[int, int], tuple[int, int]], ...]:
        """Labels and tokens by phase, each from least to most; for labels that are right."""
        return bill(width, self.rank if rank is None else rank, self.accuracy or BOUNDARY.accuracy)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Learn the head; labels may be any two numbers, the larger means yes, or several whole numbers from 0 on."""
        found = tried(lambda: self._run(oracle, rng), LateFlipsError)
        if not isinstance(found, LateFlipsError):
            return found
        if found.rate > BOUNDARY.most:
            raise found
        return replace(self, flip=found.rate)._run(oracle, rng)  # wrong labels are so rare that the first ones did not show them

    def _run(self, oracle: Oracle, rng: np.random.Generator) -> Learned:
        memory = Memory(oracle)
        begin = start(memory, rng=rng, max_norm=self.max_norm, flip=self.flip)
        asker = Asker(Majority(memory, begin.flip, rng) if begin.flip else memory, begin.values)
        wanted = self.accuracy or (
            BOUNDARY.noisy_accuracy if begin.flip else BOUNDARY.float32 if _single(oracle) else BOUNDARY.accuracy
        )
        asker.hurried = BOUNDARY.patient + bits(wanted) > self.rounds
        try:
            found = self._found(asker, begin, wanted, rng)
            checked = tried(partial(self._check, asker, found, begin, wanted, rng), NotInFamilyError)
            if isinstance(checked, NotInFamilyError):
                if found.rank == asker.width or self.rank is not None:
                    raise checked
                # what looked like rounding in a small block was part of W
                found = replace(self, rank=asker.width)._found(asker, begin, wanted, rng)
                checked = self._check(asker, found, begin, wanted, rng)
        except (NotInFamilyError, NotIdentifiableError) as error:
            raise self._reason(asker, memory, begin, error, rng) from error
        return _packed(found, begin, asker, checked, wanted)

    def _found(self, asker: Asker, begin: Start, wanted: float, rng: np.random.Generator) -> Found:
        for _ in range(2):
            read = self._several if len(asker.values) > 2 else self._two
            found = tried(partial(read, asker, begin, wanted, rng), StrangeLabelError)
            if not isinstance(found, StrangeLabelError):
                return found
            asker.values = tuple(sorted({*asker.values, *found.strange}))  # another class
        raise NotIdentifiableError(
            f"Some of the {len(asker.values)} labels are so rare that they came late; their values cannot be read.",
            evidence={"labels": list(asker.values)},
        )

    def _two(self, asker: Asker, begin: Start, wanted: float, rng: np.random.Generator) -> Found:
        phase(asker.oracle, "values")
        rough = rough_plane(asker, begin, rng)
        fine = Fine(asker, begin, rough, rng, until=max(BOUNDARY.finest, BOUNDARY.values * wanted), max_norm=self.max_norm)
        phase(asker.oracle, "scale")
        room = np.inf if self.max_norm is None else 0.9 * (self.max_norm**2 - fine.plane.offset**2) ** 0.5
        size = SizeSearch(asker, fine, begin.length, rng, room=room).run()
        read = self._scores(asker, fine, size, wanted, rng)
        plane = fine.plane
        scale = abs(plane.offset) or 1.0
        v, b = plane.normal / scale, -plane.offset / scale if plane.offset else None
        model = Attention(read.W[None], v[None], read.c[None], b)
        off, shift = 1.96 * plane.normal_spread / scale, 1.96 * plane.offset_spread / scale
        bounds = Bounds(
            kind="estimated",
            W=1.96 * np.sqrt(read.W_variance)[None],
            V=np.hypot(off, shift * np.abs(v) if plane.offset else 0.0 * v)[None],
            c=1.96 * np.sqrt(read.c_variance)[None],
            b=np.array(0.0),
        )
        return Found(model, bounds, read.rank, plane.offset * plane.normal, size)

    def _several(self, asker: Asker, begin: Start, wanted: float, rng: np.random.Generator) -> Found:
        values, points, pairs = class_values(asker, begin, rng)
        phase(asker.oracle, "scale")
        looked: list[tuple[float, Middle, Asker, Sizes]] = []
        for middle in middles(values, points, pairs, self.max_norm):
            pair, place = Asker(asker.oracle, asker.values, asker.values[middle.yes]), middle.centre
            pair.hurried = asker.hurried
            plane = Settled(middle.plane)
            size = SizeSearch(pair, plane, begin.length, rng, place, middle.room).run()
            asker.rounds += pair.rounds
            pair.rounds = 0
            # rounding of long tokens, over their distance from the plane, blurs what W shows
            looked.append((size.shown * size.depth / float(np.linalg.norm(place)), middle, pair, size))
        _, middle, pair, size = max(looked, key=lambda one: one[0])
        read = self._scores(pair, Settled(middle.plane), size, wanted, rng, middle.centre)
        asker.rounds += pair.rounds
        model = Attention(read.W[None], values.V.T[None], read.c[None], values.b)
        bounds = Bounds(
            kind="estimated",
            W=1.96 * np.sqrt(read.W_variance)[None],
            V=np.full((1, asker.width, len(values.b)), 1.96 * values.V_spread),
            c=1.96 * np.sqrt(read.c_variance)[None],
            b=np.full(len(values.b), 1.96 * values.b_spread),
        )
        return Found(model, bounds, read.rank, middle.centre, size)

    def _scores(
        self,
        asker: Asker,
        fine: PlaneSearch,
        size: Sizes,
        accuracy: float,
        rng: np.random.Generator,
        centre: Floats | None = None,
    ) -> Scores:
        """W and c around ``centre``; with shallower designs where scores along v leave paths without a boundary."""
        phase(asker.oracle, "scores")
        width, lost = asker.width, 0
        for _ in range(self.designs):
            fine.sharpen(min(1.0, BOUNDARY.near * size.depth / float(np.hypot(size.reach, size.key))))
            for _ in range(BOUNDARY.bits):
                plane: Plane = fine.plane
                blur = np.hypot(plane.normal_spread * np.hypot(size.reach, size.key), plane.offset_spread)
                if blur <= BOUNDARY.clear * size.depth / np.sqrt(width + 1) or not rounds(asker, [fine.group], 1):
                    break
            blocks = [block for block in block_sizes(width) if self.rank is None or self.rank < width]
            reading = Reading(
                asker, fine, designed(fine.plane, size, rng, centre), accuracy, rng, self.rounds - len(BOUNDARY.tokens) - 2
            )
            found = tried(partial(scores, reading, blocks), DesignError)
            if not isinstance(found, DesignError):
                return found
            if isinstance(found, LostError):
                lost = found.paths
                size = replace(size, depth=BOUNDARY.shallower * size.depth)
            elif isinstance(found, SizeError):
                key = min(size.key / found.ratio, size.longest)
                size = replace(size, depth=size.depth * key / size.key, key=key)
        raise NotInFamilyError(
            "However the tokens are chosen, labels of two of them do not change where one softmax head would have them change"
            + (f": on {lost} paths they never do" if lost else "")
            + ". Several heads, positions, or another kind of model answer so.",
            evidence={"paths_without_boundary": lost},
        )

    def _check(self, asker: Asker, found: Found, begin: Start, wanted: float, rng: np.random.Generator) -> dict[str, float]:
        """Labels of fresh questions on either side of the model's boundary, near the design and at natural scale."""
        phase(asker.oracle, "boundary check")
        error = _relative_error(found)
        if error > max(BOUNDARY.loosest * wanted, BOUNDARY.loose):
            raise NotInFamilyError(
                f"The equations leave W open to {error:.1g} of its size, where {wanted:.1g} was wanted: the tokens asked do not "
                "determine it. Other lengths (`max_norm`) or another seed may.",
                evidence={"relative_error": error},
                model=found.model,
            )
        asked, wrong, widest = 0, 0, 0.0
        for length in BOUNDARY.tokens:
            near = boundary_pairs(
                found.model,
                found.bounds,
                length,
                self.checks // 2,
                rng,
                scale=found.size.reach / np.sqrt(asker.width),
                middle=found.centre,
            )
            natural = boundary_pairs(found.model, found.bounds, length, self.checks // 2, rng)
            parts = [part for part in (near, natural) if self._short(part)]
            if not parts:
                continue
            told = asker.classes(np.concatenate([part.sequences for part in parts]))
            expected = np.array(asker.values)[np.concatenate([part.labels for part in parts])]
            asked, wrong = asked + len(told), wrong + int((told != expected).sum())
            widest = max(widest, *(float(part.margin.max()) for part in parts))
        if wrong or not asked:
            raise NotInFamilyError(
                f"The model found explains its own labels, but {wrong} of {asked} fresh ones beside its boundary are on the wrong"
                " side. The target is no single softmax head without positions, or it computes more coarsely than its labels "
                "were asked: then give `accuracy`, such as 1e-5 for float32.",
                evidence={"check_labels": asked, "check_wrong": wrong},
                signs=(Sign.WRONG_LABELS,),
                model=found.model,
            )
        return {"check_labels": asked, "check_wrong": wrong, "check_margin": widest}

    def _short(self, pairs: Pairs) -> bool:
        if not len(pairs.sequences):
            return False
        return self.max_norm is None or bool(np.linalg.norm(pairs.sequences, axis=2).max() <= self.max_norm)

    def _reason(
        self, asker: Asker, memory: Memory, begin: Start, error: NotInFamilyError | NotIdentifiableError, rng: np.random.Generator
    ) -> NotInFamilyError | NotIdentifiableError | DriftingError | TooNoisyError:
        """Why the labels fit no head: they changed since, some of them are wrong, or the reason given first."""
        phase(asker.oracle, "second look")
        if begin.flip:
            return error
        questions, before = memory.sample(BOUNDARY.early, rng)
        after = [asker.classes(question[None])[0] for question in questions]
        changed = int((np.array(after) != before).sum())
        late = changed or Sign.WRONG_LABELS in error.signs
        rate = flip_rate(asker, begin.far, rng, (10 if late else 3) * BOUNDARY.flips)
        if rate:
            flips = LateFlipsError(
                f"About {rate:.1%} of the labels are wrong, which the first ones did not show. Give `flip={rate:.2g}`.",
                evidence={"flip_rate": rate, "found_late": rate, "changed": changed},
            )
            flips.rate = rate
            return flips
        if changed:
            return DriftingError(
                f"{changed} of {len(after)} labels changed when the same questions were asked again. Pin one version of the target "
                "and start again.",
                evidence={"changed": changed, "asked_again": len(after)},
            )
        return error


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A model with its error bars, the rank read, and where it was read."""

    model: Attention
    bounds: Bounds
    rank: int
    centre: Floats
    size: Sizes


class Memory(Wrapper):
    """Passes questions on and keeps a few of the early calls, to ask them again where something is wrong.

    Later ones lie so near to the boundary that their labels may depend on the batch they ride in.
    """

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self.first: list[tuple[Floats, float]] = []
        self._calls = 0

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask, and keep two of the questions."""
        answers = self.inner(sequences)
        if self._calls < BOUNDARY.early and len(sequences):
            self._calls += 1
            flat = np.asarray(answers).reshape(len(sequences), -1)
            self.first += [(sequences[i].copy(), float(flat[i, 0])) for i in sorted({0, len(sequences) // 2})]
        return answers

    def sample(self, count: int, rng: np.random.Generator) -> tuple[list[Floats], Floats]:
        """Some of the questions kept, and their answers then."""
        chosen = rng.permutation(len(self.first))[:count]
        return [self.first[i][0] for i in chosen], np.array([self.first[i][1] for i in chosen])


def _relative_error(found: Found) -> float:
    """The error of W that its bars tell, over its size; 0 where W is none."""
    assert found.bounds.W is not None
    size = float(np.linalg.norm(found.model.W))
    return float(np.linalg.norm(found.bounds.W / 1.96)) / size if size > BOUNDARY.tiny else 0.0


def _single(oracle: Oracle) -> bool:
    """Whether the target says that it computes in float32."""
    return getattr(oracle, "precision", None) in ("float32", "FP32")


def _packed(found: Found, begin: Start, asker: Asker, checked: dict[str, float], accuracy: float) -> Learned:
    model = found.model
    several = model.V is not None and model.V.ndim == 3
    if several:
        ambiguity = (
            "Labels show differences of class values only, up to one common positive factor: the values and constants of all "
            "classes sum to zero, and the values have length 1 in all. W and c are unique."
        )
    elif model.has_b:
        ambiguity = (
            "Labels show v and the threshold up to one common positive factor only: it is chosen so that the threshold is 1 or -1, "
            "and b is minus the threshold. The label is yes where model(X) > 0. W and c are unique."
        )
    else:
        ambiguity = (
            "Labels show v up to a positive factor only: it is given with length 1. The threshold is 0, so the label is yes where "
            "model(X) > 0. W and c are unique."
        )
    width, parameters = asker.width, found.rank * (2 * asker.width - found.rank) + 2 * asker.width
    error = float(np.sqrt(np.mean((found.bounds.W / 1.96) ** 2))) if found.bounds.W is not None else 0.0
    size = float(np.sqrt(np.mean(model.W**2)))
    fresh = int(checked["check_labels"])
    note = (
        f"Labels {', '.join(f'{value:g}' for value in asker.values)}; the model's boundary was found again between fresh "
        f"labels {checked['check_margin']:.1g} of the answers' spread apart, in all of {fresh}."
    )
    if begin.flip:
        lead = lead_wanted(begin.flip)
        note += f" {begin.flip:.1%} of the labels are wrong: each question was asked until one label led by {lead}."
    evidence = {
        "rank": found.rank,
        "labels": list(asker.values),
        "flip_rate": begin.flip,
        "accuracy": accuracy,
        "rounds": asker.rounds + 2,
        "parameters": parameters,
        "bits_bound": bound(width, found.rank, max(error / size, 1e-16) if size else accuracy, begin.flip),
        **checked,
    }
    return Learned(
        model=model,
        ambiguity=ambiguity,
        bounds=found.bounds,
        notes=(note,),
        evidence=evidence,
        ranks=(found.rank,),
        labels=tuple(asker.values),
        flip_rate=begin.flip,
    )
