"""Recover attention models exactly from their answers."""

__version__ = "0.1.0"

from unsoftmax import oracles
from unsoftmax.driver import recover
from unsoftmax.models import FFN, Attention, Transformer, load
from unsoftmax.results import Recovery, Status
from unsoftmax.symmetry import canonical, distance, identifiability, witness

__all__ = [
    "FFN",
    "Attention",
    "Recovery",
    "Status",
    "Transformer",
    "canonical",
    "distance",
    "identifiability",
    "load",
    "oracles",
    "recover",
    "witness",
]
