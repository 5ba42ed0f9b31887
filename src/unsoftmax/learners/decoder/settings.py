"""Every number that the learner of decoders goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unsoftmax.learners.decoder.nodes import Nodes
from unsoftmax.precision.law import Floor


@dataclass(frozen=True, slots=True)
class Settings:
    """What the learner of decoders goes by.

    What no comment derives was measured by ``benchmarks/decoders.py``.
    """

    # biased
    crowd: int = 2**26  # numbers in one call, questions and answers: half a gigabyte
    deep: float = 12000.0  # longest nodes that are tried: many layers add more, and take longer ones
    rows_by: tuple[int, int] = (
        3,
        12,
    )  # tokens that the table of positions is read from: the fewest, and where one sequence tells it all
    many: int = 64  # heads from which on fits take minutes; 24 heads with as few answers have W to 5e-8, with twice as many to 8e-9

    # fitting
    fitting_steps: int = 80  # of a fit, at most

    # heads
    counts: int = 5  # numbers of zero tokens from which answers are extrapolated; three magnify errors 5 times, five 220 times
    shorter: float = 0.4  # each so much shorter than the one before
    rows: int = 12  # last tokens of the product design: so many of one part
    columns: int = 3  # times so many of the other
    probes: int = 1  # times as many answers as exact ones would take
    attempts: int = 4  # frames that are tried, each with more last tokens to choose from than the one before
    step: float = 0.2  # from the first key to the others of the closed world, in radii: short enough that heads keep their names
    alone: tuple[int, int] = (2, 20)  # zero tokens before last tokens without a key

    # limit
    single: bool = False  # tokens and answers are float32
    far: float = 1e30  # length of tokens whose direction alone counts; its square must be a number
    fine: Nodes = field(default_factory=lambda: Nodes(4, 3000.0))  # limits good to 1e-11 of their size
    rough: Nodes = field(default_factory=lambda: Nodes(1, 1e7))  # to 1e-7
    certain: float = 3e-6  # misfit of fresh sequences, over what contexts change, up to which the heads explain them
    lengths: int = 7  # of nodes that are compared, each half the one before
    longer: float = 1.0  # nodes than those at which one answer comes out best
    same: float = 2.0**-40  # relative difference of answers that is rounding
    repeats: int = 1  # lengths at which last tokens alone are asked, to be averaged
    apart: float = 0.04  # of one of them and the next
    most_zeros: int = 240  # tokens in front
    accept: float = 3e-8  # what a fit may leave of answers; wrong ones leave 1e-4 and more
    errors: float = 3.0  # or times the error of an answer
    call: int = 2**22  # numbers in one call

    # recognition
    clear: float = 1e3  # errors of an answer beyond which a difference is none
    fades: float = 1.6  # at least, what a key changes behind four times as many zero tokens: four times where scores are mild

    # order
    order_probes: int = 1  # times as many answers as exact ones would take
    epsilons: tuple[float, ...] = tuple(10.0 ** (-0.25 * j) for j in range(12, 49))  # from 1e-3 to 1e-12
    sure: float = 6.0  # errors by which the next best layers must explain less
    order_length: int = 16  # tokens behind the short one, where every position is answered
    nearer: float = 1.0  # by which nodes are shorter where differences are small
    order_zeros: int = 40  # in front of the short token
    short: tuple[float, ...] = (1e-8, 1e-9, 1e-7)  # lengths of its entries, the next where layers do not come out
    match: float = 0.05  # what a head may miss its layer's token by, relative; tokens of other layers are off by 0.3 and more

    # polish
    blocks: tuple[int, ...] = ()  # lengths of blocks of keys that are asked for the last fit
    each: int = 0  # of every length, before every last token
    enough: float = 2.0  # errors of an answer that may be left
    helps: float = 0.99  # what a step must leave of what was left before, for another one to be made
    outlying: float = 30.0  # times the median error of an answer beyond which one is left out
    draws: int = 0  # resampled errors
    bar: float = 2.4  # root mean squares in a half-width: two for 95%, and a fifth for what is larger at one distance than at most
    stated: tuple[float, ...] = (0.0, 1.0, 10.0, 100.0)  # distances whose scores the bars are for
    polish_steps: int = 12
    products: int = 80  # with the derivatives in a step
    solved: float = 1e-6  # what a step may leave of the gradient
    ridge: float = 1e-9  # of a unit diagonal, so that directions that nothing shows stay put
    largest: int = 10_000  # parameters that are fitted
    most_rows: int = 2500  # answers from which the rough inverse is made

    # readings
    zeros: int = 3  # in front of what is read: they make raised scores absolute

    # scores
    spare: int = 2  # anchors beyond the rank
    curves: int = 3  # of them are read at so many distances that the base shows
    turns: tuple[int, ...] = (1, 2, 4, 12, 40, 110)  # distances of anchors: fast rotations show at near ones, slow ones at far ones
    near: tuple[int, ...] = (1,)  # distances at which all tokens are read against the anchors
    partners: int | None = None  # anchors that all other tokens are read against; None for all
    farthest: int = 110  # distance at which anchors are read
    more: float = 1.4  # tokens over directions
    cliff: float = 3e-5  # singular values of values that end below this, relative, end a rank
    explained: float = 1e-3  # what a fit of scores may leave of them; right ones leave 1e-6 and less, wrong ones 1e-2 and more
    spread_steps: int = 3  # of a fit of all readings of a group
    channels: int = 16  # pairs of anchors and heads by which the base is found

    # values
    # from the first key towards a new direction, in radii; the first whose fit explains the answers
    steps: tuple[float, ...] = (0.4, -0.4, 0.15, -0.15)
    behind: tuple[int, int] = (6, 40)  # zero tokens, in turn

    # weak
    weak: float = 0.03  # what zero tokens change in answers, beside what they would without scores, below which scores are weak
    weak_tokens: int = 2  # last tokens that show weak heads; each shows keys and outputs but for a few
    weak_gap: float = 30.0  # by which less is left with the right number of heads than with one less
    weak_drop: float = 0.25  # of the singular value before: below that, a mixture of heads is one of them
    # random mixtures tried for each head (a right rank shows in most of the first few), and rounds of each
    weak_starts: int = 25
    weak_first: int = 6
    weak_rounds: int = 150

    # world
    several: tuple[int, ...] = (1, 4, 16, 64)  # zero tokens in front of the pairs, in turn
    shortest: int = max(several) + 2  # tokens of the longest sequences that no step can do without


LOGITS = Settings()

TURNS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 90, 110)

ROUGHLY = replace(  # every position answered: a start from one node, which a fit of exact answers at all positions follows
    LOGITS,
    fine=Nodes(1, 3e7),  # limits good to 6e-8
    rough=Nodes(1, 3e7),
    accept=1e-5,
    turns=TURNS,
    near=TURNS,
    partners=3,
)


@dataclass(frozen=True, slots=True)
class Everywhere:
    """What the fit at all positions goes by, measured by ``benchmarks/decoders.py everywhere``."""

    rough: float = 1e-7  # error of one output of the answers from one node that come first
    tokens: int = 100  # in a sequence: distances up to that are seen
    zeros: int = 3  # in front of them
    times: float = 2.0  # numbers in answers for each parameter
    orders: int = 4  # of the tokens, at least
    steps: int = 5  # at most; two arrive from a start that is good to 1e-5
    helps: float = 0.8  # what a step must leave of what was left before, for another one
    enough: float = 1.5  # errors of an answer that may be left
    ridge: float = 1e-12  # of a unit diagonal, so that gauges stay put
    held: int = 2**25  # numbers in derivatives that are held at a time


EVERYWHERE = Everywhere()

SINGLE = replace(  # answers in float32
    LOGITS,
    single=True,
    far=1e12,
    fine=Nodes(3, 1024.0),
    lengths=14,
    longer=2.0,  # fits average rounding, and not the error of the polynomial, which is eight times smaller then
    same=2.0**-17,
    repeats=8,
    most_zeros=60,
    accept=0.0,
    certain=0.01,
    counts=3,
    shorter=1.0,
    rows=24,
    columns=4,
    probes=3,
    clear=10.0,
    order_probes=6,
    nearer=10.0,
    enough=0.0,
    helps=0.995,
    outlying=4.0,
    draws=3,
    products=60,
    solved=1e-3,
    short=(3e-6, 1e-6, 1e-5),
    match=0.15,
    behind=(1, 4),
    cliff=0.05,
    spread_steps=1,
    explained=0.03,
    spare=8,
    turns=(1, 3, 10, 35, 110),
    blocks=(1, 3, 9, 27, 64, 110),
    each=3,
    curves=4,
    steps=(0.8, -0.8, 0.4, -0.4),
)


def settings_for(floor: Floor) -> Settings | None:
    """What suits answers of this precision; None where nothing does."""
    return LOGITS if floor.exact else SINGLE if floor.single else None
