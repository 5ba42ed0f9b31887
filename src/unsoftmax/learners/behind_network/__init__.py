"""A head's scores behind any network that follows it."""

from unsoftmax.learners.behind_network.learner import BehindNetworkLearner, mixed_tokens, price

__all__ = ["BehindNetworkLearner", "mixed_tokens", "price"]
