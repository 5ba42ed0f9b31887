"""Networks with smooth activations, gated ones, and Transformers that end in them."""

from unsoftmax.learners.smooth.learner import SmoothNetworkLearner

__all__ = ["SmoothNetworkLearner"]
