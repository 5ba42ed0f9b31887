"""Networks of squared ReLU neurons."""

from unsoftmax.learners.squared.learner import SquaredNetworkLearner
from unsoftmax.learners.squared.line import first_bend

__all__ = ["SquaredNetworkLearner", "first_bend"]
