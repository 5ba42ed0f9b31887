"""``unsoftmax convert``."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click
import numpy as np

from unsoftmax.cli.running import Running, running
from unsoftmax.cli.verify import heads_option
from unsoftmax.models import Attention, Decoder


@click.command()
@click.argument("source")
@click.argument("goal", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--layout",
    type=click.Choice(["unsoftmax", "mha", "bert", "gpt2", "llama"]),
    default="unsoftmax",
    show_default=True,
    help="Layout of GOAL.",
)
@click.option("--rank", type=click.IntRange(min=1), help="Coordinates of each head; as few as hold the weights if left out.")
@heads_option
@running()
def convert(source: str, goal: Path, layout: str, rank: int | None, heads: int | None, run: Running) -> int:
    """Turn the attention layer in SOURCE (FILE.safetensors or ./FOLDER, with #part where it has several) into GOAL.

    Layouts: ours, nn.MultiheadAttention, BERT, GPT-2. A whole Llama becomes a decoder of ours, and a decoder the state dict of a
    Llama (``--layout llama``); MLPs that are not known are left out.

    Queries and keys are not unique: each W is split by its singular values. Folding GOAL again gives the same W, V, c, b.
    """
    from safetensors.numpy import save_file

    from unsoftmax.cli.targets import model_in
    from unsoftmax.models.llama_layout import to_llama
    from unsoftmax.models.torch_layouts import to_arrays

    path, _, part = source.partition("#")
    if goal.suffix != ".safetensors":
        raise click.UsageError(f"{goal} must end in .safetensors; nothing else is written.")
    if Path(path).suffix == ".onnx":
        raise click.UsageError(
            f"{source} is a graph, whose tensors do not tell what they are. `unsoftmax recover {source} --out FOLDER` finds its "
            "weights by asking it; then convert FOLDER/weights.safetensors."
        )
    with run.limited():
        model = model_in(path, part, heads)
        if layout == "unsoftmax":
            model.save(goal)
        elif layout == "llama":
            if not hasattr(model, "unembedding"):
                raise click.UsageError(f"{source} is no decoder; only those have the layout {layout!r}.")
            save_file({name: np.ascontiguousarray(block) for name, block in to_llama(cast(Decoder, model)).items()}, str(goal))
        elif not hasattr(model, "to_state_dict"):
            raise click.UsageError(f"{source} is no attention layer; only those have the layout {layout!r}.")
        else:
            layer = cast(Attention, model)
            arrays = to_arrays(layer, layout, rank=rank)
            save_file(arrays, str(goal), metadata={"format": "pt", "layout": layout, "heads": str(layer.heads)})
    click.echo(f"Wrote {goal} ({layout} layout).")
    return 0
