"""Decoders of transformers in float32 through ``us.recover``: errors, and whether error bars hold.

    python benchmarks/single_decoders.py --first-seed 1900000 --seeds 10              2 layers of 2 heads, width 32, unit weights
    python benchmarks/single_decoders.py --initial 0.02                               weights as transformers draws them
    python benchmarks/single_decoders.py --initial 0.02 --double                      the same decoder computed in float64

One line for each run: worst relative error of V over heads, of scores at distances 0, 1, 10 and 100, whether layers are right, the
smallest share of entries within the error bars (of V, of scores, over heads and distances), queries, seconds of CPU.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
import transformers

import unsoftmax as us
from unsoftmax.models import Decoder
from unsoftmax.models.decoder import random_decoder
from unsoftmax.models.llama_layout import from_llama, to_llama
from unsoftmax.symmetry.distance import block_error

AT = (0, 1, 10, 100)


def llama(seed: int, rank: int, initial: float | None) -> tuple[transformers.LlamaForCausalLM, Decoder]:
    """A float32 Llama and its heads; ``initial`` is the size of its weights, None gives each matrix that of a unit map."""
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=rank, intermediate_size=64,
        vocab_size=64, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1, initializer_range=initial or 0.02,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config).eval()
    if initial is None:
        drawn = random_decoder(2, 2, 32, rank, np.random.default_rng(seed), vocabulary=64, hidden=64)
        model.load_state_dict({name: torch.tensor(np.asarray(block)) for name, block in to_llama(drawn).items()}, strict=False)
    return model, from_llama(model.state_dict(), heads=2, epsilon=1e-5)


def doubled(seed: int, rank: int, initial: float | None) -> bool:
    """One run in float64, one line."""
    truth = llama(seed, rank, initial)[1]
    start = time.process_time()
    found = us.recover(truth, seed=seed, check=40, on_failure="return")
    off = us.distance(found.model, truth) if found.status.success else np.inf
    print(
        f"seed {seed}, float64: {found.status.name} within {off:.1e} after {found.queries}, {time.process_time() - start:.0f} s",
        flush=True,
    )
    return bool(off <= 1e-6)


def tried(seed: int, rank: int, initial: float | None) -> bool:
    """One run, one line."""
    model, truth = llama(seed, rank, initial)
    start = time.process_time()
    found = us.recover(model, seed=seed, check=100, on_failure="return")
    took = time.process_time() - start
    what = f"seed {seed}, heads of {rank}, weights {'unit' if initial is None else initial}"
    if found.status is not us.Status.WITHIN_TOLERANCE or not isinstance(found.model, Decoder) or found.bounds is None:
        print(f"{what}: {found.status.name} after {found.queries}, {took:.0f} s: {found.message}", flush=True)
        return False
    if [len(layer.heads) for layer in found.model.layers] != [2, 2]:
        print(f"{what}: layers WRONG: {[len(layer.heads) for layer in found.model.layers]}", flush=True)
        return False
    values, scores, held = 0.0, np.zeros(len(AT)), [[], []]
    assert found.bounds.V is not None
    assert found.bounds.W is not None
    place = 0
    for mine, true in zip(found.model.layers, truth.layers, strict=True):
        match = [int(np.argmin([np.linalg.norm(a - b) for b in true.V])) for a in mine.V]
        for own, other in enumerate(match):
            values = max(values, block_error(mine.V[own], true.V[other]))
            held[0].append(np.mean(np.abs(mine.V[own] - true.V[other]) <= found.bounds.V[place]))
            for i, n in enumerate(AT):
                a, b = mine.scores(n)[own], true.scores(n)[other]
                scores[i] = max(scores[i], block_error(a, b))
                held[1].append(np.mean(np.abs(a - b) <= found.bounds.W[place]))
            place += 1
    good = values <= 1e-3 and scores.max() <= 1e-3
    told = ", ".join(f"{error:.1e}" for error in scores)
    print(
        f"{what}: V {values:.1e} scores {told} bars hold {min(held[0]):.2f}, {min(held[1]):.2f} (mean {np.mean(held[0]):.2f}, "
        f"{np.mean(held[1]):.2f}) queries {found.queries} {took:.0f} s {'ok' if good else 'MISSED'}",
        flush=True,
    )
    return bool(good)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rank", type=int, default=16, help="size of a head")
    parser.add_argument("--initial", type=float, help="size of the weights")
    parser.add_argument("--double", action="store_true", help="compute in float64")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    run = doubled if given.double else tried
    good = sum(run(seed, given.rank, given.initial) for seed in range(given.first_seed, given.first_seed + given.seeds))
    print(f"{good} of {given.seeds}")


if __name__ == "__main__":
    main()
