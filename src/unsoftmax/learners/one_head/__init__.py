"""One softmax head of any rank, from exact answers."""

from unsoftmax.learners.one_head.learner import OneHeadLearner, price

__all__ = ["OneHeadLearner", "price"]
