"""Defences, sweeps, verdicts."""
