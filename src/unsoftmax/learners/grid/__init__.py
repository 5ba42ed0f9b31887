"""One head whose inputs must lie on a grid."""

from unsoftmax.learners.grid.learner import GridLearner, price

__all__ = ["GridLearner", "price"]
