"""Learners for ReLU feed-forward networks."""
