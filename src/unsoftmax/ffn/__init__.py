"""Learners for the feed-forward part."""

from unsoftmax.ffn.learner import FFNLearner

__all__ = ["FFNLearner"]
