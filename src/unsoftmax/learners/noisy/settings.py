"""Every number that learning from noisy or vouched answers goes by, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What learning from noisy or vouched answers goes by.

    What no comment derives was measured by ``benchmarks/noise.py``.
    """

    # by columns
    blurred: float = 0.2  # of the largest singular value: columns with more noise than that show no rank

    # certified
    # the last token's value must stay between those of the key and its negative, or the answer is not monotone in the score
    largest_last_value: float = 0.9
    # an answer beyond one end gives a one-sided interval; shrinking the last token mends it. beyond that the interval would be
    # finite but say nothing.
    certified_max_halvings: int = 24
    # the target's own float64 rounding, relative to the largest value; belongs to every answer beside the stated tolerance
    evaluation: float = 2.0**-46
    largest_own: float = 250.0  # keeps predicted weights finite in float64; only the choice of questions depends on it

    # constant
    questions: int = 32
    stands_out: float = 4.0  # standard errors

    # course
    climb: int = 4  # rounds of questions on the way from short tokens to long ones
    largest: int = 2**30  # numbers in all tokens of a run: 8 GiB
    loud_columns: float = 0.1  # noise in units of the largest answers, from which on columns would be blurred anyhow

    # cutting
    cuts: int = 3  # tries to cut rounded answers, each after twice as many as before

    # design
    rows_at_once: int = 20_000
    placeable: float = 0.3  # error of a score around which questions can be placed
    # 61 to 3 copies still balance it; the last token grows a little when it is brought back to its length
    design_largest_score: float = 1.5

    # fit
    fit_chunk_bytes: int = 64 * 2**20
    max_steps: int = 80
    max_rejections: int = 12
    # a step this many standard errors long changes nothing that the answers could tell
    negligible_step: float = 1e-5
    saturated: float = 0.97  # share of the largest possible answer beyond which an answer hardly depends on the score

    # further
    max_rounds: int = 12  # of further questions while W is not known; each may ask three times what was asked before
    growth: int = 4
    close_call: float = 0.7  # of the queries that the limit must hold for a further round
    reweighted: int = 4  # fits, each weighted by what the one before left of the answers
    room: float = 0.7  # of the questions that tell one head from several there must be room for

    # intervals
    # every sum below is off by a few units in the last place; this is ten thousand of them
    rounding: float = 1e-12
    # beyond this the exponential of the last token's own score leaves no information in float64
    intervals_largest_score: float = 300.0

    # judgement
    # what counts as known: a tenth of W, or scores to 0.05
    resolution: float = 0.1
    score_resolution: float = 0.05
    usual_score: float = 1.5  # standard deviation of scores to expect where nothing is known about them
    judgement_largest_score: float = 3.0
    saturation: float = 1000.0  # times the error that balanced questions leave: beyond, hardly any answer depends on W
    saturated_share: float = 0.01  # of W itself: an error that leaves it two digits is no runaway
    margin: float = 1.3  # more queries than the estimate, so that another run with other noise does with them too
    checked: float = 0.02  # share of the queries that a check on fresh answers may add
    # fresh answers tell the head from none at all by some five standard errors if there are this many, times (noise / (norm |v|))^2
    checkable: float = 150.0
    fewest_checks: int = 256
    # sequences of another kind, asked again and again until their mean answers are known to less than a tenth: this many times
    # (noise / (norm |v|))^2 questions; without noise to speak of the fit and the held-out check see what is not one head
    fresh_lengths: tuple[int, ...] = (2, 2, 3, 3, 4, 4, 6, 8, 16, 64, -1, -2, -4, -8)  # negative: of random tokens
    fewest_times: int = 4
    one_head: float = 32000.0
    no_noise: float = 1e-4
    false_alarm: float = 1e-6
    suspicious: float = 1e-3  # deviations that chance explains less often than that ask for a closer look
    closer: int = 3  # times the queries
    draws: int = 200  # heads within the error bars
    # repeated questions differ by this, relatively, so that errors fixed by the question average out as well
    jitter: float = 1e-3

    # keys
    largest_leftover: float = 1e-9  # part of an axis that two keys may miss and still be said to span it

    # learner
    # cutting solves dense systems in all parameters many times a round
    cut_up_to: int = 24

    # low rank
    column_length: float = 0.5  # of the norm limit: keeps most scores off saturation
    low_rank_max_halvings: int = 12
    low_rank_pilot: int = 8  # questions of the first columns that find the length for all others
    # a singular value is signal if it exceeds this many times the size that noise alone gives a column
    rank_threshold: float = 3.0
    own_score_steps: int = 6

    # pilot
    worst_pilot_score: float = 0.5  # the same under strong noise; beyond, a fit gets lost
    close_enough: float = 1.2  # times the accuracy asked for: a forecast is no better than that
    short: float = 0.3  # of the longest tokens

    # plan
    # the pilot's share, one-token answers and scores beyond what copies can balance cost about this factor in error; measured for
    # scores of standard deviation up to 2.5, see benchmarks/noise.py
    overhead: float = 1.5
    fewest_per_parameter: int = 2
    generous: int = 6  # queries per parameter unless told otherwise
    least_generous: int = 5  # of these, whatever was asked before
    few: int = 48  # error bars from fewer answers would be guesses
    generous_low_rank: int = 3
    plan_pilot: float = 2.5  # queries per parameter that are enough to place the others
    bias_probes: int = 8
    most_queries: int = 10**12

    # probes
    probes_chunk_bytes: int = 32 * 2**20
    # a token computed as R times a unit vector may exceed R by a few rounding errors, and watchers nudge one by a few more
    shrink: float = 1.0 - 2.0**-44

    # rounding
    max_centring: int = 200
    round: int = 2  # rounds of questions per query and parameter: fewer waste cuts, more cost calls
    rounding_kept: int = 5  # tightest answers per parameter that are kept while cutting; the others lie far outside
    # half-width of a 95% interval in units of the root of the barrier's inverse Hessian; measured, see benchmarks/noise.py
    reach: float = 2.4
    finest: float = 2.0**-44  # the region cannot shrink below the rounding of the answers themselves, relative to the largest
    # questions of each of three shorter lengths that confirm what cutting left, and spreads by which they may be off
    confirming: int = 8
    beside: float = 8.0
    max_shorter: int = 40
    steps_inside: int = 2  # further steps once inside, away from the walls, where the barrier is too steep for float64
    centred: float = 0.1  # squared Newton decrement
    max_turns: int = 12
    largest_turn: float = 0.5  # radians; further away the edge would be another one

    # run
    runaway: int = 4  # times the queries that left W running off

    # stages
    # chance to keep a query bias or a constant that is not there, and to refuse a head that is one
    false_bias: float = 1e-4
    false_refusal: float = 1e-7
    max_shortenings: int = 30
    faintest: float = 1 / 64  # of the keys: last tokens that are shorter still do not saturate any
    # search for a token length at which scores are moderate
    search_steps: int = 40
    search_pairs: int = 8
    moderate_scores: tuple[float, float] = (0.7, 2.0)
    least_signal: float = 4.0  # values of keys, in units of the noise
    least_score: float = 1.0  # scores may always be this large
    loud: float = 0.3  # noise in units of the largest answers, from which on a single answer shows no score

    # values
    # below this width a full fit costs less than finding out that the rank is low
    search_rank_from: int = 16
    unsure: float = 1.5  # more queries are named where not even the values are known

    # vector
    vector_kept: int = 512  # longer sequences whose whole answers are kept, to see whether the head explains every output
    loose: float = 1.5  # the scores come from one mixture, so that they fit the other outputs a little less well
    # tokens against those whose scores are moderate: the intervals narrow as their inverse, few answers saturate
    longer: float = 2.0**8
    shorter: tuple[float, ...] = (1.0, 2.0**-3, 2.0**-6)  # where a query bias saturates those
    low_precision: float = 24.0  # arithmetic of low precision errs more on many tokens than on one


NOISY = Settings()
