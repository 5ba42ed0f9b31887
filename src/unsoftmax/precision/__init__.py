"""How coarse answers are: number formats, the law of their errors, and the questions that find it out."""

from unsoftmax.precision.law import Floor

__all__ = ["Floor"]
