"""Every row of an audit against a separate ``recover`` behind the same defence: the same outcome, queries and error?

``audit_agreement.py [--width 16] [--seed 0] [--budget 100000]``. The separate run gets noise of its own and lets the operating
system choose what it asks again and holds out, as a user's would: queries may differ by those asked again, and errors that noise or
coarse answers leave by chance. Exit code 1 if a row disagrees.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial

import unsoftmax as us
from unsoftmax.audits import run_audit
from unsoftmax.audits.cells import honest_sample, model_error
from unsoftmax.demo import demo_oracle
from unsoftmax.oracles import Clipped, Noisy

ASKED_AGAIN = 4  # queries, at places that the operating system chooses
CHANCE = 2.0  # between errors that follow from different noise
FINE = 1e-9  # errors below are rounding of float64


def behind(defence, oracle, seed):
    """The target behind a defence, with noise that the audit did not see."""
    if defence.max_norm is not None:
        oracle = Clipped(oracle, defence.max_norm)
    if defence.noise is not None:
        oracle = Noisy(oracle, defence.noise, seed=seed)
    return replace(defence, max_norm=None, noise=None).wrap(oracle)


def agree(cell, found, error):
    if cell.status != found.status.name or abs(cell.queries - found.queries) > ASKED_AGAIN:
        return False
    if cell.error is None or error is None:
        return cell.error is error
    return max(cell.error, error) < max(FINE, CHANCE * min(cell.error, error))


def main() -> int:
    parser = argparse.ArgumentParser()
    for name, default in (("--width", 16), ("--seed", 0), ("--budget", 100_000)):
        parser.add_argument(name, type=int, default=default)
    chosen = parser.parse_args()
    opener = partial(demo_oracle, "attention", width=chosen.width, seed=chosen.seed)
    audit = run_audit(opener, budget=chosen.budget, seed=chosen.seed)
    sample = honest_sample(opener(), chosen.seed + 1, None)
    print("| defence | status | queries | error | separate run | queries | error | agree |\n|---|---|---|---|---|---|---|---|")
    wrong = 0
    for cell in audit.cells:
        if not cell.measured:
            continue
        defence = cell.defence
        found = us.recover(
            behind(defence, opener(), chosen.seed + 1),
            max_norm=defence.max_norm,
            budget=min(chosen.budget, defence.quota or chosen.budget),
            seed=chosen.seed,
            on_failure="return",
        )
        error = model_error(found.model, sample)
        same = agree(cell, found, error)
        wrong += not same
        ours, theirs = ("–" if e is None else f"{e:.1e}" for e in (cell.error, error))
        print(
            f"| {defence.name} | {cell.status} | {cell.queries} | {ours} | {found.status.name} | {found.queries} | {theirs} | "
            f"{'yes' if same else 'NO'} |",
            flush=True,
        )
    print(f"\nseed {chosen.seed}: {wrong} rows disagree; the audit took {audit.facts['seconds']:.1f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
