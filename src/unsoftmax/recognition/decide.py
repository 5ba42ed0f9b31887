"""Which family the tests tell: a walk from one test to the next, decided on what they found and on nothing else."""

from __future__ import annotations

from unsoftmax.errors import Sign
from unsoftmax.families.attention import ONE_HEAD
from unsoftmax.families.networks import BEHIND_NETWORK, RELU_NETWORK, RELU_TRANSFORMER
from unsoftmax.precision.first_look import FirstLook
from unsoftmax.recognition.case import Shape, Verdict, inconclusive, outside
from unsoftmax.recognition.depth import jumps_instead, refuse_jumps, several_layers
from unsoftmax.recognition.diagnosis import Diagnosis, Findings, diagnosis_of
from unsoftmax.recognition.extras import extras, unchanged
from unsoftmax.recognition.floor import Answers, measure_answers
from unsoftmax.recognition.heads import several_heads
from unsoftmax.recognition.invariances import invariances
from unsoftmax.recognition.lengths import OTHER_LENGTHS, at_other_lengths, every_length, rarely_by_chance
from unsoftmax.recognition.line import behind_network
from unsoftmax.recognition.names import NOT_BILINEAR, name_affine, name_bent, residual_left_open
from unsoftmax.recognition.one_head import Outcome, afar, faintly, one_head
from unsoftmax.recognition.one_token import (
    Pilot,
    clearly_bends,
    grows,
    ignores_length,
    kinks,
    kinks_if_affordable,
    one_token,
    pilot,
)
from unsoftmax.recognition.piecewise import another_plane, bends_obey, chord_law, transformer
from unsoftmax.recognition.positions import every_position
from unsoftmax.recognition.reach import long_tokens
from unsoftmax.recognition.settings import TESTS
from unsoftmax.recognition.stepwise import coarse_without_reason, rounding_told, steps_told
from unsoftmax.recognition.walk import Walk, of_case, until

DEEP = "the answers' kinks end or change on their way: a network with several hidden layers"

SHORTER = "`max_norm` keeps to short ones."


def by_tests(look: FirstLook | None = None, *, not_one: bool = False, deep: bool = False) -> Walk[Diagnosis]:
    """What a target is, by tests from cheap to dear up to the first that decides.

    Shape and precision of the answers, the scale of the scores, one-token answers, invariances (order, repeats, doubled tokens),
    then the law of one head, of several heads, or of one head before a network. A test without enough power never says "inside";
    the verdict is then "outside: inconclusive (…)".

    Args:
        look: the first answers, where they were asked already; exact ones need no further questions about their precision.
        not_one: one head of affine scores was learned and does not explain fresh answers, so that its law is not asked again.
        deep: a kink of one-token answers was seen to end or change on its way.
    """
    found = Findings(not_one=not_one, deep=deep)
    verdict = yield from until(_verdict(found, look), Verdict)
    unexplained = (yield from of_case(coarse_without_reason, bias=bool(found.extras.bias))) if verdict.inside else ""
    verdict = inconclusive("power", unexplained) if unexplained else verdict
    if verdict.inside:
        verdict = (yield from _alike(found)) or verdict
    if verdict.inside:
        verdict = (yield from of_case(rarely_by_chance)) or verdict
    same = yield from of_case(unchanged)
    if same is None and verdict.inside:
        words = "An early question got another answer at the end, by no more than a recovery takes for the precision of answers."
        verdict = inconclusive("power", words)
    elif same is False and not {Sign.RANDOM, Sign.CHANGED} & set(verdict.signs):
        words = "An early question got another answer at the end: the target changed, or several replicas answer."
        verdict = outside("changed while asked", words, Sign.CHANGED)
    return (yield from of_case(diagnosis_of, verdict, found))


def _alike(found: Findings) -> Walk[Verdict | None]:
    """The verdict that some length or position follows another law; positions first where they are asked for themselves."""
    scale, foretold = found.scale or 1.0, found.plane is not None
    lengths = of_case(every_length, scale, found.plane)
    positions = of_case(every_position, scale, causal=found.extras.causal, foretold=foretold)
    first, second = (lengths, positions) if foretold else (positions, lengths)
    return (yield from first) or (yield from second)


