"""What a deep model is made of, part by part, for pictures of it: what is known of it and what is not."""

from __future__ import annotations

from dataclasses import dataclass

from unsoftmax.models.decoder_layers import Layer


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a model.

    Attributes:
        name: what it is, such as "attention" or "MLP".
        words: what is known of it, or why nothing is.
        known: whether its parameters are known.
    """

    name: str
    words: str
    known: bool


@dataclass(frozen=True, slots=True, eq=False)
class Anatomy:
    """The parts of a model in the order in which a token meets them.

    Attributes:
        norm: the norm in front of every part of a block, by name.
        before: what happens to tokens first.
        blocks: the parts of each block, first block first; each adds to the token what it makes of the normalised one.
        behind: what happens to the last hidden state.
        layers: the heads of each block.
        tables: names of the model's other matrices, in the order of ``Model.matrices``.
    """

    norm: str
    before: tuple[Part, ...]
    blocks: tuple[tuple[Part, ...], ...]
    behind: tuple[Part, ...]
    layers: tuple[Layer, ...]
    tables: tuple[str, ...]


def norm_name(norm: str) -> str:
    """What people call a norm.

    >>> norm_name("layer"), norm_name("rms")
    ('LayerNorm', 'RMSNorm')
    """
    return {"layer": "LayerNorm", "rms": "RMSNorm"}[norm]


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "head"), counted(3, "head")
    ('1 head', '3 heads')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
