"""Probe construction: sizes and a generator in, arrays out; never calls an oracle."""