def _verdict(found: Findings, look: FirstLook | None) -> Walk[Verdict]:
    answers = yield from of_case(measure_answers, look)
    if answers.single:
        shape, size = yield from of_case(one_token, 1.0)
        return (yield from _network(answers, shape, size, "The target takes one token only"))
    point = yield from of_case(pilot)
    shape, size = yield from of_case(one_token, point.scale)
    if shape is Shape.PIECEWISE:
        yield from of_case(jumps_instead, size)  # a learner that looks at jumps finds them, however many questions other tests take
    if not point.listens:
        return (yield from _network(answers, shape, size, "Only the last token matters"))
    by_first = not (yield from of_case(invariances, shape, point.scale))
    if by_first:
        return (yield from _network(answers, shape, size, "Only the first token matters"))
    found.scale = point.scale
    if point.hard:
        words = "Weights are saturated for tokens of every size: hard attention, or scores that do not shrink with the tokens."
        return outside("hard attention", words)
    found.extras = yield from of_case(extras, point.scale)
    if shape is Shape.AFFINE:
        return (yield from _attention(found, answers, point))
    if (yield from of_case(ignores_length, point.scale)):
        words = (
            "Earlier tokens count by their direction alone, not by their length: a LayerNorm or RMSNorm stands before attention."
        )
        return outside("LayerNorm before attention", words)
    growing = shape is not Shape.SMOOTH and (yield from of_case(grows, size))
    if growing and (shape is Shape.PIECEWISE or not point.flat):
        verdict = yield from _relu(found, answers, point, shape, size)
        if verdict is not None:
            return verdict
    return (yield from _behind(found, answers, point, shape, size, growing))


def _network(answers: Answers, shape: Shape, scale: float, why: str) -> Walk[Verdict]:
    if shape is Shape.PIECEWISE:
        if not (yield from of_case(grows, scale)):
            return outside("bounded network", f"{why}, and one-token answers stop growing: a norm or a clip is involved.")
        if not (yield from of_case(kinks, scale)):
            words = f"{why}, and the answer jumps or bends smoothly somewhere: no network with ReLU does that."
            if answers.coarse:
                words = f"{why}, and answers are too coarse to tell kinks from bends of its network."
            return inconclusive("kinks", f"{words} One of neurons that are straight here (ELU, SiLU) is not excluded.", Sign.DEAF)
        deep = yield from of_case(several_layers, scale, kinks=2)
        if deep:
            return outside("deep network", f"{why}, and {DEEP}, which is not learned.")
        told = " with one hidden layer." if deep is False else ". Whether it has one hidden layer, as recovery needs, was not told."
        return Verdict(RELU_NETWORK.name, f"{why}, and one-token answers are piecewise linear: a network with ReLU{told}")
    if shape is Shape.AFFINE:
        return outside("affine map", f"{why}: an affine map of the last token, with no attention to recover.")
    if shape is Shape.UNCLEAR:
        return inconclusive("kinks", f"{why}; its answers are neither straight nor evenly bent at the precision at hand.")
    words = f"{why}, and one-token answers bend smoothly: a network without ReLU"
    if answers.coarse or answers.bounded:  # what its neurons are shows from very far, or in bits that coarse answers lack
        lack = "float64 answers" if answers.coarse else "tokens of any length"
        words = f"{words}. Which one is told from {lack} alone; smooth, gated and squared ReLU ones are not excluded."
        return inconclusive("power" if answers.coarse else "token length", words, Sign.DEAF)
    return outside("smooth network", f"{words}.")


