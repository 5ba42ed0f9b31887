"""Whole pre-norm stacks from their answers."""

from unsoftmax.learners.stack.learner import StackLearner
from unsoftmax.learners.stack.order import mlp_values
from unsoftmax.learners.stack.recognition import Recognised, recognised

__all__ = ["Recognised", "StackLearner", "mlp_values", "recognised"]
