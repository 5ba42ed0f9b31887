"""``plan``: the bill before it is paid, by phase, without asking the target anything."""

from __future__ import annotations

from unsoftmax.bills import Bill, Phases, total
from unsoftmax.errors import check_positive
from unsoftmax.learners import scalar_heads, vector_heads
from unsoftmax.learners.noisy import queries_for
from unsoftmax.learners.non_adaptive import FIXED
from unsoftmax.learners.non_adaptive import price as fixed_price
from unsoftmax.learners.one_head import price as one_head_price
from unsoftmax.proof.fresh import COUNT, tokens_of_check
from unsoftmax.proof.rare import lengths
from unsoftmax.proof.settings import PROOF
from unsoftmax.recorded import CHECKS

SLICES_AGAIN = 4.0  # once in 46 layers of low rank it was more than that many times the price, and then less than five times
ORDER: Phases = [("order", 2, 8)]
FIRST_LOOK: Phases = [("first look", 6, 6)]
SENTINELS: Phases = [("sentinels", 4, 8)]
ONE_TOKEN = (
    PROOF.sized * PROOF.per_length + PROOF.natural * PROOF.per_natural + 1
)  # fresh sequences where one token is all that was wished for
CHECK: Phases = [
    ("held-out check", COUNT + 1, PROOF.tokens + PROOF.longest)
]  # one sequence tells at first how many tokens are taken


def plan_attention(width: int, *, outputs: int = 1, rank: int | None = None, heads: int | None = None) -> Bill:
    """The bill for an attention target without a norm limit, answered exactly."""
    if heads is not None and heads > 1:
        return _plan_heads(width, outputs, rank, heads)
    low = _phases(width, outputs, rank if rank is not None else 1)
    high = _phases(width, outputs, rank if rank is not None else width)
    assumptions = [
        "Exact answers at the last position; no query bias (one adds about the width in queries).",
        f"Answers are {'single numbers' if outputs == 1 else f'vectors of {outputs} numbers'}.",
    ]
    if rank is None:
        assumptions.append("The rank is unknown: the least is for rank 1, the most for full rank.")
    if heads is None:
        assumptions.append("One head; several heads cost more.")
    return Bill(
        phases=tuple(low if rank is not None else high),
        low=sum(queries for _, queries, _ in low),
        high=sum(queries for _, queries, _ in high),
        assumptions=tuple(assumptions),
    )


