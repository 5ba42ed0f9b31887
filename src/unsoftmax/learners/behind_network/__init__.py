"""A head's scores behind any network that follows it."""

from unsoftmax.learners.behind_network.learner import BehindNetworkLearner, held_out_check, price

__all__ = ["BehindNetworkLearner", "held_out_check", "price"]
