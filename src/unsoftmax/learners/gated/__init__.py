"""Gated networks: SwiGLU, GeGLU and their kin; and Transformers that end in one."""

from unsoftmax.learners.gated.learner import GatedNetworkLearner
from unsoftmax.learners.gated.transformer import GatedTransformerLearner

__all__ = ["GatedNetworkLearner", "GatedTransformerLearner"]
