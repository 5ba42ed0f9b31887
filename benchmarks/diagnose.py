"""Diagnose three zoos at random sizes: who is taken for what, which statements are wrong, at which price.

The first zoo is tests/zoo.py, the others benchmarks/second_zoo.py and third_zoo.py, drawn by other laws. Families that came after
the zoos take in some of their kinds, or some draws of these: ``SINCE``. Exits 1 where an outsider is called inside, an insider a
stranger, or ``recover`` denies a name.

python benchmarks/diagnose.py                               # all zoos, three precisions, 10 per inside kind, 4 per outside kind
python benchmarks/diagnose.py --quick                       # 2 and 1, float64 only
python benchmarks/diagnose.py --recover 3000 --inside 0     # also `recover` with that budget: it must not succeed on outsiders
python benchmarks/diagnose.py --bill --zoo first            # what recovery costs against what the diagnosis foretold
python benchmarks/diagnose.py --confirm 12                  # recover what is named as of a family that came since, up to this width
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import second_zoo
import third_zoo
from tests import zoo

import unsoftmax as us
from unsoftmax.recognition.diagnosis import Diagnosis

ZOOS: dict[str, Any] = {"first": zoo, "second": second_zoo, "third": third_zoo}
# a network behind one head, or alone, with one hidden layer of smooth neurons; softmax over two classes is one such neuron; blocks
# whose norms come first; labels of one head
SMOOTH, SMOOTH_FFN, STACK, LABELS = "smooth-transformer", "smooth-ffn", "stack", "labels"
SINCE: dict[str, dict[str, str]] = {
    "first": {"behind GELU": SMOOTH, "GELU with residual": SMOOTH, "smooth network": SMOOTH_FFN, "class labels": LABELS},
    "second": {
        "behind a smooth network": SMOOTH,
        "smooth, residual": SMOOTH,
        "smooth network, last token": SMOOTH_FFN,
        "norm-first block": STACK,
        "torch TransformerEncoderLayer": STACK,
    },
    "third": {
        "then smooth network": SMOOTH,
        "pooled, then smooth network": SMOOTH,
        "then classes": SMOOTH,
        "added, then smooth network": SMOOTH,
        "smooth network of the last token": SMOOTH_FFN,
        "nn.TransformerEncoderLayer": STACK,
    },
}
KINDS = {"float64": "exact", "float32": "float32", "6 decimals": "rounded"}


@dataclass
class Tally:
    """Counts over many targets."""

    right: int = 0
    total: int = 0
    false_inside: int = 0
    outsiders: int = 0
    dear: int = 0
    crashes: int = 0
    statements: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    bills: int = 0
    wrong_bills: int = 0
    shares: list[float] = field(default_factory=list)
    unbilled: list[str] = field(default_factory=list)
    strangers: int = 0
    since: Counter[str] = field(default_factory=Counter)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--zoo", nargs="*", choices=list(ZOOS), default=list(ZOOS))
    parser.add_argument("--inside", type=int, default=10, help="targets per inside kind")
    parser.add_argument("--outside", type=int, default=4, help="targets per outside kind")
    parser.add_argument("--seed", type=int, default=10_000, help="first seed")
    parser.add_argument("--kinds", default="", help="only kinds whose name holds this")
    parser.add_argument("--answers", nargs="*", default=list(KINDS))
    parser.add_argument("--recover", type=int, default=0, metavar="BUDGET", help="also recover outsiders with this budget")
    parser.add_argument("--bill", action="store_true", help="also recover insiders and compare with the bill")
    parser.add_argument("--confirm", type=int, default=0, metavar="WIDTH", help="recover what is of a family that came since")
    options = parser.parse_args()
    if options.quick:
        options.inside, options.outside, options.answers = 2, 1, ["float64"]
    warnings.simplefilter("ignore")
    bad = 0
    for which in options.zoo:
        for answers in options.answers:
            bad += confusion(which, answers, options)
    return 1 if bad else 0


def show(which: str, name: str, seed: int, answers: str) -> Any:
    """The target ``name`` of a zoo."""
    return zoo.exhibit(name, seed, answers=answers) if which == "first" else ZOOS[which].creature(name, seed, answers=answers)


def confusion(which: str, answers: str, options: argparse.Namespace) -> int:
    """Print one table; returns the number of outsiders called inside or recovered, insiders called strangers, and names denied."""
    inside, outside = ZOOS[which].INSIDE, ZOOS[which].OUTSIDE
    print(f"\n### {which} zoo, {answers}, seeds from {options.seed}\n")
    print("| kind | right | heads right | verdicts | queries - 4d | CPU s |\n|---|---|---|---|---|---|")
    tally, recovered = {True: Tally(), False: Tally()}, 0
    for name in [*inside, *outside]:
        count = options.inside if name in inside else options.outside
        if not count or options.kinds not in name:
            continue
        verdicts: Counter[str] = Counter()
        part, prices, heads_right, heads_known = tally[name in inside], [], 0, 0
        before, started = part.right, len(part.seconds)
        for seed in range(options.seed, options.seed + count):
            shown = show(which, name, seed, answers)
            start = process_time()
            part.total += 1
            try:
                result = us.diagnose(shown.target, width=shown.width, seed=seed)
            except Exception as error:  # a crash is a finding
                part.crashes += 1
                part.misses.append(f"{name}, seed {seed}, d {shown.width}: {type(error).__name__}: {str(error)[:80]}")
                continue
            part.seconds.append(process_time() - start)
            since = result.family == SINCE[which].get(name)
            fits = since or (result.family == shown.family if shown.inside else not result.inside)
            part.right += fits
            part.false_inside += result.inside and not shown.inside and not since
            part.strangers += shown.inside and not result.inside and "inconclusive" not in result.family
            if since:
                asked = shown.width <= options.confirm
                part.since[said_by_recover(show(which, name, seed, answers), seed) if asked else "not asked"] += 1
            if not fits:
                part.misses.append(f"{name}, seed {seed}, d {shown.width}: {result.family}: {result.reason}")
            if shown.heads is not None and fits and not since:
                heads_known += 1
                heads_right += result.heads == shown.heads
            check_statements(shown, result, answers, part, f"{name}, seed {seed}, d {shown.width}")
            verdicts[result.family] += 1
            prices.append(result.queries - 4 * shown.width)
            part.dear += result.queries > 200 + 4 * shown.width
            if options.recover and not shown.inside:
                recovered += succeeds(show(which, name, seed, answers), seed, options.recover, part)
            if options.bill and fits and shown.inside:
                compare_bill(shown, seed, result, part)
        words = ", ".join(f"{verdict} {n}" for verdict, n in verdicts.most_common())
        heads = f"{heads_right}/{heads_known}" if heads_known else ""
        seconds = np.mean(part.seconds[started:] or [0.0])
        span = f"{min(prices)}..{max(prices)}" if prices else ""
        print(f"| {name} | {part.right - before}/{count} | {heads} | {words} | {span} | {seconds:.2f} |", flush=True)
    for title, part in (("inside", tally[True]), ("outside", tally[False])):
        if part.total:
            print(f"\n{which} zoo, {answers}, {title}: right {part.right}/{part.total}, ", end="")
            print(f"called inside {part.false_inside}, " if title == "outside" else f"called strangers {part.strangers}, ", end="")
            print(f"crashes {part.crashes}, over 200 + 4d {part.dear}, CPU median {np.median(part.seconds):.2f} s, ", end="")
            print(f"95% {np.quantile(part.seconds, 0.95):.2f} s, largest {max(part.seconds):.2f} s; ", end="")
            print(f"{part.statements} statements, wrong: {dict(part.wrong) or 'none'}")
            if part.since:
                print(f"of families that came since, as recover says: {dict(part.since)}")
            if part.bills:
                print(f"bills: {part.bills - part.wrong_bills}/{part.bills} hold; asked over the most told: ", end="")
                print(f"median {np.median(part.shares):.2f}, {min(part.shares):.2f} to {max(part.shares):.2f}")
            if part.unbilled:
                print("no bill or no success: " + "; ".join(part.unbilled))
            print("".join(f"\n- {miss}" for miss in part.misses))
    if options.recover:
        print(f"recover with a budget of {options.recover}: {recovered} successes on outsiders (must be 0)")
    denied = sum(part.since["denied"] for part in tally.values())
    return tally[False].false_inside + tally[True].strangers + denied + recovered


def said_by_recover(shown: Any, seed: int) -> str:
    """What a recovery says of a target that a diagnosis calls inside: whether that is so, stays open, or is denied."""
    status = us.recover(shown.target, width=shown.width, seed=seed, budget=60_000, on_failure="return").status
    return "recovered" if status.success else "denied" if status is us.Status.NOT_IN_FAMILY else "open"


def check_statements(shown: Any, result: Diagnosis, answers: str, part: Tally, where: str) -> None:
    """Compare what the diagnosis says besides the family with what is known; None says nothing and is not counted."""
    told = {"number type": KINDS[answers]}
    said: dict[str, Any] = {"number type": result.floor.kind}
    if answers == "6 decimals":
        told["step"], said["step"] = 1e-6, result.floor.step
    if shown.inside and result.inside:
        for name, value in getattr(shown, "facts", {}).items():
            if getattr(result, name) is not None or name in ("causal", "outputs"):
                told[name], said[name] = value, getattr(result, name)
    if not shown.inside and (result.family == LABELS or (result.floor.kind in ("noisy", "rounded") and answers == "float64")):
        return  # labels say nothing of how numbers are written; dropout is noise, and other labels are rounded
    for name, value in told.items():
        part.statements += 1
        if said[name] != value:
            part.wrong[name] += 1
            part.misses.append(f"{where}: says {name} = {said[name]!r}, but it is {value!r}")


def succeeds(shown: Any, seed: int, budget: int, part: Tally) -> bool:
    """Whether ``recover`` reports a success on an outsider."""
    try:
        recovery = us.recover(shown.target, width=shown.width, seed=seed, budget=budget, on_failure="return")
    except Exception as error:
        part.crashes += 1
        part.misses.append(f"recover {shown.name}, seed {seed}, d {shown.width}: {type(error).__name__}: {str(error)[:80]}")
        return False
    if recovery.status.success:
        part.misses.append(f"RECOVERED {shown.name}, seed {seed}, d {shown.width}: {recovery.status.name}, {recovery.check}")
    return bool(recovery.status.success)


def compare_bill(shown: Any, seed: int, result: Diagnosis, part: Tally) -> None:
    """Recover, and count whether the bill holds all that was asked; None says nothing and is not counted."""
    assert result.bill is not None
    recovery = us.recover(shown.target, width=shown.width, seed=seed, on_failure="return", budget=60_000)
    low, high, asked = result.bill.low, result.bill.high, recovery.facts["queries"]["total"]
    if low is None or high is None or not recovery.status.success:
        part.unbilled.append(f"{shown.name}, d {shown.width}: {asked} {recovery.status.name}")
        return
    part.bills += 1
    part.shares.append(asked / high)
    if not low <= asked <= high:
        part.wrong_bills += 1
        part.misses.append(f"bill of {shown.name}, seed {seed}, d {shown.width}: {low} to {high}, but {asked} were asked")


if __name__ == "__main__":
    sys.exit(main())
