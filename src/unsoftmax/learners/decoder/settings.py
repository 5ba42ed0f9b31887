"""Every number that the learner of decoders goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of decoders goes by.

    What no comment derives was measured by ``benchmarks/decoders.py``.
    """

    # fitting
    fitting_steps: int = 80  # of a fit, at most

    # heads
    attempts: int = 4  # frames that are tried, each with more last tokens to choose from than the one before
    step: float = 0.2  # from the first key to the others of the closed world, in radii: short enough that heads keep their names
    alone: tuple[int, int] = (2, 20)  # zero tokens before last tokens without a key

    # limit
    far: float = 1e30  # length of tokens whose direction alone counts
    call: int = 2**22  # numbers in one call

    # order
    order_zeros: int = 40  # in front of the short token
    short: tuple[float, ...] = (1e-8, 1e-9, 1e-7)  # lengths of its entries, the next where layers do not come out
    match: float = 0.05  # what a head may miss its layer's token by, relative; tokens of other layers are off by 0.3 and more

    # polish
    built: int = 2  # normal matrices at most
    polish_steps: int = 20  # that keep one normal matrix
    ridge: float = 1e-12  # of a unit diagonal, so that directions that nothing shows stay put
    largest: int = 10_000  # parameters whose normal matrix is built
    chunk: int = 1024  # answers whose derivatives are held at a time

    # readings
    zeros: int = 3  # in front of what is read: they make raised scores absolute

    # scores
    near: tuple[int, ...] = (1, 2, 4)  # distances at which all tokens are read against the anchors
    farthest: int = 110  # distance at which anchors are read
    more: float = 1.4  # tokens over directions
    starts: int = 8  # at which a group of heads is fitted to its anchors, the first from waves, the others drawn
    explained: float = 1e-3  # what a fit of scores may leave of them; right ones leave 1e-6 and less, wrong ones 1e-2 and more
    channels: int = 16  # pairs of anchors and heads by which the base is found

    # values
    # from the first key towards a new direction, in radii; the first whose fit explains the answers
    steps: tuple[float, ...] = (0.4, -0.4, 0.15, -0.15)
    behind: tuple[int, int] = (6, 40)  # zero tokens, in turn

    # world
    several: tuple[int, ...] = (1, 4, 16, 64)  # zero tokens in front of the pairs, in turn
    shortest: int = max(several) + 2  # tokens of the longest sequences that no step can do without


LOGITS = Settings()
