"""Frozen parameters, their forward pass, and their files."""

from unsoftmax.models.attention import Attention, Floats, check_sequences, softmax
from unsoftmax.models.files import SCORE_FORM, load, save_model
from unsoftmax.models.network import FFN, Model, Transformer

__all__ = [
    "FFN",
    "SCORE_FORM",
    "Attention",
    "Floats",
    "Model",
    "Transformer",
    "check_sequences",
    "load",
    "save_model",
    "softmax",
]
