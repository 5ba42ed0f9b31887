"""Targets that say yes or no, or which of several classes wins, and nothing else."""

from __future__ import annotations

from typing import ClassVar, cast

import numpy as np

from unsoftmax.bills import Bill
from unsoftmax.desk import Desk
from unsoftmax.families.base import Family, Learner, Size
from unsoftmax.learners.labels.recognised import NAME, could_be_labels, recognised
from unsoftmax.learners.labels.settings import BOUNDARY
from unsoftmax.models import Attention, Floats
from unsoftmax.oracles.base import LastPosition, Oracle
from unsoftmax.precision.law import Floor
from unsoftmax.proof.compare import Compared, Predict
from unsoftmax.proof.fresh import Fresh
from unsoftmax.proof.settings import PROOF
from unsoftmax.results import Fact, Learned, Outcome


class Labels:
    """Answers are one of a few whole numbers. Free for targets whose first answers are not whole."""

    name = NAME

    def price(self, width: int) -> int:
        """Nothing for ordinary heads."""
        return 2 * BOUNDARY.questions

    def examine(self, desk: Desk) -> Fact:
        """Look at the first answers, and ask only where they could be labels."""
        look, wished = desk.first_look(), desk.wishes.labels
        first = np.concatenate([np.ravel(look.zero_answer), np.ravel(look.pair_answers)])
        if wished is False or look.outputs != 1 or not could_be_labels(first):
            return Fact(NAME, float(len(np.unique(first))), 0.0, False, "Answers are numbers, not labels.")
        return recognised(desk.last, rng=desk.rng, max_norm=desk.max_norm)


class LabelsFamily(Family):
    """One softmax head behind a threshold, or behind the largest of several outputs."""

    name: ClassVar[str] = "labels"
    unknown: ClassVar[str] = "the common factor of the values and the threshold"
    law: ClassVar[tuple[Labels, ...]] = (Labels(),)
    decisive: ClassVar[bool] = True  # labels are no numbers
    compares_answers: ClassVar[bool] = False  # but their places, from -1 to 1
    demo: ClassVar[dict[str, int]] = {"width": 8, "rank": 0, "seed": 0}

    def demo_oracle(self, settings: dict[str, int]) -> Oracle:
        """A head that says yes or no; rank 0 stands for full rank."""
        from unsoftmax.oracles import CallableOracle, Thresholded

        rng = np.random.default_rng(settings["seed"])
        width = settings["width"]
        rank = settings["rank"] or width
        W = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width)) / np.sqrt(width * rank)
        head = Attention.single(W, rng.normal(size=width), 0.3 * rng.normal(size=width))
        return Thresholded(CallableOracle(head), 0.5)

    def learner(self, desk: Desk) -> Learner:
        """Boundaries by halving, side by side."""
        from unsoftmax.learners.labels import LabelsLearner

        return LabelsLearner(accuracy=desk.wishes.accuracy, max_norm=desk.max_norm, rank=desk.wishes.rank)

    def learn(self, desk: Desk) -> Outcome:
        """Without sentinels: labels beside a boundary may change with the last bit, and the learner asks again by itself."""
        desk.known(Floor(kind="coarse", relative=0.0))
        return super().learn(desk)

    def asked(self, desk: Desk) -> Oracle:
        """The last position alone."""
        return LastPosition(desk)

    def bill(self, size: Size) -> Bill:
        """For labels that are right."""
        from unsoftmax.learners.labels import LabelsLearner
        from unsoftmax.proof.fresh import COUNT

        phases = LabelsLearner().price(size.width, size.rank)
        low, high = (sum(queries[end] for _, queries, _ in phases) + COUNT for end in (0, 1))
        told = [(name, queries[1], tokens[1]) for name, queries, tokens in phases]
        return Bill(low, high, "about 45 (r (2 d - r) + 2 d) labels", (*told, ("held-out check", COUNT, PROOF.tokens)))

    def precision(self, desk: Desk, learned: Learned) -> Floor:
        """Labels agree or they do not; what they leave open stands in the error bars."""
        return Floor(kind="rounded", relative=2.0**-50)

    def predictor(self, desk: Desk, learned: Learned) -> Predict | None:
        """None: early labels beside the boundary are no test of a model."""
        return None

    def compare(self, desk: Desk, learned: Learned, batches: list[Fresh]) -> Compared:
        """Labels of fresh sequences on either side of the model's boundary, as near as the error bars allow."""
        from unsoftmax.learners.labels.check import beside_boundary, class_of
        from unsoftmax.learners.labels.majority import Majority

        model, values = cast(Attention, learned.model), np.array(learned.labels)
        assert learned.bounds is not None
        near = [beside_boundary(model, learned.bounds, batch, desk.fresh, desk.max_norm) for batch in batches]
        target: Oracle = LastPosition(desk.checked)
        if learned.flip_rate:
            target = Majority(target, learned.flip_rate, desk.fresh)
        told = np.concatenate([np.ravel(target(batch.sequences)) for batch in near])
        expected = values[np.concatenate([class_of(model, batch.sequences) for batch in near])]
        desk.notes.append(
            f"Fresh labels were asked on either side of the model's boundary, {len(told)} in all, as near to it as the error "
            "bars of the parameters allow: a label there is right only if the boundary is."
        )
        return Compared(_signed(told, values), _signed(expected, values), tuple(near))


def _signed(labels: Floats, values: Floats) -> Floats:
    """Labels as numbers from -1 to 1, one column."""
    places = np.searchsorted(values, labels) / max(len(values) - 1, 1)
    signed: Floats = 2.0 * places[:, None] - 1.0
    return signed


LABELS = LabelsFamily()
