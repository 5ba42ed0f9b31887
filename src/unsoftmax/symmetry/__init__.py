"""Canonical form, distance, identifiability, witnesses."""

from unsoftmax.symmetry.canonical import canonical
from unsoftmax.symmetry.distance import block_error, distance

__all__ = ["block_error", "canonical", "distance"]
