"""Built-in targets: random models to try everything on."""

from __future__ import annotations

from typing import Any

import numpy as np

from unsoftmax.models import FFN, Attention, Floats, Transformer
from unsoftmax.models.activations import NAMES
from unsoftmax.oracles.base import Oracle
from unsoftmax.oracles.local import CallableOracle

DEFAULTS: dict[str, dict[str, int]] = {
    "attention": {"width": 64, "heads": 1, "rank": 0, "outputs": 0, "bias": 0, "positions": 0, "causal": 0, "seed": 0},
    "transformer": {"width": 8, "hidden": 16, "rank": 0, "outputs": 1, "residual": 0, "bias": 0, "activation": 0, "seed": 0},
    "ffn": {"width": 16, "hidden": 32, "outputs": 1, "activation": 0, "seed": 0},
}

LARGEST = 2**31  # numbers in a matrix: 16 GiB


def demo_model(family: str, **settings: int) -> Attention | FFN | Transformer:
    """A random model: scores and answers of size one at tokens of size one; ``rank=0`` is full, ``outputs=0`` is scalar,
    ``activation`` counts in ``NAMES``."""
    s = _settings(family, settings)
    rng = np.random.default_rng([2026, s["seed"]])
    d, outputs = s["width"], s["outputs"]
    if family == "ffn":
        return _network(d, s["hidden"], outputs, s["activation"], rng)
    if family == "transformer":
        values = rng.normal(size=(1, d, d)) / np.sqrt(d)
        head = Attention(_scores(1, d, s["rank"], rng), values, rng.normal(size=(1, d)) / np.sqrt(d) if s["bias"] else None)
        return Transformer(head, _network(d, s["hidden"], outputs, s["activation"], rng), residual=bool(s["residual"]))
    heads = s["heads"]
    W = _scores(heads, d, s["rank"], rng)
    V = rng.normal(size=(heads, d, outputs) if outputs else (heads, d)) / np.sqrt(d)
    if not s["bias"]:
        return Attention(W, V)
    return Attention(W, V, rng.normal(size=(heads, d)) / np.sqrt(d), rng.normal(size=V.shape[2:]))


def demo_oracle(family: str, **settings: int) -> Oracle:
    """The model as a target; ``positions=1`` answers at every position, ``causal=1`` with a causal mask."""
    if family not in DEFAULTS:
        return _of_family(family, settings)
    model = demo_model(family, **settings)
    s = _settings(family, settings)
    if s.get("positions") or s.get("causal"):
        return CallableOracle(lambda X: model.answer_at(X, causal=bool(s["causal"]))[1], width=model.width)
    return CallableOracle(model if model.takes_sequences else model.respond, width=model.width)


def demo_families() -> dict[str, dict[str, int]]:
    """Every family that has a built-in target, with its settings."""
    from unsoftmax.families import all_families

    return {**DEFAULTS, **{family.name: family.demo for family in all_families() if family.demo and family.name not in DEFAULTS}}


def _of_family(name: str, given: dict[str, int]) -> Oracle:
    from unsoftmax.families import named

    known = demo_families()
    if name not in known:
        raise ValueError(f"There is no demo family {name!r}; there are {', '.join(known)}.")
    unknown = sorted(set(given) - set(known[name]))
    if unknown:
        raise ValueError(f"demo:{name} has no setting {unknown[0]!r}; it has {', '.join(known[name])}.")
    return named(name).demo_oracle({**known[name], **given})


def _settings(family: str, given: dict[str, Any]) -> dict[str, int]:
    if family not in DEFAULTS:
        raise ValueError(f"There is no demo family {family!r}; there are {', '.join(DEFAULTS)}.")
    unknown = sorted(set(given) - set(DEFAULTS[family]))
    if unknown:
        raise ValueError(f"demo:{family} has no setting {unknown[0]!r}; it has {', '.join(DEFAULTS[family])}.")
    settings = {**DEFAULTS[family], **given}
    if settings.get("positions") or settings.get("causal"):
        settings["outputs"] = settings["outputs"] or 1
    for name in ("width", "heads", "hidden"):
        if settings.get(name, 1) < 1:
            raise ValueError(f"demo:{family} has {name}={settings[name]}; it must be at least 1.")
    if not 0 <= settings.get("activation", 0) < len(NAMES):
        raise ValueError(f"demo:{family} has activation={settings['activation']}; it must be one of {', '.join(NAMES)}.")
    for name in ("rank", "outputs", "seed"):
        if settings.get(name, 0) < 0:
            raise ValueError(f"demo:{family} has {name}={settings[name]}; it must not be negative.")
    if (
        settings["width"] * max(settings["width"], settings["outputs"], settings.get("hidden", 1)) * settings.get("heads", 1)
        > LARGEST
    ):
        raise ValueError(
            f"demo:{family} has width={settings['width']}; its matrices would not fit into memory. Choose a smaller one."
        )
    if settings.get("rank", 0) > settings["width"]:
        raise ValueError(f"demo:{family} has rank={settings['rank']}, more than its width {settings['width']}.")
    return settings


def _scores(heads: int, d: int, rank: int, rng: np.random.Generator) -> Floats:
    rank = rank or d
    if rank == d:
        return np.asarray(rng.normal(size=(heads, d, d)) / np.sqrt(d))
    return np.asarray(rng.normal(size=(heads, d, rank)) @ rng.normal(size=(heads, rank, d)) / np.sqrt(d * rank))


def setting(name: str, value: str) -> int:
    """The number that a setting written as a word stands for: an activation, by its place among their names.

    Raises:
        ValueError: it stands for none.
    """
    return NAMES.index(value) if name == "activation" and value in NAMES else int(value)


def _network(d: int, hidden: int, outputs: int, activation: int, rng: np.random.Generator) -> FFN:
    weights = [rng.normal(size=(hidden, d)) / np.sqrt(d), rng.normal(size=(max(1, outputs), hidden)) / np.sqrt(hidden)]
    return FFN(weights, [rng.normal(size=hidden), rng.normal(size=max(1, outputs))], activation=NAMES[activation])
