"""Canonical form, distance, identifiability, witnesses."""
