"""Frozen parameters, their forward pass, and their files."""

from unsoftmax.models.attention import Attention, check_sequences, softmax
from unsoftmax.models.base import Floats, Model
from unsoftmax.models.files import SCORE_FORM, load, save_model
from unsoftmax.models.network import FFN, Transformer

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
