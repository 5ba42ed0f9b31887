"""Canonical form, distance, identifiability, witnesses."""

from unsoftmax.symmetry.canonical import canonical
from unsoftmax.symmetry.distance import block_error, distance
from unsoftmax.symmetry.heads import head_gap
from unsoftmax.symmetry.identifiability import Identifiability, identifiability
from unsoftmax.symmetry.jacobian import attention_jacobian, numerical_nullity
from unsoftmax.symmetry.witness import witness

__all__ = [
    "Identifiability",
    "attention_jacobian",
    "block_error",
    "canonical",
    "distance",
    "head_gap",
    "identifiability",
    "numerical_nullity",
    "witness",
]
