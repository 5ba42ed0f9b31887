"""Many heads from vector answers, at the last position or at all."""

from unsoftmax.learners.vector_heads.learner import VectorHeadsLearner, price

__all__ = ["VectorHeadsLearner", "price"]
