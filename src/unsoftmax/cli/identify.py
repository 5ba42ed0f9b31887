"""``unsoftmax identify``: what can and cannot be known about a model, with a witness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from unsoftmax.cli.options import check_option, json_option
from unsoftmax.cli.running import Running, running
from unsoftmax.cli.wording import hanging
from unsoftmax.models import Floats, Model, load
from unsoftmax.symmetry import canonical, identifiability, witness


@click.command()
@click.argument("weights", type=click.Path(path_type=Path))
@click.option("--max-length", type=click.IntRange(min=1), help="Consider only sequences of up to this many tokens.")
@click.option("--witness-out", type=click.Path(path_type=Path), help="Write the witness to this safetensors file.")
@check_option
@running(record=True)
@json_option
def identify(
    weights: Path, max_length: int | None, witness_out: Path | None, check: int | None, run: Running, as_json: bool
) -> None:
    """Tell what the answers of the model in WEIGHTS can and cannot show: symmetries, dimensions, a witness."""
    from unsoftmax.report.common import command_line, shared, to_json

    with run.limited():
        facts, model, other = _identified(weights, max_length, check)
    if other is not None and witness_out is not None:
        other.save(witness_out)
        facts["witness"]["file"] = str(witness_out)
    record = {**facts, **shared("identification"), "command": command_line()}
    run.export(record)
    if as_json:
        click.echo(to_json(record))
        return
    for line in _story(facts, model, other):
        click.echo(line)


def _identified(weights: Path, max_length: int | None, check: int | None) -> tuple[dict[str, Any], Model, Model | None]:
    """What can be known, as plain data; the model, and a witness where there is one."""
    model = load(weights)
    found = identifiability(model, max_length=max_length)
    other = witness(model, max_length=max_length)
    facts: dict[str, Any] = {
        "weights": str(weights),
        **_shape(model),
        "max_length": max_length,
        "parameters": found.parameters,
        "dimension": found.dimension,
        "nullity": found.nullity,
        "symmetries": list(found.symmetries),
        "canonical": _shape(canonical(model)),
        "witness": None if other is None else _compare(model, other, max_length, check or 512),
    }
    return facts, model, other


def _shape(model: Model) -> dict[str, Any]:
    shape: dict[str, Any] = {"kind": type(model).__name__.lower(), "width": model.width, "outputs": model.outputs}
    sizes = model.sizes(None)
    known = {"heads": sizes.heads, "neurons": sizes.neurons, "layers": sizes.layers}
    return shape | {name: count for name, count in known.items() if count is not None}


def _compare(model: Model, other: Model, max_length: int | None, sequences: int) -> dict[str, Any]:
    """How differently the two are written, and how alike they answer, on fresh sequences of many lengths."""
    rng = np.random.default_rng()
    size = float(np.median(model.token_sizes))
    gap = spread = 0.0
    lengths = range(1, min(8, max_length or 8) + 1)
    each = -(-sequences // len(lengths))
    for length in lengths:
        X = size * rng.normal(size=(each, length, model.width))
        a, b = model.answer(X), other.answer(X)
        gap, spread = max(gap, float(np.abs(a - b).max())), max(spread, float(np.abs(a).max()))
    mine, theirs = model.blocks, other.blocks
    alike = mine.keys() == theirs.keys() and all(mine[name].shape == theirs[name].shape for name in mine)
    moved = max(float(np.abs(mine[name] - theirs[name]).max()) for name in mine) if alike else np.inf
    return {
        "sequences": each * len(lengths),
        "max_abs_difference": gap,
        "relative_difference": gap / spread if spread else 0.0,
        "same_answers": gap <= 1e-12 * max(spread, 1e-300) or gap == 0.0,
        "parameters_differ_by": moved if np.isfinite(moved) else None,
        **_shape(other),
    }


def _story(facts: dict[str, Any], model: Model, other: Model | None) -> list[str]:
    count, noun = (facts["heads"], "head") if "heads" in facts else (facts["neurons"], "neuron")
    size = f"{count} {noun}{'s' if count != 1 else ''}"
    lengths = "any length" if facts["max_length"] is None else f"up to {facts['max_length']} tokens"
    lines = [
        f"{facts['weights']}: {facts['kind']}, width {facts['width']}, {size}, {facts['outputs'] or 'scalar'} answers",
        f"From answers to sequences of {lengths}: {facts['dimension']} of {facts['parameters']} numbers can be known"
        + (f", {facts['nullity']} cannot (nullity of the Jacobian)." if facts["nullity"] else "; the nullity is 0."),
        "",
        "Symmetries:",
        *(hanging("  - ", sentence) for sentence in facts["symmetries"]),
        "",
    ]
    if other is None:
        return [*lines, "Witness: none. No visibly different model gives the same answers."]
    seen = facts["witness"]
    lines += ["Witness: a different model with the same answers.", *_side_by_side(model, other)]
    lines.append(f"  {seen['sequences']} fresh sequences: answers differ by at most {seen['max_abs_difference']:.1e}.")
    return [*lines, f"  Written to {seen['file']}."] if "file" in seen else lines


def _side_by_side(model: Model, other: Model) -> list[str]:
    """The leading entries of each head or layer, this model's left, the witness's right."""
    pairs: list[tuple[str, Floats | None, Floats | None]] = []
    mine, theirs = model.blocks, other.blocks
    for name in mine.keys() | theirs.keys():
        left, right = mine.get(name), theirs.get(name)
        if name not in ("attention.W", "attention.V"):
            pairs.append((name.split(".", 1)[1], left, right))
            continue
        for h in range(max(len(block) for block in (left, right) if block is not None)):
            a, b = (None if block is None or h >= len(block) else block[h] for block in (left, right))
            pairs.append((f"{name[-1]}[{h}]", a, b))
    pairs.sort(key=lambda pair: pair[0])
    width = 34
    lines = [f"  {'':<10}{'this model':<{width}}witness"]
    for name, left, right in pairs[:12]:
        texts = [
            "(no such head)" if x is None else " ".join(f"{v:+.3f}" for v in np.ravel(x)[:4]) + (" …" if x.size > 4 else "")
            for x in (left, right)
        ]
        lines.append(f"  {name:<10}{texts[0]:<{width}}{texts[1]}")
    return lines
