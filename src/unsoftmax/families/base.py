"""What the house asks of a family: its tests, its learner, its bill, and how its models are held against fresh answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from unsoftmax.bills import Bill
from unsoftmax.desk import Desk
from unsoftmax.errors import NotIdentifiableError, NotInFamilyError, RefusalError, TooNoisyError, tried
from unsoftmax.models import Floats, Model
from unsoftmax.oracles.base import Oracle
from unsoftmax.precision.law import Floor
from unsoftmax.proof.compare import Compared, Predict, compared, predictor
from unsoftmax.proof.fresh import Fresh
from unsoftmax.results import Fact, Learned, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a target is, as far as a bill needs it; None where it is not known."""

    width: int
    outputs: int = 1
    rank: int | None = None
    heads: int | None = None
    neurons: int | None = None
    layers: int | None = None
    bias: bool | None = None  # scores carry a term of the earlier token alone
    everywhere: bool = False  # every position is answered


class Test(Protocol):
    """One look at a target that a family's members pass."""

    name: str

    def price(self, width: int) -> int:
        """Queries that it asks at most."""

    def examine(self, desk: Desk) -> Fact:
        """Ask, and tell whether the statement holds; None where the answers cannot tell."""


class Learner(Protocol):
    """Frozen settings and one run."""

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Learned:
        """Ask, and hand over what was found; a refusal is raised."""


class Family:
    """A kind of target. Subclasses say what differs; everything else in the house asks this object.

    Attributes:
        name: as users write it (``family=``), and as reports tell it.
        unknown: in words, what can never be known about a member.
        law: what the answers of a member must show, cheapest first.
        confirmed_by: what must hold as well before a diagnosis names the family; a recovery does not ask it, as the learner proves
            the same.
        models: what its models are called.
        kin: a name of ``family=`` under which it is tried as well, before the family of that name.
        network: answers pass through a network that is not known, so that the model cannot predict them by itself.
    """

    name: ClassVar[str]
    unknown: ClassVar[str] = ""
    law: ClassVar[tuple[Test, ...]] = ()
    confirmed_by: ClassVar[tuple[Test, ...]] = ()
    kin: ClassVar[str] = ""
    network: ClassVar[bool] = False
    made_of_heads: ClassVar[bool] = False  # its models are layers of heads and nothing else
    decisive: ClassVar[bool] = False  # what passes this law can be of no other family: a refusal of the learner is the last word
    compares_answers: ClassVar[bool] = True  # ``compare`` hands over answers as they come, so that one can be asked again
    compares_parts: ClassVar[bool] = False  # models that cannot answer still tell something, see ``compare_part``
    part_error: ClassVar[float] = 0.0  # of what is compared then, over its spread, from rounding in exact targets alone
    models: ClassVar[tuple[str, ...]] = ()  # names of the model classes that it hands back, in lower case
    needs: ClassVar[tuple[str, ...]] = ()  # what a bill cannot do without, by its name in ``Size``
    many_heads: ClassVar[bool] = False  # its bill goes by how many heads there are, in all layers together
    demo: ClassVar[dict[str, int]] = {}  # settings of its built-in target with their defaults; "width" and "seed" among them

    def made(self, model: Model) -> bool:
        """Whether a model is one of this family."""
        return type(model).__name__.lower() in self.models

    def demo_oracle(self, settings: dict[str, int]) -> Oracle:
        """A built-in target (``demo:NAME,key=value``)."""
        raise ValueError(f"The family {self.name!r} has no built-in target.")

    def settled(self, desk: Desk) -> RefusalError | None:
        """After the law has failed: a reason that excludes every other family as well, where there is one."""
        return None

    def learner(self, desk: Desk) -> Learner:
        """The learner with settings that suit what is known."""
        raise NotInFamilyError(f"The family {self.name!r} has no learner.")

    def learn(self, desk: Desk) -> Outcome:
        """Run the learner; what nature may bring becomes a value."""
        return attempt(self.learner(desk), self.asked(desk), desk)

    def asked(self, desk: Desk) -> Oracle:
        """What the learner asks: every position, or the last alone."""
        return desk

    def bill(self, size: Size) -> Bill:
        """What recovery costs, by phase."""
        raise ValueError(f"The family {self.name!r} has no bill.")

    def estimate(self, size: Size) -> Bill | None:
        """The bill as far as a diagnosis can tell it; None where it takes more than is known, or there is none."""
        unknown = any(getattr(size, name) is None for name in self.needs)
        return None if unknown or type(self).bill is Family.bill else self.bill(size)

    def named_more(self, desk: Desk) -> tuple[Fact, ...]:
        """What a diagnosis may tell beyond the family, by a few more questions."""
        return ()

    def like(self, desk: Desk) -> Floats | None:
        """Where fresh sequences are drawn and predicted best."""
        return None

    def longest(self, desk: Desk) -> int:
        """Tokens of the longest sequences that the check may ask."""
        return desk.longest

    def compare(self, desk: Desk, learned: Learned, batches: list[Fresh]) -> Compared:
        """The model against fresh answers."""
        return compared(desk.checked, learned.model, batches)

    def compare_part(self, oracle: Oracle, model: Model, batches: list[Fresh], law: Floor, rng: np.random.Generator) -> Compared:
        """What a model that cannot answer tells about a target all the same, against its answers."""
        raise ValueError(f"Models of the family {self.name!r} that cannot answer tell nothing that could be compared.")

    def predictor(self, desk: Desk, learned: Learned) -> Predict | None:
        """The model as a function of batches; None where it cannot answer by itself."""
        return None if self.network else predictor(learned.model)

    def precision(self, desk: Desk, learned: Learned) -> Floor:
        """How coarse a comparison with this model is at best."""
        return desk.precision

    def certify(self, desk: Desk, learned: Learned, *, held_out: float, tolerance: float, rounding: float) -> tuple[str, ...]:
        """Sentences about what else was proved; raises ``NotIdentifiableError`` where other parameters would answer alike."""
        return ()


def attempt(learner: Learner, oracle: Oracle, desk: Desk) -> Outcome:
    """One run of a learner as a value. A spent budget, a target that fails or contradicts itself ends the whole run instead."""
    try:
        found = tried(lambda: learner.run(oracle, rng=desk.rng), NotInFamilyError, NotIdentifiableError, TooNoisyError)
        return Outcome(refusal=found) if isinstance(found, RefusalError) else Outcome(learned=found)
    except (ArithmeticError, np.linalg.LinAlgError) as error:
        return Outcome(
            refusal=NotInFamilyError(
                "The answers lead to numbers that no model of this family gives. "
                "`unsoftmax diagnose` tells what the target may be.",
                evidence={"arithmetic": str(error)},
            )
        )
