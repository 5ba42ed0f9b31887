"""One head from noisy, rounded or bounded answers, with error bars or certified intervals."""

from unsoftmax.learners.noisy.certified import CertifiedHeadLearner
from unsoftmax.learners.noisy.constant import with_constant
from unsoftmax.learners.noisy.learner import NoisyHeadLearner
from unsoftmax.learners.noisy.plan import queries_for
from unsoftmax.learners.noisy.vector import certify_long, certify_vector, learn_vector

__all__ = [
    "CertifiedHeadLearner",
    "NoisyHeadLearner",
    "certify_long",
    "certify_vector",
    "learn_vector",
    "queries_for",
    "with_constant",
]
