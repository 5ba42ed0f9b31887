"""Targets that say nothing but yes or no, or which of several classes wins."""

from unsoftmax.learners.labels.learner import LabelsLearner

__all__ = ["LabelsLearner"]
