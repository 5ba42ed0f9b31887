"""One head whose inputs must be tokens of a vocabulary."""

from unsoftmax.learners.tokens.learner import TokensLearner, price

__all__ = ["TokensLearner", "price"]
