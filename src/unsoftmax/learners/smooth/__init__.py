"""Networks with smooth activations, gated ones, and Transformers that end in them."""

from unsoftmax.learners.smooth.learner import SmoothNetworkLearner
from unsoftmax.learners.smooth.near import NearNetworkLearner
from unsoftmax.learners.smooth.transformer import SmoothTransformerLearner

__all__ = ["NearNetworkLearner", "SmoothNetworkLearner", "SmoothTransformerLearner"]
