"""Frozen parameters, their forward pass, and their files."""

from unsoftmax.models.attention import Attention, check_sequences
from unsoftmax.models.base import Floats, Model, Sizes
from unsoftmax.models.decoder import Decoder
from unsoftmax.models.files import SCORE_FORM, load, save_model
from unsoftmax.models.forward import softmax
from unsoftmax.models.gated import GatedFFN
from unsoftmax.models.network import FFN, Transformer
from unsoftmax.models.stack import MLP, Stack

__all__ = [
    "FFN",
    "MLP",
    "SCORE_FORM",
    "Attention",
    "Decoder",
    "Floats",
    "GatedFFN",
    "Model",
    "Sizes",
    "Stack",
    "Transformer",
    "check_sequences",
    "load",
    "save_model",
    "softmax",
]
