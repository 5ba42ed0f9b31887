"""Many heads from scalar answers."""

from unsoftmax.learners.scalar_heads.learner import ScalarHeadsLearner, price, unseen_gap

__all__ = ["ScalarHeadsLearner", "price", "unseen_gap"]
