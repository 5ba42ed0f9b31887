"""One head from questions that are all fixed beforehand."""

from unsoftmax.learners.non_adaptive.learner import NonAdaptiveLearner, price, recorded_check
from unsoftmax.learners.non_adaptive.settings import FIXED

__all__ = ["FIXED", "NonAdaptiveLearner", "price", "recorded_check"]
