"""Gated networks: SwiGLU, GeGLU and their kin."""

from unsoftmax.learners.gated.learner import GatedNetworkLearner

__all__ = ["GatedNetworkLearner"]
