"""The proof of a recovery: one way to hold a model against fresh answers."""

from unsoftmax.proof.run import prove

__all__ = ["prove"]
