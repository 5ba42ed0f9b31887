"""Learners for the feed-forward part."""

from unsoftmax.learners.ffn.learner import FFNLearner

__all__ = ["FFNLearner"]
