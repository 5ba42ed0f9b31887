"""The families that this package recovers, and those that others add through the entry point ``unsoftmax.families``."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from unsoftmax.desk import Desk
from unsoftmax.errors import RefusalError
from unsoftmax.families.attention import ONE_HEAD, SEVERAL_HEADS
from unsoftmax.families.base import Family, Learner, Size, Test
from unsoftmax.families.decoder import DECODER
from unsoftmax.families.gated import GATED_NETWORK, GATED_TRANSFORMER
from unsoftmax.families.labels import LABELS
from unsoftmax.families.networks import BEHIND_NETWORK, RELU_NETWORK, RELU_TRANSFORMER
from unsoftmax.families.smooth import NEAR_NETWORK, SMOOTH_NETWORK, SMOOTH_TRANSFORMER
from unsoftmax.families.squared import SQUARED_NETWORK
from unsoftmax.families.stack import PRE_NORM_STACK
from unsoftmax.models import Model
from unsoftmax.results import Fact

__all__ = [
    "Family",
    "Learner",
    "Size",
    "Test",
    "all_families",
    "by_law",
    "fact_of",
    "family_names",
    "family_of",
    "named",
    "settled",
]

GROUP = "unsoftmax.families"
NATIVE: tuple[Family, ...] = (ONE_HEAD, SEVERAL_HEADS, RELU_TRANSFORMER, RELU_NETWORK, BEHIND_NETWORK)
# found by their own laws, before the families above are looked for
FURTHER: tuple[Family, ...] = (
    LABELS,
    PRE_NORM_STACK,
    DECODER,
    SMOOTH_NETWORK,
    SMOOTH_TRANSFORMER,
    GATED_NETWORK,
    GATED_TRANSFORMER,
    SQUARED_NETWORK,
    NEAR_NETWORK,
)


@cache
def third_parties() -> tuple[Family, ...]:
    """Families that other packages offer; one with the name of a native family is refused."""
    found: list[Family] = []
    taken = {family.name for family in (*NATIVE, *FURTHER)} | {"auto"}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        family = entry.load()()
        if family.name in taken:
            raise ValueError(
                f"The entry point {entry.name!r} ({entry.value}) offers a family {family.name!r}, which exists already. "
                "Give it a name of its own, or uninstall that package."
            )
        taken.add(family.name)
        found.append(family)
    return tuple(found)


def all_families() -> tuple[Family, ...]:
    """Native families and those of others."""
    return (*NATIVE, *FURTHER, *third_parties())


def family_names() -> tuple[str, ...]:
    """What ``family=`` may be."""
    return tuple(dict.fromkeys(["auto", *(family.name for family in all_families())]))


def named(name: str) -> Family:
    """The family of this name; of attention, the one for one head."""
    for family in all_families():
        if family.name == name:
            return family
    raise ValueError(f"family is {name!r}; it must be one of {', '.join(family_names())}.")


def family_of(model: Model) -> str:
    """The name of the family that a model belongs to."""
    return next((family.name for family in all_families() if family.made(model)), ONE_HEAD.name)


def by_law(wished: str, width: int) -> tuple[Family, ...]:
    """Families beyond the classical ones, as far as they are wished for: the one whose first tests are cheapest first.

    One whose law is another's and more is a special case of it, and stands before it.
    """
    families = [family for family in (*FURTHER, *third_parties()) if wished in ("auto", family.name, family.kin)]

    def prices(family: Family) -> list[int]:
        return [test.price(width) for test in family.law]

    def place(family: Family) -> tuple[list[int], int]:
        laws = {test.name for test in family.law}
        general = [prices(other) for other in families if other.law and {test.name for test in other.law} < laws]
        return min([*general, prices(family)]), -len(family.law)

    return tuple(sorted(families, key=place))


def fact_of(desk: Desk, test: Test) -> Fact:
    """What a test of a law found; what was asked once is not asked again."""
    for fact in desk.facts:
        if fact.test == test.name:
            return fact
    fact = test.examine(desk)
    desk.record(fact)
    return fact


def settled(desk: Desk) -> RefusalError | None:
    """The reason, if the tests that a family's law failed on exclude all other families as well."""
    wished = desk.wishes.family
    reasons = (family.settled(desk) for family in (*FURTHER, *third_parties()) if wished in ("auto", family.name))
    return next((reason for reason in reasons if reason is not None), None)
