"""Decoder language models from their logits."""

from unsoftmax.learners.decoder.learner import DecoderLearner

__all__ = ["DecoderLearner"]
