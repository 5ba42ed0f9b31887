"""A one-layer Transformer: one head, then a ReLU network."""

from unsoftmax.learners.transformer.learner import TransformerLearner

__all__ = ["TransformerLearner"]
