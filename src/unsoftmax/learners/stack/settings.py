"""The numbers of the learner that follow from the precision of the answers, in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from unsoftmax.errors import TooNoisyError
from unsoftmax.models import Floats
from unsoftmax.results import Floor

Sight = Literal["causal", "all"]  # what tokens see of each other: the earlier ones, or all


@dataclass(frozen=True, slots=True)
class Settings:
    """How many answers each step asks for beyond what it needs, and what counts as zero; measured by ``benchmarks/stacks.py``.

    Attributes:
        scale: length of tokens over that of normalised ones.
        nodes: lengths, each twice the one before, from which the limit is extrapolated; one where tokens may be long enough.
        inside: share of the coordinates that the last tokens of the first steps live in.
        rho: length of steps from the last token to a key, in radii.
        tries: frames drawn before the heads are given up.
        first: last tokens of the first batch.
        spare: last tokens per fit, beyond its share of the heads.
        share: last tokens per head and fit.
        ratios: copies of the key and of the last token, in turn, where weights of single keys are fitted.
        tangents: derivatives beyond the number of heads.
        difference: angle over which derivatives are taken.
        central: derivatives from both sides.
        silent: singular values below this, relative, are rounding.
        nothing: answers below this are rounding.
        floor: relative misfit at which a fit has arrived.
        settled: relative misfit at which a fit to all answers ends; above it, where steps stop helping.
        accept: relative misfit up to which it is one; wrong ones leave 1e-4 and more.
        explained: the same where errors of what was found before add to rounding; fits that go wrong leave some 1e-2.
        straight: how far scores may be from linear in the last token; capped or normalised ones are off by 0.01 and more.
        cliff: singular values of values and scores that end below this, relative, end a rank.
        fill: unknown weights per clean output and question.
        over: answers per unknown where values of new directions are fitted.
        finite: scale of the one key that shows the order of layers.
        order: relative misfit up to which an order explains the answers; they carry ``1 / finite`` of it.
        theta: how near its entries must be to zero and one.
        quiet: change of answers, times ``finite``, that is rounding; where layers see each other it is of order one.
        same: relative difference up to which two answers are one.
        certain: misfit of fresh sequences, over the root mean square of what keys change, up to which the heads explain them.
        spread: answers per unknown where values at further outputs are solved for.
        keys: per last token, over what the rank of its scores takes.
        turn: angle between the first step and each of the others.
        calm: scores, root mean square, up to which a fit finds its way from one step to the next.
        crowd: last tokens in one sequence, where every position is answered.
        nearest: over the length of normalised tokens; a third of it cubed is the rounding of an answer.
    """

    scale: float = 2.0**60
    nodes: int = 1
    inside: float = 0.4
    rho: float = 0.85
    tries: int = 6
    first: int = 5
    spare: int = 1
    share: float = 1.2
    ratios: tuple[tuple[int, int], ...] = ((1, 4), (4, 1))
    tangents: int = 0
    difference: float = 1e-4
    central: bool = False
    silent: float = 300 * 2.0**-52
    nothing: float = 1e-12
    floor: float = 1e-14
    settled: float = 3e-13
    accept: float = 1e-9
    explained: float = 1e-7
    straight: float = 1e-5
    cliff: float = 1e-6
    fill: float = 0.6
    over: float = 2.0
    spread: float = 1.3
    finite: float = 2.0**26
    order: float = 1e-4
    theta: float = 1e-3
    quiet: float = 1e-4
    same: float = 1e4 * 2.0**-52
    certain: float = 1e-6
    keys: float = 1.0
    turn: float = 0.4
    calm: float = 1.5
    crowd: int = 24
    nearest: float = 2.0**18

    @property
    def odds(self) -> Floats:
        """How often the key stands for each time that the last token does, at each of the ratios."""
        return np.array([key / reader for key, reader in self.ratios])

    def readers(self, heads: int) -> int:
        """Last tokens per fit of ``heads`` sigmoids; with two ratios it has no solution below the number of heads.

        Errors grow with the number of heads, and so does what is asked beyond the need.
        """
        return max(4, int((self.share + 0.4 * _many(heads)) * heads) + self.spare)

    def directions(self, rank: int, heads: int) -> int:
        """Directions that show a rank and give its range: barely more than the rank would be badly conditioned.

        Errors grow with the number of heads, and so does what is asked beyond the need.
        """
        return max(rank + 3, int((1.2 + 0.3 * min(1.0, heads / 16)) * rank) + 1)

    def answers(self, ranks: int, heads: int) -> int:
        """Answers from which values of ``ranks`` in all are solved at further outputs."""
        return int((self.spread + 0.4 * _many(heads)) * ranks + 4)

    def partners(self, ranks: int, free: int, heads: int) -> int:
        """Last tokens per new direction, for values of ``ranks`` in all and ``free`` outputs beyond one per head.

        From a single one, a head's weight cannot be told from the length of its values.
        """
        return max(3, int((self.over + 0.5 * _many(heads)) * ranks / max(1, free)) + 1)

    def rows(self, rank: int, heads: int, sight: Sight | None = None) -> int:
        """Keys per last token once the range of every head's scores is known.

        More where tokens are keys for each other, which are far apart; fewer of them where a token sees the earlier ones alone:
        most answers then tell the weights of fewer keys, and tell them better.
        """
        if sight is not None:
            return int((1.5 if sight == "causal" else 2.0) * rank) + 2
        return int(self.keys * max(rank + 2, int((1.25 + 0.55 * min(1.0, heads / 16)) * rank)))


def _many(heads: int) -> float:
    """Zero for sixteen heads, which a fit to all answers makes exact in the end, one for eighty, which are too many for it."""
    return min(1.0, max(0, heads - 16) / 64)


@dataclass(frozen=True, slots=True)
class Fixed:
    """What the steps go by whatever the precision of the answers.

    What no comment derives was measured by ``benchmarks/stacks.py``.
    """

    # assemble
    blind: float = 3.0  # score of a token for itself over those for others, above which it is no good last token in a crowd
    calm_draws: int = 200  # sparse tokens, of which the calmest stand in for such ones
    apart: float = 1.3  # angle between last token and keys

    # certificate
    check_keys: tuple[int, ...] = (1, 2, 4, 8)  # of the fresh sequences that the heads must explain

    # circles
    grid: int = 24  # points that a circle starts with
    in_a_row: int = 4  # points in a row that one piece explains: one more than it has unknowns
    # halvings of what is not clear yet; narrower gaps hold bends that nearly coincide, which other circles show apart
    halvings: int = 14

    # crowd
    crowd_width: int = 24  # narrower tokens leave too few outputs to those that are read at once
    crowd_heads: int = 32  # weights of more heads on tokens of three dimensions are nearly dependent
    plane: int = 5  # heads whose weights are independent on a circle: singular values 1e-2 at 4, 1e-5 at 16, there 1e-2 in space
    crowd_scores: float = 5.0  # of the strongest head for a step of one radius, up to which a crowd is all over the sphere
    settling_questions: int = 4  # in which tokens of the crowd stand more or less often

    # gathered
    blurred: float = 1e3  # times the error of a weight, up to which columns may err where tokens see each other; 1e2 is usual

    # heads
    loud: float = 1.9  # scores, root mean square of all heads by a first look, above which steps are shortened
    typical: float = 1.1  # to
    shorter: float = 3.0  # scores of the strongest head, root mean square, that steps are shortened to
    too_strong: float = 4.5  # and above which they are
    circle: int = 3  # further last tokens on a circle where scores must be linear
    seen: float = 10.0  # scores up to which a weight still tells them
    starts: int = 6  # of them are tried, best first
    narrowest: int = 8  # coordinates of last tokens: a sphere of four dimensions beside the tangents
    few_tangents: int = 2  # to all last tokens, where they have fewer coordinates than heads take
    few_spare: int = 4  # derivatives beyond one per head there
    mixtures: int = 40  # of derivative matrices, of which the pencil with the best eigenvectors is taken

    # inputs
    input_turns: tuple[float, ...] = (0.5, -0.5, 0.17, -0.17)  # angles between a known key and the direction in question
    unlike: float = (
        8.0  # times the median misfit of directions, which share their errors, above which one is asked again; 2.4 is usual
    )
    input_steps: int = 40  # of a fit of scores, at most
    halvings_of_steps: int = 6  # of one of them, to a quarter each time
    inner: float = 1e-8  # what is left of a gradient, squared, when a step is good enough
    inner_steps: int = 40  # products of a step, at most
    own: float = 2.0**24  # numbers in normal matrices of single directions, at most
    longest: float = 2.0  # change of a score in one step

    # least
    ridge: float = 1e-13  # of columns of length one, so that nothing is singular
    memory: float = 2.0**26  # numbers in a stack of systems that are solved at once

    # learner
    attempts: int = 2  # frames in which everything is read, where a later step fails; one more where every position is answered
    very_long: float = 2.0**20  # answers above that hold a very long token

    # neurons
    far: float = 2.0**20  # length of tokens: what layers add turns them by one part in that, and rounding of answers is as small
    most_circles: int = 3  # further rounds of circles per dimension
    arcs: int = 6  # short pieces of circles for a first look, at most
    arc: float = 0.01  # angle between their points
    bent: float = 1e-5  # what a bend leaves of four points, of their size; smooth neurons leave about ``arc**3 / 20``
    fresh: int = 48  # points that the neurons must explain before they are all
    alike: float = 1e-3  # angle between jumps of one neuron
    close: float = 1e-4  # error on fresh points, of their spread, up to which neurons explain them; a fit over all answers follows
    flat: float = 1e-4  # distance of a neuron's bends from one plane, over their spread

    # student, smooth_mlps
    smooth: tuple[str, ...] = ("gelu", "silu", "gelu_tanh")  # activations that are tried
    farther: float = 2.0**26  # length of tokens: what layers add turns them by as much as rounding does
    narrow: int = 8  # neurons of the first student; each further one has half as many again
    most_unknowns: int = 640  # of a student: a step takes their cube, and the fit of everything has twice as many
    hopeful: float = 0.05  # share of a lesson that a student of nearly enough neurons leaves
    per_number: float = 3.0  # numbers in answers for each parameter of a student
    student_starts: int = 3  # of each student and activation
    more_starts: int = 8  # where the best is nearly there
    nearly: float = 3e-4  # share of a lesson that such a one leaves
    fully: float = 1e-2  # share of what a student may leave at which it is pruned
    further: int = 2  # wider students after one that was nearly wide enough
    lessons: int = 200  # steps, at most
    damping: float = 1e-2  # of the first step, relative to the diagonal
    tries: int = 12  # dampings of a step, each four times the one before
    slow: float = 1e-3  # share of the misfit by which a step must lower it
    settling: int = 40  # steps before that counts
    wild: float = 1e3  # entries of a step that leads nowhere
    dependent: float = 1e-10  # singular values of the hidden layer below that share are rounding
    explained: float = 1e-6  # misfit of a student, over its lesson, up to which it has learned it
    candidates: int = 3  # neurons that are tried for removal before all are needed

    # order
    context: int = 2  # random keys beside the one in question
    context_readers: int = 3  # last tokens behind it, where every position is answered
    more: int = 3  # times that contexts are doubled where errors hide whether an entry of the order is whole
    clear: float = 30.0  # errors of an entry beyond which it is plainly not whole

    # polish
    polish: float = 2.0**28  # numbers, answers of all heads together, up to which all heads are fitted to all answers at once

    # recognition
    price: int = 12  # questions of the recognition
    spare: int = 8  # answers beyond what an ellipsoid has unknowns
    plainly: float = 32.0  # times what blocks add, above which an entry that comes out is one that was clipped
    apart_by: float = 32.0  # what blocks add may be over what shows of it at other outputs, and layers over one
    long: float = 2.0**10  # at which epsilon does not show
    grown: float = 1e-3  # relative difference from the scale that outputs at nonzero coordinates of the last token may have

    # rehearsal
    rehearsals: int = 3
    bar: float = 2.0  # 95% of errors lie within so many root mean squares
    few: float = 1.3  # root mean squares from so few rehearsals may be that much too small

    # scores
    shrink: float = 3.0  # by how much steps are shortened where scores are larger
    shortenings: int = 5  # times

    # sphere
    draws: int = 60  # sets of sparse tokens, of which the best conditioned is taken

    # values
    # angles between the first step and each of the others, over ``Settings.turn``
    turns: tuple[float, ...] = (1.0, -1.0, 0.33, -0.33, 0.1, -0.1)
    tilts: tuple[float, ...] = (0.8, 0.95, 0.98, 0.99, 0.9)  # part of the step along the frame's ``a``, over that of the first step
    sure: float = 1.5  # cost of the best other assignment of heads over that of the best

    # sigmoids
    descent: int = 60  # steps from one start, at most
    joint: int = 400  # scores, up to which all heads are fitted together once each is found
    joint_steps: int = 4  # of that
    patience: int = 8  # slow steps in a row after which a start leads nowhere
    # changes of scores, random, from which heads are looked for that the given starts did not lead to
    spreads: tuple[float, ...] = (0.3, 0.3, 0.3, 0.5, 0.5, 0.5, 0.3, 0.3, 0.8, 0.8, 0.5, 0.5)

    # whole
    round: float = 0.05  # distance from a whole number at which it is one
    epsilon: float = 1e-5  # where the fit starts; what nearly everybody uses
    # of tokens, largest first: constants turn long tokens little, so that the fit starts near
    sizes: tuple[float, ...] = (64.0, 8.0, 1.0, 0.3)
    share: float = 0.5  # answers per parameter at each size
    keys: tuple[int, ...] = (1, 2, 4)  # of the answers to which the whole stack is fitted
    rare: float = 0.25  # share of the sphere on which a neuron is rarely on or off
    sphere_points: int = 512  # that tell it
    whole_steps: int = 12  # of the fit of everything
    together: int = 32  # derivatives counted at once
    rise: float = 1e-6  # relative step of derivatives
    known: float = 1e-7  # misfit of fresh answers, over their spread about the last token, up to which the whole stack is known

    def crowd_readers(self, heads: int) -> int:
        """Last tokens of a crowd: more cost no question, and twice the heads are conditioned as well as four times."""
        return 2 * heads + 6


STACK = Fixed()
EXACT = Settings()
SINGLE = Settings(  # answers in float32
    ratios=((1, 4), (1, 1), (4, 1)),
    scale=2.0**40,
    spare=2,
    share=2.0,
    tangents=2,
    difference=0.12,
    central=True,
    silent=4 * 2.0**-23,
    nothing=1e-5,
    floor=1e-7,
    settled=1e-7,
    accept=3e-5,
    explained=3e-3,
    straight=0.1,
    cliff=2e-2,
    fill=0.3,
    over=5.0,
    spread=3.0,
    finite=2.0**12,
    order=0.2,
    theta=0.2,
    quiet=0.05,
    same=1e2 * 2.0**-23,
    certain=3e-3,
    keys=2.0,
)


NODES = replace(  # limits extrapolated from three lengths of float64 tokens, good to about 1e-10
    EXACT,
    scale=2.0**13,
    nodes=3,
    spare=2,
    difference=0.01,
    central=True,
    silent=3e-8,
    nothing=1e-7,
    floor=1e-12,
    settled=3e-11,
    accept=1e-6,
    explained=1e-4,
    straight=1e-3,
    cliff=1e-4,
    over=3.0,
    certain=1e-5,
)


def settings_for(floor: Floor, reach: float | None = None) -> Settings:
    """What fits answers of this precision, with tokens at most ``reach`` times as long as normalised ones.

    Raises:
        TooNoisyError: no setting does.
    """
    if not floor.exact and not floor.single:
        raise TooNoisyError(
            f"The answers are {floor.kind}; a stack can be read from float64 or float32 answers only. "
            "Ask the target without rounding, or in a wider number format.",
        )
    found = EXACT if floor.exact else SINGLE
    if reach is None or reach >= 4 * found.scale:  # recognition asks some tokens that are longer
        return found
    if reach < found.nearest or not floor.exact:
        least = found.nearest if floor.exact else 4 * found.scale
        raise TooNoisyError(
            f"Tokens may be {reach:.2g} times as long as normalised ones (`max_norm`); a stack is read from tokens at least "
            f"{least:.2g} times as long, at which its norms see little but directions. Raise `max_norm` to {least:.2g} times the "
            "square root of the width, or leave it out.",
        )
    nodes = 2 if reach >= found.nearest**2 else 3
    finite = min(EXACT.finite, float(np.sqrt(reach)))
    off = 2.0**6 * max(1 / finite, finite / reach)  # what the first key's own length and that of the others leave of the order
    return replace(
        EXACT,
        scale=reach / 2**nodes,
        nodes=nodes,
        same=max(EXACT.same, 2.0**10 / reach),
        finite=finite,
        theta=max(EXACT.theta, off),
        order=max(EXACT.order, off),
        quiet=max(EXACT.quiet, off),
    )
