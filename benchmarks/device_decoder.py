"""A decoder of GPT-2-small's shape on a device, answered with logits: ``python benchmarks/decoders.py device --device cuda``."""

from __future__ import annotations

import itertools
import signal
import time
from typing import Any

import numpy as np
from stacks import Decoder as Blocks
from stacks import errors

from unsoftmax.errors import RefusalError
from unsoftmax.learners.decoder import DecoderLearner
from unsoftmax.models import Attention, Decoder
from unsoftmax.models.decoder import BiasedLayer
from unsoftmax.oracles import Metered, TorchOracle

VOCABULARY = 2048


class Logits(Blocks):
    """The blocks of ``stacks.py device`` behind a final LayerNorm with gain and bias, and an unembedding."""

    def __init__(self, shape: tuple[int, int, int, int], seed: int, device: str, strength: float) -> None:
        super().__init__(shape, seed, device, strength)
        width, torch = shape[2], self.torch
        there = torch.Generator(device).manual_seed(seed + 2**32)
        drawn = {"generator": there, "device": device, "dtype": torch.float64}
        words = max(VOCABULARY if width >= 512 else 2 * width, width + 1)
        self.gain = 1 + 0.2 * torch.randn(width, **drawn)
        self.shift = 0.3 * torch.randn(width, **drawn)
        self.table = torch.randn(words, width, **drawn) / np.sqrt(width)

    def _answered(self, tokens: Any) -> Any:
        hidden = self.torch.nn.functional.layer_norm(super()._answered(tokens), (self.width,))
        return (hidden * self.gain + self.shift) @ self.table.T

    def truth(self, layer: int) -> Attention:
        """The heads of one block as a final LayerNorm shows them: without what all outputs share."""
        heads = super().truth(layer)
        assert heads.V is not None
        return Attention(heads.W, heads.V - heads.V.mean(axis=2, keepdims=True), heads.c)


def device_part(seeds: range, shape: tuple[int, int, int, int], device: str, strength: float, seconds: int) -> None:
    """The learner alone on a decoder of this shape, phase by phase, for ``seconds`` at most."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{seconds} s have passed")

    signal.signal(signal.SIGALRM, late)
    for seed in seeds:
        target = Logits(shape, seed, device, strength)
        meter = Metered(TorchOracle(target, width=shape[2], device=device, build_there=True))
        marks = [("", time.perf_counter())]
        begin = meter.begin_phase

        def marked(name: str, begin: Any = begin, marks: Any = marks, meter: Metered = meter) -> None:
            marks.append((name, time.perf_counter()))
            print(f"  {marks[-1][1] - marks[0][1]:.0f} s, {meter.spent} queries: {name}", flush=True)
            begin(name)

        meter.begin_phase = marked  # type: ignore[method-assign]
        name = f"device {device} {shape} scores x {strength:g} seed {seed}"
        signal.alarm(seconds)
        try:
            learned = DecoderLearner().run(meter, rng=np.random.default_rng([seed, 1]))
        except (RefusalError, TimeoutError) as refusal:
            print(f"{name}: STOPPED after {meter.spent} queries: {refusal}", flush=True)
            if (model := getattr(refusal, "model", None)) is not None:
                print(f"{name}: refused with {_told(model, target, shape)}", flush=True)
            continue
        finally:
            signal.alarm(0)
            marks.append(("end", time.perf_counter()))
            print(f"  seconds by phase { {a[0]: round(b[1] - a[1], 1) for a, b in itertools.pairwise(marks[1:])} }", flush=True)
        print(
            f"{name}: {_told(learned.model, target, shape)}, {_bill(meter, shape)}, {marks[-1][1] - marks[0][1]:.0f} s, "
            f"check {learned.evidence['check_error']:.0e}, order off {learned.evidence['order_off']:.0e}",
            flush=True,
        )


def _told(model: Any, target: Logits, shape: tuple[int, int, int, int]) -> str:
    """Errors of the heads, of the unembedding and of the positions against the target."""
    assert isinstance(model, Decoder)
    counts = [len(layer.heads) for layer in model.layers]
    if counts != [shape[1]] * shape[0]:
        return f"layers WRONG: {counts}"
    attention = [layer.attention for layer in model.layers if isinstance(layer, BiasedLayer)]
    W, c, V = np.max([errors(found, target.truth(i)) for i, found in enumerate(attention)], axis=0)
    U = (target.table * target.gain).cpu().numpy()
    U -= U.mean(axis=1, keepdims=True)
    places = target.places.cpu().numpy()
    places = places - places[0]
    places -= places.mean(axis=1, keepdims=True)
    assert model.positions is not None
    table = float(np.abs(model.positions - places[: len(model.positions)]).max())
    return f"W {W:.0e} c {c:.0e} V {V:.0e} U {np.abs(model.unembedding - U).max():.0e} table {table:.0e} layers right"


def _bill(meter: Metered, shape: tuple[int, int, int, int]) -> str:
    """Queries, those per parameter of the attention, and by phase."""
    layers, heads, width, rank = shape
    e = width - 1
    free = layers * heads * (rank * (2 * e - rank) + rank + 2 * rank * e - rank * rank)
    asked = meter.spent - meter.phases["check"].queries
    phases = ", ".join(f"{phase} {count.queries}" for phase, count in meter.phases.items())
    return f"{asked} queries ({asked / free:.3f} per parameter, {asked * width / free:.2f} x bound; {phases})"
