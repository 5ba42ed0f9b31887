"""Recover attention models exactly from their answers."""

__version__ = "0.1.0"
