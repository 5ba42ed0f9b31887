"""A layer of heads from recorded examples, no questions."""

from unsoftmax.learners.from_examples.learner import learn_from_examples
from unsoftmax.learners.from_examples.sculpting import sculpt

__all__ = ["learn_from_examples", "sculpt"]
