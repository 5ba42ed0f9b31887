"""One head from questions that are all fixed beforehand."""

from unsoftmax.learners.non_adaptive.learner import CHECK_LENGTH, NonAdaptiveLearner, price, recorded_check

__all__ = ["CHECK_LENGTH", "NonAdaptiveLearner", "price", "recorded_check"]