def _attention(found: Findings, answers: Answers, point: Pilot) -> Walk[Verdict]:
    one = Outcome(False, "one head was learned, and does not explain fresh answers")
    if point.cancels:
        one = Outcome(None, "one-token answers do not vary")
    elif not found.not_one or answers.coarse or point.flat:
        one = yield from of_case(one_head, point.scale, flat=point.flat)
    if one.passed and one.plane is not None:
        missed = yield from of_case(at_other_lengths, one.plane)
        if missed.worst > TESTS.faint and not missed.far:
            return NOT_BILINEAR if missed.by_number is False else OTHER_LENGTHS
        if missed.worst > 1:
            one = afar(one.plane) if missed.far else faintly(one.plane)
    if one.passed:
        found.heads, found.plane = 1, one.plane
        words = "One softmax head: one-token answers are affine and sequences are answered as six measured scores foretell."
        return (yield from _of_heads(words))
    if one.far:
        return inconclusive("token length", f"It is one head as far as natural tokens tell, but {one.why}. {SHORTER}", Sign.CUT)
    open_end = inconclusive("power", f"It looks like one head, but {one.why}: other targets are not excluded.")
    if one.passed is None and one.plane is not None:
        return open_end
    several = yield from of_case(several_heads, point.scale)
    if several.nearly:
        found.signs = (Sign.ALMOST_ALIKE,)
    if one.faint and several.heads in (None, 1):
        return open_end
    if several.heads == 1 and one.passed is False and not (answers.coarse or found.not_one):  # by other sequences it is not
        return NOT_BILINEAR if one.plane is None else OTHER_LENGTHS
    if several.heads is not None and not several.residual:
        found.heads = several.heads
        return (yield from _of_heads(f"{several.heads} softmax heads: they explain all answers along a line and foretell others."))
    if several.nearly and not several.residual:
        return inconclusive(
            "power", "Heads explain the answers nearly: two may be almost alike, or something else takes part, as faint."
        )
    if one.passed is None and answers.coarse and not several.residual:
        return inconclusive("power", f"Neither proved nor excluded: {one.why}, and no small number of heads fits.")
    return (yield from of_case(name_affine, point.scale, residual=several.residual))


def _of_heads(words: str) -> Walk[Verdict]:
    """Heads, unless float64 answers are computed more coarsely, as scores or tokens are rounded, or long tokens are cut."""
    steps = yield from of_case(steps_told)
    if steps is not None and not steps.passed:
        return outside("scores in steps", steps.sentence, Sign.OTHER_SCORES)
    rounds = yield from of_case(rounding_told, steps=steps is not None)
    if rounds:
        return outside("quantised evaluation", f"The target rounds inside: {rounds}.", Sign.ROUNDS)
    return (yield from of_case(long_tokens)) or Verdict(ONE_HEAD.name, words)


def _relu(found: Findings, answers: Answers, point: Pilot, shape: Shape, size: float) -> Walk[Verdict | None]:
    if point.flat:
        mean = yield from of_case(one_head, point.scale, flat=True)
        if mean.passed:
            found.heads, found.residual = 1, False
            words = "The mean of the tokens (scores are zero), then a network with ReLU."
            return (yield from _by_depth(found, answers, size, words))
        return (yield from of_case(name_bent, Shape.PIECEWISE))
    outcome, residual, broken = yield from _planes(answers, point)
    if outcome.passed and residual is False:
        first = yield from _not_last(size, point.scale)
        if first is not None:
            return first
    kinked = shape is Shape.PIECEWISE and not answers.coarse
    if outcome.passed and not kinked:  # with a residual a smooth network would be outside: then kinks must be seen
        kinked = yield from (of_case(kinks_if_affordable, shape, size) if residual is False else of_case(kinks, size))
    if outcome.passed and kinked:
        clear = yield from of_case(clearly_bends, outcome.blur)
        if clear is None and outcome.plane is not None and not residual:
            clear = yield from of_case(bends_obey, outcome.plane)
            if clear is False:
                return (yield from of_case(name_bent, Shape.PIECEWISE))
        if not clear:
            if shape is not Shape.PIECEWISE and not residual:
                return None
            yield from of_case(refuse_jumps, size)
            words = "It looks like one head, but one-token answers are not quite straight, too faintly to tell a network by."
            return inconclusive("power", words)
        found.heads, found.residual = 1, residual
        extra = ", the last token added," if residual else ""
        reason = f"One softmax head{extra} and then a network with ReLU: sequences with the same weighted mean are answered alike."
        return (yield from _by_depth(found, answers, size, reason))
    if shape is Shape.PIECEWISE and (outcome.passed is False or (broken and not outcome.passed)):
        return (yield from of_case(name_bent, Shape.PIECEWISE))
    if residual:
        return inconclusive("power", f"It looks like one head with a residual before a network, but {outcome.why}.")
    return None


