"""Noise floor, family tests, held-out check, certificates."""
