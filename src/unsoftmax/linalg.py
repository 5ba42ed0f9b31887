"""Numerical primitives: arrays in, arrays out."""