def _planes(answers: Answers, point: Pilot) -> Walk[tuple[Outcome, bool | None, bool]]:
    """One head before a network with ReLU on one plane, or on up to two more where that does not tell.

    Whether the last token is added, and whether the first plane broke a law: then another must be clean, as one-token answers alone
    are too weak a witness.
    """
    scale = point.scale * 0.4 / max(0.4, point.strength)
    outcome, residual = yield from of_case(transformer, scale)
    broken = outcome.broken
    for _ in range(1 if broken else 2):
        if outcome.passed is not None or (residual is False and not broken):
            break
        # the detour by one-token answers is closed; shorter tokens, as scores may have been too large to read
        scale *= 1.0 if answers.coarse else 0.5
        another = yield from of_case(another_plane, scale)
        if another is None:
            break
        outcome, residual = another
    return outcome, residual, broken


def _by_depth(found: Findings, answers: Answers, size: float, reason: str) -> Walk[Verdict]:
    """A head before a network with ReLU: learned whole if that has one hidden layer, else the head alone, if nothing is added."""
    # only behind a residual all hangs on it, so that another kink is followed then
    deep = (found.deep and not found.residual) or (yield from of_case(several_layers, size, kinks=2 if found.residual else 1))
    if deep is None:
        yield from of_case(jumps_instead, size)
    if not deep:
        open_end = (
            "" if deep is False else " Whether the network has one hidden layer was not told; of more, only the head is learned."
        )
        return Verdict(RELU_TRANSFORMER.name, reason + open_end)
    if not found.residual:
        found.residual = None
        return Verdict(BEHIND_NETWORK.name, f"{reason} But {DEEP}: the head can be read through it, the network is not learned.")
    if answers.outputs >= answers.width:
        return (yield from of_case(residual_left_open))
    words = f"with the last token added a head is read through it only where answers have at least {answers.width} numbers."
    return outside("deep network behind a residual", f"{reason} But {DEEP}: {words}")


def _not_last(size: float, scale: float) -> Walk[Verdict | None]:
    """The verdict unless sequences are told from mixtures of one-token answers: a network on each token makes those."""
    for length in (size, scale, size):
        mixed = yield from of_case(chord_law, length)
        if mixed:
            words = "Pairs are answered by mixing their one-token answers: a network works on each token."
            return outside("network before attention", words)
        if mixed is False:
            return None
    yield from of_case(refuse_jumps, size)
    return inconclusive("power", "It looks like one head before a network, but the network may as well stand before the head.")


def _behind(found: Findings, answers: Answers, point: Pilot, shape: Shape, size: float, growing: bool) -> Walk[Verdict]:
    if point.flat:
        outcome = yield from of_case(one_head, point.scale, flat=True)
    else:
        outcome = yield from of_case(behind_network, shape, point.scale)
    if outcome.passed:
        found.heads = 1
        first = None if outcome.behind or point.flat else (yield from _not_last(size, point.scale))
        if first is not None:
            return first
        if growing and shape is Shape.PIECEWISE:
            yield from of_case(jumps_instead, size)
        if not growing or not (yield from of_case(kinks_if_affordable, shape, size)):
            smooth = "smooth " if shape is Shape.SMOOTH else ""
            words = f"One softmax head behind an unknown {smooth}network: a sequence is answered like its weighted mean."
            return Verdict(BEHIND_NETWORK.name, words)
        found.residual = False
        reason = "One softmax head and then a network with ReLU: a sequence is answered like its weighted mean."
        return (yield from _by_depth(found, answers, size, reason))
    if outcome.passed is None:
        return inconclusive("power", f"Neither proved nor excluded: {outcome.why}.")
    if growing and answers.coarse:  # a network with ReLU and a residual could not be excluded before
        return inconclusive("power", f"One head with a residual before a network is not excluded; without residual {outcome.why}.")
    return (yield from of_case(name_bent, shape))
