"""The version of this package, alone, so that every room may import it."""

__version__ = "0.2.0"