def _plan_heads(width: int, outputs: int, rank: int | None, heads: int) -> Bill:
    """The bill for several heads in general position; one total where the answers do not decide over the number of questions."""
    if outputs == 1:
        low = [(name, queries[0], tokens[0]) for name, queries, tokens in scalar_heads.price(width, heads)]
        high = _scalar_most(width, heads)
        open_ends = (
            "The range is for what only the answers tell: how far bisection goes, which heads are measured twice, biases c, "
            "and one line on which the heads do not separate."
        )
    else:
        full = min(width, outputs)
        least, most = (rank, rank) if rank is not None else (1, width)
        low = vector_heads.price(width, outputs, heads, _or_full(least, width), biases=False)
        high = vector_heads.price(width, outputs, heads, _or_full(most, width), value_rank=full, biases=False)
        open_ends = "Without biases c."
        if heads > full:
            low, high = [_projected(width, outputs, heads, end) for end in (0, 1)]
            open_ends = "More heads than an answer or a token has numbers: the scores come from one mixture of the outputs."
        elif least < width:
            steep = {"slices": SLICES_AGAIN}  # steps at which a head changed sides are asked again, turned round or shorter
            high = [(name, int(steep.get(name, 1.0) * q), int(steep.get(name, 1.0) * t)) for name, q, t in high]
            extra = -(-width // min(width, max(1, outputs // (2 * heads)))) + 16  # saturated pairs; biases c
            high = [*high, ("pairs, biases", extra, 2 * extra)]
            open_ends = (
                "The least is for values V of the same rank as W, the most for V of full rank, biases c and steps asked again."
            )
    low, high = (_framed(width, [*ORDER, *end]) for end in (low, high))
    answers = "single numbers" if outputs == 1 else f"vectors of {outputs} numbers"
    words = (
        f"Exact answers at the last position, {answers}; {heads} heads in general position. "
        "Heads that share scores or values cost more.",
        open_ends,
    )
    shown = high if rank is None else low
    return Bill(phases=tuple(shown), low=total(low), high=total(high), assumptions=words)


def _scalar_most(width: int, heads: int) -> Phases:
    """Scalar answers with biases, every head measured twice, on the second line tried."""
    bill = [(name, queries[1], tokens[1]) for name, queries, tokens in scalar_heads.price(width, heads, biased=True)]
    return [(name, queries, tokens) if name == "one token" else (name, 2 * queries, 2 * tokens) for name, queries, tokens in bill]


def _or_full(rank: int, width: int) -> int | None:
    """A rank as the price of vector heads takes it."""
    return None if rank >= width else rank


def _projected(width: int, outputs: int, heads: int, end: int) -> Phases:
    """Heads that cannot be switched one by one: two vain tries, then those of scalar answers, and the values."""
    tries = [("values", width + 2, width + 2), ("heads", (32, 256)[end], (64, 512)[end])]
    least = [(name, queries[0], tokens[0]) for name, queries, tokens in scalar_heads.price(width, heads)]
    scalar = _scalar_most(width, heads) if end else least
    slices = max(heads * width + 8, int(1.5 * heads * width * (width + outputs + end) / outputs) + 8)
    return [*tries, *scalar, ("slices", slices, 4 * slices), ("self-check", 6, 30)]


def plan_network(family: str, width: int, *, neurons: int | None = None, outputs: int = 1, rank: int | None = None) -> Bill:
    """The bill for a "transformer" or "ffn" of ``neurons`` hidden units, or for "attention-behind-network", answered exactly."""
    from unsoftmax.learners import behind_network
    from unsoftmax.learners.ffn import FFNLearner
    from unsoftmax.learners.transformer import TransformerLearner

    if family == "attention-behind-network":
        prices = behind_network.price(width, rank)
        words = "One head before a network of any kind, which is not learned; no residual (one adds about 70 times the width)."
        check: Phases = [("held-out check", CHECK[0][1], (CHECK[0][1] + CHECK[0][2]) // 2)]  # half of it is one token each
    else:
        if neurons is None:
            raise ValueError(f"The bill of a network grows with its hidden units: tell `neurons` for the family {family!r}.")
        ffn = family == "ffn"
        prices = FFNLearner().price(width, neurons, outputs) if ffn else TransformerLearner().price(width, neurons, outputs, rank)
        words = f"A ReLU network with one hidden layer of {neurons} neurons, and answers of {outputs} number{'s'[: outputs != 1]}."
        check = [("held-out check", ONE_TOKEN, ONE_TOKEN)] if ffn else CHECK
    low, high = ([(name, queries[end], tokens[end]) for name, queries, tokens in prices] for end in (0, 1))
    low = [*FIRST_LOOK, *low, *check]
    most = 200 + 4 * width  # tokens of a diagnosis: its sequences are short, but for a few of up to 128
    high = [*FIRST_LOOK, ("diagnosis", most, 8 * most), *high, *SENTINELS, *CHECK]
    open_ends = (
        "The least is for a family that is told (recover --family), the most for one that is found out, and steps asked again."
    )
    return Bill(phases=tuple(high), low=total(low), high=total(high), assumptions=(words, open_ends))


def plan_noisy(width: int, *, accuracy: float, noise: float, max_norm: float) -> Bill:
    """How many queries an rms error of ``accuracy`` per entry of W takes, for this noise and norm limit."""
    check_positive(accuracy=accuracy, noise=noise, max_norm=max_norm)
    learning = queries_for(accuracy, noise=noise, max_norm=max_norm, width=width)
    phases = [*FIRST_LOOK, ("calibration", 30, 30), ("values and scores", learning, learning * 65), *CHECK]
    asked = total(phases)
    words = ("One head of full rank with values of size one and scores of moderate size; the run measures both and plans again.",)
    return Bill(phases=tuple(phases), low=asked, high=asked, assumptions=words)


def plan_fixed(width: int, *, rank: int | None = None) -> Bill:
    """The bill where all probes are drawn before the first answer; the check is exported with them."""
    phases = [*fixed_price(width, rank), ("held-out check", CHECKS, CHECKS * FIXED.check_length)]
    asked = total(phases)
    live = CHECK[0][1] + len(lengths(width))
    assumptions = [
        "One round of scalar or vector answers, no query bias.",
        f"The check is that of recorded answers; `recover(adaptive=False)` asks a live target {live} fresh sequences.",
    ]
    if rank is None:
        assumptions.append("The rank is unknown, so the probes suffice for full rank; --rank makes them fewer.")
    return Bill(phases=tuple(phases), low=asked, high=asked, assumptions=tuple(assumptions))


def _phases(width: int, outputs: int, rank: int) -> Phases:
    return _framed(width, one_head_price(width, outputs=outputs, rank=rank))


def _framed(width: int, learning: Phases) -> Phases:
    """What the driver asks around a learner: a first look, sentinels in longer runs, the held-out check.

    The check is that of a target in this process; over a wire it has ``PROOF.tokens``, and no very long sequences.
    """
    watch = SENTINELS if total(learning) >= 400 else []
    more, longer = lengths(width), tokens_of_check(width) - PROOF.tokens
    check = [(name, queries + len(more), tokens + longer + sum(more)) for name, queries, tokens in CHECK]
    return [*FIRST_LOOK, *learning, *watch, *check]
