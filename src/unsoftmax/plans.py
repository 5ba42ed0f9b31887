"""``plan``: the bill of a recovery before it is paid; one function for Python and the command line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unsoftmax.bills import Bill
from unsoftmax.demo import DEFAULTS, demo_families
from unsoftmax.families import Size, all_families, family_names, family_of, named
from unsoftmax.models.base import is_model
from unsoftmax.oracles.adapt import as_oracle
from unsoftmax.planning import plan_fixed, plan_noisy

GUESSED = "Counted for attention; `unsoftmax diagnose` tells the family of a target, and --family counts for another."


def plan(
    target: Any,
    *,
    width: int | None = None,
    family: str = "auto",
    neurons: int | None = None,
    rank: int | None = None,
    heads: int | None = None,
    outputs: int | None = None,
    adaptive: bool = True,
    max_norm: float | None = None,
    accuracy: float | None = None,
    noise: float | None = None,
    check: int | None = None,
    everywhere: bool = False,
) -> Bill:
    """What recovering a target will cost, by phase, in queries and tokens; it is asked nothing but its metadata.

    Args:
        target: as for ``recover``, or a name as for ``us.open``.
        width: token length, where the target does not tell it.
        family: what to count for; "auto" is that of a model of ours, a demo or a file of weights, else attention.
        neurons: hidden units of the network, for the families that end in one ("transformer", "ffn", …).
        rank: rank of the score matrices; a range is told if left out.
        heads: number of heads.
        outputs: numbers in an answer, where the target does not tell it.
        adaptive: False draws all probes before the first answer.
        max_norm: longest token, for noisy answers.
        accuracy: wanted rms error of W; with ``noise`` and ``max_norm`` tells the queries that takes.
        noise: standard deviation of an answer's error.
        check: fresh sequences of the held-out check, as for ``recover``.
        everywhere: every position is answered, as far as that makes a difference to the family.

    >>> import unsoftmax as us
    >>> us.plan("demo:attention,width=16", rank=16, heads=1).queries < 16 * 16 + 16 + 400
    True
    """
    known = target if is_model(target) else _behind(target, width)
    oracle = _opened(target, width)
    told = getattr(oracle, "outputs", None)
    guessed = family == "auto" and known is None
    if family == "auto":
        family = _demo_family(target) or ("attention" if known is None else family_of(known))
    _check(oracle.width, family, rank, heads, neurons, adaptive, (accuracy, noise, max_norm))
    if accuracy is not None and noise is not None and max_norm is not None:
        made = plan_noisy(oracle.width, accuracy=accuracy, noise=noise, max_norm=max_norm)
    elif not adaptive:
        made = plan_fixed(oracle.width, rank=rank)
    else:
        if known is not None and family != "attention":
            sizes = known.sizes(None)
            neurons, told = neurons or sizes.neurons, known.outputs
            if named(family).many_heads:
                heads, rank = heads or sizes.heads, rank or sizes.rank
        if neurons is None and "neurons" in named(family).needs:
            raise ValueError("The bill of a network grows with its hidden units: say how many to count for (`neurons`, --neurons).")
        made = named(family).bill(
            Size(width=oracle.width, outputs=outputs or told or 1, rank=rank, heads=heads, neurons=neurons, everywhere=everywhere)
        )
    made = made if check is None else made.with_check(check)
    return replace(made, assumptions=(*made.assumptions, GUESSED)) if guessed else made


def _check(
    width: int,
    family: str,
    rank: int | None,
    heads: int | None,
    neurons: int | None,
    adaptive: bool,
    noisy: tuple[float | None, float | None, float | None],
) -> None:
    """Refuse settings that do not go together."""
    accuracy, noise, max_norm = noisy
    if family not in family_names()[1:]:
        raise ValueError(f"There is no bill for the family {family!r}; there are {', '.join(family_names()[1:])}.")
    if rank is not None and rank > width:
        raise ValueError(f"The rank is {rank}, but the width is only {width}.")
    kind = named(family)
    if (not kind.many_heads and heads not in (None, 1)) or (family != "attention" and (not adaptive or accuracy is not None)):
        raise ValueError(f"Heads, fixed probes and an accuracy are for attention alone, but the family is {family}.")
    if neurons is not None and "neurons" not in kind.needs:
        networks = [other.name for other in all_families() if "neurons" in other.needs]
        raise ValueError(f"Neurons are for the families {', '.join(networks)}, but the family is {family}.")
    if (accuracy is None) != (noise is None) or (accuracy is not None and max_norm is None):
        raise ValueError("An accuracy, the noise and a norm limit go together: the bill depends on all three.")


def _opened(target: Any, width: int | None) -> Any:
    if isinstance(target, str):
        from unsoftmax.opening import open

        return open(target, width=width)
    return as_oracle(target, width)


def _demo_family(target: Any) -> str | None:
    """The family of a demo that is named for it; its model alone may tell less, as labels are answers of a head."""
    name = target.removeprefix("demo:").split(",")[0] if isinstance(target, str) else ""
    return name if name not in DEFAULTS and name in demo_families() else None


def _behind(target: Any, width: int | None) -> Any:
    if not isinstance(target, str):
        return None
    from unsoftmax.opening import model_behind

    return model_behind(target, width)
