"""Learners: an oracle in, a model out."""
